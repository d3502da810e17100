"""The pages on which a camera is added, and gets another name, address or password; what a try of it brings."""

from __future__ import annotations

from fastapi import Depends
from starlette.responses import HTMLResponse

from appliance.dashboard.camera_finder_api import AskCamera, Finder
from appliance.dashboard.camera_setup_api import VENDORS, Prober, TryCamera, stored_streams, tried
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.models_api import Models
from appliance.dashboard.settings_api import Settings, editable_settings
from appliance.dashboard.settings_forms import fields_of, forms, zone_fields
from appliance.types import HEALTH_TITLES
from appliance.web.auth import TemplatesPart
from appliance.web.problems import Problem
from appliance.web.route_list import RouteList

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/cameras/new", dependencies=[Depends(editable_settings)])
def camera_new_page(rev: Rev, templates: TemplatesPart, cameras: Cameras, models: Models) -> HTMLResponse:
    """Return the page on which a camera is found in the network or by its address, tried, seen, named and added."""
    first = not cameras.configured
    return templates.page(
        "camera_new.html", here="/cameras", rev=rev, vendors=VENDORS, first=first, better=models.better()
    )


@router.post("/fragments/setup/probe")
def probe_fragment(prober: Prober, settings: Settings, templates: TemplatesPart, wanted: TryCamera) -> HTMLResponse:
    """Return what a camera sent, for the page."""
    return templates.page("probed.html", found=prober.probe(tried(settings, wanted)))


@router.post("/fragments/setup/discover")
def discover_fragment(finder: Finder, templates: TemplatesPart) -> HTMLResponse:
    """Return the cameras that answer in the local network, for the page."""
    return templates.page("found_cameras.html", cameras=finder.found().cameras)


@router.post("/fragments/setup/onvif")
def onvif_fragment(finder: Finder, templates: TemplatesPart, wanted: AskCamera) -> HTMLResponse:
    """Return a camera's description of itself, for the page."""
    return templates.page("found_streams.html", found=finder.ask(wanted))


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
