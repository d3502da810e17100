"""Output heads: how a network's output arrays become boxes. Chosen by layout and metadata, never by file name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from appliance.base.detector_config import HeadName
from appliance.detect.class_preference import ClassPreference
from appliance.detect.hailo_heads import NoHailoLayout, hailo_head
from appliance.detect.letterbox import Normalisation, Placing
from appliance.detect.nanodet_picodet_fastestdet_heads import distribution_head, fastestdet_head
from appliance.detect.nms import non_maximum_suppression, to_detections
from appliance.detect.rfdetr_ssd_heads import IMAGENET_RGB, rfdetr_head, ssd_head
from appliance.types import Detections

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
STRIDES = ((8, 16, 32), (8, 16, 32, 64))  # of YOLO without and with a P6 level
KNOWN = (
    "YOLOX [1, anchors, 5 + classes]; DETR family (DEIM, D-FINE, RT-DETR) labels [1, n], boxes [1, n, 4], "
    "scores [1, n] with an input orig_target_sizes; YOLOv8/11 [1, 4 + classes, anchors]; YOLO end-to-end [1, n, 6]; "
    "NanoDet-m and PicoDet, scores and distances of 3 or 4 grids; FastestDet [1, 5 + classes, rows, columns]; RF-DETR "
    "dets [1, n, 4], labels [1, n, slots]; SSD detection_boxes [1, n, 4], detection_classes, detection_scores, "
    "num_detections (or TFLite's, or torchvision's boxes [n, 4], labels [n], scores [n]); of a .hef file: NMS by class "
    "or by score, raw grids of YOLOv8/11, YOLOX or ours"
)
HEAD_KEY, NORMALISATION_KEY = "vedette_head", "vedette_normalisation"
"""Metadata of a file that settle what its shapes leave open, as models/export.py writes them: one of HeadName, and
`imagenet` where a network of the DETR family wants ImageNet's mean and deviation."""


