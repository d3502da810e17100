"""A training sample, which is a picture with its boxes, and the changes of geometry that both go through.

Mirrors, scaling, windows, grids of pictures (YOLOv4's mosaic), a lens that bends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

GREY = 114
Floats = NDArray[np.float32]
Pixels = NDArray[np.uint8]
Warp = Callable[[Floats], Floats]


@dataclass(frozen=True, slots=True)
class Sample:
    """pixels: BGR uint8 (H, W, 3). boxes (N, 6) and ignore (M, 6), float32: class, x1, y1, x2, y2 in pixels, score."""

    pixels: Pixels
    boxes: Floats
    ignore: Floats

    def look(self, pixels: Pixels) -> Sample:
        """Return the same things, seen otherwise."""
        return replace(self, pixels=pixels)

    def keep(self, width_min: float, share_min: float, before: Floats) -> Sample:
        """Clip boxes to the picture.

        The rest of a box must be `width_min` pixels on both sides and `share_min` of the area it had `before` (N,). A
        box with less left becomes a region to ignore.
        """
        boxes, ignore = self._clipped(self.boxes), self._clipped(self.ignore)
        sides = boxes[:, 3:5] - boxes[:, 1:3]
        whole = (sides >= width_min).all(axis=1) & (sides.prod(axis=1) >= share_min * np.maximum(before, 1e-6))
        rest = boxes[~whole & (sides > 0).all(axis=1)]
        ignore = np.concatenate([ignore, rest])
        ignore = ignore[((ignore[:, 3:5] - ignore[:, 1:3]) > 0).all(axis=1)]
        return replace(self, boxes=boxes[whole], ignore=ignore)

    def _clipped(self, rows: Floats) -> Floats:
        height, width = self.pixels.shape[:2]
        rows = rows.copy()
        rows[:, 1:5:2] = rows[:, 1:5:2].clip(0, width)
        rows[:, 2:5:2] = rows[:, 2:5:2].clip(0, height)
        return rows


def areas(rows: Floats) -> Floats:
    """Return the areas (N,) in pixels."""
    return np.asarray((rows[:, 3] - rows[:, 1]) * (rows[:, 4] - rows[:, 2]), np.float32)


def empty() -> Floats:
    """Return no boxes."""
    return np.zeros((0, 6), np.float32)


def affine(sample: Sample, matrix: Floats, width: int, height: int) -> Sample:
    """`sample` seen through a 2 x 3 matrix from its pixels to those of a `width` x `height` picture, rest grey.

    The boxes go with it and are not clipped yet.
    """
    # warpAffine has no area mean: what shrinks by more than half would alias, as no camera's picture does.
    shrink = float(np.sqrt(abs(np.linalg.det(matrix[:, :2]))))
    pixels = sample.pixels
    if shrink < 0.5:
        pixels = np.asarray(
            cv2.resize(pixels, None, fx=2 * shrink, fy=2 * shrink, interpolation=cv2.INTER_AREA), np.uint8
        )
        true = np.array([pixels.shape[1] / sample.pixels.shape[1], pixels.shape[0] / sample.pixels.shape[0]])
        inner = matrix.copy()
        inner[:, :2] = matrix[:, :2] / true
        warp = inner
    else:
        warp = matrix
    # Pixel centres: OpenCV maps index to index, boxes count edges, which lie half a pixel beside.
    centred = warp.copy()
    centred[:, 2] += warp[:, :2] @ np.array([0.5, 0.5], np.float32) - 0.5
    out = cv2.warpAffine(pixels, centred, (width, height), flags=cv2.INTER_LINEAR, borderValue=(GREY, GREY, GREY))
    points: Warp = lambda xy: xy @ matrix[:, :2].T + matrix[:, 2]  # noqa: E731
    return Sample(np.asarray(out, np.uint8), carried(sample.boxes, points), carried(sample.ignore, points))


def carried(rows: Floats, points: Warp, steps: int = 1) -> Floats:
    """Boxes (N, 6) around where `points` takes their outlines: corners, and `steps` - 1 points between each two."""
    if len(rows) == 0:
        return rows
    share = np.linspace(0, 1, steps + 1, dtype=np.float32)
    edge = np.concatenate(
        [
            np.stack([share, np.zeros_like(share)], 1),
            np.stack([share, np.ones_like(share)], 1),
            np.stack([np.zeros_like(share), share], 1),
            np.stack([np.ones_like(share), share], 1),
        ]
    )
    corner, size = rows[:, None, 1:3], rows[:, None, 3:5] - rows[:, None, 1:3]
    outline = points((corner + edge[None] * size).reshape(-1, 2)).reshape(len(rows), -1, 2)
    moved = rows.copy()
    moved[:, 1:3], moved[:, 3:5] = outline.min(axis=1), outline.max(axis=1)
    return moved


SIDE_MIN = 3.0  # px; a person 12 px tall is about 5 px wide
SHARE_MIN = 0.35  # of a box that must be left where a picture is cut
WINDOW_ON_OBJECT = 0.8  # how often a window is laid around an object; the rest shows background, too
Rng = np.random.Generator


def mirror(sample: Sample) -> Sample:
    """Left for right."""
    width = sample.pixels.shape[1]

    def turned(rows: Floats) -> Floats:
        rows = rows.copy()
        rows[:, [1, 3]] = width - rows[:, [3, 1]]
        return rows

    pixels = np.ascontiguousarray(sample.pixels[:, ::-1])
    return Sample(pixels, turned(sample.boxes), turned(sample.ignore))


def place(sample: Sample, width: int, height: int, rng: Rng, zoom: tuple[float, float], stretch: float) -> Sample:
    """Place `sample` in a `width` x `height` picture.

    Its scale is its fitting scale times a zoom from the range. The sides are stretched against each other by up to
    `stretch`. It lies anywhere it covers the picture (or lies within it).
    """
    tall, wide = sample.pixels.shape[:2]
    scale = min(width / wide, height / tall) * float(np.exp(rng.uniform(*np.log(zoom))))
    uneven = float(np.exp(rng.uniform(-1, 1) * np.log(stretch)))
    sx, sy = scale * np.sqrt(uneven), scale / np.sqrt(uneven)
    dx, dy = (rng.uniform() * (room - size) for room, size in ((width, wide * sx), (height, tall * sy)))
    matrix = np.array([[sx, 0, dx], [0, sy, dy]], np.float32)
    placed = affine(sample, matrix, width, height)
    return placed.keep(SIDE_MIN, SHARE_MIN, areas(placed.boxes))


def fit(sample: Sample, side: int) -> Sample:
    """As large as it fits into a square, in the middle, rest grey: as the appliance lays pictures in."""
    tall, wide = sample.pixels.shape[:2]
    scale = min(side / wide, side / tall)
    matrix = np.array([[scale, 0, (side - wide * scale) / 2], [0, scale, (side - tall * scale) / 2]], np.float32)
    placed = affine(sample, matrix, side, side)
    return placed.keep(1.0, 0.1, areas(placed.boxes))


def window(sample: Sample, side: int, rng: Rng) -> Sample:
    """Return a `side` x `side` part of `sample` at its own scale, around one of its objects if it has any.

    Shrinking a picture to a small input makes small people disappear; a part of it keeps them at the size of use.
    """
    tall, wide = sample.pixels.shape[:2]
    room = np.array([wide - side, tall - side], np.float32)
    corner = rng.uniform(0, 1, 2) * room
    if len(sample.boxes) and rng.uniform() < WINDOW_ON_OBJECT:
        box = sample.boxes[int(rng.integers(len(sample.boxes))), 1:5]
        middle = (box[:2] + box[2:]) / 2
        corner = np.clip(middle - rng.uniform(0.2, 0.8, 2) * side, 0, np.maximum(room, 0))
    x, y = (round(float(value)) for value in corner)
    cut = affine(sample, np.array([[1, 0, -x], [0, 1, -y]], np.float32), side, side)
    return cut.keep(SIDE_MIN, SHARE_MIN, areas(sample.boxes))


def grid(
    first: Sample,
    others: Callable[[], Sample],
    side: int,
    rng: Rng,
    lines: int,
    zoom: tuple[float, float],
    stretch: float,
) -> Sample:
    """`lines` x `lines` pictures (YOLOv4's mosaic) with wandering borders; people become small with many."""
    cuts = [_cuts(side, lines, rng) for _ in range(2)]
    canvas = np.full((side, side, 3), GREY, np.uint8)
    boxes, ignore = [empty()], [empty()]
    sample: Sample | None = first
    for x1, x2 in zip(cuts[0][:-1], cuts[0][1:], strict=True):
        for y1, y2 in zip(cuts[1][:-1], cuts[1][1:], strict=True):
            part = place(sample or others(), x2 - x1, y2 - y1, rng, zoom, stretch)
            canvas[y1:y2, x1:x2] = part.pixels
            shift = np.array([0, x1, y1, x1, y1, 0], np.float32)
            boxes.append(part.boxes + shift)
            ignore.append(part.ignore + shift)
            sample = None
    return Sample(canvas, np.concatenate(boxes), np.concatenate(ignore))


def _cuts(side: int, lines: int, rng: Rng) -> list[int]:
    inner = (np.arange(1, lines) + rng.uniform(-0.2, 0.2, lines - 1)) * side / lines
    return [0, *(round(value) for value in inner), side]


def fisheye(sample: Sample, strength: float) -> Sample:
    """Seen through a lens that presses the picture's edges together, corners kept (division model, Fitzgibbon 2001)."""
    height, width = sample.pixels.shape[:2]
    middle = np.array([width, height], np.float32) / 2
    norm = float(np.hypot(*middle))
    table = np.linspace(0, 1, 257, dtype=np.float32)
    # Where a point that is seen at radius r comes from; grows by less towards the rim of what is seen.
    source = table * (1 + strength) / (1 + strength * table**2)

    def bent(points: Floats, radii: Floats, to: Floats) -> Floats:
        offset = (points - middle) / norm
        radius = np.hypot(offset[:, 0], offset[:, 1])
        gain = np.interp(radius, radii, to) / np.maximum(radius, 1e-6)
        return np.asarray(middle + offset * gain[:, None] * norm, np.float32)

    y, x = np.mgrid[:height, :width].astype(np.float32) + 0.5
    came = bent(np.stack([x.ravel(), y.ravel()], 1), table, source).reshape(height, width, 2) - 0.5
    pixels = cv2.remap(sample.pixels, came[..., 0], came[..., 1], cv2.INTER_LINEAR, borderValue=(GREY, GREY, GREY))
    forth = lambda points: bent(points, source, table)  # noqa: E731
    moved = replace(
        sample,
        pixels=np.asarray(pixels, np.uint8),
        boxes=carried(sample.boxes, forth, steps=8),
        ignore=carried(sample.ignore, forth, steps=8),
    )
    return moved.keep(SIDE_MIN, SHARE_MIN, areas(moved.boxes))
