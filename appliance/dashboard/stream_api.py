"""`/api/v1/stream`: changed alerts, cameras and health events as server-sent events.

One task watches the change counter and fills one ring, which every viewer reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from pydantic import TypeAdapter
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from appliance.base.clock import Clock
from appliance.base.errors import StoreError
from appliance.base.telemetry import LogThrottle
from appliance.dashboard.cameras_api import CameraItem
from appliance.dashboard.health_api import HealthItem
from appliance.dashboard.schemas import API, AlertItem
from appliance.store.alerts import AlertStore
from appliance.store.cameras import CameraStore
from appliance.store.health_events import HealthEventStore
from appliance.web.auth import AccessPart
from appliance.web.problems import Problem, sentence
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import OWNER, Visitor, VisitorSlots

logger = logging.getLogger(__name__)

POLL_S = 0.1  # a change is on the page 0.1 s later; each look is one read of a number
UNWATCHED_S = 2.0  # between two reads while there is no viewer; the first viewer ends the wait
HEARTBEAT_S = 15.0  # proxies close what is silent for 30 to 60 s
VIEWERS_MAX = 64  # each is a connection and a queue
VIEWERS_EACH_MAX = 16  # of one account or address
RING_MAX = 512  # changes that a page that comes back may have missed; else it reloads
BATCH_MAX = 200  # changes of one read, so that others are answered between
REV_DIGITS_MAX = 18  # of a change number
_FULL, _OWN = "too many pages are open; close some", "you have too many pages open; close some"


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One message: what changed (`alert`, `camera`), its change number, its JSON (one line) and its camera ('': none).

    An event without a camera is the appliance's own.
    """

    kind: str
    rev: int
    data: str
    camera: str = ""

    def encode(self) -> bytes:
        """Return an event of the HTML standard, with the change number as its id: a browser resumes from there."""
        return f"id: {self.rev}\nevent: {self.kind}\ndata: {self.data}\n\n".encode()


StillMay = Callable[[], Visitor | None]
"""Return who watches a stream; None: they no longer may."""


class TooManyViewers(Exception):
    """All places are taken, or all of one visitor's share. The message is a clause for the person who asked."""


class StreamViewer:
    """One viewer's messages. State: whether its place is still taken; it is, from `join` to `leave`."""

    def __init__(self, messages: AsyncIterator[bytes], left: Callable[[], None]) -> None:
        self._messages = messages
        self._left: Callable[[], None] | None = left

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._messages

    def leave(self) -> None:
        """Give the place back. May be called twice."""
        left, self._left = self._left, None
        if left is not None:
            left()


class ViewerResponse(StreamingResponse):
    """The stream of a viewer, who leaves when it ends, also when it never began."""

    def __init__(self, viewer: StreamViewer, media_type: str = "text/event-stream") -> None:
        super().__init__(viewer, media_type=media_type, headers={"X-Accel-Buffering": "no"})
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._viewer.leave()


