"""A mosaic: the parts of a frame in which something moves, side by side as one small image for the detector.

Its detections are mapped back to the frame.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.analysis.motion_gate import union_box
from appliance.detect.letterbox import GREY, fitted_side
from appliance.types import Box, Detections, TrackedObject, contained_share


@dataclass(frozen=True, slots=True)
class MosaicTuning:
    """The cuts of a frame's parts, in pixels of the detector's input.

    A network needs some of what is around an object to know it. Measured on PETS and the rendered clips (docs/gate.md).
    """

    motion_margin_px: int = 32
    """Around what moved."""
    track_margin_px: int = 24
    """Around what is tracked."""
    side_min_px: int = 128
    certain_score: float = 0.5
    """An object of that score is there for certain."""
    cut_edge_px: float = 2.5
    """A box that ends so near to where the part was cut goes on beyond it."""
    cut_score_min: float = 0.3
    """A cut box of less is no reason to examine the whole frame."""
    parts_max: int = 4
    clusters_max: int = 10
    """With more groups of motion the whole frame is examined."""
    grow_steps_max: int = 3
    """Times that parts are widened, so that they cut no object in two."""
    share_max: float = 0.6
    """A mosaic that is hardly smaller than the whole frame saves nothing, and shows less."""


TUNING = MosaicTuning()
_MUST = 1_000_000  # more cells than any grid has: these parts are joined whatever that costs


@dataclass(frozen=True, slots=True)
class GridRect:
    """A rectangle of the network's grid as it lies in the whole frame's input: columns x1 to x2, rows y1 to y2.

    A convolutional network then meets in a part the same grid as in the whole; elsewhere the scores of small people
    change by 0.1 either way.
    """

    x1: int
    y1: int
    x2: int
    y2: int

    @property
    def area(self) -> int:
        return (self.x2 - self.x1) * (self.y2 - self.y1)

    def overlaps(self, other: GridRect) -> bool:
        return self.x1 < other.x2 and other.x1 < self.x2 and self.y1 < other.y2 and other.y1 < self.y2

    def union(self, other: GridRect) -> GridRect:
        """Return the smallest rectangle that holds both."""
        x1, y1 = min(self.x1, other.x1), min(self.y1, other.y1)
        return GridRect(x1, y1, max(self.x2, other.x2), max(self.y2, other.y2))


@functools.lru_cache(maxsize=64)
def _cells_of(size: tuple[int, int], step: int, full: int) -> tuple[int, int]:
    """Return the columns and rows of a DetectorGrid: enough to hold all of `size`."""
    full = -(-full // step) * step
    return fitted_side(size[0], full, step) // step, fitted_side(size[1], full, step) // step


@dataclass(frozen=True, slots=True)
class DetectorGrid:
    """The detector's input for the whole frame.

    `size` (width, height) pixels of frame in its middle, in cells of `step` pixels. `full`: the longer side of a whole
    frame at full resolution, in pixels; while load is shed, `size` is smaller, and the network's grid is the same.
    """

    size: tuple[int, int]
    step: int
    full: int

    @property
    def cells(self) -> tuple[int, int]:
        return _cells_of(self.size, self.step, self.full)

    @property
    def edge(self) -> tuple[int, int]:
        """Pixels of grey left of the frame and above it."""
        across, down = self.cells
        return (across * self.step - self.size[0]) // 2, (down * self.step - self.size[1]) // 2

    def around(self, box: Box) -> GridRect:
        """Return the cells that hold a box (shares of the frame), at least `side_min_px` each way."""
        across, down = self.cells
        x1, x2 = self._side(box[0], box[2], 0, across)
        y1, y2 = self._side(box[1], box[3], 1, down)
        return GridRect(x1, y1, x2, y2)

    def pixels(self, part: GridRect) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of the part of the frame in these cells, in pixels of the whole frame at `size`."""
        x, y = self.edge
        x1, y1 = max(0, part.x1 * self.step - x), max(0, part.y1 * self.step - y)
        return x1, y1, min(self.size[0], part.x2 * self.step - x), min(self.size[1], part.y2 * self.step - y)

    def box(self, part: GridRect) -> Box:
        """Return the same in shares of the frame."""
        x1, y1, x2, y2 = self.pixels(part)
        return x1 / self.size[0], y1 / self.size[1], x2 / self.size[0], y2 / self.size[1]

    def _side(self, low: float, high: float, way: int, cells: int) -> tuple[int, int]:
        pixels, edge = self.size[way], self.edge[way]
        first = math.floor((low * pixels + edge) / self.step + 1e-6)
        last = min(cells, math.ceil((high * pixels + edge) / self.step - 1e-6))
        while last - first < min(cells, TUNING.side_min_px // self.step):
            first, last = max(0, first - 1), min(cells, last + (1 if first == 0 else 0))
        return first, last


def choose_parts(
    moved: Iterable[Box], followed: Iterable[Box], objects: Sequence[Box], grid: DetectorGrid
) -> tuple[GridRect, ...]:
    """Return the parts that hold what moved and what is tracked, with a margin; none: show the whole frame or nothing.

    Boxes are in shares of the frame. objects: none of these is to be cut in two: of a parked car, either half is one
    too many. Parts do not overlap.
    """
    width, height = grid.size
    held = [_grown(box, TUNING.motion_margin_px / width, TUNING.motion_margin_px / height) for box in moved]
    held += [_grown(box, TUNING.track_margin_px / width, TUNING.track_margin_px / height) for box in followed]
    clusters = _clusters(held)
    if len(clusters) > TUNING.clusters_max:
        return ()
    parts = _joined_where_cheaper([grid.around(box) for box in clusters])
    for _ in range(TUNING.grow_steps_max):
        halves = [box for box in objects if _cut(box, parts, grid)]
        if not halves:
            return tuple(parts)
        parts = _joined_where_cheaper([*parts, *(grid.around(box) for box in halves)])
    return ()


def _cut(box: Box, parts: Sequence[GridRect], grid: DetectorGrid) -> bool:
    """Return whether a piece of `box` would be shown, and nowhere all of it."""
    shares = [contained_share(box, grid.box(part)) for part in parts]
    return any(share > 0 for share in shares) and max(shares) < 0.99


def _clusters(boxes: Sequence[Box]) -> list[Box]:
    """Boxes that overlap, joined."""
    found: list[Box] = []
    for box in boxes:
        cluster = box
        while near := [each for each in found if _overlap(each, cluster)]:
            for each in near:
                found.remove(each)
                cluster = union_box(cluster, each)
        found.append(cluster)
    return found


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _joined_where_cheaper(parts: list[GridRect]) -> list[GridRect]:
    """Join parts where they overlap, where one costs no more than two, and where there are too many."""
    while len(parts) > 1:
        pairs = [(a, b) for n, a in enumerate(parts) for b in parts[n + 1 :]]
        gains = [a.area + b.area - a.union(b).area + (_MUST if a.overlaps(b) else 0) for a, b in pairs]
        best = max(range(len(pairs)), key=gains.__getitem__)
        if gains[best] < 0 and len(parts) <= TUNING.parts_max:
            break
        a, b = pairs[best]
        parts = [each for each in parts if each is not a and each is not b] + [a.union(b)]
    return sorted(parts, key=lambda each: (each.x1, each.y1))


def all_tracks_certain(followed: Iterable[Box], objects: Sequence[TrackedObject]) -> bool:
    """Return whether an object was found just now, and all that is tracked is certain.

    At the edge of what a network can see, a person is found in one frame and not in the next, and less of the
    surroundings tips the scales: then the whole frame is examined more often.
    """
    sure = [each.box for each in objects if each.score >= TUNING.certain_score]
    return bool(sure) and all(any(contained_share(box, each) > 0.5 for each in sure) for box in followed)


def to_whole_frame(boxes: NDArray[np.float32], part: Box) -> NDArray[np.float32]:
    """Boxes (N, 4) in shares of a part to shares of the whole frame."""
    x1, y1, x2, y2 = part
    scale = np.array([x2 - x1, y2 - y1, x2 - x1, y2 - y1], np.float32)
    return np.asarray(boxes * scale + np.array([x1, y1, x1, y1], np.float32), np.float32)


def ends_at_cut(boxes: NDArray[np.float32], part: Box, size: tuple[int, int]) -> NDArray[np.bool_]:
    """(N,) which boxes (N, 4; shares of the whole frame) end where the part was cut, and not where the frame ends.

    size: (width, height) in which the detector is shown the whole frame.
    """
    near = np.array([TUNING.cut_edge_px / size[0], TUNING.cut_edge_px / size[1]] * 2, np.float32)
    inner = np.array([part[0] > 0, part[1] > 0, part[2] < 1, part[3] < 1])
    return np.asarray(((np.abs(boxes - np.array(part, np.float32)) <= near) & inner).any(axis=1), np.bool_)


def _grown(box: Box, x: float, y: float) -> Box:
    """With at least so much around it, and a quarter of its own size."""
    x, y = max(x, (box[2] - box[0]) / 4), max(y, (box[3] - box[1]) / 4)
    return max(0.0, box[0] - x), max(0.0, box[1] - y), min(1.0, box[2] + x), min(1.0, box[3] + y)


Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of the frame, and where it lies in the mosaic. Pixels are those of the whole frame's input."""

    box: Box  # shares of the upright frame
    corner: tuple[int, int]  # x, y in the frame
    size: Size  # (width, height)
    position: tuple[int, int]  # x, y in the mosaic
    cells: tuple[int, int, int, int]  # x1, y1, x2, y2 in the mosaic, with the grey beside the frame


@dataclass(frozen=True, slots=True)
class Mosaic:
    """The parts of a frame as one image.

    Networks are trained on mosaics, so nothing lies between the tiles; an object is shown as in the whole frame, pixel
    by pixel, on the same grid.
    """

    size: Size  # (width, height) in pixels, multiples of the detector's step
    whole: Size  # of the whole frame as the detector is shown it
    tiles: tuple[Tile, ...]

    @property
    def parts(self) -> tuple[Box, ...]:
        return tuple(tile.box for tile in self.tiles)

    def draw(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the mosaic, uint8 BGR (height, width, 3), of the whole frame's image at its size."""
        mosaic = np.full((self.size[1], self.size[0], 3), GREY, np.uint8)
        for tile in self.tiles:
            (x, y), (width, height), (left, top) = tile.position, tile.size, tile.corner
            mosaic[y : y + height, x : x + width] = image[top : top + height, left : left + width]
        return mosaic

    def split(self, found: Detections) -> tuple[Detections, Detections]:
        """Return detections of the mosaic in shares of the frame: those of whole objects, and those that a part cuts.

        A box belongs to the tile in which its middle lies.
        """
        boxes = found.boxes * np.array(self.size * 2, np.float32)
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        whole = np.zeros(len(found), np.bool_)
        cut = np.zeros(len(found), np.bool_)
        shares = np.zeros((len(found), 4), np.float32)
        for tile in self.tiles:
            mine = (middles >= tile.cells[:2]).all(axis=1) & (middles < tile.cells[2:]).all(axis=1)
            inside = (boxes[mine] - np.array(tile.position * 2, np.float32)) / np.array(tile.size * 2, np.float32)
            shares[mine] = to_whole_frame(np.clip(inside, 0.0, 1.0), tile.box)
            cut[mine] = ends_at_cut(shares[mine], tile.box, self.whole)
            whole |= mine
        in_frame = Detections(shares, found.scores, found.class_ids)
        return in_frame.select(whole & ~cut), in_frame.select(cut)


def lay_mosaic(parts: Sequence[GridRect], grid: DetectorGrid) -> Mosaic | None:
    """Return the smallest mosaic of these parts; None if it saves hardly anything or does not fit the input."""
    sizes = [(part.x2 - part.x1, part.y2 - part.y1) for part in parts]
    most = TUNING.share_max * grid.cells[0] * grid.cells[1]
    if sum(part.area for part in parts) > most:
        return None
    (across, down), corners = _packed(sizes, grid.cells)
    if not corners or across * down > most:
        return None
    tiles = tuple(_tile(part, corner, grid) for part, corner in zip(parts, corners, strict=True))
    return Mosaic((across * grid.step, down * grid.step), grid.size, tiles)


def _tile(part: GridRect, corner: tuple[int, int], grid: DetectorGrid) -> Tile:
    step, edge = grid.step, grid.edge
    x1, y1, x2, y2 = grid.pixels(part)
    left, top = corner[0] * step, corner[1] * step
    return Tile(
        box=grid.box(part),
        corner=(x1, y1),
        size=(x2 - x1, y2 - y1),
        position=(left + x1 + edge[0] - part.x1 * step, top + y1 + edge[1] - part.y1 * step),
        cells=(left, top, left + (part.x2 - part.x1) * step, top + (part.y2 - part.y1) * step),
    )


def _packed(sizes: Sequence[Size], most: Size) -> tuple[Size, list[tuple[int, int]]]:
    """Return the smallest (width, height) that holds rectangles of these sizes, and the corner of each, in cells.

    It is no larger than `most`. No corners: they do not fit.
    """
    best: Size = (0, 0)
    corners: list[tuple[int, int]] = []
    for width in range(max(w for w, _ in sizes), min(most[0], sum(w for w, _ in sizes)) + 1):
        found = _rows(sizes, width)
        across = max(x + w for (x, _), (w, _) in zip(found, sizes, strict=True))
        down = max(y + h for (_, y), (_, h) in zip(found, sizes, strict=True))
        if down <= most[1] and (not corners or across * down < best[0] * best[1]):
            best, corners = (across, down), found
    return best, corners


def _rows(sizes: Sequence[Size], width: int) -> list[tuple[int, int]]:
    """Corners of rectangles in rows of that width, the highest first (FFDH, Coffman et al. 1980)."""
    corners = dict[int, tuple[int, int]]()
    ends: list[int] = []
    tops: list[int] = []
    below = 0
    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n][1], -sizes[n][0], n)):
        row = next((k for k, end in enumerate(ends) if end + sizes[n][0] <= width), len(ends))
        if row == len(ends):
            ends.append(0)
            tops.append(below)
            below += sizes[n][1]
        corners[n] = (ends[row], tops[row])
        ends[row] += sizes[n][0]
    return [corners[n] for n in range(len(sizes))]
