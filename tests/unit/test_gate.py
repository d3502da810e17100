"""The gate measures change: a priority, never a permission."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.ingest.gate import Gate

RNG = np.random.default_rng(1)
YARD = RNG.integers(40, 200, (90, 160)).astype(np.uint8)


def plane(*, noise: float = 0.0, light: int = 0, walker: int | None = None) -> NDArray[np.uint8]:
    """The yard, with sensor noise, another light, or a person (16 x 30) whose left side is at `walker`."""
    picture = YARD.astype(np.float32) + light
    if noise:
        picture += RNG.normal(0, noise, picture.shape)
    if walker is not None:
        picture[40:70, walker : walker + 16] = 30
    return np.clip(picture, 0, 255).astype(np.uint8)


def settled(gate: Gate, count: int = 60, **scene: float) -> Gate:
    for _ in range(count):
        gate.measure(plane(**scene))  # type: ignore[arg-type]
    return gate


def test_the_first_picture_is_all_new() -> None:
    assert Gate().measure(plane()) == 1.0


def test_a_still_scene_scores_nothing() -> None:
    assert settled(Gate()).measure(plane()) == 0.0


def test_a_person_scores_more_than_nothing_and_a_crowd_more_than_a_person() -> None:
    gate = settled(Gate())
    one = gate.measure(plane(walker=20))
    crowd = plane(walker=60)
    crowd[:, 80:] = 20
    assert 0.0 < one < 0.2 < gate.measure(crowd)


def test_a_slow_walker_is_never_lost() -> None:
    gate = settled(Gate(), noise=2.0)
    scores = [gate.measure(plane(noise=2.0, walker=10 + n // 2)) for n in range(200)]
    assert min(scores) > 0


def test_sensor_noise_is_learned_and_a_person_is_still_seen_in_it() -> None:
    gate = settled(Gate(), noise=12.0)
    quiet = [gate.measure(plane(noise=12.0)) for _ in range(50)]
    assert np.mean(quiet) < 0.01
    assert gate.measure(plane(noise=12.0, walker=70)) > 0


def test_a_cloud_over_the_whole_yard_is_no_movement() -> None:
    assert settled(Gate()).measure(plane(light=-25)) == 0.0


def test_no_place_can_be_taught_to_see_nothing() -> None:
    """A branch waves for a minute of looks; a person who comes to stand right there is still movement."""
    gate = Gate()
    for n in range(300):
        waving = plane()
        waving[40:70, 60:76] = 30 if n % 2 else 220
        gate.measure(waving)
    assert gate.measure(plane(walker=60)) > 0
