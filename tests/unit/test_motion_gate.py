"""The gate measures change: a priority, never a permission."""

from __future__ import annotations

from collections.abc import Callable

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.analysis.motion_gate import TUNING, Motion, MotionGate, _median_of
from appliance.media.frames import MOTION_WIDTH_MAX, FrameConverter

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


def settled(gate: MotionGate, count: int = 60, **scene: float) -> MotionGate:
    for _ in range(count):
        gate.measure(plane(**scene))  # type: ignore[arg-type]
    return gate


def test_the_first_picture_is_all_new() -> None:
    assert MotionGate().measure(plane()).priority == 1.0


def test_a_still_scene_scores_nothing() -> None:
    assert settled(MotionGate()).measure(plane()).priority == 0.0


def test_a_person_scores_more_than_nothing_and_a_crowd_more_than_a_person() -> None:
    gate = settled(MotionGate())
    one = gate.measure(plane(walker=20)).priority
    crowd = plane(walker=60)
    crowd[:, 80:] = 20
    assert 0.0 < one < 0.2 < gate.measure(crowd).priority


def test_a_slow_walker_is_never_lost() -> None:
    gate = settled(MotionGate(), noise=2.0)
    scores = [gate.measure(plane(noise=2.0, walker=10 + n // 2)).priority for n in range(200)]
    assert min(scores) > 0


def test_sensor_noise_is_learned_and_a_person_is_still_seen_in_it() -> None:
    gate = settled(MotionGate(), noise=12.0)
    quiet = [gate.measure(plane(noise=12.0)).priority for _ in range(50)]
    assert np.mean(quiet) < 0.01
    assert gate.measure(plane(noise=12.0, walker=70)).priority > 0


def test_a_cloud_over_the_whole_yard_is_no_movement() -> None:
    assert settled(MotionGate()).measure(plane(light=-25)).priority == 0.0


def test_a_dark_corner_does_not_move_when_the_light_goes() -> None:
    """It can get no darker than black."""
    yard = plane()
    yard[:, :40] = np.minimum(yard[:, :40], 15)
    dusk = np.maximum(yard.astype(np.int16) - 40, 0).astype(np.uint8)
    gate = MotionGate()
    for _ in range(60):
        gate.measure(yard)
    assert [gate.measure(dusk).priority for _ in range(20)] == [0.0] * 20


def test_no_place_can_be_taught_to_see_nothing() -> None:
    """A branch waves for a minute of looks; a person who comes to stand right there is still movement."""
    gate = MotionGate()
    for n in range(300):
        waving = plane()
        waving[40:70, 60:76] = 30 if n % 2 else 220
        gate.measure(waving)
    assert gate.measure(plane(walker=60)).priority > 0


# What the sky and the camera do. Pictures of the camera's own size, through `Pictures.sketch`, 5 a second.

LOOKS_PER_S = 5
Draw = Callable[[NDArray[np.float32], int], None]


def nothing(picture: NDArray[np.float32], n: int) -> None:
    """Nobody, no weather."""


class Yard:
    """A textured place; noise: sensor noise, levels. What `draw` makes of it is seen at the camera's resolution."""

    def __init__(self, width: int = 1280, height: int = 720, *, noise: float = 2.0) -> None:
        self.rng = np.random.default_rng(3)
        rough = self.rng.integers(60, 150, (height // 40, width // 40)).astype(np.float32)
        self.ground = cv2.resize(rough, (width, height), interpolation=cv2.INTER_LINEAR)
        self.noise = noise
        self.pictures = FrameConverter()
        self._grain = self.rng.normal(0, 1, (height + 64, width + 64)).astype(np.float32)

    def shot(self, draw: Draw = nothing, n: int = 0, *, gain: float = 1.0) -> NDArray[np.uint8]:
        height, width = self.ground.shape
        picture = self.ground.copy()
        draw(picture, n)
        y, x = self.rng.integers(0, 64, 2)
        picture = picture * np.float32(gain) + self.noise * self._grain[y : y + height, x : x + width]
        luma = np.clip(picture, 0, 255).astype(np.uint8)
        grey = np.concatenate([luma, np.full((height // 2, width), 128, np.uint8)])
        return self.pictures.motion_plane(av.VideoFrame.from_ndarray(grey, format="yuv420p"))

    def lived(self, gate: MotionGate, seconds: float, draw: Draw = nothing, **how: float) -> list[Motion]:
        return [gate.measure(self.shot(draw, n, **how)) for n in range(round(seconds * LOOKS_PER_S))]


def seen(motions: list[Motion]) -> float:
    """In what share of the pictures something moved."""
    return float(np.mean([motion.priority > 0 for motion in motions]))


def walker(width: int, height: int, *, x: int = 400, y: int = 300, step: float = 6.0, light: float = -45.0) -> Draw:
    """Somebody of that size in pixels, who walks to the right."""

    def draw(picture: NDArray[np.float32], n: int) -> None:
        left = round(x + step * n)
        picture[y : y + height, left : left + width] += light

    return draw


def both(*draws: Draw) -> Draw:
    def draw(picture: NDArray[np.float32], n: int) -> None:
        for each in draws:
            each(picture, n)

    return draw


def rain(drops: int, length: int, light: float = 35.0) -> Draw:
    """Streaks, everywhere and never twice in the same place."""
    rng = np.random.default_rng(11)

    def draw(picture: NDArray[np.float32], n: int) -> None:
        height, width = picture.shape
        for x, y in zip(rng.integers(0, width - 2, drops), rng.integers(0, height - length, drops), strict=True):
            picture[y : y + length, x : x + 2] += light

    return draw


def snow(flakes: int) -> Draw:
    return rain(flakes, 4, 60.0)


def insects(picture: NDArray[np.float32], n: int) -> None:
    """Near the lens, lit by its own infrared: bright, and gone in the next picture."""
    if n % 4 == 0:
        rng = np.random.default_rng(n)
        x, y = rng.integers(0, 500), rng.integers(0, 300)
        picture[y : y + 6, x : x + 30] += 90


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1280, 720), (768, 576), (640, 360), (352, 288)])
def test_somebody_tiny_and_far_away_is_a_reason_whatever_the_resolution(width: int, height: int) -> None:
    """8 x 16 pixels of 1080p."""
    yard, gate = Yard(width, height), MotionGate()
    assert seen(yard.lived(gate, 6)[-15:]) < 0.1
    tiny = walker(max(2, width // 240), max(3, height * 16 // 1080), x=width // 3, y=height // 2, step=width / 640)
    motions = yard.lived(gate, 4, tiny)
    assert seen(motions[2:]) > 0.8
    x1, y1, x2, y2 = motions[10].regions[0].box
    assert x1 - 0.02 < 1 / 3 + 10 / 640 < x2 + 0.02
    assert y1 - 0.02 < 0.5 < y2 + 0.02
    assert (x2 - x1) < 0.1 > (y2 - y1)


@pytest.mark.parametrize("width", [4096, 1920, 1280, 1000, 640, 321, 64, 2])
def test_a_sketch_is_small_whatever_the_camera(width: int) -> None:
    frame = av.VideoFrame.from_ndarray(np.full((54, width, 3), 90, np.uint8), format="bgr24")
    for form in ("yuv420p", "bgr24"):
        made = FrameConverter().motion_plane(frame.reformat(format=form))
        assert made.shape[1] <= MOTION_WIDTH_MAX
        assert MotionGate().measure(made) == Motion(1.0, whole=True)
    assert TUNING.background.cells_max < MOTION_WIDTH_MAX


def test_regions_say_where_it_moves_and_the_greater_one_comes_first() -> None:
    yard, gate = Yard(), MotionGate()
    yard.lived(gate, 4)
    two = both(walker(30, 80, x=200, y=300), walker(120, 160, x=900, y=400))
    found = yard.lived(gate, 1, two)[-1].regions
    assert len(found) == 2
    assert found[0].box[0] > 0.6
    assert found[1].box[2] < 0.4
    assert found[0].priority > found[1].priority


@pytest.mark.parametrize("gain", [0.5, 0.75, 1.35, 1.8])
def test_an_exposure_step_is_a_change_of_the_whole_and_learnt_within_two_seconds(gain: float) -> None:
    yard, gate = Yard(), MotionGate()
    yard.lived(gate, 6)
    motions = yard.lived(gate, 6, gain=gain)
    assert motions[0].whole or (0.7 < gain < 1.4 and motions[0].priority > 0.1), "one look at all of it, or at much"
    assert seen(motions[2 * LOOKS_PER_S :]) == 0
    assert seen(yard.lived(gate, 2, walker(20, 50), gain=gain)[1:]) == 1, "and who comes then is seen"


def test_an_infrared_switch_is_a_change_of_the_whole_and_somebody_in_the_dark_is_seen_right_after() -> None:
    yard, gate = Yard(), MotionGate()
    yard.lived(gate, 6)
    yard.ground = cv2.GaussianBlur(255 - yard.ground, (0, 0), 20) * 0.5
    yard.noise = 6.0
    motions = yard.lived(gate, 4)
    assert motions[0].whole
    assert seen(motions[2 * LOOKS_PER_S :]) < 0.15
    assert seen(yard.lived(gate, 2, walker(24, 60, light=40))[1:]) == 1


def test_a_camera_that_is_turned_is_learnt_and_one_that_shakes_is_never_blind() -> None:
    yard, gate = Yard(), MotionGate()
    yard.lived(gate, 6)
    still = yard.ground
    yard.ground = np.roll(still, 400, axis=1)
    turned = yard.lived(gate, 4)
    assert turned[0].whole
    assert seen(turned[2 * LOOKS_PER_S :]) < 0.15
    shaken = []
    for n in range(40):
        yard.ground = np.roll(still, (n * 7) % 9 - 4, axis=0)
        shaken.append(gate.measure(yard.shot(walker(40, 100) if n >= 30 else nothing, n)))
    assert all(motion.priority > 0 for motion in shaken[31:])


@pytest.mark.parametrize(
    "weather", [rain(60, 15), rain(200, 9), snow(250), insects], ids=["rain", "heavy", "snow", "insects"]
)
def test_weather_raises_the_bar_and_never_closes_the_gate(weather: Draw) -> None:
    yard, gate = Yard(640, 360), MotionGate()
    yard.lived(gate, 4)
    assert gate.threshold == pytest.approx(TUNING.blobs.threshold_min, abs=2)
    yard.lived(gate, 20, weather)
    assert TUNING.blobs.threshold_min < gate.threshold <= TUNING.blobs.threshold_max
    alone = yard.lived(gate, 10, weather)
    visited = yard.lived(gate, 5, both(weather, walker(20, 50, x=200, y=150)))
    assert seen(visited[1:]) == 1, "whoever walks through it is seen at once, and all the time"
    if weather is insects:
        assert seen(alone) < 0.75
    quiet = [yard.shot() for _ in range(10)]
    for n in range(300 * LOOKS_PER_S):
        gate.measure(quiet[n % 10])
    far = walker(4, 8, x=300, y=200, step=1)
    assert seen(yard.lived(gate, 4, far)[3:]) > 0.8, "it is over: somebody far away counts again"


def test_noise_at_dusk_is_learnt_and_a_small_person_still_seen() -> None:
    yard, gate = Yard(noise=14.0), MotionGate()
    assert seen(yard.lived(gate, 12)[-40:]) < 0.1
    assert seen(yard.lived(gate, 4, walker(16, 40))[2:]) > 0.9


def test_what_an_encoder_makes_anew_and_leaves_is_no_movement() -> None:
    """Blocks that pop with a key frame and stay as they are: seen once or twice, then known."""
    yard, gate = Yard(), MotionGate()

    def popped(picture: NDArray[np.float32], n: int) -> None:
        rng = np.random.default_rng(n // 10)
        for x, y in rng.integers(0, 70, (6, 2)) * 8:
            picture[y : y + 16, x : x + 16] += 7

    yard.lived(gate, 20, popped)
    assert seen(yard.lived(gate, 20, popped)) < 0.1


def test_to_peek_tells_the_same_and_teaches_nothing() -> None:
    yard, gate, other = Yard(), MotionGate(), MotionGate()
    for n in range(40):
        shot = yard.shot(walker(20, 50) if n > 25 else nothing, n)
        told = gate.peek_priority(shot)
        assert told == gate.peek_priority(shot) == pytest.approx(gate.measure(shot).priority)
        assert other.measure(shot).priority == pytest.approx(told)


def test_an_eager_gate_waits_for_no_evidence_in_rain_either() -> None:
    """For a camera whose owner wants no delay (detect.latency: lowest): somebody small counts in the first picture."""
    first = {}
    for eager in (False, True):
        yard, gate = Yard(640, 360), MotionGate(eager=eager)
        yard.lived(gate, 20, rain(200, 9))
        first[eager] = [motion.priority > 0 for motion in yard.lived(gate, 6, walker(4, 8, x=300, y=200))].index(True)
        assert (gate.threshold == TUNING.blobs.threshold_min) == eager
    assert first[True] == 0 < first[False]


@pytest.mark.parametrize("count", [1, 2, 3, 10, 2025, 3600])
def test_its_median_is_that_of_numpy(count: int) -> None:
    values = RNG.normal(0, 40, count).astype(np.float32)
    assert _median_of(values.copy()) == float(np.median(values))
