"""Which parts of a picture the detector is shown while something moves, so that it costs by what moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import fitted
from appliance.ingest.gate import joined
from appliance.types import Box, TrackedObject

# In the detector's pixels: a network needs some of what is around an object to know it. Chosen on PETS and the
# rendered clips: docs/gate.md.
AROUND_MOVED = 32
AROUND_FOLLOWED = 24
SIDE_MIN = 128
SURE = 0.5
CUT = 2.5  # pixels of the detector's: a box that ends so near to where the part was cut goes on beyond it
TOLD_MIN = 0.3  # a cut box of less is no reason to look at the whole picture
PARTS_MAX = 4
HEAPS_MAX = 10  # where more goes on than that, the whole is looked at
GROW_MAX = 3  # times that parts are widened, so that they cut nobody in two
_MUST = 1_000_000


@dataclass(frozen=True, slots=True)
class Cells:
    """A rectangle of the network's grid as it lies in the whole picture's input: columns x1 to x2, rows y1 to y2.

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

    def meets(self, other: Cells) -> bool:
        return self.x1 < other.x2 and other.x1 < self.x2 and self.y1 < other.y2 and other.y1 < self.y2

    def with_(self, other: Cells) -> Cells:
        """The smallest rectangle that holds both."""
        x1, y1 = min(self.x1, other.x1), min(self.y1, other.y1)
        return Cells(x1, y1, max(self.x2, other.x2), max(self.y2, other.y2))


