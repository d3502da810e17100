"""Defines the access rights of all routes in one table, and checks each request against it in one place."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fastapi import Request
from starlette.routing import Route

from appliance.base.errors import StoreError
from appliance.dashboard.schemas import API
from appliance.store.alerts import AlertStore
from appliance.store.health_events import HealthEventStore
from appliance.store.users import AccessLog
from appliance.types.accounts import Role
from appliance.web.auth import Access, address_of
from appliance.web.problems import Problem
from appliance.web.routes import part_of
from appliance.web.visitor import visitor

logger = logging.getLogger(__name__)

Shows = Literal["own", "site", "camera", "alert", "health"]
"""Say how a route treats a visitor who may see some cameras only. own: it leaves out the others by itself; site: all
of the site, so it is refused; camera, alert, health: one of which the path says the name or id."""
_WHERE = {"camera": "name", "alert": "alert_id", "health": "event"}


@dataclass(frozen=True, slots=True)
class Right:
    """The right that a route requires.

    role None: the route is open to everybody. logged: the word for the access log; '': none. viewed: the word for a
    look at what a camera saw, which is logged once in `VIEW_EVERY_S`.
    """

    role: Role | None
    shows: Shows = "site"
    logged: str = ""
    viewed: str = ""


VIEW_EVERY_S = 600.0  # of one person, address and camera: a player asks for a recording in many parts
VIEWS_MAX = 4096  # remembered; the oldest is logged again
WATCHED_CLIP, WATCHED_RECORDING = "watched a clip", "watched the recording"
SAW_STILLS, WATCHED_LIVE = "saw pictures of alerts", "watched live"
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
    ("GET", "/proofs"): _ADMIN,
    ("GET", "/storage"): _SITE,
    ("GET", "/cameras/new"): _ADMIN,
    ("GET", "/cameras/{name}/edit"): _ADMIN,
    ("GET", "/cameras/{name}/settings"): _ADMIN,
    ("GET", "/settings"): _ADMIN,
    ("GET", "/settings/adjoining"): _ADMIN,
    ("GET", "/settings/{form}"): _ADMIN,
    ("POST", f"{API}/proofs"): Right("admin", "site", "tried a model"),
    ("DELETE", f"{API}/proofs"): Right("admin", "site", "ended the trial of a model"),
    ("GET", "/models"): _ADMIN,
    ("GET", f"{API}/models"): _ADMIN,
    ("POST", f"{API}/models/pull"): Right("admin", "site", "pulled a model"),
    ("POST", f"{API}/models/offers"): Right("admin", "site", "looked for models"),
    ("POST", f"{API}/models/use"): Right("admin", "site", "put a model in force"),
    ("POST", f"{API}/models/shadow"): Right("admin", "site", "had a model compared live"),
    ("DELETE", f"{API}/models/shadow"): Right("admin", "site", "ended a live comparison"),
    ("POST", f"{API}/models/back"): Right("admin", "site", "went back to a model"),
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
    ("GET", f"{API}/alerts/{{alert_id}}/evidence/{{name}}"): Right("viewer", "alert", viewed=WATCHED_CLIP),
    ("POST", f"{API}/alerts/{{alert_id}}/export"): Right("reviewer", "alert", "exported"),
    ("POST", f"{API}/cameras/{{name}}/export"): Right("reviewer", "camera", "exported"),
    ("GET", f"{API}/exports"): Right("reviewer", "own"),
    ("GET", f"{API}/exports/{{export}}"): Right("reviewer", "own"),
    ("GET", f"{API}/exports/{{export}}/export.zip"): Right("reviewer", "own", "downloaded an export"),
    ("DELETE", f"{API}/exports/{{export}}"): Right("reviewer", "own", "deleted an export"),
    ("POST", f"{API}/exports/{{export}}/link"): Right("reviewer", "own", "made a link"),
    ("DELETE", f"{API}/exports/{{export}}/link"): Right("reviewer", "own", "ended a link"),
    ("GET", "/shared/{token}"): _OPEN,  # the link is for one clip, ends, and is logged when it is opened
    ("GET", "/shared/{token}/clip.mp4"): _OPEN,
    ("HEAD", f"{API}/alerts/{{alert_id}}/evidence/{{name}}"): _ALERT,
    ("GET", f"{API}/alerts/{{alert_id}}/rendition"): Right("viewer", "alert", viewed=WATCHED_CLIP),
    ("GET", f"{API}/alerts/{{alert_id}}/rendition.mp4"): Right("viewer", "alert", viewed=WATCHED_CLIP),
    ("POST", f"{API}/alerts/{{alert_id}}/keep"): Right("reviewer", "alert", "kept"),
    ("GET", f"{API}/scenarios"): _SITE,
    ("GET", f"{API}/scenarios/run"): _SITE,
    ("POST", f"{API}/scenarios/run"): Right("reviewer", "site", "ran the scenarios"),
    ("POST", f"{API}/scenarios/run/cancel"): Right("reviewer", "site", "cancelled a run of the scenarios"),
    ("DELETE", f"{API}/scenarios/{{name}}"): Right("reviewer", "site", "deleted"),
    ("GET", f"{API}/scenarios/{{name}}/clip.mp4"): Right("viewer", "site", viewed="watched a kept scenario"),
    ("GET", f"{API}/cameras"): _OWN,
    ("GET", f"{API}/cameras/{{name}}"): _CAMERA,
    ("GET", f"{API}/cameras/{{name}}/picture"): Right("viewer", "camera", viewed=WATCHED_LIVE),
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
    ("GET", f"{API}/cameras/{{name}}/frame"): Right("viewer", "camera", viewed=WATCHED_RECORDING),
    ("GET", f"{API}/cameras/{{name}}/recording"): Right("viewer", "camera", viewed=WATCHED_RECORDING),
    ("GET", f"{API}/cameras/{{name}}/recording.mp4"): Right("viewer", "camera", viewed=WATCHED_RECORDING),
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
    ("GET", f"{API}/live"): Right("viewer", "own", viewed=WATCHED_LIVE),
    ("GET", f"{API}/health/events"): _OWN,
    ("GET", f"{API}/health/events/{{event}}"): _HEALTH,
    ("POST", f"{API}/health/events/{{event}}/seen"): Right("reviewer", "health", "seen"),
    ("GET", f"{API}/headroom"): _SITE,
    ("GET", f"{API}/cascade"): _SITE,
    ("GET", f"{API}/agreement"): _SITE,
    ("GET", f"{API}/proofs"): _ADMIN,
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
    ("GET", f"{API}/access-log.csv"): _ADMIN,
    ("GET", "/access"): _ADMIN,
    ("POST", f"{API}/cameras/{{name}}/erase"): Right("admin", "camera", "erased a span"),
    ("GET", f"{API}/erasures"): _ADMIN,
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


class ViewLog:
    """Writes who looked at what into the access log, a look that goes on once in `VIEW_EVERY_S`.

    State: when each look was last written. Any thread may call.
    """

    def __init__(self, log: AccessLog) -> None:
        self._log = log
        self._written: OrderedDict[tuple[str, ...], float] = OrderedDict()

    def note(self, who: str, address: str, what: str, about: str, camera: str) -> None:
        """Write a look, unless the same one was written a moment ago. Raise StoreError."""
        key, now = (who, address, what, about, camera), self._log.now
        if 0 <= now - self._written.get(key, -VIEW_EVERY_S) < VIEW_EVERY_S:
            return
        self._log.write(who, address, what, about, camera)
        self._written.pop(key, None)
        self._written[key] = now  # as the newest
        while len(self._written) > VIEWS_MAX:
            self._written.popitem(last=False)


def tell_view(
    request: Request, *, what: str | None = None, about: str | None = None, cameras: Sequence[str] = ()
) -> None:
    """Say what a handler shows, where the table of rights cannot: None: as it says there; what '': nothing."""
    request.state.view = (what, about, tuple(cameras))


async def authorise(request: Request) -> AsyncIterator[None]:
    """Refuse what the visitor may not do, before the handler runs, and log a change after it.

    The change is logged before the response leaves: a client that has the response finds the change in the log.
    Depended on with the scope "function". Raise Problem if the visitor may not.
    """
    route: Route = request.scope["route"]
    right = RIGHTS.get((request.method, route.path), _ADMIN)
    if right.role is None:
        yield
        return
    access, cameras = part_of(request, Access), part_of(request, CameraOf)
    log, views = part_of(request, AccessLog), part_of(request, ViewLog)
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
    try:
        if right.logged:
            camera = getattr(request.state, "camera", "")
            if not camera and right.shows in ("camera", "alert"):
                camera = await asyncio.to_thread(cameras.find, right.shows, about) or ""
            about = getattr(request.state, "about", "") or about or ", ".join(map(str, request.path_params.values()))
            await asyncio.to_thread(log.write, who.name, address_of(request.scope), right.logged, about, camera)
        if right.viewed:
            await asyncio.to_thread(_note_view, request, right, about, cameras, views)
    except StoreError as error:
        logger.warning("an act of %s is not in the access log: %s", who.name or "the owner", error)


def _note_view(request: Request, right: Right, about: str, cameras: CameraOf, views: ViewLog) -> None:
    what, shown, seen = getattr(request.state, "view", (None, None, ()))
    if what == "":
        return
    if not seen:
        seen = (cameras.find(right.shows, about) or "",) if right.shows in ("camera", "alert") else ("",)
    if shown is None:
        shown = about if right.shows != "camera" else ""
    for camera in seen:
        views.note(visitor().name, address_of(request.scope), what or right.viewed, shown, camera)
