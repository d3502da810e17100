"""Runs the detectors in one thread: one detector for all cameras, perhaps another one for some.

It runs the inferences that the scheduler selects, retries failed ones, and hands the results back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.analysis.session_tracks import GpuHandOver, InferenceRequest
from appliance.base.clock import Clock
from appliance.base.errors import DetectorError
from appliance.base.telemetry import LogThrottle
from appliance.detect.detector import DetectorProxy, ObjectDetector
from appliance.inference.camera_queue import CameraQueue, FrameAges, p95
from appliance.inference.scheduler import BatchPlan, InferenceCosts, InferenceScheduler, Selection, measure_batching
from appliance.types import Detections, DropReason

logger = logging.getLogger(__name__)

IDLE_S = 2.0  # without a wake-up the worker looks at the queues this often; whoever queues a frame wakes it
RETRIES_MAX = 2  # a driver that hiccups answers the second time
RETRY_S_MAX = 2.0  # a call that took longer to fail is not repeated: cameras wait
_SMOOTHING = 0.1  # share of the newest time: a single slow inference moves the figure by a tenth
STUCK_S = 10.0  # far beyond an inference on a loaded machine: what the call was for is given up, and counted
HUNG_S = 30.0  # a call that does not come back keeps the detector for ever: only a new process helps
NETWORKS_MAX = 4  # in use at once: two, and two that take their places
WAIT_S_MAX = 10.0  # a frame that was not examined by then is given up


class DetectorHung(Exception):
    """A call of the detector does not come back; only a new process helps."""


class DetectorWatchdog:
    """State: since when the detector is at its present call. Its thread calls `begin` and `end`, any other asks."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._busy_since: float | None = None

    def begin(self) -> None:
        """Note that the detector is called now."""
        self._busy_since = self._clock.monotonic()

    def end(self) -> None:
        """Note that the call came back, or failed."""
        self._busy_since = None

    def busy_s(self) -> float:
        """Seconds that the present call has taken so far; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def is_stuck(self) -> bool:
        return self.busy_s() > STUCK_S

    def check(self) -> None:
        """Raise DetectorHung if the present call takes longer than HUNG_S."""
        if self.busy_s() > HUNG_S:
            raise DetectorHung(f"the detector has not answered for {HUNG_S:.0f} s")


@dataclass(slots=True, eq=False)
class _WaitingFrame:
    image: NDArray[np.uint8]
    done: threading.Event = field(default_factory=threading.Event)
    found: Detections | None = None
    error: str = ""


class IdleDetector(DetectorProxy):
    """The shared detector as seen by work that may wait: each frame is examined once no camera waits for it.

    A detector belongs to one thread. `detect` is called in another and waits; the detector's thread calls `run_once`
    when no camera's frame is due, so a camera waits for one frame at most. State: the one frame that waits. Bounded:
    one at a time; after `wait_s` it is given up, and its result is not used then.
    """

    def __init__(
        self, detector: ObjectDetector, wake: threading.Event | None = None, *, wait_s: float = WAIT_S_MAX
    ) -> None:
        """wake: set when a frame waits."""
        super().__init__(detector)
        self._wake = wake or threading.Event()
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._waiting: _WaitingFrame | None = None
        self._stopped = False

    @property
    def shape_step(self) -> int:
        """See `VariableInput`."""
        return getattr(self._detector, "shape_step", 0)

    def replace(self, detector: ObjectDetector) -> None:
        """Examine by this detector from the next frame on. Called by the detector's thread."""
        self._detector = detector

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """One result each, in order. Raises DetectorError: the detector failed, or had no time."""
        return [self._detect_one(image) for image in frames]

    def run_once(self) -> bool:
        """Examine the frame that waits; False: there was none. Called by the detector's thread, when it is idle."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return False
        try:
            (waiting.found,) = self._detector.detect([waiting.image])
        except DetectorError as error:
            waiting.error = str(error)
        finally:  # a bug of a model goes up to the top of the detector's loop, and `detect` does not wait for it
            waiting.error = waiting.error or ("" if waiting.found is not None else "the detector failed")
            waiting.done.set()
        return True

    def stop(self) -> None:
        """Stop, because the detector's thread ends. Any thread may call."""
        with self._lock:
            self._stopped = True
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.error = "the ingest process stops"
            waiting.done.set()

    def _detect_one(self, image: NDArray[np.uint8]) -> Detections:
        waiting = _WaitingFrame(image)
        with self._lock:
            if self._stopped:
                raise DetectorError("the ingest process stops")
            if self._waiting is not None:
                raise DetectorError("another picture waits already")
            self._waiting = waiting
        self._wake.set()
        if not waiting.done.wait(self._wait_s):
            with self._lock:
                if self._waiting is waiting:
                    self._waiting = None
            raise DetectorError("the detector had no time")
        if waiting.found is None:
            raise DetectorError(waiting.error)
        return waiting.found


