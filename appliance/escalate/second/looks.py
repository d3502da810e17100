"""The second looks of the box: which alert is looked at next, what came of it, and what was written of it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.errors import StoreUnavailable
from appliance.escalate.calibration import Calibration
from appliance.escalate.second.judge import judge
from appliance.escalate.second.occasion import OBSTACLE_WORDS, Box, Case, Cloud, Obstacle, obstacle_of, reason_of
from appliance.escalate.second.subject import Subject, subject_of
from appliance.store.boxes import Boxes
from appliance.store.database import Database
from appliance.store.edge import ATTEMPTS_MAX, EdgeVerdicts, OpenAlert
from appliance.store.meter import Meter
from appliance.store.segments import Segments
from appliance.telemetry import Repeats
from appliance.types import Footage, SecondLook, SecondSight, SegmentRow

GLIMPSES = 4
FRESH_S = 600.0  # what is older is history: its recording may be gone, and nobody waits for the box's word
SPAN_S = 10.0  # of an alert's life: decoding more of it would cost more than looking
LEAD_S = 2.0  # the track began before its rule fired
MORE_S = 6.0  # for so long more pictures of it are waited for
PATIENCE_S = 120.0
ANSWER_S = 30.0
EVERY_S = 1.0
OPEN_MAX = 64
LOST = "the ingest process ended meanwhile"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pending:
    """The look that is under way. starts: the life of the ingest process that was asked."""

    id: str
    open_: OpenAlert
    subject: Subject
    why: str
    attempt: int
    asked_at: float
    starts: int


@dataclass(frozen=True, slots=True)
class Views:
    """What the second looks are told of the world; each may be asked at any time, and answers at once."""

    box: Callable[[], Box]
    cloud: Callable[[], Cloud]
    calibration: Callable[[], Calibration]


class SecondLooks:
    """Owner of one thread that calls `run()`. One look is under way at a time.

    The ingest process is asked (`send`), and answers with boxes (`take`, any thread): no pixel comes here. A look that
    came to nothing is made once more, not if the ingest process died of it; then it is given up, and told as failed,
    never as "nothing there". State: the look under way, and when the last minute's began; all else is in the store.
    """

    def __init__(
        self,
        config: SiteConfig,
        db: Database,
        meter: Meter,
        clock: Clock,
        send: Callable[[SecondLook], bool],
        views: Views,
    ) -> None:
        self._settings, self._router = config.second_look, config.escalation.router
        self._store = EdgeVerdicts(db)
        self._boxes = Boxes(db)
        self._segments = Segments(db)
        self._meter = meter
        self._clock = clock
        self._send = send
        self._views = views
        self._pending: _Pending | None = None
        self._begun: deque[float] = deque(maxlen=config.second_look.per_minute)
        self._answers: SimpleQueue[SecondSight] = SimpleQueue()
        self._news = threading.Event()
        self._stop = threading.Event()
        self._repeats = Repeats(logger, clock)

    def run(self) -> None:
        """Look until `stop()`."""
        while not self._stop.is_set():
            self._news.clear()
            try:
                self.run_once()
            except StoreUnavailable as error:
                self._repeats.report(f"second looks wait: {error}")
            if not self._stop.is_set():
                self._clock.sleep(EVERY_S, self._news)

    def stop(self) -> None:
        self._stop.set()
        self._news.set()

    def take(self, sight: SecondSight) -> None:
        """The ingest process has answered. Any thread; never waits."""
        self._answers.put(sight)
        self._news.set()

    def run_once(self) -> None:
        """Hear what was answered, give up what was not, begin the next. Raises StoreError."""
        self._hear()
        if self._pending is None:
            self._next()

    def _hear(self) -> None:
        pending = self._pending
        while pending is not None:
            try:
                sight = self._answers.get_nowait()
            except Empty:
                break
            if sight.id == pending.id:
                self._answered(pending, sight)
                self._pending = pending = None
        if pending is None:
            return
        if self._views.box().starts != pending.starts:
            self._came_to_nothing(pending, LOST, again=False)
        elif self._clock.monotonic() - pending.asked_at > ANSWER_S:
            self._came_to_nothing(pending, f"nothing was heard of it for {ANSWER_S:.0f} s", again=True)
        else:
            return
        self._pending = None

    def _answered(self, pending: _Pending, sight: SecondSight) -> None:
        if sight.error or not sight.sightings:
            self._came_to_nothing(pending, sight.error or "no picture was looked at", again=True)
            return
        alert, subject = pending.open_.alert, pending.subject
        calibration = self._views.calibration()
        said = judge(
            subject.label,
            subject.seen,
            sight,
            pending.why,
            lambda seen: calibration.probability(alert.camera, subject.label, seen),
        )
        if self._store.judge(alert.id, said):
            self._count(alert.camera, said.decision)
            logger.info("edge verdict on alert %s: %s (%s)", alert.id, said.decision, pending.why)
        else:
            self._count(alert.camera, "late")

    def _came_to_nothing(self, pending: _Pending, error: str, *, again: bool) -> None:
        """Once more, if it may; the store offers it again then."""
        alert = pending.open_.alert
        if again and pending.attempt < ATTEMPTS_MAX:
            self._count(alert.camera, "retried")
            return
        self._store.fail(alert.id, pending.why, error)
        self._count(alert.camera, "failed")
        logger.warning("the second look at alert %s failed: %s", alert.id, error)

    def _next(self) -> None:
        if not self._settings.enabled:
            return
        now = self._clock.now()
        cloud, obstacle = self._views.cloud(), self._obstacle()
        for open_ in self._store.open_alerts(now - FRESH_S, OPEN_MAX):
            why = reason_of(_case(open_, now), cloud, self._settings)
            if why and self._begin(open_, why, obstacle, now):
                return

    def _begin(self, open_: OpenAlert, why: str, obstacle: Obstacle, now: float) -> bool:
        """True: it is under way."""
        late = now - open_.alert.created_t > PATIENCE_S
        order = None if obstacle else self._order(open_, now)
        if order is None:
            if late:
                self._store.fail(open_.alert.id, why, OBSTACLE_WORDS.get(obstacle, "the recording does not hold it"))
                self._count(open_.alert.camera, "missed")
            return False
        wanted, subject = order
        self._pending = _Pending(
            id=wanted.id,
            open_=open_,
            subject=subject,
            why=why,
            attempt=self._store.ask(open_.alert.id, why),
            asked_at=self._clock.monotonic(),
            starts=self._views.box().starts,
        )
        self._begun.append(self._clock.monotonic())
        if not self._send(wanted):
            self._came_to_nothing(self._pending, "the ingest process does not run", again=True)
            self._pending = None
        return True

    def _order(self, open_: OpenAlert, now: float) -> tuple[SecondLook, Subject] | None:
        """What is to be looked at; None: it is not recorded (yet)."""
        alert = open_.alert
        best_t = alert.t_start if alert.best is None else alert.best.t
        t0 = max(alert.t_start - LEAD_S, best_t - SPAN_S / 2)
        t1 = min(alert.t_end or float("inf"), t0 + SPAN_S)
        footage = self._segments.covering(alert.camera, t0, t1)
        if not footage:
            return None
        frames = self._boxes.span(alert.camera, t0, t1, run=alert.run or None)
        subject = subject_of(alert, frames, footage[-1].t_end, footage[-1].size, GLIMPSES)
        if subject is None or (len(subject.glimpses) < GLIMPSES and now - alert.created_t < MORE_S):
            return None
        wanted = SecondLook(
            id=f"{alert.id}.{open_.attempts + 1}",
            camera=alert.camera,
            glimpses=subject.glimpses,
            footage=_needed(footage, subject),
        )
        return wanted, subject

    def _obstacle(self) -> Obstacle:
        since = self._clock.monotonic() - 60
        recent = sum(at > since for at in self._begun)
        return obstacle_of(self._views.box(), recent, self._settings, self._router)

    def _count(self, camera: str, outcome: str) -> None:
        self._meter.add(camera, f"second_look_{outcome}", 1)


def _needed(footage: list[SegmentRow], subject: Subject) -> tuple[Footage, ...]:
    """The segments that hold a glimpse."""
    times = [glimpse.t for glimpse in subject.glimpses]
    return tuple(
        Footage(path=row.path, t_start=row.t_start, t_end=row.t_end)
        for row in footage
        if any(row.t_start - 1 <= t <= row.t_end + 1 for t in times)
    )


def _case(open_: OpenAlert, now: float) -> Case:
    alert = open_.alert
    return Case(
        age_s=now - alert.created_t,
        ended=alert.t_end is not None,
        delivery=open_.delivery,
        question_s=now - open_.asked_t if open_.asked_t is not None else 0.0,
        sent_s=now - open_.sent_t if open_.sent_t is not None else None,
        wait=open_.wait,
        refused=open_.refused,
    )
