"""Who is seen but poorly: a track may begin with doubtful boxes if they walk, and with nothing else."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, TrackedObject

WIDTH, HEIGHT = 0.05, 0.2
# As vedette-nano scores somebody who walks into the rendered infrared picture in rain.
POOR = (0.44, 0.49, 0.32, 0.40, 0.45, 0.38)


def look(*found: tuple[float, float]) -> Detections:
    """Boxes of persons by (left edge, score)."""
    boxes = [(x, 0.4, x + WIDTH, 0.4 + HEIGHT) for x, _ in found]
    return Detections(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array([score for _, score in found], np.float32),
        np.zeros(len(found), np.int32),
    )


class Film:
    """Five looks a second through one tracker."""

    def __init__(self) -> None:
        self.tracker, self._t = Tracker(("person",)), 0.0

    def show(self, *found: tuple[float, float], parts: Iterable[Box] = ()) -> tuple[TrackedObject, ...]:
        self._t += 0.2
        return self.tracker.update(look(*found), self._t, parts=tuple(parts))


def test_who_walks_is_followed_though_no_detection_is_confident() -> None:
    film = Film()
    told = [film.show((0.2 + 0.02 * step, score)) for step, score in enumerate(POOR)]
    assert [len(each) for each in told] == [0, 0, 1, 1, 1, 1]
    assert {each.track for one in told for each in one} == {1}
    assert told[2][0].score == 0.32, "it is told as surely as it was found"


def test_clutter_that_stays_trembles_or_flickers_is_no_track() -> None:
    tremble = (0.0, 0.012, -0.01, 0.008, -0.012, 0.01)
    still, trembling, flickering = Film(), Film(), Film()
    for step in range(60):
        assert still.show((0.2, 0.49)) == ()
        assert trembling.show((0.2 + tremble[step % 6], 0.45)) == ()
        assert flickering.show(*[(0.2 + 0.02 * step % 0.6, 0.45)] * (step % 2)) == ()


def test_a_box_that_jumps_once_does_not_walk() -> None:
    film = Film()
    for step in range(20):
        assert film.show((0.2 if step < 10 else 0.225, 0.45)) == ()


def test_who_comes_forward_by_trembling_does_not_walk() -> None:
    film = Film()
    for aside in (0.0, 0.010, 0.0, 0.010, 0.016, 0.008, 0.018, 0.026):
        assert film.show((0.2 + aside, 0.45)) == ()


def test_scores_near_nothing_are_no_track_however_they_walk() -> None:
    film = Film()
    for step in range(20):
        assert film.show((0.2 + 0.02 * step, 0.22 if step else 0.35)) == ()


def test_what_a_known_person_drags_along_is_not_another_person() -> None:
    """A doubtful second box over the legs of who walks."""
    film = Film()
    for step in range(12):
        told = film.show((0.2 + 0.02 * step, 0.8), (0.215 + 0.02 * step, 0.45))
        assert {each.track for each in told} <= {1}


def test_clutter_that_a_person_passes_stays_no_track() -> None:
    film = Film()
    for step in range(30):
        told = film.show((0.1 + 0.02 * step, 0.8), (0.4 + 0.02 * min(3, max(0, step - 14)), 0.45))
        assert {each.track for each in told} <= {1}


def test_a_confident_detection_at_what_stands_counts_from_there() -> None:
    """As before there were guesses: three poor looks, of which the first begins a track by itself."""
    film = Film()
    for _ in range(10):
        assert film.show((0.2, 0.45)) == ()
    told = [film.show((0.2, score)) for score in (0.52, 0.45, 0.45)]
    assert [len(each) for each in told] == [0, 0, 1]


def test_a_tentative_track_keeps_no_camera_awake() -> None:
    film = Film()
    for step in range(2):
        film.show((0.2 + 0.02 * step, 0.45))
        assert film.tracker.active_boxes == ()
        assert not film.tracker.has_unconfirmed
    film.show((0.24, 0.45))
    assert film.tracker.active_boxes


def test_where_nothing_was_examined_a_tentative_track_waits() -> None:
    film = Film()
    film.show((0.2, 0.45))
    film.show((0.22, 0.45))
    film.show(parts=[(0.6, 0.0, 1.0, 1.0)])
    assert [each.track for each in film.show((0.26, 0.45))] == [1]
