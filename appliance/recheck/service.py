"""Re-checks alerts that the cloud does not answer: picks the next one, orders it from ingest, writes the edge
verdict.
"""

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
from appliance.recheck.recheck_policy import (
    BLOCKER_TEXT,
    ApplianceStatus,
    Blocker,
    CloudStatus,
    RecheckCandidate,
    RecheckSubject,
    choose_subject,
    find_blocker,
    judge_recheck,
    recheck_reason,
)
from appliance.router.calibration import Calibration
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.meter import Meter
from appliance.store.rechecks import ATTEMPTS_MAX, RecheckStore, UnverifiedAlert
from appliance.store.segments import SegmentStore
from appliance.telemetry import LogThrottle
from appliance.types import FootageSpan, RecheckCommand, RecheckResult, SegmentRow

logger = logging.getLogger(__name__)

CROPS_PER_RECHECK = 4
FRESH_S = 600.0  # what is older is history: its recording may be gone, and nobody waits for the box's word
SPAN_S = 10.0  # of an alert's life: decoding more of it would cost more than looking
LEAD_S = 2.0  # the track began before its rule fired
MORE_S = 6.0  # for so long more pictures of it are waited for
GIVE_UP_S = 120.0
ANSWER_S = 30.0
EVERY_S = 1.0
OPEN_MAX = 64
LOST = "the ingest process ended meanwhile"


@dataclass(frozen=True, slots=True)
class _PendingRecheck:
    """The look that is under way. starts: the life of the ingest process that was asked."""

    id: str
    open_: UnverifiedAlert
    subject: RecheckSubject
    why: str
    attempt: int
    asked_at: float
    starts: int


@dataclass(frozen=True, slots=True)
class StatusSources:
    """What the second looks are told of the world; each may be asked at any time, and answers at once."""

    appliance: Callable[[], ApplianceStatus]
    cloud: Callable[[], CloudStatus]
    calibration: Callable[[], Calibration]


