"""The pages of cameras: all, one, its editor, its settings and its trials; how a new one is found, tried and named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import Depends
from starlette.responses import HTMLResponse

from appliance.config import LineRule, Rule
from appliance.dashboard import headroom_api
from appliance.dashboard.access_rights import may
from appliance.dashboard.alert_reader import AlertFilter, AlertFilterQuery, AlertReader, AlertsPart
from appliance.dashboard.arming_api import PAUSE_LENGTHS, ArmingPart, ArmingReport
from appliance.dashboard.camera_address import VENDORS
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.false_alarms_api import FalseAlarms
from appliance.dashboard.headroom_api import Headroom
from appliance.dashboard.health_api import HealthPart
from appliance.dashboard.live_api import LiveHub
from appliance.dashboard.models_api import Models
from appliance.dashboard.schemas import API
from appliance.dashboard.settings_api import Settings, editable_settings, installed_networks
from appliance.dashboard.settings_forms import fields_of, forms, zone_fields
from appliance.dashboard.setup_probe_api import stored_streams
from appliance.dashboard.trials_api import TrialId, Trials, page_of
from appliance.types import HEALTH_TITLES, Review
from appliance.web.auth import TemplatesPart
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.texts import gettext as _
from appliance.web.texts import ngettext
from appliance.web.visitor import visitor

RECENT = 6  # alerts in one row of the page
COMMON_LABELS = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog")
MINUTES = (10, 30, 60)  # of a trial on the recording
ALERTS_TRIED = 20  # a trial replays each

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/cameras")
def cameras_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    health: HealthPart,
    headroom: Headroom,
    settings: Settings,
    arming: ArmingPart,
    models: Models,
) -> HTMLResponse:
    """All cameras with their latest frames, and what the detector has left for them."""
    items = cameras.items()
    off = sorted(name for name, each in cameras.configured.items() if not each.enabled and visitor().sees(name))
    summary = _("{live} of {n} live").format(live=sum(camera.state == "live" for camera in items), n=len(items))
    faults = health.open_titles()
    found = headroom.report()
    return templates.page(
        "cameras.html", here="/cameras", rev=rev,
        paused={row.camera: row for row in arming.pauses.paused() if not row.rule},
        cameras=items, summary=summary, faults=faults, off=off,
        headroom=found, outlook=headroom_api.sentence(found), editable=settings.is_editable,
        better=models.better() if settings.is_editable and may("POST", f"{API}/models/use") else "",
    )  # fmt: skip


@router.get("/cameras/new", dependencies=[Depends(editable_settings)])
def camera_new_page(rev: Rev, templates: TemplatesPart, cameras: Cameras, models: Models) -> HTMLResponse:
    """Return the page on which a camera is found in the network or by its address, tried, seen, named and added."""
    first = not cameras.configured
    return templates.page(
        "camera_new.html", here="/cameras", rev=rev, vendors=VENDORS, first=first, better=models.better()
    )


def expect_live(name: str, hub: Annotated[LiveHub, Depends(provided(LiveHub))]) -> None:
    """Prepare for its live video, which this page asks for once it is loaded."""
    hub.expect(name)


@router.get("/cameras/{name}/settings", dependencies=[Depends(editable_settings)])
def camera_settings_page(rev: Rev, templates: TemplatesPart, settings: Settings, name: str) -> HTMLResponse:
    """Return the page on which a camera gets another name, address or password, is switched off, or removed."""
    service = settings.service
    config, written = service.running.config, service.running.as_written()
    camera = config.cameras.get(name)
    if camera is None:
        raise Problem(404, "There is no such camera in the site file.")
    streams = stored_streams(camera)
    shown = {"url": camera.url, "user": "", "password": ""} if camera.is_file else streams.addresses()
    if not camera.is_file:
        _, shown["user"], shown["password"] = streams.parts()
    form = forms()["camera"]
    return templates.page(
        "camera_settings.html", here="/cameras", rev=rev, id=name, camera=camera, streams=shown, vendors=VENDORS,
        has_password=bool(shown.pop("password")), digest=service.running.digest, form=form,
        fields=fields_of(form, config, written, (), name), zone_fields=zone_fields(config, name),
        fault_titles=HEALTH_TITLES,
        others=sorted(set(config.cameras) - {name}),
    )  # fmt: skip


@router.get("/cameras/{name}", dependencies=[Depends(expect_live)])
def camera_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    alerts: AlertsPart,
    health: HealthPart,
    settings: Settings,
    arming: ArmingPart,
    name: str,
) -> HTMLResponse:
    """One camera: its latest frame with boxes, zones and lines; its interruptions and numbers."""
    camera = cameras.full(name)
    configured = cameras.configured.get(name)
    rules = [{"name": rule.name, "words": _rule_text(rule)} for rule in (configured.rules if configured else ())]
    items, _ = alerts.page(AlertFilter(AlertFilterQuery(camera=name)), "", RECENT)
    events, _ = health.page(name, None, "", RECENT)
    return templates.page(
        "camera.html", here="/cameras", rev=rev, camera=camera, gaps=camera.gaps, rules=rules, alerts=items,
        arming=ArmingReport.of(arming, name), off_rules=sorted(arming.off_rules(name)), lengths=PAUSE_LENGTHS,
        lasting=health.open(name), health=[event for event in events if event.t_end is not None],
        editable=settings.is_editable and configured is not None,
        second=configured is not None and configured.detect_url is not None,
        ptz=configured is not None and configured.onvif is not None and may("POST", f"{API}/cameras/{{name}}/ptz"),
    )  # fmt: skip


def _rule_text(rule: Rule) -> str:
    labels = ", ".join(rule.labels)
    if isinstance(rule, LineRule):
        way = {"both": "", "left_to_right": " left to right", "right_to_left": " right to left"}[rule.direction]
        return f"{labels} crosses line {rule.line}{way}"
    verb = {"enter": "enters", "exit": "leaves", "dwell": "stays in"}[rule.kind]
    stay: Any = f" for {rule.seconds:g} s" if rule.kind == "dwell" else ""
    return f"{labels} {verb} zone {rule.zone}{stay}"


@router.get("/cameras/{name}/edit", dependencies=[Depends(editable_settings)])
def camera_edit_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    alarms: FalseAlarms,
    alerts: AlertsPart,
    settings: Settings,
    name: str,
) -> HTMLResponse:
    """Zones, lines and rules of a camera, drawn on its picture."""
    camera = cameras.full(name)
    return templates.page(
        "camera_edit.html", here="/cameras", rev=rev, camera=camera, labels=COMMON_LABELS,
        proposals=alarms.proposals(name), stretches=list(_stretches(alerts, name)), trials=page_of(name),
        networks=installed_networks(settings.service.running.config.detector),
    )  # fmt: skip


def _stretches(alerts: AlertReader, name: str) -> Iterator[tuple[str, str]]:
    """Yield the stretches of the recording that a trial may take: of a request as JSON, and in words."""
    for minutes in MINUTES:
        yield json.dumps({"minutes": minutes}), _("%(n)s minutes") % {"n": minutes}
    reviews: tuple[Review | Literal[""], ...] = ("", "false_alarm", "reviewed")
    for review in reviews:
        items, _older = alerts.page(AlertFilter(AlertFilterQuery(camera=name, review=review)), "", ALERTS_TRIED)
        if items:
            words = {
                "": ngettext("around the last alert", "around the last %(n)s alerts", len(items)),
                "false_alarm": ngettext(
                    "around the last false alarm", "around the last %(n)s false alarms", len(items)
                ),
                "reviewed": ngettext(
                    "around the last alert that was right", "around the last %(n)s alerts that were right", len(items)
                ),
            }[review]
            yield json.dumps({"alerts": [each.id for each in items]}), words % {"n": len(items)}


@router.get("/cameras/{name}/trials")
def trials_page(rev: Rev, templates: TemplatesPart, cameras: Cameras, reader: Trials, name: str) -> HTMLResponse:
    """Return the page of what was tried on a camera's recording."""
    return templates.page("trials.html", here="/cameras", rev=rev, camera=cameras.full(name), trials=reader.all(name))


@router.get("/cameras/{name}/trials/{trial}")
def trial_page(
    rev: Rev, templates: TemplatesPart, cameras: Cameras, reader: Trials, name: str, trial: TrialId
) -> HTMLResponse:
    """One of them: how far it is, then what differs."""
    report = reader.report(name, trial)
    return templates.page(
        "trial.html", here="/cameras", rev=rev, camera=cameras.full(name), trial=report, all_of_them=page_of(name)
    )
