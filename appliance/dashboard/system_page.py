"""The page System, for whoever looks after the appliance."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse

from appliance.backup.sealed_box import PASSPHRASE_LENGTH_MIN
from appliance.base.telemetry import LOG_LEVELS
from appliance.dashboard.backup_api import Backups
from appliance.dashboard.settings_api import Settings
from appliance.dashboard.system_api import DROP_TEXTS, LOG_SHOWN, Level, System
from appliance.web.auth import TemplatesPart

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/system")
def system_page(
    templates: TemplatesPart, reader: System, backups: Backups, settings: Settings, level: Level = "info"
) -> HTMLResponse:
    """How the appliance does, for who looks after it."""
    return templates.page(
        "system.html", here="/system", report=reader.report(), log=reader.log(level, LOG_SHOWN), level=level,
        levels=LOG_LEVELS[1:4], drop_texts=DROP_TEXTS, kept=backups.report(), can_back_up=settings.is_editable,
        length_min=PASSPHRASE_LENGTH_MIN,
    )  # fmt: skip
