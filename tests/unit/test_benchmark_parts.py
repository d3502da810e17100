"""The benchmark of looks at parts: what counts, what is nobody's mistake, and which detector is shown parts."""

from __future__ import annotations

import numpy as np

from appliance.detect.detector import VariableInput
from appliance.detect.letterbox import Letterbox
from appliance.lab.scenario import tracking_metrics
from appliance.lab.scenario.ground_truth import TrueObject
from appliance.types import FrameBoxes, TrackedObject
from benchmarks.parts import Parted, Weighed, labelled
from tests.replay.films import BrightBlock

HERE, THERE = (0.1, 0.1, 0.2, 0.5), (0.6, 0.1, 0.7, 0.5)


def look(frame: int, *boxes: tuple[float, float, float, float], looked: bool = True) -> FrameBoxes:
    objects = tuple(TrackedObject(track=n, label="person", score=0.9, box=box) for n, box in enumerate(boxes))
    return FrameBoxes(camera="film", seq=frame, frame=frame, t=frame / 5, looked=looked, objects=objects)


def person(identity: int, box: tuple[float, float, float, float], *, counts: bool = True) -> TrueObject:
    return TrueObject(identity, "person", box, counts)


def test_answers_are_held_against_those_who_count_in_frames_that_were_looked_at() -> None:
    frames = {0: (person(1, HERE), person(2, THERE)), 1: (person(1, HERE),), 2: (person(1, HERE),)}
    found, right = labelled([look(0, HERE), look(1, THERE), look(2, looked=False)], frames)
    counted = tracking_metrics.clear_mot(found, right)
    assert (counted.boxes, counted.missed, counted.false) == (3, 2, 1)


def test_finding_somebody_who_does_not_count_is_neither_right_nor_wrong() -> None:
    found, right = labelled([look(0, HERE, THERE)], {0: (person(1, HERE), person(2, THERE, counts=False))})
    assert (len(found[0].values), len(right[0].values)) == (1, 1)


def test_pixels_are_those_of_the_input_and_only_one_of_the_two_is_shown_parts() -> None:
    letterbox = Letterbox(416, 416, "centre", 32)
    whole, parts = Weighed(BrightBlock(), letterbox), Parted(BrightBlock(), letterbox)
    assert (isinstance(whole, VariableInput), isinstance(parts, VariableInput)) == (False, True)
    for eye, size in ((whole, (234, 416)), (parts, (96, 64))):
        eye.detect([np.zeros((*size, 3), np.uint8)])
    assert (whole.pixels, parts.pixels) == (416 * 288, 96 * 64)
