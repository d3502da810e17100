"""The page that adds a camera, and the fragments that its script asks for."""

from __future__ import annotations

import re

from fastapi import APIRouter, Depends
from starlette.responses import HTMLResponse

from appliance.dashboard.camera_finder_api import AskCamera, Finder
from appliance.dashboard.camera_setup_api import VENDORS, CameraStreams, Prober
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import Rev
from appliance.dashboard.settings_api import (
    editable_settings,
)
from appliance.web.auth import TemplatesPart

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/cameras/new", dependencies=[Depends(editable_settings)])
def camera_new_page(rev: Rev, templates: TemplatesPart, cameras: Cameras) -> HTMLResponse:
    """Return the page on which a camera is found in the network or by its address, tried, seen, named and added."""
    first = not cameras.configured
    return templates.page("camera_new.html", here="/cameras", rev=rev, vendors=VENDORS, first=first)


@router.post("/fragments/setup/probe")
def probe_fragment(prober: Prober, templates: TemplatesPart, wanted: CameraStreams) -> HTMLResponse:
    """Return what a camera sent, for the page."""
    return templates.page("probed.html", found=prober.probe(wanted))


@router.post("/fragments/setup/discover")
def discover_fragment(finder: Finder, templates: TemplatesPart) -> HTMLResponse:
    """Return the cameras that answer in the local network, for the page."""
    return templates.page("found_cameras.html", cameras=finder.found().cameras, slug=slug)


@router.post("/fragments/setup/onvif")
def onvif_fragment(finder: Finder, templates: TemplatesPart, wanted: AskCamera) -> HTMLResponse:
    """Return a camera's description of itself, for the page."""
    return templates.page("found_streams.html", found=finder.ask(wanted))


def slug(text: str) -> str:
    """Return a name that a camera may have, made from what it calls itself; '': nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:32].rstrip("-")