@dataclass(frozen=True, slots=True)
class Grid:
    """The input that the whole picture is laid into, its middle: `size` (width, height) pixels of picture, in steps."""

    size: tuple[int, int]
    step: int

    @property
    def cells(self) -> tuple[int, int]:
        full = max(self.size)
        return fitted(self.size[0], full, self.step) // self.step, fitted(self.size[1], full, self.step) // self.step

    @property
    def edge(self) -> tuple[int, int]:
        """Pixels of grey left of the picture and above it."""
        across, down = self.cells
        return (across * self.step - self.size[0]) // 2, (down * self.step - self.size[1]) // 2

    def around(self, box: Box) -> Cells:
        """The cells that hold a box (shares of the picture), at least SIDE_MIN pixels each way."""
        across, down = self.cells
        x1, x2 = self._side(box[0], box[2], 0, across)
        y1, y2 = self._side(box[1], box[3], 1, down)
        return Cells(x1, y1, x2, y2)

    def pixels(self, part: Cells) -> tuple[int, int, int, int]:
        """x1, y1, x2, y2 of what of the picture lies in these cells, in its pixels at the size of the whole."""
        x, y = self.edge
        x1, y1 = max(0, part.x1 * self.step - x), max(0, part.y1 * self.step - y)
        return x1, y1, min(self.size[0], part.x2 * self.step - x), min(self.size[1], part.y2 * self.step - y)

    def box(self, part: Cells) -> Box:
        """The same in shares of the picture."""
        x1, y1, x2, y2 = self.pixels(part)
        return x1 / self.size[0], y1 / self.size[1], x2 / self.size[0], y2 / self.size[1]

    def _side(self, low: float, high: float, way: int, cells: int) -> tuple[int, int]:
        pixels, edge = self.size[way], self.edge[way]
        first = math.floor((low * pixels + edge) / self.step + 1e-6)
        last = min(cells, math.ceil((high * pixels + edge) / self.step - 1e-6))
        while last - first < min(cells, SIDE_MIN // self.step):
            first, last = max(0, first - 1), min(cells, last + (1 if first == 0 else 0))
        return first, last


def choose(moved: Iterable[Box], followed: Iterable[Box], objects: Sequence[Box], grid: Grid) -> tuple[Cells, ...]:
    """The parts that hold what moved and what is followed, with what is around it; none: look at the whole picture.

    Boxes in shares of the picture. objects: nobody of these is to be cut in two: of a parked car, either half is one
    too many. None too when there is nothing to be shown. Parts do not overlap.
    """
    width, height = grid.size
    held = [_grown(box, AROUND_MOVED / width, AROUND_MOVED / height) for box in moved]
    held += [_grown(box, AROUND_FOLLOWED / width, AROUND_FOLLOWED / height) for box in followed]
    heaps = _heaps(held)
    if len(heaps) > HEAPS_MAX:
        return ()
    parts = _apart([grid.around(box) for box in heaps])
    for _ in range(GROW_MAX):
        halves = [box for box in objects if _cut(box, parts, grid)]
        if not halves:
            return tuple(parts)
        parts = _apart([*parts, *(grid.around(box) for box in halves)])
    return ()


def _cut(box: Box, parts: Sequence[Cells], grid: Grid) -> bool:
    """Whether some of `box` would be shown, and nowhere all of it."""
    shares = [within(box, grid.box(part)) for part in parts]
    return any(share > 0 for share in shares) and max(shares) < 0.99


def _heaps(boxes: Sequence[Box]) -> list[Box]:
    """Boxes that overlap, joined."""
    found: list[Box] = []
    for box in boxes:
        heap = box
        while near := [each for each in found if _overlap(each, heap)]:
            for each in near:
                found.remove(each)
                heap = joined(heap, each)
        found.append(heap)
    return found


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _apart(parts: list[Cells]) -> list[Cells]:
    """Joined where they overlap, where one costs no more than two, and where there are too many."""
    while len(parts) > 1:
        pairs = [(a, b) for n, a in enumerate(parts) for b in parts[n + 1 :]]
        gains = [a.area + b.area - a.with_(b).area + (_MUST if a.meets(b) else 0) for a, b in pairs]
        best = max(range(len(pairs)), key=gains.__getitem__)
        if gains[best] < 0 and len(parts) <= PARTS_MAX:
            break
        a, b = pairs[best]
        parts = [each for each in parts if each is not a and each is not b] + [a.with_(b)]
    return sorted(parts, key=lambda each: (each.x1, each.y1))


def known(followed: Iterable[Box], objects: Sequence[TrackedObject]) -> bool:
    """Whether somebody was found just now, and all that is followed surely.

    At the edge of what a network can see, a person is found in one look and not in the next, and less of the
    surroundings tips the scales: then the whole picture is looked at more often.
    """
    sure = [each.box for each in objects if each.score >= SURE]
    return bool(sure) and all(any(within(box, each) > 0.5 for each in sure) for box in followed)


def placed(boxes: NDArray[np.float32], part: Box) -> NDArray[np.float32]:
    """Boxes (N, 4) in shares of a part, in shares of the whole picture."""
    x1, y1, x2, y2 = part
    scale = np.array([x2 - x1, y2 - y1, x2 - x1, y2 - y1], np.float32)
    return np.asarray(boxes * scale + np.array([x1, y1, x1, y1], np.float32), np.float32)


def cut_off(boxes: NDArray[np.float32], part: Box, size: tuple[int, int]) -> NDArray[np.bool_]:
    """(N,) which boxes (N, 4; shares of the whole picture) end where the part was cut, and not where the picture ends.

    size: (width, height) in which the detector is shown the whole picture.
    """
    near = np.array([CUT / size[0], CUT / size[1]] * 2, np.float32)
    inner = np.array([part[0] > 0, part[1] > 0, part[2] < 1, part[3] < 1])
    return np.asarray(((np.abs(boxes - np.array(part, np.float32)) <= near) & inner).any(axis=1), np.bool_)


def within(box: Sequence[float], other: Sequence[float]) -> float:
    """Which part of `box` lies in `other`, 0..1."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    area = (box[2] - box[0]) * (box[3] - box[1])
    return width * height / area if width > 0 and height > 0 and area > 0 else 0.0


def _grown(box: Box, x: float, y: float) -> Box:
    """With at least so much around it, and a quarter of its own size."""
    x, y = max(x, (box[2] - box[0]) / 4), max(y, (box[3] - box[1]) / 4)
    return max(0.0, box[0] - x), max(0.0, box[1] - y), min(1.0, box[2] + x), min(1.0, box[3] + y)
