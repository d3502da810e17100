"""Who is there when the session begins and walks straight towards the camera or away from it has moved off."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from appliance.rules.engine import RulesEngine
from appliance.rules.zones_and_lines import StartPlace
from appliance.types import Box, TrackedObject
from tests.support.sample_tracks import camera, header, look

SEEDS = range(10)
WHOLE = [[0, 0], [1, 0], [1, 1], [0, 1]]
INTRUDER = {"name": "intruder", "kind": "enter", "zone": "yard", "labels": ["person"]}
Place = Callable[[float], Box | None]


class PinholeCamera:
    """A level camera on a pole: metres before it to shares of a 16:9 frame; boxes with a detector's noise and gait."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.high, self.focal = float(self.rng.uniform(2.2, 3.5)), float(self.rng.uniform(0.9, 1.3))
        self.aside, self.tall = float(self.rng.uniform(-0.3, 0.3)), float(self.rng.uniform(1.6, 1.9))
        self.horizon = 0.1

    def box(self, away: float, gait: float = 0.0) -> Box:
        foot, top = (self.horizon + self.focal * each / away for each in (self.high, self.high - self.tall))
        wide = self.focal * self.tall * 0.36 * (1 + gait) / away * 9 / 16
        x = 0.5 + self.focal * self.aside / away * 9 / 16
        noise = self.rng.normal(0, 0.02, 4) * [wide, foot - top, wide, foot - top]
        x1, y1, x2, y2 = np.clip(np.array([x - wide / 2, top, x + wide / 2, foot]) + noise, 0, 1)
        return float(x1), float(y1), float(x2), float(y2)


def told(place: Place, seconds: float) -> list[float]:
    """Return when the rule reports a person at `place`, five looks a second."""
    rules = RulesEngine("gate", camera(INTRUDER, zones={"yard": WHOLE}))
    rules.feed(header())
    times = []
    for n in range(round(5 * seconds)):
        t = 0.2 * n
        box = place(t)
        seen = [] if box is None else [TrackedObject(track=1, label="person", score=0.8, box=box)]
        times += [event.t for event in rules.feed(look(t, *seen))]
    return times


@pytest.mark.parametrize("pace", [0.8, 1.4, 1.8], ids="{} m/s".format)
@pytest.mark.parametrize("towards", [True, False], ids=["towards", "away"])
@pytest.mark.parametrize("seed", SEEDS)
def test_who_walks_straight_is_reported(seed: int, towards: bool, pace: float) -> None:
    """By two fifths of the distance and no more, so that the box overlaps that of the beginning all the while."""
    film = PinholeCamera(seed)
    near = float(film.rng.uniform(5.0, 7.0))
    first, last = (near * 1.4, near) if towards else (near, near * 1.4)
    stands_s, walk_s = float(film.rng.uniform(0, 6)), abs(last - first) / pace

    def place(t: float) -> Box:
        share = min(1.0, max(0.0, (t - stands_s) / walk_s))
        walks = 0 < share < 1
        return film.box(first + share * (last - first), 0.15 * np.sin(2 * np.pi * 0.9 * t) if walks else 0.0)

    (t,) = told(place, stands_s + walk_s + 1)
    assert stands_s < t


@pytest.mark.parametrize("seed", SEEDS)
def test_who_stands_for_two_minutes_is_not(seed: int) -> None:
    film = PinholeCamera(seed)
    away = float(film.rng.uniform(4.0, 12.0))
    assert told(lambda t: film.box(away), 120) == []


def test_what_stands_for_ten_minutes_before_a_poor_detector_is_hardly_ever_told() -> None:
    """Of 40 spans of five looks a second, with boxes whose sides are wrong by 5 % of the object's size."""
    rng = np.random.default_rng(1)
    told_spans = 0
    for _ in range(40):
        boxes = ([0.4, 0.5, 0.45, 0.7] + rng.normal(0, 0.05, (3000, 4)) * [0.05, 0.2, 0.05, 0.2]).tolist()
        place = StartPlace(tuple(boxes[0]))
        told_spans += any(place.is_left(tuple(box), 0.2 * n, 0.15, (), 16 / 9) for n, box in enumerate(boxes))
    assert told_spans <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_hidden_up_to_the_chest_by_a_car_that_pulls_up_is_not(seed: int) -> None:
    film = PinholeCamera(seed)
    away, pulls_up_s = float(film.rng.uniform(4.0, 10.0)), float(film.rng.uniform(0.2, 3.0))

    def place(t: float) -> Box:
        x1, y1, x2, y2 = film.box(away)
        return x1, y1, x2, y2 - 0.5 * (y2 - y1) * min(1.0, max(0.0, (t - 5) / pulls_up_s))

    assert told(place, 20) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_half_hidden_at_first_and_is_seen_whole_then_is_not(seed: int) -> None:
    film = PinholeCamera(seed)
    away = float(film.rng.uniform(4.0, 10.0))

    def place(t: float) -> Box:
        x1, y1, x2, y2 = film.box(away)
        return (x1, y1, x1 + 0.7 * (x2 - x1), y1 + 0.6 * (y2 - y1)) if t < 2 else (x1, y1, x2, y2)

    assert told(place, 20) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_who_sits_down_is_not(seed: int) -> None:
    film = PinholeCamera(seed)
    away = float(film.rng.uniform(4.0, 10.0))

    def place(t: float) -> Box:
        x1, y1, x2, y2 = film.box(away)
        return x1, y1 + 0.35 * (y2 - y1) * min(1.0, max(0.0, t - 6)), x2, y2

    assert told(place, 20) == []
