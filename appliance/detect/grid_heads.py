"""Output heads of networks that answer a grid at a time: NanoDet-m, PicoDet, FastestDet, and those on Hailo's chips."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import InputForm, Normalisation
from appliance.detect.network_runtime import Array
from appliance.detect.output_head import (
    ClassPreference,
    Floats,
    Outputs,
    UnknownLayout,
    non_maximum_suppression,
    to_detections,
)
from appliance.types import Detections

LevelBoxes = tuple[Floats, Floats, NDArray[np.intp]]  # (n, 4) xyxy in input pixels, (n,) scores, (n,) class ids

IOU_MAX = 0.6  # of the authors' own post-processing
# ImageNet's in 0..255, as both were trained (NanoDet config/nanodet-m.yml: BGR; PaddleDetection picodet: RGB).
MEAN_BGR = (103.53, 116.28, 123.675)
STD_BGR = (57.375, 57.12, 58.395)  # ImageNet's, times 255
NANODET_STRIDES = (8, 16, 32)  # nanodet-plus-m configurations
PICODET_STRIDES = (8, 16, 32, 64)  # PaddleDetection, picodet_v2.yml
BGR_STRETCHED = InputForm("stretch", rgb=False)  # FastestDet, as trained
WHOLE_NUMBERS = InputForm("centre", scale=1.0)  # the chip normalises
FASTESTDET_STRIDE = 16  # FastestDet, module/detector.py
DISTRIBUTION_BINS_MIN = 2  # a mean needs two
BY_CLASS, BY_SCORE = "HAILO_NMS_BY_CLASS", "HAILO_NMS_BY_SCORE"
# hailort.h, hailo_detections_t: a count, then packed rows.
_DETECTION = np.dtype([("box", "<f4", 4), ("score", "<f4"), ("class_id", "<u2")])
EXPONENT_MAX = 12.0  # e^12 strides is more than any frame; beyond it float16 overflows


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
    """One stride of a network: the names of its outputs, [1, rows, columns, channels] or [1, cells, channels] each.

    Where `sides` and `scores` are one output, sides, objectness and scores lie in it in that order. objectness: ''
    where the network has none. centres: (cells, 2) x, y in input pixels.
    """

    sides: str
    scores: str
    objectness: str
    stride: int
    centres: Floats


@dataclass(frozen=True, slots=True)
class GridHead:
    """Raw grids, decoded here: only what scores enough is looked at.

    sides: `distribution`: the mean of a softmax over bins, in strides (Generalized Focal Loss, arXiv 2006.04388:
    NanoDet, PicoDet, YOLOv8, YOLO11); `exponent`: e to the number, in strides (vedette-nano); `yolox`: offset of the
    centre from the cell's corner and log of the size. logits: scores have not been through the sigmoid.
    """

    name: str
    levels: tuple[GridLevel, ...]
    classes: int
    sides: Literal["distribution", "exponent", "yolox"]
    logits: bool
    form: InputForm

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
        return best_of_levels(self._decode_level(outputs, level, score_min, prefer) for level in self.levels)

    def _decode_level(
        self, outputs: Outputs, level: GridLevel, score_min: float, prefer: ClassPreference | None
    ) -> LevelBoxes:
        sides, objectness, scores = self._parts(outputs, level)
        best = self._score(scores.max(axis=1))
        if objectness is not None:
            best = best * self._score(objectness)
        kept = np.flatnonzero(best >= score_min)
        scores = self._score(scores[kept])
        if objectness is not None:
            scores = scores * self._score(objectness[kept])[:, None]
        class_ids = scores.argmax(axis=1) if prefer is None else prefer.best(scores, score_min)
        boxes = self._boxes(sides[kept], level, kept)
        return boxes, scores[np.arange(len(kept)), class_ids], class_ids

    def _parts(self, outputs: Outputs, level: GridLevel) -> tuple[Floats, Floats | None, Floats]:
        """(cells, sides), (cells,) or None, (cells, classes)."""
        streams = [_cells(outputs[level.sides])]
        if level.sides == level.scores:
            streams = [streams[0][:, : -self.classes], streams[0][:, -self.classes :]]
            if self.sides == "yolox":
                return streams[0][:, :4], streams[0][:, 4], streams[1]
            return streams[0], None, streams[1]
        objectness = _cells(outputs[level.objectness])[:, 0] if level.objectness else None
        return streams[0], objectness, _cells(outputs[level.scores])

    def _score(self, raw: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-raw)), np.float32) if self.logits else raw

    def _boxes(self, sides: Floats, level: GridLevel, cells: NDArray[np.intp]) -> Floats:
        centres = level.centres[cells]
        if self.sides == "yolox":
            middle = centres + (sides[:, :2] - 0.5) * level.stride
            half = np.exp(np.minimum(sides[:, 2:], EXPONENT_MAX)) * level.stride / 2
            return np.concatenate([middle - half, middle + half], axis=1).astype(np.float32)
        reach = mean_of_bins(sides) if self.sides == "distribution" else np.exp(np.minimum(sides, EXPONENT_MAX))
        return boxes_around(centres, reach, level.stride)


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
    form: InputForm = BGR_STRETCHED

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
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


def distribution_head(size: tuple[int, int], outputs: Outputs, wanted: str) -> GridHead | None:
    """NanoDet-m or PicoDet where the outputs are, level for level, scores and distances of their grids; else None.

    size: (width, height) of the input. wanted: `nanodet`, `picodet` or `auto`.
    """
    for name, strides in (("nanodet", NANODET_STRIDES), ("picodet", PICODET_STRIDES)):
        if wanted in ("auto", name) and len(outputs) == 2 * len(strides):
            return _paired(name, strides, size, outputs)
    return None


def _paired(name: str, strides: tuple[int, ...], size: tuple[int, int], outputs: Outputs) -> GridHead | None:
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
        levels.append(GridLevel(distances, scores, "", stride, cell_centres(columns, rows, stride, offset)))
    if len(shapes) != 1:
        return None
    classes, bins = shapes.pop()
    if bins % 4 or bins < 4 * DISTRIBUTION_BINS_MIN:
        return None
    rgb = name == "picodet"
    mean, std = (MEAN_BGR[::-1], STD_BGR[::-1]) if rgb else (MEAN_BGR, STD_BGR)
    form = InputForm("stretch", rgb, 1.0, Normalisation(mean, std))
    return GridHead(name, tuple(levels), classes, "distribution", logits=False, form=form)


def fastestdet_head(size: tuple[int, int], outputs: Outputs) -> FastestDetHead | None:
    """FastestDet where the one output is its grid, else None."""
    ((name, array),) = outputs.items()
    grid = (size[1] // FASTESTDET_STRIDE, size[0] // FASTESTDET_STRIDE)
    if array.ndim != 4 or array.shape[0] != 1 or array.shape[1] < 6 or array.shape[2:] != grid:
        return None
    return FastestDetHead(name, array.shape[1] - 5, size)


@dataclass(frozen=True, slots=True)
class HailoNmsHead:
    """Output of HailoRT's NMS: y1, x1, y2, x2 as shares of the input, and a score.

    order: HAILO_NMS_BY_CLASS is [1, n] numbers: for each class, the count of its rows and then the rows.
    HAILO_NMS_BY_SCORE is [1, n] bytes: a count, and rows with the class. size: (width, height) of the input.
    """

    output: str
    order: str
    classes: int
    size: tuple[int, int]
    name: str = "hailo-nms"
    form: InputForm = WHOLE_NUMBERS

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
        answer = outputs[self.output][0]
        boxes, scores, class_ids = self._by_class(answer) if self.order == BY_CLASS else _by_score(answer)
        kept = np.flatnonzero(scores >= score_min)
        pixels = boxes[kept][:, [1, 0, 3, 2]] * np.array(self.size * 2, np.float32)
        return to_detections(pixels, scores[kept], class_ids[kept])

    def _by_class(self, answer: Array) -> tuple[Floats, Floats, NDArray[Any]]:
        numbers = np.asarray(answer, np.float32).reshape(-1)
        rows, class_ids, at = [np.zeros((0, 5), np.float32)], [], 0
        for class_id in range(self.classes):
            count = max(0, min(int(numbers[at]), (len(numbers) - at - 1) // 5)) if at < len(numbers) else 0
            if count:
                rows.append(numbers[at + 1 : at + 1 + 5 * count].reshape(count, 5))
                class_ids += [class_id] * count
            at += 1 + 5 * count
        found = np.concatenate(rows)
        return found[:, :4], found[:, 4], np.array(class_ids, np.int32)


def _by_score(answer: Array) -> tuple[Floats, Floats, NDArray[Any]]:
    data = np.ascontiguousarray(answer, np.uint8).tobytes()
    count = min(int.from_bytes(data[:2], "little"), (len(data) - 2) // _DETECTION.itemsize)
    rows = np.frombuffer(data, _DETECTION, count, 2)
    return rows["box"], rows["score"], rows["class_id"]


def hailo_head(size: tuple[int, int], outputs: Outputs, metadata: Mapping[str, str]) -> HailoNmsHead | GridHead:
    """Return the head for the streams of a HEF, as `HailoRuntime.metadata` describes them. Raises UnknownLayout."""
    layout = json.loads(metadata["hailo"])
    streams: dict[str, dict[str, Any]] = layout["outputs"]
    nms = [name for name, stream in streams.items() if stream["order"] in (BY_CLASS, BY_SCORE)]
    placing: Any = metadata.get("placing", "centre")
    form = InputForm(placing, metadata.get("pixels") != "bgr", 1.0)
    if nms:
        if len(streams) != 1:
            raise UnknownLayout("it has more outputs than the one of NMS")
        stream = streams[nms[0]]
        return HailoNmsHead(nms[0], stream["order"], int(stream["classes"]), size, form=form)
    names = metadata.get("names")
    classes = len(ast.literal_eval(names)) if names else 0
    return _grid_head(size, outputs, classes, layout, form)


def _grid_head(
    size: tuple[int, int], outputs: Outputs, classes: int, layout: Mapping[str, Any], form: InputForm
) -> GridHead:
    grids: dict[int, list[str]] = {}
    for name, array in outputs.items():
        stride = size[0] // array.shape[2] if array.ndim == 4 and array.shape[2] else 0
        if not stride or array.shape[1:3] != (size[1] // stride, size[0] // stride):
            raise UnknownLayout(f"its output {name} is no grid over the input")
        grids.setdefault(stride, []).append(name)
    if not classes:
        raise UnknownLayout("raw grids need the names of the classes: in the file NAME.hef.json beside it")
    levels, kinds = [], set()
    for stride in sorted(grids):
        level, kind = _level(size, stride, {name: outputs[name].shape[3] for name in grids[stride]}, classes, layout)
        levels.append(level)
        kinds.add(kind)
    if len(kinds) != 1:
        raise UnknownLayout("its grids are not alike")
    return GridHead("hailo-grid", tuple(levels), classes, kinds.pop(), layout["scores"] == "logits", form)


def _level(
    size: tuple[int, int], stride: int, channels: Mapping[str, int], classes: int, layout: Mapping[str, Any]
) -> tuple[GridLevel, Literal["distribution", "exponent", "yolox"]]:
    centres = cell_centres(size[0] // stride, size[1] // stride, stride, stride / 2)
    if len(channels) == 1:
        ((name, count),) = channels.items()
        if count == 5 + classes:
            return GridLevel(name, name, name, stride, centres), "yolox"
        return GridLevel(name, name, "", stride, centres), _sides(count - classes, layout)
    scores = [name for name, count in channels.items() if count == classes]
    if len(channels) == 2 and len(scores) == 2 and classes == 4:
        raise UnknownLayout("with 4 classes its boxes and scores look alike: compile it with both in one output")
    sides = [name for name, count in channels.items() if name not in scores and count % 4 == 0]
    objectness = [name for name, count in channels.items() if count == 1 and name not in scores]
    if (len(scores), len(sides)) != (1, 1) or len(scores) + len(sides) + len(objectness) != len(channels):
        raise UnknownLayout(
            f"its grid of stride {stride} has {sorted(channels.values())} channels for {classes} classes"
        )
    if objectness:
        return GridLevel(sides[0], scores[0], objectness[0], stride, centres), "yolox"
    return GridLevel(sides[0], scores[0], "", stride, centres), _sides(channels[sides[0]], layout)


def _sides(channels: int, layout: Mapping[str, Any]) -> Literal["distribution", "exponent"]:
    if layout["sides"] == "exponent" and channels == 4:
        return "exponent"
    if channels % 4 == 0 and channels >= 4 * DISTRIBUTION_BINS_MIN:
        return "distribution"
    raise UnknownLayout(f"{channels} channels are no sides of boxes (`sides` of NAME.hef.json is {layout['sides']})")


def _cells(array: Array) -> Floats:
    return np.asarray(array[0], np.float32).reshape(-1, array.shape[-1])
