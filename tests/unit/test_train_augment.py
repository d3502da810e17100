"""Boxes stay on what they enclose, whatever happens to a picture; and the same seed gives the same picture."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from models.train import augment, geometry
from models.train.augment import Recipe, compose
from models.train.geometry import Sample, affine, empty

RECT = (120, 80, 180, 230)


def drawn(width: int = 416, height: int = 312, rect: tuple[int, int, int, int] = RECT) -> Sample:
    """A dark picture with one bright rectangle, its box, and a region to ignore at the same place."""
    pixels = np.full((height, width, 3), 30, np.uint8)
    x1, y1, x2, y2 = rect
    pixels[y1:y2, x1:x2] = 250
    row = np.array([[2, *rect, 1.0]], np.float32)
    return Sample(pixels, row, row.copy())


def bright(pixels: NDArray[np.uint8], least: float) -> NDArray[np.float64]:
    """The box around the picture's brightest blob."""
    mask = (cv2.GaussianBlur(pixels, (3, 3), 0).min(axis=2) > least).astype(np.uint8)
    _, _, stats, _ = cv2.connectedComponentsWithStats(mask)
    x, y, width, height, _ = stats[1:][stats[1:, 4].argmax()]
    return np.array([x, y, x + width, y + height], float)


def tight(sample: Sample, within: float, least: float = 150) -> None:
    assert len(sample.boxes) == 1
    assert np.abs(sample.boxes[0, 1:5] - bright(sample.pixels, least)).max() <= within
    assert np.array_equal(sample.boxes[:, :5], sample.ignore[:1, :5])


def test_a_mirror_takes_the_box_along() -> None:
    turned = geometry.mirror(drawn())
    tight(turned, 1)
    assert geometry.mirror(turned).boxes.tolist() == drawn().boxes.tolist()


@pytest.mark.parametrize("scale", [0.2, 0.45, 0.8, 1.0, 1.7])
def test_scaling_keeps_the_box_tight(scale: float) -> None:
    matrix = np.array([[scale, 0, 11.3], [0, scale, 7.6]], np.float32)
    tight(affine(drawn(), matrix, 416, 416), 1)


@pytest.mark.parametrize("seed", range(8))
def test_placing_anywhere_keeps_the_box_tight(seed: int) -> None:
    placed = geometry.place(drawn(), 400, 300, np.random.default_rng(seed), (0.4, 1.1), 1.3)
    tight(placed, 1.5)


def test_people_become_as_small_as_twelve_pixels() -> None:
    person = drawn(416, 416, (200, 150, 240, 250))
    heights = []
    for seed in range(40):
        sample = compose(person, lambda: person, Recipe(), np.random.default_rng(seed), side=416)
        heights += list(sample.boxes[:, 4] - sample.boxes[:, 2])
    assert min(heights) < 22
    assert max(heights) > 100
    small = geometry.grid(person, lambda: person, 416, np.random.default_rng(0), 3, (0.36, 0.37), 1.0)
    assert np.allclose(small.boxes[:, 4] - small.boxes[:, 2], 12, atol=4)


