"""Parts of one picture side by side as one small picture for the detector, and what it found there told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import GREY
from appliance.ingest.region import Cells, Grid, cut_off, placed
from appliance.types import Box, Detections

SHARE_MAX = 0.6  # what is hardly smaller than the whole saves nothing, and sees less
Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of the picture. box: of it, in shares of the upright picture; corner: x, y of the same in pixels of the
    picture at the size of the whole; size: its width and height; place: x, y of its corner in the mosaic; frame: x1,
    y1, x2, y2 of its cells there, with the grey that lies beside the picture in the whole's input, too."""

    box: Box
    corner: tuple[int, int]
    size: Size
    place: tuple[int, int]
    frame: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Mosaic:
    """What is shown of a look. size: (width, height) in pixels, multiples of the detector's step; whole: of the whole
    picture as the detector is shown it.

    Networks are trained on mosaics, so nothing lies between the tiles. What is seen of somebody is as in the whole:
    pixel by pixel the same picture, on the same grid.
    """

    size: Size
    whole: Size
    tiles: tuple[Tile, ...]

    @property
    def parts(self) -> tuple[Box, ...]:
        return tuple(tile.box for tile in self.tiles)

    def draw(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """uint8 BGR (height, width, 3), of the whole picture at its size."""
        sheet = np.full((self.size[1], self.size[0], 3), GREY, np.uint8)
        for tile in self.tiles:
            (x, y), (width, height), (left, top) = tile.place, tile.size, tile.corner
            sheet[y : y + height, x : x + width] = picture[top : top + height, left : left + width]
        return sheet

    def told_apart(self, found: Detections) -> tuple[Detections, Detections]:
        """What was found, in shares of the whole picture: what is seen whole, and what ends where a part was cut.

        A box belongs to the tile in which its middle lies.
        """
        boxes = found.boxes * np.array(self.size * 2, np.float32)
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        whole = np.zeros(len(found), np.bool_)
        cut = np.zeros(len(found), np.bool_)
        shares = np.zeros((len(found), 4), np.float32)
        for tile in self.tiles:
            mine = (middles >= tile.frame[:2]).all(axis=1) & (middles < tile.frame[2:]).all(axis=1)
            inside = (boxes[mine] - np.array(tile.place * 2, np.float32)) / np.array(tile.size * 2, np.float32)
            shares[mine] = placed(np.clip(inside, 0.0, 1.0), tile.box)
            cut[mine] = cut_off(shares[mine], tile.box, self.whole)
            whole |= mine
        all_of_them = Detections(shares, found.scores, found.class_ids)
        return all_of_them.select(whole & ~cut), all_of_them.select(cut)


def lay(parts: Sequence[Cells], grid: Grid) -> Mosaic | None:
    """The smallest mosaic of these parts; None: it is hardly smaller than the whole, or does not fit into its input."""
    sizes = [(part.x2 - part.x1, part.y2 - part.y1) for part in parts]
    most = SHARE_MAX * grid.cells[0] * grid.cells[1]
    if sum(part.area for part in parts) > most:
        return None
    (across, down), corners = _packed(sizes, grid.cells)
    if not corners or across * down > most:
        return None
    tiles = tuple(_tile(part, corner, grid) for part, corner in zip(parts, corners, strict=True))
    return Mosaic((across * grid.step, down * grid.step), grid.size, tiles)


def _tile(part: Cells, corner: tuple[int, int], grid: Grid) -> Tile:
    step, edge = grid.step, grid.edge
    x1, y1, x2, y2 = grid.pixels(part)
    left, top = corner[0] * step, corner[1] * step
    return Tile(
        box=grid.box(part),
        corner=(x1, y1),
        size=(x2 - x1, y2 - y1),
        place=(left + x1 + edge[0] - part.x1 * step, top + y1 + edge[1] - part.y1 * step),
        frame=(left, top, left + (part.x2 - part.x1) * step, top + (part.y2 - part.y1) * step),
    )


def _packed(sizes: Sequence[Size], most: Size) -> tuple[Size, list[tuple[int, int]]]:
    """The smallest (width, height) for rectangles of these sizes, no larger than `most`, and the corner of each; no
    corners: they do not fit. All in cells."""
    best: Size = (0, 0)
    corners: list[tuple[int, int]] = []
    for width in range(max(w for w, _ in sizes), min(most[0], sum(w for w, _ in sizes)) + 1):
        found = _shelves(sizes, width)
        across = max(x + w for (x, _), (w, _) in zip(found, sizes, strict=True))
        down = max(y + h for (_, y), (_, h) in zip(found, sizes, strict=True))
        if down <= most[1] and (not corners or across * down < best[0] * best[1]):
            best, corners = (across, down), found
    return best, corners


def _shelves(sizes: Sequence[Size], width: int) -> list[tuple[int, int]]:
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
