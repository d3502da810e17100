"""The pages of the settings: the site file with its versions, and the forms of its sections."""

from __future__ import annotations

from starlette.responses import HTMLResponse

from appliance.dashboard.deps import Rev
from appliance.dashboard.settings_api import ConnectionReport, Settings, SettingsReport, installed_networks
from appliance.dashboard.settings_forms import fields_of, forms
from appliance.detect.model_files import AUTO_MODEL
from appliance.types import HEALTH_TITLES
from appliance.web.auth import TemplatesPart
from appliance.web.problems import Problem
from appliance.web.routes import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/settings")
def settings_page(rev: Rev, templates: TemplatesPart, settings: Settings) -> HTMLResponse:
    """Return the page of the site file: whether it is in force as it stands, and its versions."""
    service = settings.service
    return templates.page(
        "settings.html", here="/settings", rev=rev, report=SettingsReport.of(service), versions=service.versions.all(),
        cameras=sorted(service.running.config.cameras),
        forms=[each for each in forms().values() if each.name != "camera"],
        certificate=ConnectionReport.of(settings.certificate).certificate,
    )  # fmt: skip


@router.get("/settings/adjoining")
def adjoining_page(rev: Rev, templates: TemplatesPart, settings: Settings) -> HTMLResponse:
    """Return the page on which zones of different cameras are declared to adjoin."""
    service = settings.service
    config = service.running.config
    return templates.page(
        "adjoining.html", here="/settings", rev=rev, digest=service.status().digest,
        pairs=[each.model_dump(mode="json") for each in config.alerts.adjoining],
        cameras={name: list(each.zones) for name, each in config.cameras.items() if each.zones},
    )  # fmt: skip


@router.get("/settings/{form}")
def settings_form_page(rev: Rev, templates: TemplatesPart, settings: Settings, form: str) -> HTMLResponse:
    """Return one form of the settings, each key in words."""
    words = forms().get(form)
    if words is None or form == "camera":
        raise Problem(404, "There is no such page.")
    service = settings.service
    config, written, status = service.running.config, service.running.as_written(), service.status()
    networks = [AUTO_MODEL, *(each.name for each in installed_networks(config.detector).networks)]
    return templates.page(
        "settings_form.html", here="/settings", rev=rev, form=words, digest=status.digest, edited=status.edited,
        fields=fields_of(words, config, written, networks), present=words.section in written,
        fault_titles=HEALTH_TITLES,
    )  # fmt: skip
