"""`/healthz`, `/readyz` and `/api/v1/health/events`: faults of cameras and appliance, and that a person saw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request, Response
from pydantic import BaseModel

from appliance.base.clock import Clock
from appliance.dashboard.access_rights import may
from appliance.dashboard.alert_reader import PAGE_LENGTH, Before, cursor_of
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.dashboard.schemas import API, ApiModel, NothingMore
from appliance.notify.delivery import TargetStatus
from appliance.store.cameras import CameraStore
from appliance.store.health_events import HealthEventRow, HealthEventStore
from appliance.types import HEALTH_TITLES, OF_NEIGHBOURS, HealthKind
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.texts import N_
from appliance.web.visitor import visitor

EVENTS = f"{API}/health/events"

FAILING_S = 60.0  # a target that fails for shorter than this is tried again without a word to a person
router = RouteList(tags=["health"])

LEARNABLE: frozenset[HealthKind] = frozenset({"black", "covered", "moved"})
REFUSED_PASSWORD = "(401)"  # stands in the reason of a camera that refuses user or password
# The remedy for a fault: the words on its button, and the page behind it, with the field to change or the part to read;
# of all others it is the camera's settings (`_OF_CAMERA`), or its page. Of a view that may be right the button says so
# instead (see `TroubleItem`).
_ROOM = N_("Make room"), "/settings/storage#storage.disk_free_min_mb"
_CLOCK = N_("Clock"), "/system#clock"
_DETECTOR = N_("Detection"), "/settings/detection#detector.backend"
_SPARE = N_("Do less when it is hot or memory is short"), "/settings/hardware#load_shedding.enabled"
HELP: dict[HealthKind, tuple[str, str]] = {
    "disk": _ROOM, "unrecorded": _ROOM, "database": _ROOM, "memory": _SPARE, "hot": _SPARE,
    "service": (N_("For support"), "/system#help"), "update": (N_("For support"), "/system#help"),
    "detector": _DETECTOR, "fallback": _DETECTOR,
    "model": (N_("Choose another network"), "/settings/detection#detector.model"),
    "decoder": (N_("Decoding"), "/settings/hardware#decode.hardware"),
    "clock": _CLOCK, "time": _CLOCK, "uplink": (N_("Settings of the link"), "/settings/uplink#uplink.url"),
    "mqtt": (N_("Settings"), "/settings/mqtt#mqtt.url"),
    "certificate": (N_("Settings"), "/settings/address#dashboard.public_url"),
    "notify": (N_("Notifications"), "/notify#failing"), "drift": (N_("Look at the alerts"), "/agreement"),
}  # fmt: skip

# Of a fault that may have several causes, by words of its reason.
_BY_REASON: dict[tuple[HealthKind, str], HealthKind] = {
    ("fallback", "nothing is detected"): "model",  # its file cannot be loaded
    ("certificate", "for the cloud link"): "uplink",
}
_OF_CAMERA: dict[HealthKind, tuple[str, str]] = {  # fields of its settings; *: its id
    "stalled": (N_("Address and password"), "url"), "frozen": (N_("Try the camera"), "url"),
    "overloaded": (N_("Ask for fewer inferences"), "cameras.*.detect.fps"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthItem(HealthEventRow):
    """Something was not as it should be; `camera` "" for the appliance, `t_end` null while it lasts.

    told_t: when it was noticed. recovery: what was tried last, attempts: how often; times: how often it came back.
    seen_t: when a person marked it as seen. learnable: doing so means that what the camera shows now is right.
    """

    title: str
    learnable: bool
    url: str
    camera_page: str | None

    @classmethod
    def of(cls, row: HealthEventRow) -> HealthItem:
        return cls(
            **asdict(row), title=HEALTH_TITLES[row.kind], learnable=row.kind in LEARNABLE,
            url=f"{API}/health/events/{quote(row.id, safe='')}",
            camera_page=f"/cameras/{quote(row.camera, safe='')}" if row.camera else None,
        )  # fmt: skip


class TroubleItem(ApiModel):
    """A fault that lasts, as each page shows it.

    help: the words on the button that leads to `page`, where it can be helped; '': the visitor may not go there.
    learn: where to say that what the camera shows now is right; '': it cannot be said of this fault, or not by them.
    """

    id: str
    camera: str
    kind: HealthKind
    title: str
    reason: str
    t_start: float
    help: str
    page: str
    learn: str

    @classmethod
    def of(cls, row: HealthEventRow) -> TroubleItem:
        refused = row.kind == "stalled" and REFUSED_PASSWORD in row.reason
        camera = f"/cameras/{quote(row.camera, safe='')}"
        causes = (kind for (of, words), kind in _BY_REASON.items() if of == row.kind and words in row.reason)
        words, page = HELP.get(next(causes, row.kind), (N_("Look at the camera"), camera))
        if row.kind in _OF_CAMERA and may("GET", "/cameras/{name}/settings"):
            words, field = (N_("Enter the password"), "password") if refused else _OF_CAMERA[row.kind]
            page = f"{camera}/settings#{field.replace('*', quote(row.camera, safe=''))}"
        learns = row.kind in LEARNABLE and may("POST", f"{EVENTS}/{{event}}/seen")
        learn = f"{EVENTS}/{quote(row.id, safe='')}/seen" if learns else ""
        title = N_("Camera refuses the password") if refused else HEALTH_TITLES[row.kind]
        return cls.of_row(row, title=title, help=words, page=page if _opens(page) else "", learn=learn)


def _opens(page: str) -> bool:
    """Return whether the visitor may open a page that helps: one of a form, of a camera, or of the table."""
    kind, _, below = page[1:].partition("#")[0].partition("/")
    if not below or kind == "cameras":
        return kind == "cameras" or may("GET", f"/{kind}")
    return may("GET", f"/{kind}/{{form}}")


class HealthPage(ApiModel):
    """`next` is the query of the page with older events; null: there are none."""

    events: list[HealthItem]
    next: str | None


class HealthReport(BaseModel):
    """`reasons`: one sentence per fault. They name cameras, so they are for visitors who have signed in."""

    status: Literal["ok", "degraded"]
    reasons: list[str] = []


class ReadyReport(BaseModel):
    """`ready`: every camera is watched as the site file promises. `reasons` as of `HealthReport`."""

    status: Literal["ready", "degraded"]
    reasons: list[str] = []


class HealthReader:
    """Faults as the API and the pages show them. Any thread may call."""

    def __init__(self, events: HealthEventStore, cameras: CameraStore, probes: CoreProbes, clock: Clock) -> None:
        self._events = probes.health_events or events
        self._cameras = cameras
        self._probes = probes
        self._clock = clock

    def page(
        self, camera: str, kind: HealthKind | None, before: str, limit: int
    ) -> tuple[list[HealthItem], str | None]:
        """One page of events, newest first, and the cursor of the next (None: this is the last). Raises Problem."""
        cursor = cursor_of(before)
        rows = self._events.page(
            camera=camera or None,
            kind=kind,
            before=None if cursor is None else (cursor.t_start, cursor.id),
            limit=limit + 1,
            cameras=visitor().cameras,
        )
        last = rows[limit - 1] if len(rows) > limit else None
        return [HealthItem.of(row) for row in rows[:limit]], None if last is None else f"{last.t_start!r}~{last.id}"

    def row(self, event: str) -> HealthEventRow:
        """Return the event. Raise Problem if there is none."""
        row = self.find(event)
        if row is None:
            raise Problem(404, "There is no such health event; only the newest are kept.")
        return row

    def find(self, event: str) -> HealthEventRow | None:
        """Return the event; None: there is none."""
        return self._events.get(event)

    def open(self, camera: str) -> list[HealthItem]:
        """Return the faults that last now, of a camera and of the appliance itself."""
        return [HealthItem.of(row) for row in self._events.open() if row.camera in {camera, ""}]

    def open_titles(self) -> dict[str, list[str]]:
        """Return the titles of the faults that last now, by camera that the visitor may see.

        "" is the appliance itself.
        """
        found: dict[str, list[str]] = {}
        for row in filter(lambda each: visitor().sees(each.camera), self._events.open()):
            found.setdefault(row.camera, []).append(HEALTH_TITLES[row.kind])
        return found

    def troubles(self) -> list[TroubleItem]:
        """Return the faults that last now and nobody has marked as seen, those of the appliance first."""
        rows = [row for row in self._events.open() if visitor().sees(row.camera) and row.seen_t is None]
        return [TroubleItem.of(row) for row in sorted(rows, key=lambda row: (row.camera != "", row.t_start))]

    @property
    def notes(self) -> int:
        """The number of the last change of a fault, which also counts those that the disk does not take."""
        return self._events.notes

    def mark_seen(self, event: str) -> HealthItem:
        """Note that a person has seen it; where that can be learnt, the camera's view is right as it is.

        Raise Problem if there is no such event.
        """
        self._events.mark_seen(event, self._clock.now())
        row = self.row(event)
        if row.t_end is None and row.kind in LEARNABLE:
            self._probes.orders.rebaseline(row.camera, row.kind)
        return HealthItem.of(row)

    def reasons(self) -> list[str]:
        """Return what is not as it should be, the most important first."""
        fault = "" if self._probes.link is None else self._probes.link().fault
        return [*self.unwatched(), *([fault] if fault else ()), *self.failing_targets()]

    def unwatched(self) -> list[str]:
        """Why cameras are not watched, or not as well as the site file promises."""
        found = [] if self._probes.health is None else _ingest_reasons(self._probes.health())
        for row in self._cameras.all():
            if row.state in {"lost", "stalled"}:
                found.append(f"camera {row.name} is {row.state}" + (f": {row.reason}" if row.reason else ""))
        for event in self._events.open():
            if event.kind != "stalled" and event.kind not in OF_NEIGHBOURS:  # the camera's state says it
                reason = event.reason or HEALTH_TITLES[event.kind]
                found.append((f"camera {event.camera}: " if event.camera else "") + reason)
        return found

    def not_ready(self) -> list[str]:
        """As `unwatched`, with the cameras that were not reached yet since the start."""
        new = [row.name for row in self._cameras.all() if row.state == "connecting"]
        return [*self.unwatched(), *(f"camera {name} was not reached yet" for name in new)]

    def failing_targets(self) -> list[str]:
        """Return a sentence for each notification target that has not taken a message for long."""
        return failing_targets(self._probes.targets(), self._clock.now())


HealthPart = Annotated[HealthReader, Depends(provided(HealthReader))]


def _ingest_reasons(state: SystemHealth) -> list[str]:
    stopped = [] if state.ingest_running else ["the ingest process is not running; it is being started again"]
    return [*stopped, *state.warnings]


@router.get(EVENTS)
def list_health_events(
    health: HealthPart,
    camera: Annotated[str, Query(max_length=64)] = "",
    kind: HealthKind | Literal[""] = "",
    before: Before = "",
    limit: Annotated[int, Query(ge=1, le=199)] = PAGE_LENGTH,
) -> HealthPage:
    """Health events, newest first, page by page; with `camera`, those of the appliance too. `t_end` null: it lasts."""
    items, older = health.page(camera, kind or None, before, limit)
    query = {"camera": camera, "kind": kind, "before": older, "limit": limit}
    return HealthPage(
        events=items, next=None if older is None else urlencode({name: each for name, each in query.items() if each})
    )


@router.get(f"{EVENTS}/{{event}}")
def one_health_event(health: HealthPart, event: str) -> HealthItem:
    """One health event."""
    return HealthItem.of(health.row(event))


@router.post(f"{EVENTS}/{{event}}/seen")
def see_health_event(health: HealthPart, event: str, change: NothingMore) -> HealthItem:
    """Note that a person has seen it. If a view moved, is covered or black, the present view is learnt as right."""
    return health.mark_seen(event)


@router.get("/healthz")
def healthz(health: HealthPart, request: Request) -> HealthReport:
    """Return 200 with `ok` or `degraded`: a degraded appliance still watches, so nothing should kill it.

    503: the store is gone.
    """
    found = health.reasons()
    return HealthReport(status="degraded" if found else "ok", reasons=found if request.state.known else [])


@router.get("/readyz", responses={503: {"model": ReadyReport}})
def readyz(health: HealthPart, request: Request, response: Response) -> ReadyReport:
    """Return 200 with `ready` while every camera is watched as promised, else 503 with `degraded`.

    Degraded means a camera that is lost, a view that is covered, or a detector that has too much to do. For monitors; a
    degraded appliance still watches.
    """
    found = health.not_ready()
    response.status_code = 503 if found else 200
    return ReadyReport(status="degraded" if found else "ready", reasons=found if request.state.known else [])


def failing_targets(targets: Sequence[TargetStatus], now: float) -> list[str]:
    """Return a sentence for each notification target that has not taken a message for long."""
    return [
        f"notify: {each.name} cannot be told for {(now - each.failing_since) / 60:.0f} min, {each.waiting} waiting: "
        f"{each.error}"
        for each in targets
        if each.failing_since is not None and now - each.failing_since >= FAILING_S
    ]
