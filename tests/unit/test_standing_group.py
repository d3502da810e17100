"""People who stand side by side keep their numbers, and nobody has moved off because a tracker mixed them up."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.rules.engine import RulesEngine
from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, FrameBoxes, TrackedObject
from tests.support.sample_tracks import camera, fired, header, look

LABELS = ("person", "car")
SEEDS = range(12)
GREY = tuple(np.full((180, 320), value, np.uint8) for value in (120, 128, 128))
INTRUDER = {"name": "intruder", "kind": "enter", "zone": "yard", "labels": ["person", "car"]}


class Row:
    """A row of 3 to 6 people, or of parked cars, side by side; boxes with a detector's noise."""

    def __init__(self, seed: int, *, cars: bool) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = int(self.rng.integers(3, 7))
        self.height = float(self.rng.uniform(0.2, 0.35)) * (0.4 if cars else 1)
        self.width = self.height * (1.8 if cars else 0.4) * 9 / 16
        self.step = self.width * float(self.rng.uniform(1.0, 1.15))
        self.y, self.kind = float(self.rng.uniform(0.6, 0.9)), int(cars)

    def box(self, place: int) -> Box:
        noise = self.rng.normal(0, 0.02, 4) * [self.width, self.height, self.width, self.height]
        x = 0.08 + self.step * place
        x1, y1, x2, y2 = np.array([x, self.y - self.height, x + self.width, self.y]) + noise
        return float(x1), float(y1), float(x2), float(y2)

    def found(self, places: range) -> Detections:
        boxes = np.array([self.box(each) for each in places], np.float32)
        scores = self.rng.uniform(0.55, 0.9, len(places)).astype(np.float32)
        return Detections(boxes, scores, np.full(len(places), self.kind, np.int32))


def numbers_by_place(row: Row, told: tuple[TrackedObject, ...]) -> dict[int, int]:
    """Return who has which number, by place in the row."""
    return {round(((each.box[0] + each.box[2] - row.width) / 2 - 0.08) / row.step): each.track for each in told}


@pytest.mark.parametrize("cars", [False, True], ids=["people", "cars"])
@pytest.mark.parametrize("pictures", [False, True], ids=["boxes alone", "all look alike"])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_keep_their_numbers_when_one_drops_out_at_one_end_and_another_comes_at_the_other(
    seed: int, pictures: bool, cars: bool
) -> None:
    row, planes = Row(seed, cars=cars), GREY if pictures else ()
    tracker, t = Tracker(LABELS), 0.0
    told: tuple[TrackedObject, ...] = ()
    for _ in range(20):
        told = tracker.update(row.found(range(row.count)), t, planes)
        t = round(t + 0.2, 3)
    before = numbers_by_place(row, told)
    assert len(before) == row.count
    for _ in range(10):
        told = tracker.update(row.found(range(1, row.count + 1)), t, planes)
        t = round(t + 0.2, 3)
        now = numbers_by_place(row, told)
        assert {place: now[place] for place in range(1, row.count)} == {
            place: before[place] for place in range(1, row.count)
        }
    assert now[row.count] not in before.values()


@pytest.mark.parametrize("pictures", [False, True], ids=["boxes alone", "all look alike"])
@pytest.mark.parametrize("seed", SEEDS)
def test_people_who_walk_side_by_side_keep_their_numbers_when_one_is_missed_and_another_comes(
    seed: int, pictures: bool
) -> None:
    """Nobody stands: without the place of each, only the costs of the assignment tell."""
    row, planes = Row(seed, cars=False), GREY if pictures else ()
    tracker, t = Tracker(LABELS), 0.0
    told: tuple[TrackedObject, ...] = ()
    before: dict[int, int] = {}
    for n in range(16):
        row.y = 0.6 + 0.006 * n  # they come nearer
        places = range(row.count) if n < 8 else range(1, row.count + 1)
        told = tracker.update(row.found(places), t, planes)
        t = round(t + 0.2, 3)
        now = numbers_by_place(row, told)
        if n == 7:
            before = now
            assert len(before) == row.count
        if n > 7:
            assert {place: now[place] for place in range(1, row.count)} == {
                place: before[place] for place in range(1, row.count)
            }


