"""Output heads of networks that answer a grid at a time: NanoDet-m, PicoDet and FastestDet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.detect.class_preference import ClassPreference
from appliance.detect.letterbox import Normalisation, Placing
from appliance.detect.nms import non_maximum_suppression, to_detections
from appliance.types import Detections

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
LevelBoxes = tuple[Floats, Floats, NDArray[np.intp]]  # (n, 4) xyxy in input pixels, (n,) scores, (n,) class ids

IOU_MAX = 0.6  # of the authors' own post-processing
# ImageNet's in 0..255, as both were trained (NanoDet config/nanodet-m.yml: BGR; PaddleDetection picodet: RGB).
MEAN_BGR = (103.53, 116.28, 123.675)
STD_BGR = (57.375, 57.12, 58.395)  # ImageNet's, times 255
NANODET_STRIDES = (8, 16, 32)  # nanodet-plus-m configurations
PICODET_STRIDES = (8, 16, 32, 64)  # PaddleDetection, picodet_v2.yml
FASTESTDET_STRIDE = 16  # FastestDet, module/detector.py
DISTRIBUTION_BINS_MIN = 2  # a mean needs two


def mean_of_bins(logits: Floats) -> Floats:
    """(n, 4 * bins) logits of how far each side lies -> (n, 4) means of their softmax, in bins."""
    bins = logits.reshape(len(logits), 4, logits.shape[1] // 4)
    weights = np.exp(bins - bins.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.asarray(weights @ np.arange(weights.shape[2], dtype=np.float32), np.float32)


def boxes_around(centres: Floats, sides: Floats, stride: int) -> Floats:
    """(n, 2) centres in input pixels and (n, 4) distances left, up, right, down in strides -> (n, 4) xyxy in pixels."""
    pixels = sides * np.float32(stride)
    return np.concatenate([centres - pixels[:, :2], centres + pixels[:, 2:]], axis=1).astype(np.float32)


def cell_centres(columns: int, rows: int, stride: int, offset: float) -> Floats:
    """(rows * columns, 2) x, y in input pixels, row by row. offset: of the first cell's centre from the corner."""
    y, x = np.mgrid[:rows, :columns]
    return (np.stack([x.ravel(), y.ravel()], axis=1) * stride + offset).astype(np.float32)


def best_of_levels(levels: Iterable[LevelBoxes]) -> Detections:
    """All levels' boxes after non-maximum suppression within a class."""
    boxes, scores, class_ids = (np.concatenate(each) for each in zip(*levels, strict=True))
    return non_maximum_suppression(to_detections(boxes, scores, class_ids), IOU_MAX, per_class=True)


@dataclass(frozen=True, slots=True)
class GridLevel:
    """One stride of a network.

    It holds the names of its class scores [1, cells, classes] and of its side distances [1, cells, 4 * bins]. centres:
    (cells, 2) x, y of each cell in input pixels.
    """

    scores: str
    distances: str
    stride: int
    centres: Floats


@dataclass(frozen=True, slots=True)
class DistributionHead:
    """The head of NanoDet and PicoDet: scores already through the sigmoid.

    Each side's distance is the mean of a distribution over bins, in strides (Generalized Focal Loss, arXiv 2006.04388).
    The frame is stretched to the input.
    """

    name: str
    levels: tuple[GridLevel, ...]
    classes: int
    rgb: bool
    normalisation: Normalisation
    placing: Placing = "stretch"
    scale: float = 1.0

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        return best_of_levels(self._decode_level(outputs, level, score_min, prefer) for level in self.levels)

    def _decode_level(
        self, outputs: Mapping[str, Array], level: GridLevel, score_min: float, prefer: ClassPreference | None
    ) -> LevelBoxes:
        scores = np.asarray(outputs[level.scores][0], np.float32)
        best = scores.max(axis=1)
        kept = np.flatnonzero(best >= score_min)
        distances = np.asarray(outputs[level.distances][0], np.float32)[kept]
        boxes = boxes_around(level.centres[kept], mean_of_bins(distances), level.stride)
        class_ids = scores[kept].argmax(axis=1) if prefer is None else prefer.best(scores[kept], score_min)
        return boxes, scores[kept, class_ids], class_ids


