"""Several small pictures in one call of a detector whose input is of a fixed size: laid on a sheet, and told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from appliance.clock import Clock
from appliance.detect.detector import DetectorProxy, ObjectDetector
from appliance.inference.scheduler import (
    GREY,
    Batching,
    BatchStrategy,
    FrameDetector,
    Images,
    MeasuredBatch,
    SingleFrame,
    Size,
    measure_batching,
)
from appliance.types import Detections

GAP = 16
STEP = 32  # the widest stride of the usual networks: a picture on it meets the same grid as in the corner
PER_SHEET_MAX = 16


@runtime_checkable
class FixedInput(Protocol):
    """A detector that says whether its input has a fixed size, so that a call costs the same whatever lies in it."""

    @property
    def sheet(self) -> Size | None:
        """(width, height) of what it lays into its input pixel by pixel; None: it is not like that."""
        ...


@dataclass(frozen=True, slots=True)
class SheetCell:
    """The place of one picture, in pixels of its sheet. sheet: its number."""

    sheet: int
    x: int
    y: int
    width: int
    height: int


@dataclass(slots=True)
class _SheetRow:
    sheet: int
    y: int
    height: int
    x: int = 0


class Sheets:
    """Small pictures, packed; what `inner` can take in one call are sheets then."""

    def __init__(self, size: Size, inner: SingleFrame | MeasuredBatch) -> None:
        self._size = size
        self._inner = inner

    @property
    def most(self) -> int:
        return PER_SHEET_MAX * self._inner.most

    def fits(self, sizes: Sequence[Size]) -> bool:
        if len(sizes) <= 1:
            return True
        known = all(min(size) > 0 for size in sizes)
        return known and len(sizes) <= self.most and bool(lay_out(sizes, self._size, self._inner.most))

    def seconds(self, alone_s: Sequence[float]) -> float:
        """As long as any of them by itself, or as full a call as there may be."""
        return self._inner.seconds([max(alone_s)] * min(len(alone_s), self._inner.most))

    def ask(self, looker: FrameDetector, pictures: Images) -> list[Detections]:
        sizes = [(each.shape[1], each.shape[0]) for each in pictures]
        cells = lay_out(sizes, self._size, self._inner.most)
        if not cells or (len(sizes) == 1 and self._fills(sizes[0])):  # or they are larger than was foreseen
            return looker.detect(pictures)
        sheets = draw(pictures, cells, self._size)
        return tell_apart(looker.detect(sheets), cells, self._size)

    def _fills(self, size: Size) -> bool:
        """A whole picture goes in as it is. A part by itself would be enlarged, and what is seen of it would depend on
        whether it has neighbours."""
        return size[0] == self._size[0] or size[1] == self._size[1]


def company_of(looker: FrameDetector, clock: Clock) -> BatchStrategy:
    """How this detector is best called: found out by what it says of itself, and by measuring. Raises DetectorError."""
    inner: SingleFrame | MeasuredBatch = SingleFrame()
    if isinstance(looker, Batching) and looker.batch_max > 1:
        inner = measure_batching(looker, clock, looker.batch_max)
    size = looker.sheet if isinstance(looker, FixedInput) else None
    return Sheets(size, inner) if size is not None else inner


def lay_out(sizes: Sequence[Size], sheet: Size, sheets_max: int = 1) -> list[SheetCell]:
    """Places for pictures of these (width, height), in their order; [] if they do not fit.

    Shelves, the highest picture first, each on the first shelf with room (FFDH, Coffman et al. 1980). Corners lie on
    multiples of STEP, GAP pixels at least between two pictures.
    """
    shelves: list[_SheetRow] = []
    below = [0] * sheets_max
    cells: dict[int, SheetCell] = {}
    for n in sorted(range(len(sizes)), key=lambda n: (-sizes[n][1], -sizes[n][0], n)):
        width, height = sizes[n]
        shelf = next((each for each in shelves if each.x + width <= sheet[0] and height <= each.height), None)
        if shelf is None:
            free = next((s for s in range(sheets_max) if below[s] + height <= sheet[1]), None)
            if free is None or width > sheet[0]:
                return []
            shelf = _SheetRow(free, below[free], height)
            shelves.append(shelf)
            below[free] = _next(below[free] + height)
        cells[n] = SheetCell(shelf.sheet, shelf.x, shelf.y, width, height)
        shelf.x = _next(shelf.x + width)
    return [cells[n] for n in range(len(sizes))]


def draw(pictures: Images, cells: Sequence[SheetCell], size: Size) -> list[NDArray[np.uint8]]:
    """The sheets, grey where nothing lies."""
    sheets = [np.full((size[1], size[0], 3), GREY, np.uint8) for _ in range(max(cell.sheet for cell in cells) + 1)]
    for picture, cell in zip(pictures, cells, strict=True):
        sheets[cell.sheet][cell.y : cell.y + cell.height, cell.x : cell.x + cell.width] = picture
    return sheets


def tell_apart(found: Sequence[Detections], cells: Sequence[SheetCell], size: Size) -> list[Detections]:
    """What was found in each picture, as shares of it. A box belongs to the picture in which its middle lies, and is
    cut off at its edge; one that reaches further than the gap has seen the neighbour, too, and is dropped."""
    answers = []
    scale = np.array(size * 2, np.float32)
    for cell in cells:
        seen = found[cell.sheet]
        boxes = seen.boxes * scale - np.array([cell.x, cell.y] * 2, np.float32)
        extent = np.array([cell.width, cell.height], np.float32)
        middles = (boxes[:, :2] + boxes[:, 2:]) / 2
        inside = ((middles >= 0) & (middles <= extent)).all(axis=1)
        near = (boxes[:, :2] >= -GAP).all(axis=1) & (boxes[:, 2:] <= extent + GAP).all(axis=1)
        mine = np.flatnonzero(inside & near)
        kept = seen.select(mine)
        shares = np.clip(boxes[mine] / np.tile(extent, 2), 0.0, 1.0).astype(np.float32)
        answers.append(Detections(shares, kept.scores, kept.class_ids))
    return answers


def _next(edge: int) -> int:
    return -(-(edge + GAP) // STEP) * STEP


class PackedDetector(DetectorProxy):
    """Says `shape_step` where the detector by itself would not: its call costs the same whatever is in it, but several
    parts of pictures go into one (`Sheets`). What is said of it otherwise is the detector's own."""

    shape_step = STEP


def packed_detector(detector: ObjectDetector, cameras: int) -> ObjectDetector:
    """As so many cameras are to see it. One alone has nobody to share with."""
    fixed = isinstance(detector, FixedInput) and detector.sheet is not None
    return PackedDetector(detector) if fixed and cameras > 1 else detector