class StreamHub:
    """Sends viewers what changed.

    `rev()` is the number of the last change; `changes(rev, limit)` lists those after `rev`, oldest first (an empty
    list: none). State: the ring of the last messages. A viewer is only a number (the last change it got), so a slow
    one costs nothing, and one that fell out of the ring reads the store itself: none misses any.
    Owner: the event loop; the store is read in threads.
    """

    def __init__(self, rev: Callable[[], int], changes: Callable[[int, int], list[StreamEvent]], clock: Clock) -> None:
        self._rev = rev
        self._changes = changes
        self._ring: deque[StreamEvent] = deque(maxlen=RING_MAX)
        self._ring_from: int | None = None  # the ring holds everything after this number; None: there is no viewer
        self._at = 0
        self.notes: Callable[[], int] = lambda: 0
        """The number of the last change of a fault, which also counts those that the disk does not take."""
        self._noted = 0
        self._tick = asyncio.Event()
        self._joined = asyncio.Event()
        self._closed = False
        self._repeats = LogThrottle(logger, clock)
        self._slots = VisitorSlots(VIEWERS_MAX, VIEWERS_EACH_MAX, TooManyViewers, _FULL, _OWN)

    @property
    def viewers(self) -> int:
        return self._slots.taken

    async def run(self) -> None:
        """Watch until cancelled or closed."""
        while not self._closed:
            try:
                await self.run_once()
            except StoreError as error:
                self._repeats.report(error)
            if self.viewers:
                await asyncio.sleep(POLL_S)
            elif not self._closed:
                self._joined.clear()
                await within(self._joined, UNWATCHED_S)

    async def run_once(self) -> None:
        """Read the counter once, and take over what changed since. Raises StoreError."""
        if not self.viewers:
            self._ring_from = None
            return
        rev = await asyncio.to_thread(self._rev)
        if self._ring_from is None or rev < self._at:  # the first viewer, or another database in its place
            self._ring.clear()
            self._ring_from = self._at = rev
            self._wake()
        if (noted := self.notes()) != self._noted:
            self._noted = noted
            self._wake()
        while self._at < rev:
            batch = await asyncio.to_thread(self._changes, self._at, BATCH_MAX)
            for change in batch:
                self._push(change)
            # A row that changed twice is sent once, so numbers may be skipped; what came later waits its turn.
            self._at = max(self._at, batch[-1].rev) if batch else rev
            self._wake()

    def close(self) -> None:
        """End all streams. Called in the event loop's thread."""
        self._closed = True
        self._joined.set()
        self._wake()

    def join(self, since: int | None, still: StillMay = lambda: OWNER) -> StreamViewer:
        """Return a new viewer of changes after `since` (None: from now on); call its `leave`. Raise TooManyViewers.

        still: returns the visitor it is for, called before each message; None ends the stream.
        """
        give_back = self._slots.take()
        self._joined.set()
        return StreamViewer(self._follow(since, still), give_back)

    async def _follow(self, since: int | None, still: StillMay) -> AsyncIterator[bytes]:
        try:
            rev = await asyncio.to_thread(self._rev)
            at, noted = rev if since is None else min(since, rev), 0
            yield b"retry: 1000\n: connected\n\n"
            while not self._closed:
                tick = self._tick
                missed = await self._after(at)
                who = still()
                if who is None:
                    return
                for change in missed:
                    at = change.rev
                    if who.sees(change.camera):
                        yield change.encode()
                if noted != self._noted:  # at the beginning as well: the page may be older than the fault
                    noted = self._noted
                    yield b"event: trouble\ndata: {}\n\n"
                if not missed and not await within(tick, HEARTBEAT_S):
                    yield b": still here\n\n"
        except StoreError as error:  # end this stream: the browser comes back with the last number it got
            self._repeats.report(error)

    async def _after(self, at: int) -> list[StreamEvent]:
        if self._ring_from is not None and at >= self._ring_from:
            return [change for change in self._ring if change.rev > at]
        return await asyncio.to_thread(self._changes, at, BATCH_MAX)

    def _push(self, change: StreamEvent) -> None:
        if len(self._ring) == RING_MAX:
            self._ring_from = self._ring[0].rev
        self._ring.append(change)

    def _wake(self) -> None:
        self._tick.set()
        self._tick = asyncio.Event()


async def within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for `event`, at most `seconds`. Return whether it is set."""
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
        return True
    return False


router = RouteList(prefix=API, tags=["stream"])

_health_json = TypeAdapter(HealthItem)


def changes_of(
    last_rev: Callable[[], int], alerts: AlertStore, cameras: CameraStore, health: HealthEventStore | None = None
) -> Callable[[int, int], list[StreamEvent]]:
    """Return a reader of everything that changed after a change number, in the order of the changes.

    last_rev: the number of the last change. It is read first. A change that happens while the stores are read, one
    after the other, would otherwise be sent from one store before an earlier change in another, which would never be
    sent.
    """

    def read(rev: int, limit: int) -> list[StreamEvent]:
        last = last_rev()
        rows = alerts.changed_since(rev, limit)
        faults = health.changed_since(rev, limit) if health is not None else []
        # Later changes of others wait until those before them were sent: numbers only go up.
        end = min((last, *(full[-1].rev for full in (rows, faults) if len(full) >= limit)))
        found = [
            StreamEvent("health", row.rev, _health_json.dump_json(HealthItem.of(row)).decode(), row.camera)
            for row in faults
            if row.rev <= end
        ]
        found += [
            StreamEvent("alert", row.rev, AlertItem.of(replace(row, parts=())).model_dump_json(), row.alert.camera)
            for row in rows
            if row.rev <= end
        ]
        found += [
            StreamEvent("camera", row.rev, CameraItem.of(row).model_dump_json(), row.name)
            for row in cameras.all()
            if rev < row.rev <= end
        ]
        return sorted(found, key=lambda change: change.rev)

    return read


@router.get("/stream", response_class=StreamingResponse, responses={200: {"content": {"text/event-stream": {}}}})
async def stream(
    hub: Annotated[StreamHub, Depends(provided(StreamHub))],
    access: AccessPart,
    request: Request,
    last_event_id: Annotated[str, Header()] = "",
    since: Annotated[int | None, Query(ge=0, lt=10**REV_DIGITS_MAX)] = None,
) -> StreamingResponse:
    """Events `alert`, `camera` and `health`, each with the changed row as JSON and its change number as id.

    `Last-Event-ID` (or `since`) resumes after that number without loss; without either, it begins now.
    """
    resumes = last_event_id.isascii() and last_event_id.isdecimal() and len(last_event_id) <= REV_DIGITS_MAX
    try:
        viewer = hub.join(int(last_event_id) if resumes else since, access.still(request))
    except TooManyViewers as error:
        raise Problem(503, sentence(error), {"Retry-After": "10"}) from None
    return ViewerResponse(viewer)
