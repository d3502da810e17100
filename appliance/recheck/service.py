"""Rechecks alerts that the cloud does not answer: picks one, asks ingest for it, writes the edge verdict."""

from __future__ import annotations

import base64
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from uuid import uuid4

from appliance.base.clock import Clock
from appliance.base.errors import StoreUnavailable
from appliance.base.telemetry import LogThrottle
from appliance.config import RecheckConfig, RouterConfig
from appliance.recheck.recheck_policy import (
    BLOCKER_TEXT,
    ENOUGH,
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
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.reviews import ATTEMPTS_MAX, RecheckStore, UnverifiedAlert
from appliance.store.segments import SegmentStore
from appliance.types import FootageSpan, RecheckCommand, RecheckResult, SegmentRow

logger = logging.getLogger(__name__)

CROPS_PER_RECHECK = 4  # a majority of four has three; each costs one inference
FRESH_S = 600.0  # older alerts are history: the recording may be gone, and no person waits for the verdict
SPAN_S = 10.0  # of an alert's life: decoding more of it would cost more than detecting
LEAD_S = 2.0  # the track began before its rule fired
MORE_S = 6.0  # after the alert: for so long more frames of its object are waited for
GIVE_UP_S = 120.0  # after the alert: what could not begin by then is stored as failed and counted as missed
ANSWER_S = 30.0  # the ingest process must have answered
EVERY_S = 1.0  # a re-check waits for seconds anyway (`after_s`)
ENDED_EVERY_S = 60.0  # a look through all re-checks for those that nobody goes on with
OPEN_MAX = 64  # alerts looked through in one run
LOST = "the ingest process ended meanwhile"
ABANDONED = "the appliance ended meanwhile, or had no capacity for another try"
IMAGES_S_MAX = 10.0  # an idle detector takes a tenth of a second each; one that re-checks an alert, some seconds


@dataclass(frozen=True, slots=True)
class _PendingRecheck:
    """The re-check under way. starts: of the ingest process that it was sent to."""

    id: str
    unverified: UnverifiedAlert
    subject: RecheckSubject
    why: str
    attempt: int
    sent_at: float
    starts: int


@dataclass(frozen=True, slots=True)
class StatusSources:
    """The functions by which the service reads other parts; each may be called at any time and returns at once."""

    appliance: Callable[[], ApplianceStatus]
    cloud: Callable[[], CloudStatus]
    calibration: Callable[[], Calibration]


class RecheckService:
    """Re-checks one alert at a time. Owner of one thread that calls `run()`.

    The ingest process gets a command (`send`) and answers with boxes (`receive`): no pixel comes here. A re-check that
    failed is retried once, but not if the ingest process died of it; then it is recorded as failed, never as "nothing
    there". State: the re-check under way, when those of the last minute began, and when abandoned ones were last
    ended; all else is in the store.
    """

    def __init__(
        self,
        settings: RecheckConfig,
        router: RouterConfig,
        db: Database,
        meter: Meter,
        clock: Clock,
        send: Callable[[RecheckCommand], bool],
        sources: StatusSources,
    ) -> None:
        self._settings, self._router = settings, router
        self._store = RecheckStore(db)
        self._boxes = BoxStore(db)
        self._segments = SegmentStore(db)
        self._meter = meter
        self._clock = clock
        self._send = send
        self._sources = sources
        self._pending: _PendingRecheck | None = None
        self._begun: deque[float] = deque(maxlen=settings.per_minute)
        self._ended_at = float("-inf")
        self._results: SimpleQueue[RecheckResult] = SimpleQueue()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._throttle = LogThrottle(logger, clock)

    def run(self) -> None:
        """Re-check until `stop()`."""
        while not self._stop.is_set():
            self._wake.clear()
            try:
                self.run_once()
            except StoreUnavailable as error:
                self._throttle.report(f"re-checks wait: {error}")
            if not self._stop.is_set():
                self._clock.sleep(EVERY_S, self._wake)

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def receive(self, result: RecheckResult) -> None:
        """Take an answer of the ingest process; any thread may call, and it never waits."""
        self._results.put(result)
        self._wake.set()

    def run_once(self) -> None:
        """Handle the result, give up a re-check without one, begin the next. Raises StoreError."""
        self._handle_result()
        if self._pending is None:
            if self._clock.monotonic() - self._ended_at >= ENDED_EVERY_S:
                self._store.end_abandoned(self._clock.now() - FRESH_S, ABANDONED)
                self._ended_at = self._clock.monotonic()
            self._begin_next()

    def _handle_result(self) -> None:
        pending = self._pending
        while pending is not None:
            try:
                result = self._results.get_nowait()
            except Empty:
                break
            if result.id == pending.id:
                self._conclude(pending, result)
                self._pending = pending = None
        if pending is None:
            return
        if self._sources.appliance().starts != pending.starts:
            self._failed(pending, LOST, retry=False)
        elif self._clock.monotonic() - pending.sent_at > ANSWER_S:
            self._failed(pending, f"nothing was heard of it for {ANSWER_S:.0f} s", retry=True)
        else:
            return
        self._pending = None

    def _conclude(self, pending: _PendingRecheck, result: RecheckResult) -> None:
        if result.error or not result.sightings:
            self._failed(pending, result.error or "no picture was looked at", retry=True)
            return
        alert, subject = pending.unverified.alert, pending.subject
        calibration = self._sources.calibration()
        verdict = judge_recheck(
            subject.label,
            subject.seen,
            result,
            pending.why,
            lambda seen: calibration.probability(alert.camera, subject.label, seen),
        )
        if self._store.record_verdict(alert.id, verdict):
            self._count(alert.camera, verdict.decision)
            logger.info("edge verdict on alert %s: %s (%s)", alert.id, verdict.decision, pending.why)
        else:
            self._count(alert.camera, "late")

    def _failed(self, pending: _PendingRecheck, error: str, *, retry: bool) -> None:
        """Leave it to be retried, if it may; the store offers the alert again then."""
        alert = pending.unverified.alert
        if retry and pending.attempt < ATTEMPTS_MAX:
            self._count(alert.camera, "retried")
            return
        self._store.record_failure(alert.id, pending.why, error)
        self._count(alert.camera, "failed")
        logger.warning("the re-check of alert %s failed: %s", alert.id, error)

    def _begin_next(self) -> None:
        if not self._settings.enabled:
            return
        now = self._clock.now()
        cloud, blocker = self._sources.cloud(), self._blocker()
        for unverified in self._store.unverified_alerts(now - FRESH_S, OPEN_MAX):
            why = recheck_reason(_candidate(unverified, now), cloud, self._settings)
            if why and self._begin(unverified, why, blocker, now):
                return

    def _begin(self, unverified: UnverifiedAlert, why: str, blocker: Blocker, now: float) -> bool:
        """Begin a re-check; return True if it is under way."""
        late = now - unverified.created_t > GIVE_UP_S
        command_and_subject = None if blocker else self._command(unverified, now)
        if command_and_subject is None:
            if late:
                self._store.record_failure(
                    unverified.alert.id, why, BLOCKER_TEXT.get(blocker, "the recording does not hold it")
                )
                self._count(unverified.alert.camera, "missed")
            return False
        command, subject = command_and_subject
        self._pending = _PendingRecheck(
            id=command.id,
            unverified=unverified,
            subject=subject,
            why=why,
            attempt=self._store.begin(unverified.alert.id, why),
            sent_at=self._clock.monotonic(),
            starts=self._sources.appliance().starts,
        )
        self._begun.append(self._clock.monotonic())
        if not self._send(command):
            self._failed(self._pending, "the ingest process does not run", retry=True)
            self._pending = None
        return True

    def _command(self, unverified: UnverifiedAlert, now: float) -> tuple[RecheckCommand, RecheckSubject] | None:
        """Return the command and its subject; None if it is not recorded (yet)."""
        alert = unverified.alert
        best_t = alert.t_start if alert.best is None else alert.best.t
        first_t = alert.t_start - LEAD_S
        # Who walked out of the picture was best seen before the rule fired: an exit waits for 3 s.
        t0 = best_t - SPAN_S / 2 if best_t < first_t else max(first_t, best_t - SPAN_S / 2)
        t1 = min(alert.t_end or float("inf"), t0 + SPAN_S)
        footage = self._segments.covering(alert.camera, t0, t1)
        if not footage:
            return None
        frames = self._boxes.span(alert.camera, t0, t1, run=alert.run or None)
        subject = choose_subject(alert, frames, footage[-1].t_end, footage[-1].size, CROPS_PER_RECHECK)
        if subject is None or (len(subject.crops) < CROPS_PER_RECHECK and now - unverified.created_t < MORE_S):
            return None
        command = RecheckCommand(
            id=f"{alert.id}.{unverified.attempts + 1}",
            camera=alert.camera,
            glimpses=subject.crops,
            footage=_needed(footage, subject),
            label=subject.label,
            enough=ENOUGH,
        )
        return command, subject

    def _blocker(self) -> Blocker:
        since = self._clock.monotonic() - 60
        recent = sum(at > since for at in self._begun)
        return find_blocker(self._sources.appliance(), recent, self._settings, self._router)

    def _count(self, camera: str, outcome: str) -> None:
        self._meter.add(camera, Metric(MetricName.RECHECK, outcome), 1)


def _needed(footage: list[SegmentRow], subject: RecheckSubject) -> tuple[FootageSpan, ...]:
    """Return the segments that hold one of the crops."""
    times = [crop.t for crop in subject.crops]
    return tuple(
        FootageSpan(path=row.path, t_start=row.t_start, t_end=row.t_end)
        for row in footage
        if any(row.t_start - 1 <= t <= row.t_end + 1 for t in times)
    )


def _candidate(unverified: UnverifiedAlert, now: float) -> RecheckCandidate:
    return RecheckCandidate(
        age_s=now - unverified.created_t,
        ended=unverified.alert.t_end is not None,
        delivery=unverified.delivery,
        escalated_s=now - unverified.escalated_t if unverified.escalated_t is not None else 0.0,
        sent_s=now - unverified.sent_t if unverified.sent_t is not None else None,
        wait=unverified.wait,
        refused=unverified.refused,
    )


class ImageDetector:
    """Has the ingest process detect in pictures that did not come from a camera. Any thread may ask.

    State: the questions under way, by id.
    """

    def __init__(self, send: Callable[[RecheckCommand], bool]) -> None:
        self._send = send
        self._waiting: dict[str, Future[RecheckResult]] = {}

    def detect(self, camera: str, images: Sequence[bytes]) -> RecheckResult:
        """Return what JPEG pictures show, one sighting each; a failure is a result with its reason."""
        name = f"picture.{uuid4().hex}"
        answer: Future[RecheckResult] = Future()
        self._waiting[name] = answer
        coded = tuple(base64.b64encode(each).decode() for each in images)
        command = RecheckCommand(id=name, camera=camera, glimpses=(), footage=(), images=coded)
        try:
            if not self._send(command):
                return RecheckResult(id=name, camera=camera, error="the ingest process does not run")
            return answer.result(IMAGES_S_MAX)
        except FutureTimeout:
            return RecheckResult(id=name, camera=camera, error="the detector was too busy to look")
        finally:
            self._waiting.pop(name, None)

    def receive(self, result: RecheckResult) -> bool:
        """Take an answer of the ingest process; False: it answers a re-check of an alert. Any thread; never waits."""
        waiting = self._waiting.get(result.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)
        return result.id.startswith("picture.")
