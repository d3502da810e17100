"""The first run: `/setup` takes the one-time code from the console, names the site, and makes the first user."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse, RedirectResponse, Response

from appliance.base.passwords import LENGTH_MIN
from appliance.dashboard.settings_api import Settings
from appliance.web.auth import AccessPart, TemplatesPart

router = APIRouter(tags=["session"])


@router.get("/setup", response_class=HTMLResponse)
def setup_page(templates: TemplatesPart, access: AccessPart, settings: Settings) -> Response:
    """Return the page of the first run; once there is a user, redirect to the start page."""
    if not access.in_setup:
        return RedirectResponse("/", 303)
    site = settings.service.running.config.site.name
    return templates.page("setup.html", site_name=site, length_min=LENGTH_MIN)
