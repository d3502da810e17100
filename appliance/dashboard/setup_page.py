"""The page of the first run, and what the page of a new camera shows of a camera that was found or tried."""

from __future__ import annotations

from starlette.responses import HTMLResponse, RedirectResponse, Response

from appliance.base.credentials import LENGTH_MIN
from appliance.dashboard.settings_api import Settings
from appliance.dashboard.setup_probe_api import AskCamera, Finder, Prober, TryCamera, tried
from appliance.web.auth import AccessPart, TemplatesPart
from appliance.web.routes import RouteList

router = RouteList(default_response_class=HTMLResponse)


@router.get("/setup", tags=["session"])
def setup_page(templates: TemplatesPart, access: AccessPart, settings: Settings) -> Response:
    """Return the page of the first run; once there is a user, redirect to the start page."""
    if not access.in_setup:
        return RedirectResponse("/", 303)
    site = settings.service.running.config.site.shown
    return templates.page("setup.html", site_name=site, length_min=LENGTH_MIN)


@router.post("/fragments/setup/probe", include_in_schema=False)
def probe_fragment(prober: Prober, settings: Settings, templates: TemplatesPart, wanted: TryCamera) -> HTMLResponse:
    """Return what a camera sent, for the page."""
    return templates.page("probed.html", found=prober.probe(tried(settings, wanted)))


@router.post("/fragments/setup/discover", include_in_schema=False)
def discover_fragment(finder: Finder, templates: TemplatesPart) -> HTMLResponse:
    """Return the cameras that answer in the local network, for the page."""
    return templates.page("found_cameras.html", cameras=finder.found().cameras)


@router.post("/fragments/setup/onvif", include_in_schema=False)
def onvif_fragment(finder: Finder, templates: TemplatesPart, wanted: AskCamera) -> HTMLResponse:
    """Return a camera's description of itself, for the page."""
    return templates.page("found_streams.html", found=finder.ask(wanted))
