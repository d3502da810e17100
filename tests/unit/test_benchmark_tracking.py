"""The comparison of trackers: what is kept is what was found, and the arithmetic is that of the field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.scenario.metrics import LabelledBoxes
from appliance.types import Detections
from benchmarks import tracking_libraries, tracking_scenes
from benchmarks.tracking_scenes import ClipDetections, FrameDetections


def clip_detections(fps: float, count: int) -> ClipDetections:
    rng = np.random.default_rng(1)
    found = []
    for index in range(count):
        corner = rng.uniform(0, 0.8, (index % 3, 2)).astype(np.float32)
        boxes = np.concatenate([corner, corner + 0.1], axis=1)
        scores, classes = np.full(len(boxes), 0.7, np.float32), np.zeros(len(boxes), np.int32)
        found.append(FrameDetections(index, round(index / fps, 3), Detections(boxes, scores, classes)))
    return ClipDetections("scripted", ("person", "car"), (640, 480), tuple(found))


def test_what_is_kept_comes_back_bit_for_bit(tmp_path: Path) -> None:
    kept = clip_detections(10, 7)
    tracking_scenes.save_detections(tmp_path / "looks.npz", kept)
    back = tracking_scenes.load_detections(tmp_path / "looks.npz")
    assert (back.model, back.labels, back.size) == (kept.model, kept.labels, kept.size)
    for one, other in zip(kept.looks, back.looks, strict=True):
        assert (one.frame, one.t) == (other.frame, other.t)
        np.testing.assert_array_equal(one.found.boxes, other.found.boxes)


@pytest.mark.parametrize(
    ("fps", "phase", "frames"), [(5, 0, [0, 2, 4, 6]), (5, 1, [1, 3, 5, 7]), (50, 0, list(range(8)))]
)
def test_frames_are_sampled_evenly(fps: float, phase: int, frames: list[int]) -> None:
    assert [look.frame for look in clip_detections(10, 8).every(fps, phase).looks] == frames


def test_a_library_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.modules", {**__import__("sys").modules, "trackers": None, "supervision": None, "norfair": None}
    )
    rivals, absent = tracking_libraries.available(0, 5.0, (640, 480))
    assert rivals == []
    assert absent == ["trackers", "supervision with ByteTrack (up to 0.27)", "norfair"]


def test_metrics_are_checked_where_the_libraries_are_and_missing_ones_are_named() -> None:
    boxes = np.array([[0.1, 0.1, 0.2, 0.4], [0.5, 0.1, 0.6, 0.4]])
    right = [LabelledBoxes(boxes, np.array([1.0, 2.0]))] * 4
    found = [LabelledBoxes(boxes, np.array([7.0, 8.0]))] * 3 + [LabelledBoxes(boxes, np.array([8.0, 7.0]))]
    for sentence in tracking_libraries.check(found, right):
        if "not installed" in sentence:
            continue
        theirs, ours = sentence.split("; ours: ")
        figures = [float(word) for word in theirs.split() if word.replace(".", "").isdigit()]
        assert figures == pytest.approx([float(word) for word in ours.split()], abs=1e-4)
