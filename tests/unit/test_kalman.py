"""Filters that follow boxes through uneven time."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.track.kalman import ACCELERATION, ASPECT, MEASURED_STD, SPEED_STD, Kalman, to_centre
from appliance.types import Box

WALKER = (0.10, 0.40, 0.14, 0.60)


def right(step: float) -> Box:
    """The walker, so much further to the right."""
    return 0.10 + step, 0.40, 0.14 + step, 0.60


def walked(steps: list[float]) -> Kalman:
    """A filter that has seen a walker go right by 0.05 a second, after each of `steps` seconds."""
    walker, t = Kalman(WALKER), 0.0
    for dt in steps:
        t += dt
        walker.predict(dt)
        walker.correct(right(0.05 * t))
    return walker


@pytest.mark.parametrize("steps", [[0.2] * 15, [1.0] * 6, [0.2, 1.0, 0.1, 0.5, 2.0, 0.2, 0.2, 0.4]], ids=str)
def test_learns_the_speed_whatever_the_time_between_frames(steps: list[float]) -> None:
    walker = walked(steps)
    assert walker.speed[0] == pytest.approx(0.05, rel=0.1)
    assert abs(walker.speed[1]) < 1e-9
    walker.predict(1.0)
    assert walker.box == pytest.approx(right(0.05 * (sum(steps) + 1.0)), abs=0.006)


def test_one_long_step_moves_like_many_short_ones() -> None:
    one, many = walked([0.2] * 10), walked([0.2] * 10)
    one.predict(1.0)
    for _ in range(10):
        many.predict(0.1)
    assert one.box == pytest.approx(many.box, abs=1e-9)
    assert one.spread() == pytest.approx(many.spread(), rel=0.02)


def test_agrees_with_the_textbook_filter() -> None:
    """x' = F x, P' = F P F^T + Q, K = P H^T / (H P H^T + R), P' = (I - K H) P for one coordinate, with matrices."""
    size = np.sqrt(0.04 * 0.2 / ASPECT) * ASPECT
    x, p = np.array([0.12, 0.0]), np.diag([(size * MEASURED_STD) ** 2, (size * SPEED_STD[0]) ** 2])
    walker = Kalman(WALKER)
    for dt, shift in [(0.2, 0.01), (1.0, 0.05), (0.5, 0.09)]:
        move = np.array([[1, dt], [0, 1]])
        noise = ACCELERATION[0] * size**2 * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
        x, p = move @ x, move @ p @ move.T + noise
        gain = p[:, 0] / (p[0, 0] + (size * MEASURED_STD) ** 2)
        x, p = x + gain * (0.12 + shift - x[0]), p - np.outer(gain, p[0])
        walker.predict(dt)
        walker.correct(right(shift))
        assert (to_centre(walker.box)[0], walker.speed[0]) == pytest.approx(tuple(x), rel=1e-9)
        assert walker.spread()[0] == pytest.approx(np.sqrt(p[0, 0]), rel=1e-9)


def test_is_less_sure_the_longer_nothing_is_examined_and_surer_after_a_frame() -> None:
    walker = walked([0.2] * 5)
    before = walker.spread()[0]
    walker.predict(1.0)
    after = walker.spread()[0]
    walker.correct(walker.box)
    assert before < after > walker.spread()[0]


def test_no_time_passed_changes_nothing() -> None:
    walker = walked([0.2] * 3)
    box, spread = walker.box, walker.spread()
    walker.predict(0.0)
    assert (walker.box, walker.spread()) == (box, spread)


def test_who_stands_still_stays_and_is_less_sure_of_it() -> None:
    walker = walked([0.2] * 5)
    box, spread = walker.box, walker.spread()
    walker.predict(2.0, still=True)
    assert walker.box == pytest.approx(box, abs=1e-12)
    assert (walker.speed, walker.spread() > spread) == ((0, 0, 0, 0), True)


def test_a_doubtful_box_moves_it_less() -> None:
    sure, doubtful = walked([0.2] * 5), walked([0.2] * 5)
    sure.correct(right(0.1))
    doubtful.correct(right(0.1), 4.0)
    assert walked([0.2] * 5).box[0] < doubtful.box[0] < sure.box[0] < 0.2


def test_a_shrinking_box_does_not_turn_inside_out() -> None:
    small = Kalman((0.1, 0.1, 0.3, 0.3))
    for side in (0.15, 0.1, 0.05, 0.02):
        small.predict(0.2)
        small.correct((0.1, 0.1, 0.1 + side, 0.1 + side))
    small.predict(10.0)
    assert small.box[0] < small.box[2]
    assert small.box[1] < small.box[3]
