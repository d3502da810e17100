"""The page of the site file: whether it is in force, and its versions."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from appliance.dashboard.deps import Rev
from appliance.dashboard.settings_api import ConnectionReport, Settings, SettingsReport
from appliance.web.auth import TemplatesPart

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/settings")
def settings_page(rev: Rev, templates: TemplatesPart, settings: Settings) -> HTMLResponse:
    """Return the page of the site file: whether it is in force as it stands, and its versions."""
    service = settings.service
    return templates.page(
        "settings.html", here="/settings", rev=rev, report=SettingsReport.of(service), versions=service.versions(),
        cameras=sorted(service.running.config.cameras),
        certificate=ConnectionReport.of(settings.certificate).certificate,
    )  # fmt: skip