class UnknownLayout(ValueError):
    """No head fits; the text says why, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """The character of a network, learnt from a trial run on a grey frame.

    size: (width, height) of its frame input; outputs: name to array, batch of one; sizes_input: the name of a second
    input that wants the frame's size, or "". names: of its classes, as far as anything says them. integers: the frame
    goes in as uint8.
    """

    size: tuple[int, int]
    outputs: Mapping[str, Array]
    sizes_input: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    integers: bool = False

    def shapes(self) -> str:
        return ", ".join(f"{name} {list(array.shape)}" for name, array in self.outputs.items())


class OutputHead(Protocol):
    """One way of answering. `classes` is None where the layout does not tell how many there are."""

    @property
    def name(self) -> str: ...
    @property
    def placing(self) -> Placing: ...
    @property
    def rgb(self) -> bool: ...
    @property
    def scale(self) -> float: ...
    @property
    def normalisation(self) -> Normalisation | None: ...
    @property
    def classes(self) -> int | None: ...

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        """Boxes in input pixels, doubles removed, score at least `score_min`. prefer: which classes give way."""
        ...


@dataclass(frozen=True, slots=True)
class YoloxHead:
    """[1, anchors, 4 + objectness + classes]; scores already through the sigmoid (YOLOX demo_utils, Apache-2.0).

    cells: (anchors, 3) x, y, stride of each anchor's cell, or None when the export decoded the boxes itself.
    """

    output: str
    classes: int
    cells: Floats | None
    strides: tuple[int, ...] = STRIDES[0]
    name: str = "yolox"
    placing: Placing = "corner"
    rgb: bool = False
    scale: float = 1.0
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        rows = np.asarray(outputs[self.output][0], np.float32)
        # Class scores are at most 1, so objectness alone settles nearly every row.
        (some,) = (rows[:, 4] >= score_min).nonzero()
        if not len(some):
            return Detections.empty()
        rows = rows[some]
        class_ids = rows[:, 5:].argmax(axis=1)
        if prefer is not None:
            class_ids = prefer.best(rows[:, 4:5] * rows[:, 5:], score_min)
        scores = rows[:, 4] * rows[np.arange(len(rows)), 5 + class_ids]
        keep = scores >= score_min
        rows, centres, sizes = rows[keep], rows[keep, :2], rows[keep, 2:4]
        if self.cells is not None:
            cells = self.cells[some[keep]]
            centres = (centres + cells[:, :2]) * cells[:, 2:]
            sizes = np.exp(np.minimum(sizes, 12.0)) * cells[:, 2:]
        found = to_detections(_corners(centres, sizes), scores[keep], class_ids[keep])
        return non_maximum_suppression(found, 0.6, per_class=True)


@dataclass(frozen=True, slots=True)
class YoloHead:
    """[1, 4 + classes, anchors] (or transposed): centre, size in input pixels, class scores; no objectness."""

    output: str
    classes: int
    transposed: bool = False
    name: str = "yolo"
    placing: Placing = "centre"
    rgb: bool = True
    scale: float = 1 / 255
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        columns = np.asarray(outputs[self.output][0], np.float32)
        columns = columns.T if self.transposed else columns
        best = np.maximum.reduce(columns[4:], axis=0)
        (some,) = (best >= score_min).nonzero()
        if not len(some):
            return Detections.empty()
        columns, scores = columns[:, some], best[some]
        class_ids = columns[4:].argmax(axis=0)
        if prefer is not None:
            class_ids = prefer.best(columns[4:].T, score_min)
            scores = columns[4 + class_ids, np.arange(columns.shape[1])]
        found = to_detections(_corners(columns[:2].T, columns[2:4].T), scores, class_ids)
        return non_maximum_suppression(found, 0.6, per_class=True)


@dataclass(frozen=True, slots=True)
class EndToEndHead:
    """[1, n, 6]: x1, y1, x2, y2 in input pixels, score, class; already without doubles (YOLOv10, YOLO26)."""

    output: str
    classes: int | None = None
    name: str = "yolo-e2e"
    placing: Placing = "centre"
    rgb: bool = True
    scale: float = 1 / 255
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        rows = np.asarray(outputs[self.output][0], np.float32)
        rows = rows[rows[:, 4] >= score_min]
        return to_detections(rows[:, :4], rows[:, 4], rows[:, 5])


@dataclass(frozen=True, slots=True)
class DetrHead:
    """The head of the DETR family: labels, boxes (xyxy, in the size handed to `orig_target_sizes`), scores.

    One query may answer with two labels, and DEIMv2 doubles large near persons, hence a light suppression across
    classes.
    """

    labels: str
    boxes: str
    scores: str
    classes: int | None = None
    name: str = "detr"
    placing: Placing = "stretch"
    rgb: bool = True
    scale: float = 1 / 255
    normalisation: Normalisation | None = None

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
        scores = np.asarray(outputs[self.scores][0], np.float32)
        keep = np.flatnonzero(scores >= score_min)
        found = to_detections(outputs[self.boxes][0][keep], scores[keep], outputs[self.labels][0][keep])
        if prefer is not None:
            found = prefer.resolve(found, 0.7)
        return non_maximum_suppression(found, 0.7, per_class=False)


def choose_head(answer: TrialOutput, wanted: HeadName = "auto") -> OutputHead:
    """Return the head that fits `answer`.

    Raise UnknownLayout; `wanted`, else the file's metadata, settles what shapes alone cannot.
    """
    if "hailo" in answer.metadata:
        try:
            return hailo_head(answer.size, answer.outputs, answer.metadata)
        except NoHailoLayout as reason:
            raise UnknownLayout(str(reason)) from None
    task = answer.metadata.get("task", "detect")
    if task != "detect":
        raise UnknownLayout(f"it was exported for the task `{task}`, not `detect`")
    if wanted == "auto":
        wanted = _told(answer.metadata)
    if wanted in ("auto", "ssd") and (
        ssd := ssd_head(answer.size, answer.outputs, answer.names, integers=answer.integers)
    ):
        return ssd
    if wanted in ("auto", "rf-detr") and (
        queries := rfdetr_head(answer.size, answer.outputs, answer.names, asked=wanted == "rf-detr")
    ):
        return queries
    if len(answer.outputs) == 3 and wanted in ("auto", "detr"):
        return _detr(answer)
    if paired := distribution_head(answer.size, answer.outputs, wanted):
        return paired
    if (
        len(answer.outputs) == 1
        and wanted in ("auto", "fastestdet")
        and (grid := fastestdet_head(answer.size, answer.outputs))
    ):
        return grid
    if len(answer.outputs) == 1 and wanted in ("auto", "yolox", "yolo"):
        return _yolo_family(answer, wanted)
    raise UnknownLayout("its outputs fit no known layout")


def resized_head(head: OutputHead, size: tuple[int, int]) -> OutputHead:
    """Return the same head for a network whose input is now `size`, (width, height)."""
    if isinstance(head, YoloxHead) and head.cells is not None:
        return replace(head, cells=_cells(size, head.strides))
    return head


def _told(metadata: Mapping[str, str]) -> HeadName:
    """Return the head that the file itself names."""
    told = metadata.get(HEAD_KEY, "auto")
    for name in get_args(HeadName):
        if name == told:
            known: HeadName = name
            return known
    raise UnknownLayout(f"its metadata {HEAD_KEY} says `{ascii(told)[1:-1][:40]}`, which is no head known here")


def _detr(answer: TrialOutput) -> DetrHead:
    if not answer.sizes_input:
        raise UnknownLayout("it has no second input orig_target_sizes [1, 2], so the unit of its boxes is unknown")
    boxes = [name for name, array in answer.outputs.items() if array.ndim == 3 and array.shape[2] == 4]
    flat = {name: array for name, array in answer.outputs.items() if array.ndim == 2}
    labels = [name for name, array in flat.items() if np.issubdtype(array.dtype, np.integer) or name == "labels"]
    scores = [name for name in flat if name not in labels]
    if (len(boxes), len(labels), len(scores)) != (1, 1, 1):
        raise UnknownLayout("its three outputs are not labels [1, n], boxes [1, n, 4] and scores [1, n]")
    # DEIMv2 s to x, of DINOv3, want ImageNet's (tools/inference/onnx_inf.py); the layout is the same and cannot tell.
    imagenet = answer.metadata.get(NORMALISATION_KEY) == "imagenet"
    return DetrHead(labels[0], boxes[0], scores[0], normalisation=IMAGENET_RGB if imagenet else None)


def _yolo_family(answer: TrialOutput, wanted: HeadName) -> OutputHead:
    (name, array), *_ = answer.outputs.items()
    if array.ndim != 3 or array.shape[0] != 1:
        raise UnknownLayout("its output is not [1, rows, columns]")
    _, rows, columns = array.shape
    anchors = {_anchors(answer.size, strides): strides for strides in STRIDES}
    fits: list[OutputHead] = []
    if wanted in ("auto", "yolox") and rows in anchors and columns >= 6:
        strides = anchors[rows]
        raw = not _in_pixels(answer.size, np.asarray(array[0], np.float32))
        fits.append(YoloxHead(name, columns - 5, _cells(answer.size, strides) if raw else None, strides))
    if wanted in ("auto", "yolo") and columns in anchors and rows >= 5:
        fits.append(YoloHead(name, rows - 4))
    if wanted == "yolo" and rows in anchors and columns >= 5:
        fits.append(YoloHead(name, columns - 4, transposed=True))
    if wanted in ("auto", "yolo") and columns == 6 and rows not in anchors:
        fits.append(_end_to_end(name, array))
    if len(fits) > 1:
        raise UnknownLayout("its shape fits two layouts; set detector.head")
    if not fits:
        expected = " or ".join(str(count) for count in anchors)
        raise UnknownLayout(f"an input of {answer.size[0]}x{answer.size[1]} would have {expected} anchors")
    return fits[0]


def _end_to_end(name: str, array: Array) -> EndToEndHead:
    reach = float(np.abs(np.asarray(array[0, :, :4], np.float32)).max(initial=0.0))
    if 0.0 < reach <= 2.0:
        raise UnknownLayout("its [1, n, 6] rows are not in pixels (an Ultralytics RT-DETR export?)")
    return EndToEndHead(name)


def _anchors(size: tuple[int, int], strides: tuple[int, ...]) -> int:
    return sum((size[0] // stride) * (size[1] // stride) for stride in strides)


def _in_pixels(size: tuple[int, int], rows: Floats) -> bool:
    """Return whether the boxes of the trial run `rows` are decoded already (--decode_in_inference)."""
    return float(rows[:, 0].mean()) > size[0] / 8


def _cells(size: tuple[int, int], strides: tuple[int, ...]) -> Floats:
    """(anchors, 3) x, y, stride of the cell of each anchor."""
    parts = []
    for stride in strides:
        y, x = np.mgrid[: size[1] // stride, : size[0] // stride]
        parts.append(np.stack([x.ravel(), y.ravel(), np.full(x.size, stride)], axis=1))
    return np.concatenate(parts).astype(np.float32)


def _corners(centres: Floats, sizes: Floats) -> Floats:
    half = sizes / 2
    return np.concatenate([centres - half, centres + half], axis=1)
