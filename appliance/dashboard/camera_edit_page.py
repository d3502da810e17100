"""The editor of a camera: zones, lines and rules drawn on its picture, tried on what was recorded, saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from appliance.dashboard.alert_reader import AlertFilter, AlertFilterQuery, AlertReader, Reader
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.false_alarms_api import FalseAlarms
from appliance.dashboard.settings_api import Settings, editable_settings, installed_networks
from appliance.dashboard.trials_api import page_of
from appliance.types import Review
from appliance.web.auth import TemplatesPart
from appliance.web.texts import gettext as _
from appliance.web.texts import ngettext

COMMON_LABELS = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog")
MINUTES = (10, 30, 60)  # of a trial on the recording
ALERTS_TRIED = 20  # a trial replays each

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/cameras/{name}/edit", dependencies=[Depends(editable_settings)])
def camera_edit_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    alarms: FalseAlarms,
    alerts: Reader,
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
