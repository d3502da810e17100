"""A detector for work that may wait: each frame is examined once the shared detector is idle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.detect.detector import DetectorProxy, ObjectDetector
from appliance.errors import DetectorError
from appliance.types import Detections

Images = Sequence[NDArray[np.uint8]]


@dataclass(slots=True, eq=False)
class _WaitingFrame:
    picture: NDArray[np.uint8]
    done: threading.Event = field(default_factory=threading.Event)
    answer: Detections | None = None
    error: str = ""


class IdleDetector(DetectorProxy):
    """A detector as one who is never in a hurry sees it: each picture is looked at once the detector is idle.

    A detector belongs to one thread. `detect` is called in another and waits; the detector's thread calls `run_once`
    when no look of a camera is due, so a camera waits for one picture at most. State: the one picture that waits.
    Bounded: one at a time; after PATIENCE_S it is given up, and what comes of it then is not used.
    """

    WAIT_S_MAX = 10.0

    def __init__(self, detector: ObjectDetector) -> None:
        super().__init__(detector)
        self._lock = threading.Lock()
        self._waiting: _WaitingFrame | None = None
        self._stopped = False
        self.wake: Callable[[], None] = lambda: None

    @property
    def shape_step(self) -> int:
        """See `examine.Elastic`."""
        return getattr(self._detector, "shape_step", 0)

    def detect(self, pictures: Images) -> list[Detections]:
        """One answer each, in order. Raises DetectorError: the detector failed, or had no time."""
        return [self._ask(picture) for picture in pictures]

    def run_once(self) -> bool:
        """Look at the picture that waits; False: there was none. Called by the detector's thread, when it is idle."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return False
        try:
            (waiting.answer,) = self._detector.detect([waiting.picture])
        except DetectorError as error:
            waiting.error = str(error)
        finally:  # a bug of a model goes up to the top of the detector's loop, and nobody waits for it here
            waiting.error = waiting.error or ("" if waiting.answer is not None else "the detector failed")
            waiting.done.set()
        return True

    def stop(self) -> None:
        """Nobody will look any more. Any thread."""
        with self._lock:
            self._stopped = True
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.error = "the ingest process stops"
            waiting.done.set()

    def _ask(self, picture: NDArray[np.uint8]) -> Detections:
        waiting = _WaitingFrame(picture)
        with self._lock:
            if self._stopped:
                raise DetectorError("the ingest process stops")
            if self._waiting is not None:
                raise DetectorError("another picture waits already")
            self._waiting = waiting
        self.wake()
        if not waiting.done.wait(self.WAIT_S_MAX):
            with self._lock:
                if self._waiting is waiting:
                    self._waiting = None
            raise DetectorError("the detector had no time")
        if waiting.answer is None:
            raise DetectorError(waiting.error)
        return waiting.answer
