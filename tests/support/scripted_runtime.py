"""A network in memory that answers as a script says: what a NetworkRuntime is, without a library and a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from appliance.base.errors import DetectorError
from appliance.detect.network_runtime import CLOSED, Array, TensorSpec

SIDE = 128
ANCHORS = 336  # of 128 x 128 at strides of 8, 16 and 32


class ScriptedRuntime:
    """Answers [n, 5, ANCHORS] with one thing of class 0 in the middle, scored by the mean of the first plane.

    shapes: of every run, in order. before: called before each answer with the number of frames; it may raise or wait.
    The answer lies in memory that the thread's next run writes to, as a library's does.
    """

    version, mark = "scripted 1.0, memory", "scripted"
    takes_any_shape = False
    input_sizes: tuple[tuple[int, int], ...] = ()

    def __init__(
        self, batch_sizes: tuple[int, ...] = (1, 2, 4), before: Callable[[int], object] = lambda count: None
    ) -> None:
        self.batch_sizes = batch_sizes
        self.inputs = (TensorSpec("images", "float32", ("batch", 3, SIDE, SIDE)),)
        self.metadata: Mapping[str, str] = {"names": "{0: 'person'}", "task": "detect"}
        self.shapes: list[tuple[int, ...]] = []
        self.prepared: list[tuple[int, ...]] = []
        self.closed = 0
        self._before = before
        self._memory = threading.local()

    def prepare(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.prepared.append(shapes["images"])

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        if self.closed:
            raise DetectorError(CLOSED)
        images = feed["images"]
        if images.shape[1:] != (3, SIDE, SIDE):
            raise DetectorError(f"images: {list(images.shape)} is not [batch, 3, {SIDE}, {SIDE}]")
        self.shapes.append(images.shape)
        self._before(len(images))
        return {"output0": self._answer([float(each[0].mean()) for each in images])}

    def close(self) -> None:
        self.closed += 1

    def _answer(self, scores: Sequence[float]) -> Array:
        answer = self._memory.__dict__.setdefault(str(len(scores)), np.zeros((len(scores), 5, ANCHORS), np.float32))
        answer[:, :4, 0] = [64, 64, 32, 48]
        answer[:, 4, 0] = scores
        return answer
