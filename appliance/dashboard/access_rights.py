"""The access rights of all routes in one table, and the one place that checks each request against it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Depends, Request
from starlette.routing import Route

from appliance.base.errors import StoreError
from appliance.dashboard.schemas import API
from appliance.store.alerts import AlertStore
from appliance.store.health_events import HealthEventStore
from appliance.store.users import AccessLog
from appliance.types.accounts import Role
from appliance.web.auth import Access, address_of
from appliance.web.dependencies import provided
from appliance.web.problems import Problem
from appliance.web.visitor import visitor

logger = logging.getLogger(__name__)

Shows = Literal["own", "site", "camera", "alert", "health"]
"""What a route shows to a visitor who may see some cameras only. own: it leaves out the others by itself; site: all
of the site, so it is refused; camera, alert, health: one of which the path says the name or id."""
_WHERE = {"camera": "name", "alert": "alert_id", "health": "event"}


@dataclass(frozen=True, slots=True)
class Right:
    """The right that a route requires.

    role None: the route is open to everybody. logged: the word for the access log; '': none.
    """

    role: Role | None
    shows: Shows = "site"
    logged: str = ""


_OPEN = Right(None, "own")
_OWN, _SITE = Right("viewer", "own"), Right("viewer")
_CAMERA, _ALERT, _HEALTH = Right("viewer", "camera"), Right("viewer", "alert"), Right("viewer", "health")
_ADMIN = Right("admin")

# Method and path of every route. One that is not here is the admins'; a test fails until it is.
RIGHTS: dict[tuple[str, str], Right] = {
    ("GET", "/healthz"): _OPEN,
    ("GET", "/readyz"): _OPEN,
    ("GET", "/login"): _OPEN,
    ("POST", "/login"): _OPEN,
    ("POST", "/logout"): _OPEN,
    ("GET", "/setup"): _OPEN,
    ("GET", "/static/texts/{language}.js"): _OPEN,
    ("POST", "/language"): _OPEN,
    ("POST", "/setup"): _OPEN,
    ("GET", "/"): _OWN,
    ("GET", "/cameras"): _OWN,
    ("GET", "/live"): _OWN,
    ("GET", "/cameras/{name}"): _CAMERA,
    ("GET", "/cameras/{name}/timeline"): _CAMERA,
    ("GET", "/cameras/{name}/why"): _CAMERA,
    ("GET", "/timeline"): _OWN,
    ("GET", "/alerts/{alert_id}"): _ALERT,
    ("GET", "/fragments/alerts/{alert_id}"): _ALERT,
    ("GET", "/fragments/troubles"): _OWN,
    ("GET", "/fragments/health/{event}"): _HEALTH,
    ("GET", "/savings"): _SITE,
    ("GET", "/scenarios"): _SITE,
    ("GET", "/agreement"): _SITE,
    ("GET", "/storage"): _SITE,
    ("GET", "/cameras/new"): _ADMIN,
    ("GET", "/cameras/{name}/edit"): _ADMIN,
    ("GET", "/cameras/{name}/settings"): _ADMIN,
    ("GET", "/settings"): _ADMIN,
    ("GET", "/settings/adjoining"): _ADMIN,
    ("GET", "/settings/{form}"): _ADMIN,
    ("GET", "/users"): _ADMIN,
    ("GET", "/system"): _ADMIN,
    ("GET", f"{API}/system"): _ADMIN,
    ("GET", f"{API}/system/log"): _ADMIN,
    ("GET", f"{API}/system/diagnostics.zip"): Right("admin", "site", "took diagnostics"),
    ("POST", f"{API}/analyze"): Right("reviewer", "own", "asked about pictures"),  # it spends a camera's money
    ("GET", f"{API}/analyze/{{alert_id}}"): _ALERT,
    ("GET", f"{API}/alerts"): _OWN,
    ("GET", f"{API}/alerts/{{alert_id}}"): _ALERT,
    ("POST", f"{API}/alerts/{{alert_id}}/review"): Right("reviewer", "alert", "reviewed"),
    ("POST", f"{API}/alerts/{{alert_id}}/note"): Right("reviewer", "alert", "noted"),
    ("POST", f"{API}/alerts/review"): Right("reviewer", "own", "reviewed several"),
    ("POST", f"{API}/alerts/delete"): Right("reviewer", "own", "deleted alerts"),
    ("POST", f"{API}/alerts/restore"): Right("reviewer", "own", "restored alerts"),
    ("POST", f"{API}/alerts/{{alert_id}}/escalate"): Right("reviewer", "alert", "escalated"),
    ("GET", f"{API}/alerts/{{alert_id}}/evidence/{{name}}"): _ALERT,
    ("HEAD", f"{API}/alerts/{{alert_id}}/evidence/{{name}}"): _ALERT,
    ("GET", f"{API}/alerts/{{alert_id}}/rendition"): _ALERT,
    ("GET", f"{API}/alerts/{{alert_id}}/rendition.mp4"): _ALERT,
    ("POST", f"{API}/alerts/{{alert_id}}/keep"): Right("reviewer", "alert", "kept"),
    ("GET", f"{API}/scenarios"): _SITE,
    ("DELETE", f"{API}/scenarios/{{name}}"): Right("reviewer", "site", "deleted"),
    ("GET", f"{API}/scenarios/{{name}}/clip.mp4"): _SITE,
    ("GET", f"{API}/cameras"): _OWN,
    ("GET", f"{API}/cameras/{{name}}"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/picture"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/proposals"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/boxes"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/timeline"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/why"): _CAMERA,
    ("POST", f"{API}/cameras/{{name}}/why/replay"): Right("reviewer", "camera", "decided a span again"),
    ("GET", f"{API}/cameras/{{name}}/why/replay/{{job}}"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/jobs/{{job}}"): _CAMERA,
    ("DELETE", f"{API}/cameras/{{name}}/jobs/{{job}}"): Right("reviewer", "camera", "cancelled a job"),
    ("GET", "/cameras/{name}/trials"): _ADMIN,  # they tell of settings of the whole site
    ("GET", "/cameras/{name}/trials/{trial}"): _ADMIN,
    ("GET", f"{API}/cameras/{{name}}/trials"): _ADMIN,
    ("POST", f"{API}/cameras/{{name}}/trials"): Right("admin", "site", "tried settings on the recording"),
    ("GET", f"{API}/cameras/{{name}}/trials/{{trial}}"): _ADMIN,
    ("DELETE", f"{API}/cameras/{{name}}/trials/{{trial}}"): Right("admin", "site", "deleted a trial"),
    ("GET", f"{API}/cameras/{{name}}/frame"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/recording"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/recording.mp4"): _CAMERA,
    ("HEAD", f"{API}/cameras/{{name}}/recording.mp4"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/ptz"): Right("reviewer", "camera"),
    ("POST", f"{API}/cameras/{{name}}/ptz"): Right("reviewer", "camera"),  # logged by itself, once a movement
    ("GET", f"{API}/arming"): _OWN,
    ("POST", f"{API}/arming"): Right("reviewer", "site", "chose the profile"),
    ("GET", "/manifest.webmanifest"): _OPEN,
    ("GET", "/sw.js"): _OPEN,
    ("GET", "/snooze/{token}"): _OPEN,  # the link is signed, and good for one act
    ("POST", "/snooze/{token}"): _OPEN,
    ("GET", "/notify"): _OWN,
    ("GET", f"{API}/notify"): _ADMIN,
    ("POST", f"{API}/notify/{{target}}"): Right("admin", "site", "changed a target"),
    ("DELETE", f"{API}/notify/{{target}}"): Right("admin", "site", "removed a target"),
    ("POST", f"{API}/notify/{{target}}/test"): Right("admin", "site", "sent a test message"),
    ("GET", f"{API}/push"): _OWN,
    ("POST", f"{API}/push"): Right("viewer", "own", "subscribed a browser"),
    ("POST", f"{API}/push/preferences"): Right("viewer", "own", "set when their browsers are told"),
    ("POST", f"{API}/push/target"): Right("admin", "site", "let browsers be notified"),
    ("POST", f"{API}/push/{{browser}}/test"): _OWN,
    ("DELETE", f"{API}/push/{{browser}}"): Right("viewer", "own", "unsubscribed a browser"),
    ("POST", f"{API}/cameras/{{name}}/pause"): Right("reviewer", "camera", "paused"),
    ("GET", f"{API}/stream"): _OWN,
    ("GET", f"{API}/live"): _OWN,
    ("GET", f"{API}/health/events"): _OWN,
    ("GET", f"{API}/health/events/{{event}}"): _HEALTH,
    ("POST", f"{API}/health/events/{{event}}/seen"): Right("reviewer", "health", "seen"),
    ("GET", f"{API}/headroom"): _SITE,
    ("GET", f"{API}/cascade"): _SITE,
    ("GET", f"{API}/agreement"): _SITE,
    ("GET", f"{API}/savings"): _SITE,
    ("GET", f"{API}/savings/history"): _SITE,
    ("GET", f"{API}/savings.csv"): _SITE,
    ("GET", f"{API}/costs"): _SITE,
    ("GET", f"{API}/costs/history"): _SITE,
    ("GET", f"{API}/costs.csv"): _SITE,
    ("GET", f"{API}/storage"): _SITE,
    ("GET", "/metrics"): _SITE,
    ("GET", f"{API}/settings"): _ADMIN,
    ("POST", f"{API}/settings"): Right("admin", "site", "changed the settings"),
    ("GET", f"{API}/settings/connection"): _ADMIN,
    ("GET", f"{API}/settings/networks"): _ADMIN,
    ("POST", f"{API}/settings/check"): _ADMIN,
    ("POST", f"{API}/settings/try"): _ADMIN,
    ("POST", f"{API}/settings/take-edit"): Right("admin", "site", "took the edited site file"),
    ("GET", f"{API}/settings/versions"): _ADMIN,
    ("GET", f"{API}/settings/versions/{{number}}"): _ADMIN,
    ("POST", f"{API}/settings/versions/{{number}}/restore"): Right("admin", "site", "went back to a version"),
    ("GET", f"{API}/setup/vendors"): _ADMIN,
    ("POST", f"{API}/setup/probe"): _ADMIN,
    ("POST", f"{API}/setup/discover"): _ADMIN,
    ("POST", f"{API}/setup/onvif"): _ADMIN,
    ("POST", "/fragments/setup/probe"): _ADMIN,
    ("POST", "/fragments/setup/discover"): _ADMIN,
    ("POST", "/fragments/setup/onvif"): _ADMIN,
    ("GET", f"{API}/setup/pictures/{{key}}"): _ADMIN,
    ("POST", f"{API}/setup/cameras"): Right("admin", "site", "added a camera"),
    ("POST", f"{API}/setup/cameras/{{name}}"): Right("admin", "site", "changed a camera"),
    ("POST", f"{API}/setup/cameras/{{name}}/remove"): Right("admin", "site", "removed a camera"),
    ("POST", f"{API}/setup/cameras/{{name}}/copy"): Right("admin", "site", "copied zones and rules"),
    ("GET", f"{API}/backups"): _ADMIN,
    ("POST", f"{API}/backups"): Right("admin", "site", "made a backup"),
    ("GET", f"{API}/backups/{{backup}}"): Right("admin", "site", "took a backup"),
    ("DELETE", f"{API}/backups/{{backup}}"): Right("admin", "site", "deleted a backup"),
    ("POST", f"{API}/restore/upload"): _ADMIN,
    ("POST", f"{API}/restore"): Right("admin", "site", "laid a restore ready"),
    ("DELETE", f"{API}/restore"): Right("admin", "site", "took back a restore"),
    ("GET", "/account"): _OWN,
    ("GET", f"{API}/me"): _OWN,
    ("GET", f"{API}/me/sessions"): _OWN,
    ("DELETE", f"{API}/me/sessions/{{session}}"): Right("viewer", "own", "ended their own session"),
    ("POST", f"{API}/me/second-factor"): _OWN,
    ("GET", f"{API}/me/second-factor/qr.svg"): _OWN,
    ("POST", f"{API}/me/second-factor/confirm"): Right("viewer", "own", "set up a second factor"),
    ("POST", f"{API}/me/second-factor/remove"): Right("viewer", "own", "removed their second factor"),
    ("POST", f"{API}/me/password"): Right("viewer", "own", "changed their password"),
    ("GET", f"{API}/users"): _ADMIN,
    ("POST", f"{API}/users"): Right("admin", "site", "added a user"),
    ("POST", f"{API}/users/{{user}}"): Right("admin", "site", "changed a user"),
    ("DELETE", f"{API}/users/{{user}}"): Right("admin", "site", "removed a user"),
    ("GET", f"{API}/sessions"): _ADMIN,
    ("DELETE", f"{API}/sessions/{{session}}"): Right("admin", "site", "ended a session"),
    ("GET", f"{API}/tokens"): _ADMIN,
    ("POST", f"{API}/tokens"): Right("admin", "site", "made a token"),
    ("DELETE", f"{API}/tokens/{{token}}"): Right("admin", "site", "revoked a token"),
    ("GET", f"{API}/access-log"): _ADMIN,
}


def may(method: str, path: str) -> bool:
    """Return whether the visitor's role opens a route of the table, with something of theirs in its path.

    Raise KeyError if the route is not in the table.
    """
    right, who = RIGHTS[method, path], visitor()
    return right.role is None or (who.may(right.role) and (who.cameras is None or right.shows != "site"))


class CameraOf:
    """Finds the camera that an alert or a health event is of."""

    def __init__(self, alerts: AlertStore, events: HealthEventStore) -> None:
        self._alerts = alerts
        self._events = events

    def find(self, shows: Shows, name: str) -> str | None:
        """None: there is no such thing. Raises StoreError."""
        if shows == "camera":
            return name
        if shows == "alert":
            return self._alerts.camera_of(name)
        event = self._events.get(name)
        return event.camera if event else None


async def authorise(
    request: Request,
    access: Annotated[Access, Depends(provided(Access))],
    cameras: Annotated[CameraOf, Depends(provided(CameraOf))],
    log: Annotated[AccessLog, Depends(provided(AccessLog))],
) -> AsyncIterator[None]:
    """Refuse what the visitor may not do, before the handler runs, and log a change after it.

    The change is logged before the response leaves: a client that has the response finds the change in the log.
    Depended on with the scope "function". Raise Problem if the visitor may not.
    """
    route: Route = request.scope["route"]
    right = RIGHTS.get((request.method, route.path), _ADMIN)
    if right.role is None:
        yield
        return
    who = visitor()
    if who.by_proxy and access.is_new_by_proxy(who.name, address_of(request.scope)):
        await asyncio.to_thread(log.write, who.name, address_of(request.scope), "came through the proxy")
    if not who.may(right.role):
        raise Problem(403, f"This needs the role {right.role}; yours is {who.role}.")
    about = "" if right.shows in ("own", "site") else request.path_params[_WHERE[right.shows]]
    if who.cameras is not None:
        if right.shows == "site":
            raise Problem(403, "This shows the whole site, and your account is for some of its cameras.")
        camera = await asyncio.to_thread(cameras.find, right.shows, about) if about else ""
        if camera is None or not who.sees(camera):
            raise Problem(404, "There is nothing of that name among your cameras.")
    yield
    if right.logged:
        about = getattr(request.state, "about", "") or about or ", ".join(map(str, request.path_params.values()))
        try:
            await asyncio.to_thread(log.write, who.name, address_of(request.scope), right.logged, about)
        except StoreError as error:
            logger.warning("a change by %s is not in the access log: %s", who.name or "the owner", error)