def standing(numbers: list[int], t: float, row: Row, first: int = 0) -> FrameBoxes:
    boxes = enumerate(numbers, start=first)
    return look(t, *(TrackedObject(track=each, label="person", score=0.8, box=row.box(at)) for at, each in boxes))


@pytest.mark.parametrize("seed", SEEDS)
def test_numbers_that_move_on_by_one_have_moved_nobody_off(seed: int) -> None:
    """Whatever a tracker does: who has the next one's place now has not walked off from where another stands."""
    row = Row(seed, cars=False)
    rules = RulesEngine("gate", camera(INTRUDER, zones={"yard": [[0, 0], [1, 0], [1, 1], [0, 1]]}))
    rules.feed(header())
    numbers = list(range(1, row.count + 1))
    frames = [standing(numbers, 0.2 * n, row) for n in range(25)]
    frames += [standing(numbers, 0.2 * n, row, first=1) for n in range(25, 40)]
    moved = [event.track for frame in frames for event in rules.feed(frame)]
    assert moved in ([], [1]), "only the place of the first is free now: one has gone from there, whatever its number"


@pytest.mark.parametrize("seed", SEEDS)
def test_who_walks_off_while_another_takes_the_place_is_reported(seed: int) -> None:
    row = Row(seed, cars=False)
    rules = RulesEngine("gate", camera(INTRUDER, zones={"yard": [[0, 0], [1, 0], [1, 1], [0, 1]]}))
    rules.feed(header())
    frames = [standing([1], 0.2 * n, row) for n in range(25)]
    for n in range(25, 45):
        gone = row.box(0)
        way = 0.03 * (n - 24)
        walker = TrackedObject(track=1, label="person", score=0.8, box=(gone[0] + way, gone[1], gone[2] + way, gone[3]))
        frames.append(look(0.2 * n, walker, TrackedObject(track=2, label="person", score=0.8, box=row.box(0))))
    told = [event.track for frame in frames for event in rules.feed(frame)]
    assert sorted(told) == [1, 2]


ACROSS = {"name": "across", "kind": "line", "line": "door", "labels": ["car"]}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fast_car_whose_box_only_touches_that_of_a_parked_one_needs_no_third_detection(seed: int) -> None:
    """It is beyond the line in two looks: a third never comes."""
    rng = np.random.default_rng(seed)
    tall = float(rng.uniform(0.12, 0.2))
    wide, pace, y = tall * 1.8, float(rng.uniform(0.16, 0.22)), float(rng.uniform(0.5, 0.7))
    first = 0.5 - 0.6 * pace - wide / 2
    parked = (0.45, y - 0.002, 0.45 + 4 * pace, y + tall)
    rules = RulesEngine("gate", camera(ACROSS))
    rules.feed(header())
    frames = []
    for n in range(3):
        x = first + pace * n
        car = TrackedObject(track=1, label="car", score=0.8, box=(x, y - tall, x + wide, y))
        frames.append(look(0.2 * n, car, TrackedObject(track=2, label="car", score=0.8, box=parked)))
    assert [rule for rule, _ in fired(rules.feed, frames)] == ["across"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_box_of_two_people_for_one_look_or_two_fires_no_line(seed: int) -> None:
    """Two stand close together on both sides of the line; their boxes melt into one and come apart again."""
    rng = np.random.default_rng(seed)
    rules = RulesEngine("gate", camera({**ACROSS, "labels": ["person"]}))
    rules.feed(header())

    def one(track: int, x: float, width: float = 0.09) -> TrackedObject:
        x += float(rng.normal(0, 0.002))
        return TrackedObject(track=track, label="person", score=0.8, box=(x - width / 2, 0.4, x + width / 2, 0.6))

    frames = [look(0.2 * n, one(1, 0.47), one(2, 0.53)) for n in range(10)]
    frames += [look(0.2 * n, one(1, 0.53), one(2, 0.53)) for n in range(10, 12)]
    frames += [look(0.2 * n, one(1, 0.47), one(2, 0.53)) for n in range(12, 20)]
    assert fired(rules.feed, frames) == []