@pytest.mark.parametrize("strength", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("rect", [(20, 20, 70, 120), (180, 100, 240, 220), (350, 200, 400, 300)])
def test_a_fisheye_keeps_the_box_tight(strength: float, rect: tuple[int, int, int, int]) -> None:
    tight(geometry.fisheye(drawn(rect=rect), strength), 2)


@pytest.mark.parametrize("lines", [1, 2, 3])
def test_a_mosaic_keeps_every_box_on_its_rectangle(lines: int) -> None:
    plain = drawn()
    sample = geometry.grid(plain, drawn, 416, np.random.default_rng(lines), lines, (0.8, 0.9), 1.1)
    assert len(sample.boxes) == lines * lines
    for x1, y1, x2, y2 in sample.boxes[:, 1:5]:
        cut = sample.pixels[round(y1) : round(y2), round(x1) : round(x2)]
        assert (cut.min(axis=2) > 128).mean() > 0.85
    outside = sample.pixels.copy()
    for x1, y1, x2, y2 in sample.boxes[:, 1:5]:
        outside[int(y1) - 1 : int(y2) + 2, int(x1) - 1 : int(x2) + 2] = 0
    assert outside.max() < 150


def test_what_a_cut_leaves_of_a_box_is_ignored_not_learnt() -> None:
    matrix = np.array([[1, 0, -165], [0, 1, 0]], np.float32)  # a quarter of the rectangle's width stays
    moved = affine(Sample(drawn().pixels, drawn().boxes, empty()), matrix, 416, 312)
    kept = moved.keep(3.0, 0.35, np.array([60 * 150], np.float32))
    assert len(kept.boxes) == 0
    assert kept.ignore[:, 1:5].tolist() == [[0, 80, 15, 230]]


@pytest.mark.parametrize("seed", range(12))
def test_a_window_keeps_scale_and_box(seed: int) -> None:
    part = geometry.window(drawn(416, 416), 288, np.random.default_rng(seed))
    assert part.pixels.shape == (288, 288, 3)
    for row in part.boxes[:, 1:5]:
        assert np.abs(row - bright(part.pixels, 150)).max() <= 1
        assert row[2] - row[0] <= RECT[2] - RECT[0]
        assert row[3] - row[1] <= RECT[3] - RECT[1]
    assert len(part.boxes) + len(part.ignore) > 0 or part.pixels.max() < 150


def test_a_sample_cut_from_a_larger_mosaic_shows_people_larger() -> None:
    recipe = Recipe(fisheye=0.0, grids=(0.0, 1.0, 0.0))

    def tallest(whole: int) -> list[float]:
        rngs = (np.random.default_rng(seed) for seed in range(60))
        samples = (compose(drawn(), drawn, recipe, rng, side=256, whole=whole) for rng in rngs)
        return [float((each.boxes[:, 4] - each.boxes[:, 2]).mean()) for each in samples if len(each.boxes)]

    assert np.median(tallest(416)) > 1.3 * np.median(tallest(0))


LOOKS = {
    "colour": (augment.colour, 2),
    "tone": (augment.tone, 2),
    "grey": (augment.grey, 1),
    "infrared": (augment.infrared, 4),
    "night": (augment.night, 4),
    "blur": (augment.blur, 4),
    "rain": (augment.rain, 4),
    "coarse": (augment.coarse, 3),
    "jpeg": (augment.jpeg, 3),
    "h264": (augment.h264, 3),
    "noise": (lambda pixels, rng: augment.noise(pixels, rng, 10), 2),
}


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("seed", range(3))
def test_no_look_moves_anything(name: str, seed: int) -> None:
    look, within = LOOKS[name]
    before = drawn(416, 416)
    after = before.look(look(before.pixels, np.random.default_rng(seed)))
    assert after.pixels.shape == before.pixels.shape
    assert after.pixels.dtype == np.uint8
    assert np.array_equal(look(before.pixels, np.random.default_rng(seed)), after.pixels)
    assert before.pixels[0, 0, 0] == 30
    inside, outside = (after.pixels[80:230, 120:180], after.pixels[80:230, 200:260])
    least = (float(inside.min(axis=2).mean()) + float(outside.min(axis=2).mean())) / 2
    tight(after, within, least)


def test_h264_leaves_marks_as_a_starved_stream_does() -> None:
    pytest.importorskip("av", reason="H.264 artefacts need PyAV")
    picture = np.asarray(cv2.resize(np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8), (416, 416)))
    spoilt = augment.h264(picture, np.random.default_rng(1))
    assert 2 < float(np.abs(spoilt.astype(int) - picture).mean()) < 40


def test_the_same_seed_gives_the_same_sample() -> None:
    one, again, other = (compose(drawn(), drawn, Recipe(), np.random.default_rng(seed), side=320) for seed in (5, 5, 6))
    assert np.array_equal(one.pixels, again.pixels)
    assert np.array_equal(one.boxes, again.boxes)
    assert not np.array_equal(one.pixels, other.pixels)
