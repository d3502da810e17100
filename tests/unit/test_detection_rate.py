"""The rate of inferences follows need: more for what is fast, new or about to cross a line, fewer for trees."""

from __future__ import annotations

from dataclasses import replace

import av
import numpy as np
import pytest

from appliance.analysis.session_tracks import RateNeed, TrackSummary
from appliance.config import CameraConfig, DetectConfig
from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, Point, TrackedObject
from benchmarks.detection_rate import RateFigures, analyse, fast_crossers, replace_fps
from tests.support.scripted_sources import CountingTracker, FrameByFrame, NumberReader

DOOR: tuple[Point, Point] = ((0.5, 0.0), (0.5, 1.0))
SEEDS = range(3)
CONSTANT = DetectConfig(fps_max=5)


def crossers(detect: DetectConfig) -> RateFigures:
    total = RateFigures()
    for seed in SEEDS:
        total += analyse(fast_crossers(seed, pace=1.0, height=0.22, count=3), detect, seed)
    return total


def test_fast_cars_fire_their_rules_at_a_small_part_of_what_ten_a_second_cost() -> None:
    slow, by_need, fast = (crossers(each) for each in (CONSTANT, DetectConfig(fps_max=10), replace_fps(CONSTANT, 10)))
    assert slow.found <= 0.6 * slow.expected
    assert by_need.found >= 0.85 * by_need.expected
    assert by_need.false == 0
    assert by_need.inferences < slow.inferences + (fast.inferences - slow.inferences) / 2


def an_object(x: float, number: int = 1, *, size: float = 0.1, stood_s: float | None = None) -> TrackedObject:
    return TrackedObject(track=number, label="car", score=0.9, box=(x, 0.5, x + size, 0.5 + size), stood_s=stood_s)


def needs(was: list[TrackedObject], now: list[TrackedObject], *, line: bool = False, passed: float = 0.2) -> bool:
    before = TrackSummary(answered_t=10.0, objects=tuple(was))
    return RateNeed([DOOR] if line else []).needs_more(now, before, 10.0 + passed)


def test_what_moves_by_half_its_size_from_frame_to_frame_is_fast() -> None:
    assert needs([an_object(0.2)], [an_object(0.26)])
    assert not needs([an_object(0.2)], [an_object(0.23)])
    assert not needs([an_object(0.2)], [an_object(0.2)])


def test_a_small_thing_is_fast_where_a_large_one_is_not() -> None:
    assert needs([an_object(0.2, size=0.04)], [an_object(0.23, size=0.04)])
    assert not needs([an_object(0.2, size=0.2)], [an_object(0.23, size=0.2)])


def test_in_a_crowd_of_people_only_vehicles_are_fast() -> None:
    crowd = [TrackedObject(track=n, label="person", score=0.9, box=(0.1, 0.2, 0.15, 0.4)) for n in range(2, 6)]
    runner = [replace(an_object(x), label="person") for x in (0.2, 0.26)]
    assert needs([*crowd[:2], runner[0]], [*crowd[:2], runner[1]])
    assert not needs([*crowd, runner[0]], [*crowd, runner[1]])
    assert needs([*crowd, an_object(0.2)], [*crowd, an_object(0.26)])


def test_a_box_that_only_grows_goes_nowhere() -> None:
    whole, half = an_object(0.2), TrackedObject(track=1, label="car", score=0.9, box=(0.26, 0.5, 0.3, 0.6))
    assert not needs([half], [whole], passed=0.1)


def test_who_is_about_to_cross_a_line_of_a_rule_is_examined_more_often() -> None:
    steps = [an_object(0.36)], [an_object(0.39)]
    assert needs(*steps, line=True)
    assert not needs(*steps)
    assert not needs(steps[1], steps[0], line=True)  # walks away from it
    assert not needs([an_object(0.1)], [an_object(0.13)], line=True)  # is far from it


def test_who_is_new_is_examined_again_soon_unless_there_is_a_crowd_or_it_was_parked() -> None:
    known = [an_object(0.1)]
    new = an_object(0.7, 9)
    assert needs(known, [*known, new])
    assert not needs(known, [*known, an_object(0.7, 9, stood_s=60.0)])
    crowd = [an_object(0.1, number) for number in (1, 2)]
    assert not needs(crowd, [*crowd, new])


def test_after_a_pause_a_speed_is_not_measured() -> None:
    assert not needs([an_object(0.2)], [an_object(0.8)], passed=4.0)


