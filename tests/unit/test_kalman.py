"""Filters that follow boxes through uneven time."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.track.kalman import ACCELERATION, ASPECT, MEASURED_STD, SPEED_STD, KalmanBank

WALKER = np.array([[0.10, 0.40, 0.14, 0.60]])
RIGHT = np.array([[0.05, 0.0, 0.05, 0.0]])


def walked(steps: list[float]) -> KalmanBank:
    """A filter that has seen a walker go right by 0.05 a second, after each of `steps` seconds."""
    bank, t = KalmanBank(), 0.0
    bank.add(WALKER)
    for dt in steps:
        t += dt
        bank.predict(dt)
        bank.correct(np.array([0]), WALKER + RIGHT * t)
    return bank


@pytest.mark.parametrize("steps", [[0.2] * 15, [1.0] * 6, [0.2, 1.0, 0.1, 0.5, 2.0, 0.2, 0.2, 0.4]], ids=str)
def test_learns_the_speed_whatever_the_time_between_looks(steps: list[float]) -> None:
    bank = walked(steps)
    assert bank.speed[0, 0] == pytest.approx(0.05, rel=0.1)
    assert abs(bank.speed[0, 1]) < 1e-9
    bank.predict(1.0)
    np.testing.assert_allclose(bank.boxes()[0], (WALKER + RIGHT * (sum(steps) + 1.0))[0], atol=0.006)


def test_one_long_step_moves_like_many_short_ones() -> None:
    one, many = walked([0.2] * 10), walked([0.2] * 10)
    one.predict(1.0)
    for _ in range(10):
        many.predict(0.1)
    np.testing.assert_allclose(one.boxes(), many.boxes(), atol=1e-9)
    np.testing.assert_allclose(one.spread(), many.spread(), rtol=0.02)


def test_agrees_with_the_textbook_filter() -> None:
    """x' = F x, P' = F P F^T + Q, K = P H^T / (H P H^T + R), P' = (I - K H) P for one coordinate, with matrices."""
    size = np.sqrt(0.04 * 0.2 / ASPECT) * ASPECT
    x, p = np.array([0.12, 0.0]), np.diag([(size * MEASURED_STD) ** 2, (size * SPEED_STD[0]) ** 2])
    bank = KalmanBank()
    bank.add(WALKER)
    for dt, shift in [(0.2, 0.01), (1.0, 0.05), (0.5, 0.09)]:
        move = np.array([[1, dt], [0, 1]])
        noise = ACCELERATION[0] * size**2 * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])
        x, p = move @ x, move @ p @ move.T + noise
        gain = p[:, 0] / (p[0, 0] + (size * MEASURED_STD) ** 2)
        x, p = x + gain * (0.12 + shift - x[0]), p - np.outer(gain, p[0])
        bank.predict(dt)
        bank.correct(np.array([0]), WALKER + np.array([[shift, 0, shift, 0]]))
        assert (bank.position[0, 0], bank.speed[0, 0]) == pytest.approx(tuple(x), rel=1e-9)
        assert bank.spread()[0, 0] == pytest.approx(np.sqrt(p[0, 0]), rel=1e-9)


def test_is_less_sure_the_longer_nobody_looks_and_surer_after_a_look() -> None:
    bank = walked([0.2] * 5)
    before = bank.spread()[0, 0]
    bank.predict(1.0)
    after = bank.spread()[0, 0]
    bank.correct(np.array([0]), bank.boxes())
    assert before < after > bank.spread()[0, 0]


def test_no_time_passed_changes_nothing() -> None:
    bank = walked([0.2] * 3)
    boxes, spread = bank.boxes(), bank.spread()
    bank.predict(0.0)
    np.testing.assert_array_equal(bank.boxes(), boxes)
    np.testing.assert_array_equal(bank.spread(), spread)


def test_rows_do_not_disturb_each_other() -> None:
    alone = walked([0.2] * 4)
    bank = KalmanBank()
    bank.add(np.concatenate([WALKER, WALKER + 0.3]))
    for step in range(1, 5):
        bank.predict(0.2)
        bank.correct(np.array([0]), WALKER + RIGHT * 0.2 * step)
    np.testing.assert_array_equal(bank.position[0], alone.position[0])
    bank.keep(np.array([True, False]))
    assert len(bank) == 1
    np.testing.assert_array_equal(bank.position, alone.position)


def test_a_shrinking_box_does_not_turn_inside_out() -> None:
    bank = KalmanBank()
    bank.add(np.array([[0.1, 0.1, 0.3, 0.3]]))
    for side in (0.15, 0.1, 0.05, 0.02):
        bank.predict(0.2)
        bank.correct(np.array([0]), np.array([[0.1, 0.1, 0.1 + side, 0.1 + side]]))
    bank.predict(10.0)
    assert (bank.position[:, 2:] > 0).all()
