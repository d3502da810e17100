"""One number, one object: who walks out is gone, what waited and left is gone, and who looks different is another."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_reid import BLUE, RED, Film
from test_tracker import LABELS, Seen, look, numbers, person

from appliance.track.tracker import Tracker
from appliance.types import Detections, TrackedObject
from benchmarks.tracking_scenes import (
    LABELS as SCENE_LABELS,
)
from benchmarks.tracking_scenes import (
    IdentityFigures,
    Scene,
    bus_stop,
    busy_pavement,
    follow,
    identity_figures,
    junction,
)

SEEDS = range(20)


def sum_of(make: Callable[[int], Scene], *, pictures: bool, held_looks: int) -> IdentityFigures:
    total = IdentityFigures(0, 0, 0)
    for seed in SEEDS:
        scene = make(seed)
        answers = follow(Tracker(SCENE_LABELS), scene, pictures=pictures)
        total += identity_figures(answers, scene.truth, held_looks=held_looks)
    return total


def test_on_a_busy_pavement_nobody_has_the_number_of_another_and_hardly_anybody_two() -> None:
    figures = sum_of(busy_pavement, pictures=True, held_looks=5)
    assert figures.actors > 400
    assert figures.mixed == 0
    assert 0.95 < figures.numbers_each <= 1.1


def test_by_boxes_alone_a_busy_pavement_has_few_mistakes() -> None:
    figures = sum_of(busy_pavement, pictures=False, held_looks=5)
    assert figures.mixed <= 15  # 50 as long as who came in got the number of who had gone out there
    assert figures.numbers_each <= 1.1


@pytest.mark.parametrize(("alike", "pictures", "mixed"), [(False, True, 0), (False, False, 0), (True, True, 1)])
def test_at_a_junction_no_car_has_the_number_of_one_that_waited_there(alike: bool, pictures: bool, mixed: int) -> None:
    figures = sum_of(lambda seed: junction(seed, alike=alike), pictures=pictures, held_looks=2)
    assert figures.actors > 150
    assert figures.mixed <= mixed


def test_hardly_anybody_who_waits_has_another_number_after_a_bus_stood_before_them() -> None:
    """Four of six had, while they were awaited where the filter had drifted to."""
    scenes = [bus_stop(seed) for seed in range(6)]
    figures = [identity_figures(follow(Tracker(SCENE_LABELS), each, pictures=True), each.truth) for each in scenes]
    assert sum(each.actors for each in figures) == 12
    assert sum(each.numbers for each in figures) <= 13


def walked_out(tracker: Tracker, last_x: float = 0.004) -> float:
    """Somebody goes out over the left edge and is found until `last_x`; the time of the first frame without."""
    x, t = 0.2, 0.0
    while x > last_x:
        tracker.update(clipped(person(x)), t)
        x, t = x - 0.012, round(t + 0.2, 3)
    return t


def clipped(*seen: Seen) -> Detections:
    found = look(*seen)
    return Detections(np.clip(found.boxes, 0, 1), found.scores, found.class_ids)


@pytest.mark.parametrize("pause", [0, 1, 2, 3], ids="{} looks later".format)
def test_who_comes_in_where_somebody_has_just_gone_out_is_another(pause: int) -> None:
    tracker = Tracker(LABELS)
    t = walked_out(tracker)
    for _ in range(pause):
        tracker.update(Detections.empty(), t)
        t = round(t + 0.2, 3)
    told: tuple[TrackedObject, ...] = ()
    for step in range(5):
        told = tracker.update(clipped(person(0.015 + 0.012 * step, 0.505)), t)
        t = round(t + 0.2, 3)
    assert numbers(told) == [2]


def test_who_was_last_found_a_step_before_the_edge_has_gone_out_too() -> None:
    tracker = Tracker(LABELS)
    t = walked_out(tracker, last_x=0.034)
    tracker.update(Detections.empty(), t)
    told: tuple[TrackedObject, ...] = ()
    for step in range(1, 6):
        told = tracker.update(clipped(person(0.022 + 0.012 * step, 0.505)), t + 0.2 * step)
    assert numbers(told) == [2]


def test_who_stands_at_the_edge_and_is_missed_once_keeps_the_number() -> None:
    tracker = Tracker(LABELS)
    told: tuple[TrackedObject, ...] = ()
    for step in range(12):
        seen = Detections.empty() if step == 8 else clipped(person(0.01))
        told = tracker.update(seen, step * 0.2)
    assert numbers(told) == [1]


def test_who_steps_out_from_behind_another_in_other_clothes_does_not_take_over_the_number() -> None:
    film = Film()
    assert film.show((0.4, 0.8, RED), seconds=2) == [1]
    film.show((0.405, 0.8, BLUE))
    assert film.show((0.41, 0.8, BLUE), seconds=1) == [2]


CAR_Y = 0.5


def car(x: float, y: float = CAR_Y, score: float = 0.8) -> Seen:
    return (x, y, score, "car")


def waited(seconds: float) -> tuple[Tracker, float]:
    """A car has stood at 0.5 for so long, and was then not found for 0.8 s: something passed, and left."""
    tracker, t = Tracker(LABELS), 0.0
    for _ in range(round(5 * seconds)):
        tracker.update(look(car(0.5)), t)
        t = round(t + 0.2, 3)
    for _ in range(4):
        assert tracker.update(Detections.empty(), t) == ()
        t = round(t + 0.2, 3)
    return tracker, t


@pytest.mark.parametrize("seconds", [4, 12], ids="waited {} s".format)
@pytest.mark.parametrize("first", [0.38, 0.41, 0.46, 0.49])
def test_the_next_car_to_pass_where_one_waited_gets_a_number_of_its_own(seconds: float, first: float) -> None:
    tracker, t = waited(seconds)
    told: list[TrackedObject] = []
    for step in range(5):
        told += tracker.update(look(car(first + 0.07 * step)), t)
        t = round(t + 0.2, 3)
    moved = {each.track for each in told if each.box[0] > 0.51}
    assert moved == {2}


@pytest.mark.parametrize("seconds", [4, 12], ids="waited {} s".format)
def test_the_car_that_waited_is_the_same_when_it_comes_to_sight_again_and_moves_off_later(seconds: float) -> None:
    tracker, t = waited(seconds)
    told: tuple[TrackedObject, ...] = ()
    for step in range(12):
        told = tracker.update(look(car(0.5 + max(0, step - 4) * 0.02)), t)
        t = round(t + 0.2, 3)
    assert numbers(told) == [1]


@pytest.mark.parametrize("seconds", [4, 12], ids="stood {} s".format)
def test_a_doubtful_box_beside_a_car_that_stands_does_not_lead_its_number_away(seconds: float) -> None:
    """Between two that pass close by, the detector half believes in a third; on a car park the number then went from
    car to car."""
    tracker, t = Tracker(LABELS), 0.0
    for _ in range(round(5 * seconds)):
        tracker.update(look(car(0.5)), t)
        t = round(t + 0.2, 3)
    led: list[TrackedObject] = []
    for step in range(5):
        led += tracker.update(look(car(0.54 + 0.03 * step, score=0.35)), t + 0.2 * step)
    assert 1 not in numbers(led)
    assert 1 in numbers(tracker.update(look(car(0.5, score=0.35)), t + 1.0))


def test_a_car_that_moves_off_and_is_seen_well_keeps_its_number() -> None:
    tracker, t = Tracker(LABELS), 0.0
    told: tuple[TrackedObject, ...] = ()
    for step in range(40):
        t = round(t + 0.2, 3)
        told = tracker.update(look(car(0.5 + max(0, step - 30) * 0.03, score=0.55)), t)
    assert numbers(told) == [1]


def test_a_lorry_before_a_car_that_moves_off_does_not_get_its_number() -> None:
    tracker, t = Tracker(LABELS), 0.0
    for _ in range(5):
        tracker.update(look(car(0.5)), t)
        t = round(t + 0.2, 3)
    lorry = Detections(np.array([[0.40, 0.31, 0.70, 0.56]], np.float32), np.array([0.9], np.float32), np.array([2]))
    told: list[TrackedObject] = []
    for step in range(3):
        told += tracker.update(lorry, t + 0.2 * step)
    assert {each.track for each in told} == {2}


def test_who_walks_towards_where_somebody_vanished_does_not_come_from_there() -> None:
    film = Film()
    assert film.show((0.6, 0.8, RED), seconds=2) == [1]
    film.show(seconds=3)
    told: list[int] = []
    for step in range(5):
        told = film.show((0.4 + 0.015 * step, 0.8, RED))
    assert told == [2]


def test_who_walks_away_from_where_somebody_vanished_is_that_one() -> None:
    film = Film()
    assert film.show((0.4, 0.8, RED), seconds=2) == [1]
    film.show(seconds=3)
    told: list[int] = []
    for step in range(5):
        told = film.show((0.5 + 0.015 * step, 0.8, RED))
    assert told == [1]


def test_who_comes_in_over_the_edge_is_not_the_one_who_was_hidden_near_it() -> None:
    film = Film()
    assert film.show((0.1, 0.8, RED), seconds=2) == [1]
    film.show(seconds=3)
    told: list[int] = []
    for step in range(4):
        told = film.show((0.02 + 0.004 * step, 0.8, RED))
    assert told == [2]