class RecheckService:
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
        send: Callable[[RecheckCommand], bool],
        views: StatusSources,
    ) -> None:
        self._settings, self._router = config.second_look, config.escalation.router
        self._store = RecheckStore(db)
        self._boxes = BoxStore(db)
        self._segments = SegmentStore(db)
        self._meter = meter
        self._clock = clock
        self._send = send
        self._views = views
        self._pending: _PendingRecheck | None = None
        self._begun: deque[float] = deque(maxlen=config.second_look.per_minute)
        self._answers: SimpleQueue[RecheckResult] = SimpleQueue()
        self._news = threading.Event()
        self._stop = threading.Event()
        self._repeats = LogThrottle(logger, clock)

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

    def receive(self, sight: RecheckResult) -> None:
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
        if self._views.appliance().starts != pending.starts:
            self._came_to_nothing(pending, LOST, again=False)
        elif self._clock.monotonic() - pending.asked_at > ANSWER_S:
            self._came_to_nothing(pending, f"nothing was heard of it for {ANSWER_S:.0f} s", again=True)
        else:
            return
        self._pending = None

    def _answered(self, pending: _PendingRecheck, sight: RecheckResult) -> None:
        if sight.error or not sight.sightings:
            self._came_to_nothing(pending, sight.error or "no picture was looked at", again=True)
            return
        alert, subject = pending.open_.alert, pending.subject
        calibration = self._views.calibration()
        said = judge_recheck(
            subject.label,
            subject.seen,
            sight,
            pending.why,
            lambda seen: calibration.probability(alert.camera, subject.label, seen),
        )
        if self._store.record_verdict(alert.id, said):
            self._count(alert.camera, said.decision)
            logger.info("edge verdict on alert %s: %s (%s)", alert.id, said.decision, pending.why)
        else:
            self._count(alert.camera, "late")

    def _came_to_nothing(self, pending: _PendingRecheck, error: str, *, again: bool) -> None:
        """Once more, if it may; the store offers it again then."""
        alert = pending.open_.alert
        if again and pending.attempt < ATTEMPTS_MAX:
            self._count(alert.camera, "retried")
            return
        self._store.record_failure(alert.id, pending.why, error)
        self._count(alert.camera, "failed")
        logger.warning("the second look at alert %s failed: %s", alert.id, error)

    def _next(self) -> None:
        if not self._settings.enabled:
            return
        now = self._clock.now()
        cloud, obstacle = self._views.cloud(), self._obstacle()
        for open_ in self._store.unverified_alerts(now - FRESH_S, OPEN_MAX):
            why = recheck_reason(_candidate(open_, now), cloud, self._settings)
            if why and self._begin(open_, why, obstacle, now):
                return

    def _begin(self, open_: UnverifiedAlert, why: str, obstacle: Blocker, now: float) -> bool:
        """True: it is under way."""
        late = now - open_.alert.created_t > GIVE_UP_S
        order = None if obstacle else self._order(open_, now)
        if order is None:
            if late:
                self._store.record_failure(
                    open_.alert.id, why, BLOCKER_TEXT.get(obstacle, "the recording does not hold it")
                )
                self._count(open_.alert.camera, "missed")
            return False
        wanted, subject = order
        self._pending = _PendingRecheck(
            id=wanted.id,
            open_=open_,
            subject=subject,
            why=why,
            attempt=self._store.begin(open_.alert.id, why),
            asked_at=self._clock.monotonic(),
            starts=self._views.appliance().starts,
        )
        self._begun.append(self._clock.monotonic())
        if not self._send(wanted):
            self._came_to_nothing(self._pending, "the ingest process does not run", again=True)
            self._pending = None
        return True

    def _order(self, open_: UnverifiedAlert, now: float) -> tuple[RecheckCommand, RecheckSubject] | None:
        """What is to be looked at; None: it is not recorded (yet)."""
        alert = open_.alert
        best_t = alert.t_start if alert.best is None else alert.best.t
        t0 = max(alert.t_start - LEAD_S, best_t - SPAN_S / 2)
        t1 = min(alert.t_end or float("inf"), t0 + SPAN_S)
        footage = self._segments.covering(alert.camera, t0, t1)
        if not footage:
            return None
        frames = self._boxes.span(alert.camera, t0, t1, run=alert.run or None)
        subject = choose_subject(alert, frames, footage[-1].t_end, footage[-1].size, CROPS_PER_RECHECK)
        if subject is None or (len(subject.glimpses) < CROPS_PER_RECHECK and now - alert.created_t < MORE_S):
            return None
        wanted = RecheckCommand(
            id=f"{alert.id}.{open_.attempts + 1}",
            camera=alert.camera,
            glimpses=subject.glimpses,
            footage=_needed(footage, subject),
        )
        return wanted, subject

    def _obstacle(self) -> Blocker:
        since = self._clock.monotonic() - 60
        recent = sum(at > since for at in self._begun)
        return find_blocker(self._views.appliance(), recent, self._settings, self._router)

    def _count(self, camera: str, outcome: str) -> None:
        self._meter.add(camera, f"second_look_{outcome}", 1)


def _needed(footage: list[SegmentRow], subject: RecheckSubject) -> tuple[FootageSpan, ...]:
    """The segments that hold a glimpse."""
    times = [glimpse.t for glimpse in subject.glimpses]
    return tuple(
        FootageSpan(path=row.path, t_start=row.t_start, t_end=row.t_end)
        for row in footage
        if any(row.t_start - 1 <= t <= row.t_end + 1 for t in times)
    )


def _candidate(open_: UnverifiedAlert, now: float) -> RecheckCandidate:
    alert = open_.alert
    return RecheckCandidate(
        age_s=now - alert.created_t,
        ended=alert.t_end is not None,
        delivery=open_.delivery,
        question_s=now - open_.escalated_t if open_.escalated_t is not None else 0.0,
        sent_s=now - open_.sent_t if open_.sent_t is not None else None,
        wait=open_.wait,
        refused=open_.refused,
    )
