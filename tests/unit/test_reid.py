"""People who are hidden, cross and come back, told apart by what they wear."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.track.appearance import describe, similarity
from appliance.track.tracker import Tracker
from appliance.types import Detections

HEIGHT, WIDTH = 240, 320
RED, BLUE = (90, 110, 158), (60, 158, 110)
Walker = tuple[float, float, tuple[int, int, int]]
Picture = tuple[NDArray[np.uint8], ...]


def scene(*walkers: Walker, score: float = 0.85) -> tuple[Detections, Picture]:
    """People in plain clothes at (x, foot, brightness and colour) on a grey yard: what is found, and the picture."""
    planes = [np.full((HEIGHT, WIDTH), value, np.uint8) for value in (128, 128, 128)]
    boxes = []
    for x, foot, colours in walkers:
        box = [x - 0.02, foot - 0.2, x + 0.02, foot]
        rows = slice(int(box[1] * HEIGHT), int(box[3] * HEIGHT))
        columns = slice(max(0, int(box[0] * WIDTH)), int(box[2] * WIDTH))
        for plane, value in zip(planes, colours, strict=True):
            plane[rows, columns] = value
        boxes.append(box)
    count = len(boxes)
    found = Detections(
        np.clip(np.array(boxes, np.float32).reshape(-1, 4), 0, 1),
        np.full(count, score, np.float32),
        np.zeros(count, np.int32),
    )
    return found, tuple(planes)


class Film:
    """A tracker that is shown scenes, 5 looks a second; `show` tells who is in the last, from left to right.

    pictures: whether it sees more than boxes.
    """

    def __init__(self, *, pictures: bool = True) -> None:
        self._tracker = Tracker(("person",))
        self._pictures = pictures
        self._t = 0.0

    def show(self, *walkers: Walker, seconds: float = 0.2) -> list[int]:
        told: list[int] = []
        for _ in range(round(seconds * 5)):
            found, planes = scene(*walkers)
            objects = self._tracker.update(found, self._t, planes if self._pictures else ())
            told = [each.track for each in sorted(objects, key=lambda each: each.box)]
            self._t = round(self._t + 0.2, 3)
        return told


def test_who_stood_behind_a_van_for_four_seconds_gets_the_number_back() -> None:
    film = Film()
    assert film.show((0.4, 0.8, RED), seconds=2) == [1]
    film.show(seconds=4)
    assert film.show((0.5, 0.8, RED), seconds=1) == [1]


@pytest.mark.parametrize(
    ("x", "colours", "hidden_s"),
    [(0.5, BLUE, 4), (0.5, RED, 6), (0.95, RED, 3)],
    ids=["other clothes", "too late", "too far"],
)
def test_another_person_gets_a_new_number(x: float, colours: tuple[int, int, int], hidden_s: float) -> None:
    film = Film()
    film.show((0.4, 0.8, RED), seconds=2)
    film.show(seconds=hidden_s)
    assert film.show((x, 0.8, colours), seconds=1) == [2]


def test_of_two_alike_who_vanished_no_one_is_taken_for_the_other() -> None:
    film = Film()
    assert film.show((0.4, 0.8, RED), (0.55, 0.8, RED), seconds=2) == [1, 2]
    film.show(seconds=3)
    assert film.show((0.47, 0.8, RED), seconds=1) == [3]


def test_who_walked_out_at_the_border_comes_back_as_a_new_person() -> None:
    film = Film()
    film.show((0.02, 0.8, RED), seconds=2)
    film.show(seconds=2)
    assert film.show((0.02, 0.8, RED), seconds=1) == [2]


def test_without_frames_a_long_absence_makes_a_new_person() -> None:
    film = Film(pictures=False)
    film.show((0.4, 0.8, RED), seconds=2)
    film.show(seconds=4)
    assert film.show((0.4, 0.8, RED), seconds=1) == [2]


def meet(film: Film) -> list[int]:
    """Two walk towards each other, are found as one for a second while they talk, and turn back."""
    for step in range(8):
        film.show((0.30 + 0.02 * step, 0.8, RED), (0.62 - 0.02 * step, 0.8, BLUE))
    film.show((0.46, 0.8, BLUE), seconds=1.2)
    told: list[int] = []
    for step in range(1, 6):
        told = film.show((0.46 - 0.02 * step, 0.8, RED), (0.46 + 0.02 * step, 0.8, BLUE))
    return told


def test_two_who_meet_and_turn_back_keep_their_numbers_by_their_clothes() -> None:
    assert meet(Film()) == [1, 2]
    assert meet(Film(pictures=False)) == [2, 1]  # boxes alone cannot know better


def test_likeness_is_one_for_the_same_and_little_for_another() -> None:
    found, planes = scene((0.3, 0.8, RED), (0.6, 0.8, RED), (0.8, 0.8, BLUE))
    looks = describe(planes, found.boxes)
    alike = similarity(looks, looks)
    assert alike[0, 0] == alike[0, 1] == pytest.approx(1.0)
    assert alike[0, 2] < 0.5


def test_a_camera_without_colours_is_described_by_its_brightness() -> None:
    found, planes = scene((0.3, 0.8, (40, 128, 128)), (0.6, 0.8, (200, 128, 128)))
    looks = describe(planes[:1], found.boxes)
    assert looks.shape == (2, 24)
    assert similarity(looks, looks)[0, 1] < 0.1


def test_a_box_at_the_border_or_of_no_size_has_some_description() -> None:
    _, planes = scene()
    boxes = np.array([[0.99, 0.99, 1.0, 1.0], [0, 0, 0, 0], [0, 0, 1, 1]], np.float32)
    looks = describe(planes, boxes)
    np.testing.assert_allclose(looks.reshape(3, 6, 12).sum(axis=2), 1.0)
    none = describe(planes, boxes[:0])
    assert none.shape == (0, 72)
