"""The thread that owns the one detector: runs the inferences that the scheduler selects, retries failed ones, and hands
the results back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

from appliance.clock import Clock
from appliance.detect.detector import ObjectDetector
from appliance.errors import DetectorError
from appliance.inference.frame_age import p95
from appliance.inference.idle_detector import IdleDetector
from appliance.inference.scheduler import InferenceScheduler, Selection, measure_batching
from appliance.ingest.detect_stream import DetectStream, QueuedInference
from appliance.telemetry import LogThrottle
from appliance.types import Detections

logger = logging.getLogger(__name__)

IDLE_S = 0.5
RETRIES = 2
RETRY_S_MAX = 2.0
DETECTOR_STUCK_S = 10.0
_SMOOTHING = 0.1


class InferenceWorker:
    """Asks the detector for the looks that `Scheduler` chooses, and hands the answers back.

    A call that fails is made again, at once, at most RETRIES times, on the newest picture; not so if the look before it
    came to nothing, too, or if failing took longer than RETRY_S_MAX. A look that came to nothing is told as one, never
    as empty.
    A call that lasts longer than STUCK_S is given up (`notice`): its looks are told as not taken, and should it come
    back, nobody listens. State: the calls' mean time, what is under way. Owner: one named thread that calls `run()`.
    """

    def __init__(self, detector: ObjectDetector, watches: Sequence[DetectStream], clock: Clock) -> None:
        self.mean_ms = 0.0
        self.warning = ""
        self._detector = detector
        self._watches = tuple(watches)
        self._clock = clock
        self._scheduler = InferenceScheduler([watch.queue for watch in self._watches])
        self._repeats = LogThrottle(logger, clock)
        self._awake = threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._under_way: Sequence[Selection[QueuedInference]] = ()
        self._busy_since: float | None = None
        self._failing = False
        self._failed_s = 0.0
        self.aside = IdleDetector(detector)
        self.aside.wake = self._awake.set
        for watch in self._watches:
            watch.wake = self._awake.set

    def run(self) -> None:
        self.measure_batching()
        while not self._stop.is_set():
            self._awake.clear()
            wait_s = self._scheduler.wait_s(self._clock.monotonic())
            if wait_s > 0 or not (self.run_once() or self._look_aside()):
                self._awake.wait(wait_s or IDLE_S)

    def measure_batching(self) -> None:
        """Find out how the detector is best called. Takes a few calls of a detector that says it may gain from it."""
        self._busy_since = self._clock.monotonic()
        try:
            self._scheduler.batching = measure_batching(self._detector, self._clock)
        except DetectorError as error:
            self._fail(error)
        except Exception:  # the top of the detector's loop: the first look will say what is wrong with it
            logger.exception("how the detector is best called was not found out")
        self._busy_since = None

    def run_once(self) -> bool:
        """One call of the detector, and what it takes to have it answer; False when no look was waiting."""
        known_to_fail = self._failing
        picks = self._scheduler.next(self._clock.monotonic(), alone=known_to_fail)
        if not picks:
            return False
        if self._ask(picks) is None:
            # Of several each by itself, so that a picture the detector cannot stand costs its neighbours nothing.
            tries = 0 if known_to_fail else 1 if len(picks) > 1 else RETRIES
            for pick in picks:
                self._retry(pick, tries)
        return True

    def stop(self) -> None:
        self._stop.set()
        self.aside.stop()
        self._awake.set()

    def busy_s(self) -> float:
        """How long the detector has been at its present call; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def cameras_waiting(self) -> int:
        """Cameras that wait for a look now."""
        return sum(len(watch.queue) > 0 for watch in self._watches)

    def load(self) -> float:
        """Share of the last seconds in which the detector was at work, 0..1."""
        stuck = self.busy_s() > DETECTOR_STUCK_S
        return 1.0 if stuck else self._scheduler.load(self._clock.monotonic())

    def age_p95_ms(self) -> float:
        """Of the pictures that the trackers heard of in the last seconds."""
        now = self._clock.monotonic()
        return p95(ms for watch in self._watches for ms in watch.ages.recent(now))

    def give_up_stuck_call(self) -> None:
        """Give up a call that does not come back. Call it once a second, from another thread."""
        if self.busy_s() <= DETECTOR_STUCK_S:
            return
        for watch in self._watches:
            watch.queue.drop_reason = "stuck"
        for pick in self._finish():
            self._watches[pick.queue].answer(pick.frame.item, None, "stuck")

    def _look_aside(self) -> bool:
        """No camera waits: a picture of a second look, if there is one. It counts for none of the figures of looks."""
        self._busy_since = self._clock.monotonic()
        try:
            return self.aside.run_once()
        except Exception:  # the top of the detector's loop: the live looks go on
            logger.exception("a second look failed in an unexpected way")
            return True
        finally:
            self._busy_since = None

    def _retry(self, pick: Selection[QueuedInference], tries: int) -> None:
        watch = self._watches[pick.queue]
        for _ in range(tries):
            if self._failed_s > RETRY_S_MAX:
                break
            newer = watch.queue.take_newer()
            if newer is not None:
                watch.answer(pick.frame.item, None)
                pick = replace(pick, frame=newer)
            watch.retries += 1
            if self._ask([pick]) is not None:
                return
        self._failing = True
        watch.answer(pick.frame.item, None)

    def _ask(self, picks: Sequence[Selection[QueuedInference]]) -> Sequence[Detections] | None:
        """The answers, told to those who wait for them; () if nobody does any more; None: the detector failed."""
        with self._lock:
            self._under_way = picks
        self._busy_since = began = self._clock.monotonic()
        answers: Sequence[Detections] | None = None
        try:
            pictures = [pick.frame.item.analyzer.detector_input(pick.frame.item.request) for pick in picks]
            answers = self._detector.detect(pictures)
        except DetectorError as error:
            self._fail(error)
        except Exception as error:  # the top of the detector's loop: recording goes on whatever a model does
            self.warning = f"the detector failed: {type(error).__name__}"
            logger.exception("the detector failed in an unexpected way")
        now = self._clock.monotonic()
        self._busy_since = None
        self._scheduler.done(picks, now - began, now)
        self._note(now - began, len(picks), failed=answers is None)
        if not self._finish():
            logger.warning("the detector came back after %.0f s; its answer is not used", now - began)
            return ()
        if answers is not None:
            self._tell(picks, answers)
        return answers

    def _note(self, seconds: float, pictures: int, *, failed: bool) -> None:
        self.mean_ms += (1000 * seconds / pictures - self.mean_ms) * (_SMOOTHING if self.mean_ms else 1.0)
        self._failed_s = seconds if failed else 0.0
        if not failed:
            self.warning, self._failing = "", False

    def _tell(self, picks: Sequence[Selection[QueuedInference]], answers: Sequence[Detections]) -> None:
        for pick, answer in zip(picks, answers, strict=True):
            self._watches[pick.queue].answer(pick.frame.item, answer)

    def _finish(self) -> Sequence[Selection[QueuedInference]]:
        """What was under way and is now in the caller's hands; nothing if somebody was faster."""
        with self._lock:
            picks, self._under_way = self._under_way, ()
            return picks

    def _fail(self, error: DetectorError) -> None:
        self.warning = f"the detector failed: {error}"
        self._repeats.report(self.warning)