@dataclass(frozen=True, slots=True, eq=False)
class QueuedInference:
    """A request that waits for the detector."""

    request: InferenceRequest
    arrived: float | None = None  # when its packet came, monotonic; None of a frame that was decoded late


class InferenceClient(Protocol):
    """One camera, as the worker sees it."""

    @property
    def queue(self) -> CameraQueue[QueuedInference]: ...

    @property
    def ages(self) -> FrameAges: ...

    def complete(self, queued: QueuedInference, detections: Detections | None, reason: DropReason = "failed") -> None:
        """Take the result of an inference; None means that there is none, for that reason. Any thread may call."""
        ...


class InferenceWorker:
    """Calls the detector for the frames that the scheduler selects, and completes them at their cameras.

    A frame is examined by the detector of its session, which may be another than that of other cameras.

    A call that fails is repeated at once, at most RETRIES_MAX times, on the newest frame; not so if the inference
    before it came to nothing, too, or if failing took longer than RETRY_S_MAX. An inference that came to nothing is
    completed as one, never as empty. A call that is stuck is given up (`give_up_stuck_call`): its frames are completed
    without a result, and should it come back, its result is not used. While no camera waits, `idle_detector` has the
    detector. State: the calls' mean time, the frames of the present call. Owner: one named thread that calls `run()`.
    """

    def __init__(
        self,
        detector: ObjectDetector,
        clients: Sequence[InferenceClient],
        clock: Clock,
        wake: threading.Event | None = None,
        examined: Callable[[InferenceRequest, Detections], None] = lambda request, found: None,
    ) -> None:
        """wake: whoever queues a frame sets it. examined: takes each frame with its answer, after its camera did."""
        self._examined = examined
        self.mean_ms = 0.0
        self.warning = ""
        self.watchdog = DetectorWatchdog(clock)
        self._detector = detector
        self._next_detector = detector
        self._hand_overs: deque[GpuHandOver] = deque(maxlen=NETWORKS_MAX)
        self._clients = tuple(clients)
        self._next_clients: tuple[InferenceClient, ...] | None = None
        self._clock = clock
        self._scheduler = InferenceScheduler([client.queue for client in self._clients])
        self._repeats = LogThrottle(logger, clock)
        self._wake = wake or threading.Event()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._in_flight: Sequence[Selection[QueuedInference]] = ()
        self._is_failing = False
        self._failed_s = 0.0
        self.idle_detector = IdleDetector(detector, self._wake)

    def run(self) -> None:
        self.measure_batching()
        while not self._stop.is_set():
            self._wake.clear()
            self._take_next_clients()
            self._take_next_detector()
            wait_s = self._scheduler.wait_s(self._clock.monotonic())
            if wait_s > 0 or not (self.run_once() or self._run_idle()):
                self._wake.wait(wait_s or IDLE_S)

    def measure_batching(self) -> None:
        """Measure how many frames a call pay. Takes a few calls of a detector that says it may gain from batches."""
        self.watchdog.begin()
        try:
            self._scheduler.batching = measure_batching(self._detector, self._clock)
        except DetectorError as error:
            self._note_error(error)
        except Exception:  # the top of the detector's loop: the first inference will say what is wrong with it
            logger.exception("how the detector is best called was not found out")
        self.watchdog.end()

    def run_once(self) -> bool:
        """One call of the detector, and its retries; False when no frame waited."""
        was_failing = self._is_failing
        selected = self._scheduler.next(self._clock.monotonic(), alone=was_failing)
        if not selected:
            return False
        if self._infer(selected) is None:
            # Of several each by itself, so that a frame the detector cannot stand costs its neighbours nothing.
            tries = 0 if was_failing else 1 if len(selected) > 1 else RETRIES_MAX
            for each in selected:
                self._retry(each, tries)
        return True

    def replace_clients(self, clients: Sequence[InferenceClient]) -> None:
        """Serve these cameras from the next call on. Any thread."""
        self._next_clients = tuple(clients)
        self._wake.set()

    def replace_detector(self, detector: ObjectDetector) -> None:
        """Take this one for the shared detector from the next call on; frames of older sessions keep theirs.

        Any thread may call.
        """
        self._next_detector = detector
        self._wake.set()

    def stop(self) -> None:
        self._stop.set()
        self.idle_detector.stop()
        self._wake.set()

    def cameras_waiting(self) -> int:
        """Cameras of which a frame waits now."""
        return sum(len(client.queue) > 0 for client in self._clients)

    def load(self) -> float:
        """Share of the last seconds in which the detector was at work, 0..1."""
        return 1.0 if self.watchdog.is_stuck else self._scheduler.load(self._clock.monotonic())

    def age_p95_ms(self) -> float:
        """95th percentile of the ages of the frames whose results came in the last seconds."""
        now = self._clock.monotonic()
        return p95(ms for client in self._clients for ms in client.ages.recent(now))

    def give_up_stuck_call(self) -> None:
        """Complete the frames of a call that does not come back. Call it once a second, from another thread."""
        if not self.watchdog.is_stuck:
            return
        for client in self._clients:
            client.queue.drop_reason = "stuck"
        for each in self._take_in_flight():
            self._clients[each.queue].complete(each.frame.item, None, "stuck")

    def _take_next_clients(self) -> None:
        """Between two calls only: the frames of a call name their camera by its number."""
        clients, self._next_clients = self._next_clients, None
        if clients is not None:
            self._clients = clients
            self._scheduler.replace_queues([client.queue for client in clients])

    def _take_next_detector(self) -> None:
        """Between two calls: what was learnt of the detector before says nothing of the new one."""
        if self._next_detector is self._detector:
            return
        self._detector = self._next_detector
        self._hand_overs.clear()  # the memory of one that no session uses is free now
        self._scheduler.costs, self._scheduler.batching = InferenceCosts(), BatchPlan()
        self.idle_detector.replace(self._detector)
        self.measure_batching()

    def _detect(self, requests: Sequence[InferenceRequest]) -> list[Detections]:
        """Return the answers, in order, of the detector of each request's session. Raise DetectorError."""
        numbers_of: dict[int, list[int]] = {}
        for number, request in enumerate(requests):
            numbers_of.setdefault(id(request.tracks.detector), []).append(number)
        found: dict[int, Detections] = {}
        for numbers in numbers_of.values():
            hand_over = self._hand_over(requests[numbers[0]].tracks.detector)
            found |= zip(numbers, hand_over.detect([requests[number] for number in numbers]), strict=True)
        return [found[number] for number in range(len(requests))]

    def _hand_over(self, detector: ObjectDetector) -> GpuHandOver:
        known = next((each for each in self._hand_overs if each.detector is detector), None)
        if known is None:
            known = GpuHandOver(detector)
            self._hand_overs.append(known)
        return known

    def _run_idle(self) -> bool:
        """No camera waits: a frame of a re-check, if there is one. It counts for none of the figures of inference."""
        self.watchdog.begin()
        try:
            return self.idle_detector.run_once()
        except Exception:  # the top of the detector's loop: the cameras go on
            logger.exception("a second look failed in an unexpected way")
            return True
        finally:
            self.watchdog.end()

    def _retry(self, selected: Selection[QueuedInference], tries: int) -> None:
        client = self._clients[selected.queue]
        for _ in range(tries):
            if self._failed_s > RETRY_S_MAX:
                break
            newer = client.queue.take_newer()
            if newer is not None:
                client.complete(selected.frame.item, None)
                selected = replace(selected, frame=newer)
            client.queue.retries += 1
            if self._infer([selected]) is not None:
                return
        self._is_failing = True
        client.complete(selected.frame.item, None)

    def _infer(self, selected: Sequence[Selection[QueuedInference]]) -> Sequence[Detections] | None:
        """Run one call, hand the results to the cameras, and return them.

        Return () if the call was given up, and None if the detector failed.
        """
        with self._lock:
            self._in_flight = selected
        began = self._clock.monotonic()
        self.watchdog.begin()
        found: Sequence[Detections] | None = None
        try:
            requests = [each.frame.item.request for each in selected]
            found = self._detect(requests)
        except DetectorError as error:
            self._note_error(error)
        except Exception as error:  # the top of the detector's loop: recording goes on whatever a model does
            self.warning = f"the detector failed: {type(error).__name__}"
            logger.exception("the detector failed in an unexpected way")
        now = self._clock.monotonic()
        self.watchdog.end()
        self._scheduler.done(selected, now - began, now)
        self._note_call(now - began, len(selected), failed=found is None)
        if not self._take_in_flight():
            logger.warning("the detector came back after %.0f s; its answer is not used", now - began)
            return ()
        if found is not None:
            for each, detections in zip(selected, found, strict=True):
                self._complete(self._clients[each.queue], each.frame.item, detections)
        return found

    def _complete(self, client: InferenceClient, queued: QueuedInference, found: Detections) -> None:
        try:
            client.complete(queued, found)
            self._examined(queued.request, found)
        except Exception:  # noqa: BLE001 (a bug in one tracker must not end the thread that examines all cameras)
            client.queue.count_dropped("failed")
            what = f"camera {queued.request.tracks.camera}: what was found could not be taken in"
            self._repeats.report(what, logging.ERROR, with_traceback=True)

    def _note_call(self, seconds: float, frames: int, *, failed: bool) -> None:
        self.mean_ms += (1000 * seconds / frames - self.mean_ms) * (_SMOOTHING if self.mean_ms else 1.0)
        self._failed_s = seconds if failed else 0.0
        if not failed:
            self.warning, self._is_failing = "", False

    def _note_error(self, error: DetectorError) -> None:
        self.warning = f"the detector failed: {error}"
        self._repeats.report(self.warning)

    def _take_in_flight(self) -> Sequence[Selection[QueuedInference]]:
        """Take the frames of the present call, for the caller to complete; none if another thread was faster."""
        with self._lock:
            selected, self._in_flight = self._in_flight, ()
            return selected
