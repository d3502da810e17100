"""The one detector, shared by all cameras: whose look is next, and what becomes of the answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.clock import Clock
from appliance.errors import DetectorError
from appliance.ingest.examine import Detector
from appliance.ingest.watch import Request, Watch
from appliance.telemetry import Repeats
from appliance.types import Detections

IDLE_S = 0.5
_SMOOTHING = 0.1

logger = logging.getLogger(__name__)


class Looks:
    """Takes the most urgent looks, at most `batch_max` at a time, and hands the detector's answers back.

    Urgency is how much moved plus how long the camera has waited, in heartbeats: a busy camera goes first, and none
    waits much longer than its heartbeat. State: the mean time of a look. Owner: one named thread that calls `run()`.
    """

    def __init__(self, detector: Detector, watches: Sequence[Watch], clock: Clock, *, batch_max: int = 1) -> None:
        self.mean_ms = 0.0
        self.warning = ""
        self._detector = detector
        self._watches = tuple(watches)
        self._clock = clock
        self._batch_max = batch_max
        self._repeats = Repeats(logger, clock)
        self._awake = threading.Event()
        self._stop = threading.Event()
        self._busy_since: float | None = None
        for watch in self._watches:
            watch.wake = self._awake.set

    def run(self) -> None:
        while not self._stop.is_set():
            self._awake.clear()
            if not self.run_once():
                self._awake.wait(IDLE_S)

    def run_once(self) -> bool:
        """One call of the detector; False when no look was waiting."""
        batch = self._most_urgent()
        if not batch:
            return False
        self._busy_since = self._clock.monotonic()
        answers = self._ask([request for _, request in batch])
        took_ms = 1000 * (self._clock.monotonic() - self._busy_since) / len(batch)
        self._busy_since = None
        self.mean_ms += (took_ms - self.mean_ms) * (_SMOOTHING if self.mean_ms else 1.0)
        for (watch, request), answer in zip(batch, answers, strict=True):
            watch.answer(request, answer)
        return True

    def stop(self) -> None:
        self._stop.set()
        self._awake.set()

    def busy_s(self) -> float:
        """How long the detector has been at its present call; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else self._clock.monotonic() - since

    def queue(self) -> int:
        """Looks that wait now."""
        return sum(watch.waiting() is not None for watch in self._watches)

    def _most_urgent(self) -> list[tuple[Watch, Request]]:
        now = self._clock.monotonic()
        urgency = []
        for watch in self._watches:
            waiting = watch.waiting()
            if waiting is not None:
                request, since = waiting
                urgency.append((request.look.priority + (now - since) / watch.heartbeat_s, watch))
        urgency.sort(key=lambda pair: -pair[0])
        taken = ((watch, watch.next_request()) for _, watch in urgency[: self._batch_max])
        return [(watch, request) for watch, request in taken if request is not None]

    def _ask(self, requests: list[Request]) -> Sequence[Detections | None]:
        try:
            pictures: list[NDArray[np.uint8]] = [request.examiner.picture(request.look) for request in requests]
            answers = self._detector.detect(pictures)
        except DetectorError as error:
            self.warning = f"the detector failed: {error}"
            self._repeats.report(self.warning)
        except Exception as error:  # the top of the detector's loop: recording goes on whatever a model does
            self.warning = f"the detector failed: {type(error).__name__}"
            logger.exception("the detector failed in an unexpected way")
        else:
            self.warning = ""
            return answers
        return [None] * len(requests)
