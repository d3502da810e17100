"""A detector for work that may wait: each frame is examined once the shared detector is idle."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import DetectorError
from appliance.detect.detector import DetectorProxy, ObjectDetector
from appliance.types import Detections

WAIT_S_MAX = 10.0  # a frame that was not examined by then is given up


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

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """One result each, in order. Raises DetectorError: the detector failed, or had no time."""
        return [self._detect_one(image) for image in pictures]

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
