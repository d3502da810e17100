"""`/api/v1/push`: the visitor's browsers that are notified; the manifest and service worker that make it an app."""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import Request
from pydantic import Field
from starlette.responses import FileResponse, JSONResponse

from appliance.base.errors import UsageError
from appliance.config import PushTarget
from appliance.dashboard.notify_api import Hours, NotifyContext, NotifyPart, TestOutcome, tested
from appliance.dashboard.schemas import API, ApiModel, Flag, RequestModel
from appliance.dashboard.settings_api import Settings, SettingsPart, settings_problems, user_of
from appliance.settings.yaml_edit import SiteChange
from appliance.store.push_subscriptions import PushPreference, PushSubscription
from appliance.types import HEALTH_TITLES, Severity
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList
from appliance.web.visitor import visitor

router = RouteList(prefix=API, tags=["notifications"])
app_router = RouteList(include_in_schema=False)
WORKER = Path(__file__).parent / "static" / "sw.js"
MANIFEST: dict[str, Any] = {
    "name": "Vedette",
    "short_name": "Vedette",
    "id": "/",
    "start_url": "/",
    "scope": "/",
    "display": "standalone",
    "background_color": "#f6f5f1",
    "theme_color": "#0d6b58",
    "icons": [
        {"src": "/static/icons/192.png", "sizes": "192x192", "type": "image/png", "purpose": "any"},
        {"src": "/static/icons/512.png", "sizes": "512x512", "type": "image/png", "purpose": "any"},
        {"src": "/static/icons/512.png", "sizes": "512x512", "type": "image/png", "purpose": "maskable"},
    ],
}


class BrowserItem(ApiModel):
    """A browser that is notified."""

    id: str
    user: str
    label: str
    created_t: float


class PreferenceItem(ApiModel):
    """Preferences of the visitor for their browsers: severities from this one on, and not at these hours.

    urgent: severity alert comes at any hour.
    """

    severity: Severity = "info"
    quiet_hours: str = ""
    urgent: bool = False


class BrowserList(ApiModel):
    """key: for `applicationServerKey`; '': this site notifies no browsers. browsers, preferences: the visitor's own."""

    key: str
    target: str
    browsers: list[BrowserItem]
    preferences: PreferenceItem = PreferenceItem()


class SavePreferences(RequestModel):
    """Preferences of a person, on all of their browsers."""

    severity: Severity
    quiet_hours: Hours = ""
    urgent: Flag = False


class NewPushTarget(RequestModel):
    """public_url: the address that the visitor has opened; '': only this machine reaches it."""

    public_url: Annotated[str, Field(max_length=200, pattern=r"^(https://[^\s/]+/?)?$")] = ""


class Subscribe(RequestModel):
    """A subscription as the browser makes it; the keys in base64url."""

    endpoint: Annotated[str, Field(max_length=1000)]
    p256dh: Annotated[str, Field(max_length=200)]
    auth: Annotated[str, Field(max_length=100)]
    label: Annotated[str, Field(max_length=100)] = ""


@router.get("/push")
def list_browsers(context: NotifyPart) -> BrowserList:
    """Return what a browser needs to subscribe, and those of the visitor's browsers that did."""
    return browsers_of(context)


def may_subscribe(context: NotifyContext, settings: SettingsPart) -> bool:
    """Return whether the visitor can have a browser notified: there is a target for it, or they may make one."""
    makes = settings.is_editable and visitor().may("admin") and visitor().cameras is None
    return context.probes.push is not None and (bool(context.push_target) or makes)


def browsers_of(context: NotifyContext) -> BrowserList:
    if context.probes.push is None or not context.push_target:
        return BrowserList(key="", target="", browsers=[])
    own = [each for each in context.push.subscriptions.all() if each.user == visitor().name]
    preference = context.push.subscriptions.preferences().get(visitor().name, PushPreference())
    return BrowserList(
        key=context.push.key.public, target=context.push_target,
        browsers=[BrowserItem.of_row(each) for each in own],
        preferences=PreferenceItem.of_row(preference),
    )  # fmt: skip


@router.post("/push/preferences")
def save_preferences(context: NotifyPart, wanted: SavePreferences) -> BrowserList:
    """Set from which severity on, and at which hours not, the visitor's browsers are told."""
    preference = PushPreference(severity=wanted.severity, quiet_hours=wanted.quiet_hours, urgent=wanted.urgent)
    context.push.subscriptions.put_preference(visitor().name, preference)
    return browsers_of(context)


@router.post("/push/target")
def add_push_target(request: Request, context: NotifyPart, settings: Settings, wanted: NewPushTarget) -> BrowserList:
    """Let browsers be notified: make the target that they subscribe to, unless there is one.

    The dashboard's public address, which messages link to, is set where none is.
    """
    service = settings.service
    changes = []
    if not context.push_target:
        name = next(name for n in range(100) if (name := f"browsers{n or ''}") not in context.targets)
        changes.append(SiteChange(("notify", name), {"kind": "push", "health": list(HEALTH_TITLES)}))
    if wanted.public_url and not service.running.config.dashboard.public_url:
        changes.append(SiteChange(("dashboard", "public_url"), wanted.public_url))
    if changes:
        with settings_problems():
            service.change(changes, service.running.digest, user_of(request), "browsers are notified")
    return browsers_of(request.app.state.parts[NotifyContext])


@router.post("/push/{browser}/test")
def test_browser(context: NotifyPart, browser: str) -> TestOutcome:
    """Send a test message to one of the visitor's browsers, and say what came back."""
    own = [each for each in context.push.subscriptions.all() if each.id == browser and each.user == visitor().name]
    if not own:
        raise Problem(404, "You have no such browser.")
    return tested(context, own[0].target, replace(context.push, only=browser))


@router.post("/push")
def subscribe(request: Request, context: NotifyPart, wanted: Subscribe) -> BrowserList:
    """Notify this browser, of the cameras that the visitor may see."""
    from appliance.notify.push_sender import browser_key

    push, target = context.push, context.targets[context.push_target]
    assert isinstance(target, PushTarget)
    with refused_as({UsageError: 422, ValueError: 422}):
        target.check_endpoint(wanted.endpoint)
        p256dh, auth = _base64url(wanted.p256dh), _base64url(wanted.auth)
        browser_key(p256dh, auth)
        push.subscriptions.put(
            PushSubscription(
                target=context.push_target, user=visitor().name, endpoint=wanted.endpoint, p256dh=p256dh, auth=auth,
                label=wanted.label,
            )
        )  # fmt: skip
    request.state.about = wanted.label
    return browsers_of(context)


@router.delete("/push/{browser}")
def unsubscribe(context: NotifyPart, browser: str) -> BrowserList:
    """Notify a browser of the visitor's no more."""
    if not context.push.subscriptions.remove(browser, visitor().name):
        raise Problem(404, "You have no such browser.")
    return browsers_of(context)


def _base64url(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        raise ValueError("these are no keys of a push subscription") from None


@app_router.get("/manifest.webmanifest")
def manifest() -> JSONResponse:
    """Names and icons; browsers fetch it without signing in."""
    return JSONResponse(MANIFEST, media_type="application/manifest+json")


@app_router.get("/sw.js")
def service_worker() -> FileResponse:
    """From the root, since a service worker sees only what lies below it."""
    return FileResponse(WORKER, media_type="text/javascript", headers={"Cache-Control": "no-cache"})
