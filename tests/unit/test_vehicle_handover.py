"""A vehicle that waited, drove off and was hidden does not give its number to the next one that comes the same way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, TrackedObject

LABELS = ("person", "car", "truck")
SEEDS = range(16)
SIZE = (320, 180)
Colour = tuple[int, int, int]
Y, STOP = 0.6, 0.3


@dataclass(frozen=True)
class Drive:
    """A car that waits at STOP, drives off at 0, is seen for `seen_s`, and is hidden for `hidden_s` then.

    seed: of the detector's noise. pace: shares of the frame a second, at which it drives once it has started. colour:
    of brightness and two colours. height: in shares.
    """

    seed: int
    pace: float
    seen_s: float
    hidden_s: float
    colour: Colour
    height: float = 0.15

    @classmethod
    def random(cls, seed: int) -> Drive:
        rng = np.random.default_rng(seed)
        y, u, v = rng.uniform((40, 100, 100), (210, 156, 156))
        pace, seen_s, hidden_s = rng.uniform((0.15, 1.2, 1.3), (0.3, 2.2, 1.9))
        return cls(seed, float(pace), float(seen_s), float(hidden_s), (int(y), int(u), int(v)))

    def x(self, t: float) -> float:
        """Return the middle: from rest to its pace within a second and a half."""
        start_s = 1.5
        return STOP + (0.0 if t <= 0 else self.pace * (t * t / (2 * start_s) if t < start_s else t - start_s / 2))


class Road:
    """A tracker before a road, five looks a second; with pictures it is shown what it looks like, too."""

    def __init__(self, seed: int, *, pictures: bool) -> None:
        self.rng, self.pictures, self.t = np.random.default_rng(seed + 500), pictures, 0.0
        self.tracker = Tracker(LABELS)
        self.ground = np.clip(self.rng.normal(120, 12, SIZE[::-1]), 0, 255).astype(np.uint8)

    def show(self, *cars: tuple[float, float, Colour]) -> dict[float, int]:
        """Show cars (middle, height, colour) in one look; return the numbers of those found, by their middle."""
        planes = (self.ground.copy(), np.full(SIZE[::-1], 128, np.uint8), np.full(SIZE[::-1], 128, np.uint8))
        boxes: list[Box] = []
        for x, height, colour in cars:
            wide = height * 1.8 * 9 / 16
            whole = np.array([x - wide / 2, Y - height, x + wide / 2, Y])
            left, top, right, bottom = (np.clip(whole, 0, 1) * [*SIZE, *SIZE]).astype(int)
            for plane, value in zip(planes, colour, strict=True):
                plane[top:bottom, left:right] = value
            noise = self.rng.normal(0, 0.015, 4) * [wide, height, wide, height]
            x1, y1, x2, y2 = np.clip(whole + noise, 0, 1)
            boxes.append((float(x1), float(y1), float(x2), float(y2)))
        found = Detections(
            np.array(boxes, np.float32).reshape(-1, 4),
            self.rng.uniform(0.6, 0.9, len(boxes)).astype(np.float32),
            np.ones(len(boxes), np.int32),
        )
        told: tuple[TrackedObject, ...] = self.tracker.update(found, self.t, planes if self.pictures else ())
        self.t = round(self.t + 0.2, 3)
        near = {each.track: min((x for x, _, _ in cars), key=lambda x: abs(x - _middle(each.box))) for each in told}
        return {x: track for track, x in near.items()}

    def hide(self, drive: Drive, waited_s: float = 6.0) -> float:
        """Let the car wait, drive off and be hidden; return the time since it drove off."""
        for _ in range(round(5 * waited_s)):
            self.show((STOP, drive.height, drive.colour))
        t = 0.2
        while t <= drive.seen_s:
            self.show((drive.x(t), drive.height, drive.colour))
            t += 0.2
        until = t + drive.hidden_s
        while t < until:
            self.show()
            t += 0.2
        return t


def _middle(box: Box) -> float:
    return (box[0] + box[2]) / 2


def number_of_the_next(drive: Drive, other: Drive, begin: float, *, pictures: bool) -> int:
    """Return the number of a car that comes to sight at `begin` and drives on at its pace, when it has done so."""
    road = Road(drive.seed, pictures=pictures)
    road.hide(drive)
    number = 0
    for n in range(6):
        x = begin + other.pace * 0.2 * n
        number = road.show((x, other.height, other.colour)).get(x, number)
    return number


def vanished_at(drive: Drive) -> float:
    return drive.x(drive.seen_s)


def another_colour(drive: Drive) -> Colour:
    y, u, v = drive.colour
    return (y + 110) % 170 + 40, u, v


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ahead", [0.02, 0.06, 0.10], ids="{} ahead".format)
def test_one_of_another_colour_is_another(seed: int, ahead: float) -> None:
    drive = Drive.random(seed)
    other = replace(drive, pace=0.4, colour=another_colour(drive))
    assert number_of_the_next(drive, other, vanished_at(drive) + ahead, pictures=True) == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("times", [0.68, 1.45], ids="{} times".format)
def test_one_of_another_size_is_another(seed: int, times: float) -> None:
    drive = Drive.random(seed)
    other = replace(drive, pace=0.4, height=drive.height * times)
    assert number_of_the_next(drive, other, vanished_at(drive) + 0.05, pictures=False) == 2


@pytest.mark.parametrize("pictures", [False, True], ids=["boxes alone", "alike"])
@pytest.mark.parametrize("seed", SEEDS)
def test_one_that_comes_to_sight_behind_where_it_vanished_is_another(seed: int, pictures: bool) -> None:
    drive = Drive.random(seed)
    begin = vanished_at(drive) - 0.08
    assert number_of_the_next(drive, replace(drive, pace=0.45), begin, pictures=pictures) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_by_boxes_alone_one_that_comes_after_two_seconds_is_another(seed: int) -> None:
    drive = replace(Drive.random(seed), hidden_s=2.1)
    begin = vanished_at(drive) + 0.03
    assert number_of_the_next(drive, replace(drive, pace=0.4), begin, pictures=False) == 2


@pytest.mark.parametrize("hidden_s", [0.6, 1.2, 1.6], ids="hidden {} s".format)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_car_that_comes_to_sight_again_further_on_keeps_its_number(seed: int, hidden_s: float) -> None:
    drive = replace(Drive.random(seed), hidden_s=hidden_s, pace=0.15)
    road = Road(seed, pictures=True)
    t, number = road.hide(drive), 0
    for n in range(6):
        x = drive.x(t + 0.2 * n)
        number = road.show((x, drive.height, drive.colour)).get(x, number)
    assert number == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_by_boxes_alone_it_keeps_its_number_for_a_moment(seed: int) -> None:
    drive = replace(Drive.random(seed), hidden_s=0.6)
    road = Road(seed, pictures=False)
    t, number = road.hide(drive), 0
    for n in range(6):
        x = drive.x(t + 0.2 * n)
        number = road.show((x, drive.height, drive.colour)).get(x, number)
    assert number == 1
