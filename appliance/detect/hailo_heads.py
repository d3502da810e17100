"""Output heads of networks that were compiled for Hailo: boxes after NMS, and raw grids in rows of channels."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from appliance.detect.class_preference import ClassPreference
from appliance.detect.letterbox import Normalisation, Placing
from appliance.detect.nanodet_picodet_fastestdet_heads import (
    DISTRIBUTION_BINS_MIN,
    LevelBoxes,
    best_of_levels,
    boxes_around,
    cell_centres,
    mean_of_bins,
)
from appliance.detect.nms import to_detections
from appliance.types import Detections

Array = NDArray[np.generic]
Floats = NDArray[np.float32]

BY_CLASS, BY_SCORE = "HAILO_NMS_BY_CLASS", "HAILO_NMS_BY_SCORE"
# hailort.h, hailo_detections_t: a count, then packed rows.
_DETECTION = np.dtype([("box", "<f4", 4), ("score", "<f4"), ("class_id", "<u2")])
EXPONENT_MAX = 12.0  # e^12 strides is more than any frame; beyond it float16 overflows


class NoHailoLayout(ValueError):
    """The streams of a HEF are of no known layout; the text says why, as the end of a sentence."""


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
    placing: Placing = "centre"
    rgb: bool = True
    scale: float = 1.0
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
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


@dataclass(frozen=True, slots=True)
class RawLevel:
    """One stride of a network, [1, rows, columns, channels] each. centres: (cells, 2) x, y in input pixels.

    objectness: '' where the network has none. joint: sides, objectness and scores lie in one stream, in that order.
    """

    sides: str
    scores: str
    objectness: str
    joint: bool
    stride: int
    centres: Floats


@dataclass(frozen=True, slots=True)
class HailoGridHead:
    """Raw grids, decoded here: only what scores enough is looked at.

    sides: `distribution`: the mean of a softmax over bins, in strides (YOLOv8, YOLO11, NanoDet); `exponent`: e to the
    number, in strides (vedette-nano); `yolox`: offset of the centre from the cell's corner and log of the size.
    logits: scores have not been through the sigmoid.
    """

    levels: tuple[RawLevel, ...]
    classes: int
    sides: Literal["distribution", "exponent", "yolox"]
    logits: bool
    name: str = "hailo-grid"
    placing: Placing = "centre"
    rgb: bool = True
    scale: float = 1.0
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        return best_of_levels(self._decode_level(outputs, level, score_min, prefer) for level in self.levels)

    def _decode_level(
        self, outputs: Mapping[str, Array], level: RawLevel, score_min: float, prefer: ClassPreference | None
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

    def _parts(self, outputs: Mapping[str, Array], level: RawLevel) -> tuple[Floats, Floats | None, Floats]:
        """(cells, sides), (cells,) or None, (cells, classes)."""
        streams = [_cells(outputs[level.sides])]
        if level.joint:
            streams = [streams[0][:, : -self.classes], streams[0][:, -self.classes :]]
            if self.sides == "yolox":
                return streams[0][:, :4], streams[0][:, 4], streams[1]
            return streams[0], None, streams[1]
        objectness = _cells(outputs[level.objectness])[:, 0] if level.objectness else None
        return streams[0], objectness, _cells(outputs[level.scores])

    def _score(self, raw: Floats) -> Floats:
        return np.asarray(1 / (1 + np.exp(-raw)), np.float32) if self.logits else raw

    def _boxes(self, sides: Floats, level: RawLevel, cells: NDArray[np.intp]) -> Floats:
        centres = level.centres[cells]
        if self.sides == "yolox":
            middle = centres + (sides[:, :2] - 0.5) * level.stride
            half = np.exp(np.minimum(sides[:, 2:], EXPONENT_MAX)) * level.stride / 2
            return np.concatenate([middle - half, middle + half], axis=1).astype(np.float32)
        reach = mean_of_bins(sides) if self.sides == "distribution" else np.exp(np.minimum(sides, EXPONENT_MAX))
        return boxes_around(centres, reach, level.stride)


def hailo_head(
    size: tuple[int, int], outputs: Mapping[str, Array], metadata: Mapping[str, str]
) -> HailoNmsHead | HailoGridHead:
    """Return the head for the streams of a HEF, as `HailoRuntime.metadata` describes them. Raises NoHailoLayout."""
    told = json.loads(metadata["hailo"])
    streams: dict[str, dict[str, Any]] = told["outputs"]
    nms = [name for name, stream in streams.items() if stream["order"] in (BY_CLASS, BY_SCORE)]
    placing: Any = metadata.get("placing", "centre")
    rgb = metadata.get("pixels") != "bgr"
    if nms:
        if len(streams) != 1:
            raise NoHailoLayout("it has more outputs than the one of NMS")
        stream = streams[nms[0]]
        return HailoNmsHead(nms[0], stream["order"], int(stream["classes"]), size, placing=placing, rgb=rgb)
    names = metadata.get("names")
    classes = len(ast.literal_eval(names)) if names else 0
    return replace(_grid_head(size, outputs, classes, told), placing=placing, rgb=rgb)


def _grid_head(
    size: tuple[int, int], outputs: Mapping[str, Array], classes: int, told: Mapping[str, Any]
) -> HailoGridHead:
    grids: dict[int, list[str]] = {}
    for name, array in outputs.items():
        stride = size[0] // array.shape[2] if array.ndim == 4 and array.shape[2] else 0
        if not stride or array.shape[1:3] != (size[1] // stride, size[0] // stride):
            raise NoHailoLayout(f"its output {name} is no grid over the input")
        grids.setdefault(stride, []).append(name)
    if not classes:
        raise NoHailoLayout("raw grids need the names of the classes: in the file NAME.hef.json beside it")
    levels, kinds = [], set()
    for stride in sorted(grids):
        level, kind = _level(size, stride, {name: outputs[name].shape[3] for name in grids[stride]}, classes, told)
        levels.append(level)
        kinds.add(kind)
    if len(kinds) != 1:
        raise NoHailoLayout("its grids are not alike")
    return HailoGridHead(tuple(levels), classes, kinds.pop(), told["scores"] == "logits")


def _level(
    size: tuple[int, int], stride: int, channels: Mapping[str, int], classes: int, told: Mapping[str, Any]
) -> tuple[RawLevel, Literal["distribution", "exponent", "yolox"]]:
    centres = cell_centres(size[0] // stride, size[1] // stride, stride, stride / 2)
    if len(channels) == 1:
        ((name, count),) = channels.items()
        if count == 5 + classes:
            return RawLevel(name, name, name, True, stride, centres), "yolox"
        return RawLevel(name, name, "", True, stride, centres), _sides(count - classes, told)
    scores = [name for name, count in channels.items() if count == classes]
    if len(channels) == 2 and len(scores) == 2 and classes == 4:
        raise NoHailoLayout("with 4 classes its boxes and scores look alike: compile it with both in one output")
    sides = [name for name, count in channels.items() if name not in scores and count % 4 == 0]
    objectness = [name for name, count in channels.items() if count == 1 and name not in scores]
    if (len(scores), len(sides)) != (1, 1) or len(scores) + len(sides) + len(objectness) != len(channels):
        raise NoHailoLayout(
            f"its grid of stride {stride} has {sorted(channels.values())} channels for {classes} classes"
        )
    if objectness:
        return RawLevel(sides[0], scores[0], objectness[0], False, stride, centres), "yolox"
    return RawLevel(sides[0], scores[0], "", False, stride, centres), _sides(channels[sides[0]], told)


def _sides(channels: int, told: Mapping[str, Any]) -> Literal["distribution", "exponent"]:
    if told["sides"] == "exponent" and channels == 4:
        return "exponent"
    if channels % 4 == 0 and channels >= 4 * DISTRIBUTION_BINS_MIN:
        return "distribution"
    raise NoHailoLayout(f"{channels} channels are no sides of boxes (`sides` of NAME.hef.json is {told['sides']})")


def _cells(array: Array) -> Floats:
    return np.asarray(array[0], np.float32).reshape(-1, array.shape[-1])
