"""How sure the rules are of a track, and that a score means the same whatever the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from appliance.base.errors import ModelError
from appliance.base.json_lines import decode_log, encode_log
from appliance.bundle.manifest import checked_lines
from appliance.detect import model_files
from appliance.detect.model_files import REFERENCE, lines_from_metadata, to_common_scale
from appliance.rules.conditions import TrackCertainty, calibrated
from appliance.rules.engine import RulesEngine
from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, Event, FrameBoxes
from tests.support.sample_tracks import camera, fired, header, look, person

INTRUDER = {"name": "intruder", "kind": "enter", "zone": "yard", "at_start": "report"}
WALK = [(0.2 + 0.03 * index, 0.6) for index in range(14)]
STAND = [(0.6, 0.6)] * 14


def frames(feet: list[tuple[float, float]], score: float, label: str = "person") -> list[FrameBoxes]:
    return [look(0.2 * index, person(foot, score=score, label=label)) for index, foot in enumerate(feet)]


def told(
    seen: list[FrameBoxes], calibration: dict[str, tuple[float, float]] | None = None, **rule: object
) -> list[float]:
    made = RulesEngine("gate", camera({**INTRUDER, **rule}))
    made.feed(replace(header(), calibration=calibration or {}))
    return [t for _, t in fired(made.feed, seen)]


def value(scores: list[float], step: float, score_min: float = 0.5) -> float:
    certainty = TrackCertainty()
    for index, score in enumerate(scores):
        box: Box = (0.1 + step * index, 0.3, 0.2 + step * index, 0.6)
        certainty.add(score, box)
    return certainty.at_least(score_min)


class TestTrack:
    def test_who_walks_at_a_score_of_a_third_is_there(self) -> None:
        assert told(frames(WALK, 0.36)) != []

    def test_what_stands_at_that_score_for_seconds_is_not(self) -> None:
        assert told(frames(STAND, 0.36)) == []
        assert told(frames(STAND, 0.48)) == []

    def test_what_walks_at_a_fifth_is_not(self) -> None:
        assert told(frames(WALK, 0.2)) == []

    def test_one_strong_look_among_weak_ones_does_not_convince(self) -> None:
        assert value([0.2, 0.99, 0.2, 0.2, 0.2, 0.2], step=0.05) < 0.5

    def test_two_looks_are_too_few_however_far_apart(self) -> None:
        assert value([0.45, 0.45], step=0.05) < 0.5 <= value([0.45] * 3, step=0.05)

    def test_looks_add_up_to_a_bound_that_only_good_scores_pass(self) -> None:
        assert 0.87 < value([0.6] * 50, step=0.05, score_min=0.8) < 0.89
        assert value([0.6] * 50, step=0.05, score_min=0.9) == 0.6
        assert value([0.99] * 5, step=0.0, score_min=0.9) == 0.99

    def test_where_the_median_is_enough_it_is_what_an_event_tells(self) -> None:
        assert value([0.6] * 50, step=0.05) == 0.6

    def test_a_long_doubt_is_overcome_by_some_good_looks(self) -> None:
        assert value([0.15] * 100 + [0.6] * 6, step=0.05) > 0.5

    def test_one_strong_look_does_not_convince_because_the_tracker_repeats_it(self) -> None:
        """Somebody walks elsewhere: only that part of the picture is examined, and what is at rest is repeated."""
        made, tracker = RulesEngine("gate", camera(INTRUDER)), Tracker(("person",))
        made.feed(header())
        events: list[Event] = []
        for index, score in enumerate([0.55, *[0.42] * 14, 0.62, *[None] * 30]):
            x = 0.6 + 0.001 * (index % 3)  # boxes of what stands breathe
            found, parts = Detections.empty(), [(0.0, 0.0, 0.4, 1.0)]
            if score is not None:
                box, parts = np.array([[x, 0.5, x + 0.05, 0.7]], np.float32), []
                found = Detections(box, np.array([score], np.float32), np.zeros(1, np.int32))
            objects = tracker.update(found, 0.2 * index, (), parts)
            events += made.feed(look(0.2 * index, *objects))
        assert [each.score for each in objects] == [0.62]
        assert events == []

    def test_the_event_carries_it(self) -> None:
        made = RulesEngine("gate", camera(INTRUDER))
        made.feed(header())
        (event,) = [event for frame in frames(WALK, 0.36) for event in made.feed(frame)]
        assert event.score >= 0.5


class TestScale:
    def test_a_network_that_is_right_more_rarely_must_score_higher(self) -> None:
        lines = to_common_scale(model_files.model_bundles()["fastestdet"].calibration, ("person", "car"))
        assert told(frames(STAND, 0.6), lines) == []
        assert told(frames(STAND, 0.6)) != []
        assert told(frames(STAND, 0.75), lines) != []

    def test_and_one_that_is_right_more_often_may_score_lower(self) -> None:
        lines = to_common_scale(model_files.model_bundles()["nanodet-m"].calibration, ("person", "car"))
        assert told(frames(STAND, 0.45), lines) != []
        assert told(frames(STAND, 0.45)) == []

    def test_the_network_of_the_box_is_the_scale(self) -> None:
        bundles = model_files.model_bundles()
        assert bundles["vedette-nano"].calibration == dict(REFERENCE)
        assert to_common_scale(bundles["vedette-nano"].calibration, bundles["vedette-nano"].labels) == {}

    def test_a_score_that_is_right_as_often_is_the_same_on_it(self) -> None:
        lines = to_common_scale({"person": (2.0, 0.68), "vehicle": (1.9, 1.07)}, ("person", "car", "dog"))
        assert lines == {"person": (2.0, 0.4)}
        assert calibrated(0.5, "person", lines) == pytest.approx(0.5987, abs=1e-4)
        assert calibrated(0.5, "dog", lines) == 0.5

    def test_a_file_says_it_in_its_metadata(self) -> None:
        text = '{"person": [1.2, 0.3]}'
        assert lines_from_metadata("own.onnx", {"vedette_calibration": text}) == {"person": (1.2, 0.3)}
        assert lines_from_metadata("own.onnx", {}) == {}
        for bad in (
            "person",
            '{"person": 3}',
            '{"cat": [1, 0]}',
            '{"person": [0, 0]}',
            '{"person": [1, 99]}',
            "[" * 9**5,
        ):
            with pytest.raises(ModelError, match="vedette_calibration"):
                lines_from_metadata("own.onnx", {"vedette_calibration": bad})
        with pytest.raises(ValueError, match="`cat` is no kind"):
            checked_lines({"cat": (1.0, 0.0)})

    def test_a_log_tells_it_only_where_there_is_something_to_tell(self) -> None:
        plain = encode_log(header())
        assert b"calibration" not in plain
        changed = replace(header(), calibration={"person": (2.0, 0.4)})
        assert decode_log(encode_log(changed)) == changed