def test_only_lines_that_a_rule_asks_for_count() -> None:
    lines = {"door": DOOR, "street": ((0.1, 0.1), (0.9, 0.1))}
    rule = {"name": "over", "kind": "line", "line": "door"}
    camera = CameraConfig.model_validate({"url": "file:a.mp4", "lines": lines, "rules": [rule]})
    assert camera.rule_lines == (DOOR,)


def test_lines_that_change_while_the_camera_runs_count_from_then_on() -> None:
    detector = Runner(0.15)
    each = FrameByFrame("gate", detector, Tracker(("number",)), DetectConfig(fps_max=10))
    rates = []
    for lines in ((), [((x / 20, 0.0), (x / 20, 1.0)) for x in range(20)]):
        each.analysis.watch_lines(lines)
        examined = 0
        for index in range(30):
            detector.t = len(rates) * 3.0 + index / 10
            examined += each.examine(index, detector.t, flicker(index, TREE)) is not None
        rates.append(examined)
    assert rates[1] > 1.3 * rates[0]


class Runner(NumberReader):
    """Sees one object that goes `pace` widths of the frame a second."""

    def __init__(self, pace: float) -> None:
        super().__init__()
        self._pace = pace
        self.t = 0.0

    def detect(self, pictures: object) -> list[Detections]:
        x = 0.1 + self._pace * self.t % 0.7
        return [
            Detections(np.array([[x, 0.4, x + 0.1, 0.6]], np.float32), np.ones(1, np.float32), np.zeros(1, np.int32))
        ]


def flicker(index: int, at: Box) -> av.VideoFrame:
    """Grey, but for a patch that is another in each frame."""
    image = np.full((240, 320), 90, np.uint8)
    rng = np.random.default_rng(index)
    x1, y1, x2, y2 = round(at[0] * 320), round(at[1] * 240), round(at[2] * 320), round(at[3] * 240)
    image[y1:y2, x1:x2] = rng.integers(0, 255, (y2 - y1, x2 - x1), np.uint8)
    return av.VideoFrame.from_ndarray(np.repeat(image[:, :, None], 3, 2), format="rgb24").reformat(format="yuv420p")


TREE: Box = (0.1, 0.1, 0.3, 0.5)


class SeesNothing(NumberReader):
    def detect(self, pictures: object) -> list[Detections]:
        return [Detections.empty()]


@pytest.mark.parametrize(
    ("pace", "detect", "expected"),
    [
        (0.5, DetectConfig(fps_max=10), 10),
        (0.02, DetectConfig(fps_max=10), 5),
        (0.5, DetectConfig(fps_max=5), 5),
        (0.5, DetectConfig(), 5),
        (0.5, DetectConfig(fps=2), 2),  # who asks for fewer gets no more, unless fps_max says so
        (0.5, DetectConfig(fps=2, fps_max=10), 10),
    ],
)
def test_frames_come_faster_only_while_something_is_fast(pace: float, detect: DetectConfig, expected: float) -> None:
    detector = Runner(pace)
    each = FrameByFrame("gate", detector, Tracker(("number",)), detect)
    examined = []
    for index in range(40):
        detector.t = index / 10
        if each.examine(index, detector.t, flicker(index, TREE)):
            examined.append(detector.t)
    assert len([t for t in examined if t >= 2.0]) == pytest.approx(2 * expected, abs=2)


def test_without_fps_max_motion_that_leads_to_nothing_is_examined_as_often_as_any() -> None:
    each = FrameByFrame("gate", SeesNothing(), CountingTracker(("number",)), DetectConfig(fps=2))
    times = [n / 10 for n in range(80) if each.examine(n, n / 10, flicker(n, TREE))]
    assert times == [n / 2 for n in range(16)]


def test_motion_that_leads_to_nothing_is_examined_half_as_often_until_it_is_elsewhere() -> None:
    each = FrameByFrame("gate", SeesNothing(), CountingTracker(("number",)), DetectConfig(fps_max=10))
    times = [n / 10 for n in range(80) if each.examine(n, n / 10, flicker(n, TREE))]
    assert len([t for t in times if 4 <= t < 8]) == pytest.approx(10, abs=3)
    later = [n / 10 for n in range(80, 84) if each.examine(n, n / 10, flicker(n, (0.7, 0.5, 0.9, 0.9)))]
    assert later
    assert later[0] - times[-1] <= 0.41
