"""A detector that is asked about each picture once: what it remembers, passes on and forgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.errors import DetectorError
from appliance.detect.detector import VariableInput, calibration_of, prefer_labels
from appliance.replay.replay_resume import MemoizedDetector
from appliance.types import Detections


class Eye:
    """Finds nothing; counts what it is asked."""

    name, warning, labels, shape_step = "eye", "", ("person", "car"), 32
    calibration = {"person": (0.5, 0.1)}

    def __init__(self) -> None:
        self.asked = 0
        self.wanted: list[list[str]] = []
        self.fails = False

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def prefer(self, wanted: Iterable[str]) -> None:
        self.wanted.append(list(wanted))

    def detect(self, frames: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self.asked += len(frames)
        if self.fails:
            raise DetectorError("broken")
        return [Detections.empty() for _ in frames]


def picture(value: int, shape: tuple[int, int, int] = (4, 6, 3)) -> NDArray[np.uint8]:
    return np.full(shape, value, np.uint8)


def test_it_is_asked_once_about_a_picture_and_again_about_another_shape_of_the_same_bytes() -> None:
    eye = Eye()
    memo = MemoizedDetector(eye)
    for frames in ([picture(1), picture(1)], [picture(2)], [picture(1)]):
        assert len(memo.detect(frames)) == len(frames)
    assert eye.asked == 2
    memo.detect([picture(1, (6, 4, 3))])
    assert eye.asked == 3


def test_a_failure_is_not_remembered() -> None:
    eye = Eye()
    memo = MemoizedDetector(eye)
    eye.fails = True
    with pytest.raises(DetectorError):
        memo.detect([picture(1)])
    eye.fails = False
    assert len(memo.detect([picture(1)])) == 1
    assert eye.asked == 2


def test_with_other_labels_it_is_asked_anew_and_with_the_same_ones_not() -> None:
    eye = Eye()
    memo = MemoizedDetector(eye)
    for wanted in (["car", "person"], ["person", "car"], ["car"]):
        prefer_labels(memo, wanted)
        memo.detect([picture(1)])
    assert eye.wanted == [["car", "person"], ["car"]]
    assert eye.asked == 2


def test_tracker_and_gate_know_the_network_through_it() -> None:
    """Else a threshold that `vedette tune` finds would be one of other scores than the live ones."""
    memo = MemoizedDetector(Eye())
    assert calibration_of(memo) == Eye.calibration
    assert isinstance(memo, VariableInput)
    assert memo.shape_step == 32