@dataclass(frozen=True, slots=True)
class FastestDetHead:
    """The head of FastestDet, [1, 5 + classes, rows, columns] at stride 16.

    In order: objectness, offset of the centre, size as a share of the input, class scores (FastestDet utils/tool.py,
    BSD-3-Clause).
    """

    output: str
    classes: int
    size: tuple[int, int]
    name: str = "fastestdet"
    placing: Placing = "stretch"
    rgb: bool = False
    scale: float = 1 / 255
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        grid = np.asarray(outputs[self.output][0], np.float32)
        _, rows, columns = grid.shape
        cells = grid.reshape(grid.shape[0], -1).T
        scores = _fused(cells[:, 0], cells[:, 5:].max(axis=1))
        kept = np.flatnonzero(scores >= score_min)
        cells, scores = cells[kept], scores[kept]
        class_ids = cells[:, 5:].argmax(axis=1)
        if prefer is not None:
            class_ids = prefer.best(_fused(cells[:, :1], cells[:, 5:]), score_min)
            scores = _fused(cells[:, 0], cells[np.arange(len(cells)), 5 + class_ids])
        x = (kept % columns + np.tanh(cells[:, 1])) / columns
        y = (kept // columns + np.tanh(cells[:, 2])) / rows
        half = 0.5 / (1 + np.exp(-cells[:, 3:5]))
        boxes = np.stack([x - half[:, 0], y - half[:, 1], x + half[:, 0], y + half[:, 1]], axis=1)
        boxes = boxes * np.array(self.size * 2, np.float32)
        found = to_detections(boxes, scores, class_ids)
        return non_maximum_suppression(found, 0.5, per_class=True)


def _fused(objectness: Floats, class_scores: Floats) -> Floats:
    """FastestDet's score of a box."""
    return np.asarray(np.clip(objectness, 0, 1) ** 0.6 * np.clip(class_scores, 0, 1) ** 0.4, np.float32)


def distribution_head(size: tuple[int, int], outputs: Mapping[str, Array], wanted: str) -> DistributionHead | None:
    """NanoDet-m or PicoDet where the outputs are, level for level, scores and distances of their grids; else None.

    size: (width, height) of the input. wanted: `nanodet`, `picodet` or `auto`.
    """
    for name, strides in (("nanodet", NANODET_STRIDES), ("picodet", PICODET_STRIDES)):
        if wanted in ("auto", name) and len(outputs) == 2 * len(strides):
            return _paired(name, strides, size, outputs)
    return None


def _paired(
    name: str, strides: tuple[int, ...], size: tuple[int, int], outputs: Mapping[str, Array]
) -> DistributionHead | None:
    names = list(outputs)
    half = len(strides)
    levels = []
    shapes = set()
    for stride, scores, distances in zip(strides, names[:half], names[half:], strict=True):
        columns, rows = -(-size[0] // stride), -(-size[1] // stride)
        if any(
            outputs[each].ndim != 3 or outputs[each].shape[:2] != (1, rows * columns) for each in (scores, distances)
        ):
            return None
        shapes.add((outputs[scores].shape[2], outputs[distances].shape[2]))
        offset = (stride - 1) / 2 if name == "nanodet" else stride / 2
        levels.append(GridLevel(scores, distances, stride, cell_centres(columns, rows, stride, offset)))
    if len(shapes) != 1:
        return None
    classes, bins = shapes.pop()
    if bins % 4 or bins < 4 * DISTRIBUTION_BINS_MIN:
        return None
    rgb = name == "picodet"
    mean, std = (MEAN_BGR[::-1], STD_BGR[::-1]) if rgb else (MEAN_BGR, STD_BGR)
    return DistributionHead(name, tuple(levels), classes, rgb, Normalisation(mean, std))


def fastestdet_head(size: tuple[int, int], outputs: Mapping[str, Array]) -> FastestDetHead | None:
    """FastestDet where the one output is its grid, else None."""
    ((name, array),) = outputs.items()
    grid = (size[1] // FASTESTDET_STRIDE, size[0] // FASTESTDET_STRIDE)
    if array.ndim != 4 or array.shape[0] != 1 or array.shape[1] < 6 or array.shape[2:] != grid:
        return None
    return FastestDetHead(name, array.shape[1] - 5, size)
