"""Output heads of YOLO, DETR and SSD, and the choice of a head by layout and metadata, never by file name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from appliance.base.config_model import HeadName
from appliance.detect.class_labels import COCO_80, COCO_ID_SLOTS
from appliance.detect.grid_heads import distribution_head, fastestdet_head, hailo_head
from appliance.detect.letterbox import InputForm, Normalisation
from appliance.detect.network_runtime import Array
from appliance.detect.output_head import (
    ClassPreference,
    Floats,
    OutputHead,
    Outputs,
    UnknownLayout,
    non_maximum_suppression,
    to_detections,
)
from appliance.types import Detections

Ints = NDArray[np.intp]
YOLOX_FORM = InputForm("corner", rgb=False, scale=1.0)  # YOLOX demo_utils.preproc
CENTRED, STRETCHED = InputForm("centre"), InputForm("stretch")
IMAGENET_RGB = Normalisation((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
IMAGENET_STRETCHED = InputForm("stretch", normalisation=IMAGENET_RGB)
MINUS_ONE_TO_ONE = InputForm("stretch", normalisation=Normalisation((127.5,) * 3, (127.5,) * 3))
COCO_SLOTS = len(COCO_ID_SLOTS)  # 91: COCO's category ids 0..90, of which 80 are classes
SAME_OBJECT_IOU = 0.7  # of boxes of one object that two queries, or two classes of one query, answered with
BACKGROUNDS = ("background", "__background__", "???")
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


@dataclass(frozen=True, slots=True)
class TrialOutput:
    """The character of a network, learnt from a trial run on a grey frame.

    size: (width, height) of its frame input; outputs: name to array, batch of one; sizes_input: the name of a second
    input that wants the frame's size, or "". names: of its classes, as far as anything says them. integers: the frame
    goes in as uint8.
    """

    size: tuple[int, int]
    outputs: Outputs
    sizes_input: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    integers: bool = False

    def shapes(self) -> str:
        return ", ".join(f"{name} {list(array.shape)}" for name, array in self.outputs.items())


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
    form: InputForm = YOLOX_FORM

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
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
    form: InputForm = CENTRED

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
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
    form: InputForm = CENTRED

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
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
    form: InputForm = STRETCHED

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
        scores = np.asarray(outputs[self.scores][0], np.float32)
        keep = np.flatnonzero(scores >= score_min)
        found = to_detections(outputs[self.boxes][0][keep], scores[keep], outputs[self.labels][0][keep])
        if prefer is not None:
            found = prefer.resolve(found, SAME_OBJECT_IOU)
        return non_maximum_suppression(found, SAME_OBJECT_IOU, per_class=False)


@dataclass(frozen=True, slots=True)
class RfDetrHead:
    """The head of RF-DETR. `dets` [1, n, 4]: centre and size as shares of the input.

    `labels` [1, n, slots]: logits, each class with a sigmoid of its own. Pairs of query and class are ranked together,
    at most n are kept (rfdetr 1.11.2 export/_runtime/decode.py, Apache-2.0).

    class_of_slot: the class that a slot stands for, -1 where it stands for none (background, ids that COCO never used).
    """

    boxes: str
    logits: str
    class_of_slot: tuple[int, ...]
    size: tuple[int, int]
    name: str = "rf-detr"
    form: InputForm = IMAGENET_STRETCHED

    @property
    def classes(self) -> int:
        return max(self.class_of_slot) + 1

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
        class_of_slot = np.array(self.class_of_slot, np.intp)
        used = np.flatnonzero(class_of_slot >= 0)
        logits = np.asarray(outputs[self.logits][0], np.float32)[:, used]
        scores = 1 / (1 + np.exp(-np.clip(logits, -88, 88)))
        queries, slots = np.nonzero(scores >= score_min)
        best = np.argsort(-scores[queries, slots], kind="stable")[: len(scores)]
        queries, slots = queries[best], slots[best]
        centres_sizes = np.asarray(outputs[self.boxes][0], np.float32)[queries]
        half = centres_sizes[:, 2:] / 2
        shares = np.concatenate([centres_sizes[:, :2] - half, centres_sizes[:, :2] + half], axis=1)
        boxes = shares * np.array(self.size * 2, np.float32)
        found = to_detections(boxes, scores[queries, slots], class_of_slot[used[slots]])
        if prefer is not None:
            found = prefer.resolve(found, SAME_OBJECT_IOU)
        return non_maximum_suppression(found, SAME_OBJECT_IOU, per_class=False)


@dataclass(frozen=True, slots=True)
class SsdHead:
    """Boxes, classes and scores after the network's own suppression.

    TensorFlow's and TFLite's post-processing: boxes [1, n, 4] as y1, x1, y2, x2 in shares of the input, classes and
    scores [1, n], and how many of them count (`count`). torchvision's: boxes [n, 4] as x1, y1, x2, y2 in input pixels,
    labels [n] from 1 on, scores [n], no count.

    class_of_id: the class that an id of the output stands for, -1 for none; empty: the id less `first_id`.
    """

    boxes: str
    class_ids: str
    scores: str
    size: tuple[int, int]
    count: str = ""
    first_id: int = 1
    class_of_id: tuple[int, ...] = ()
    form: InputForm = STRETCHED
    classes: int | None = None
    name: str = "ssd"

    def decode(self, outputs: Outputs, score_min: float, prefer: ClassPreference | None = None) -> Detections:
        scores = np.asarray(outputs[self.scores], np.float32).reshape(-1)
        boxes = np.asarray(outputs[self.boxes], np.float32).reshape(-1, 4)
        if self.count:
            boxes = boxes[:, [1, 0, 3, 2]] * np.array(self.size * 2, np.float32)
            scores = scores[: int(np.asarray(outputs[self.count]).reshape(-1)[0])]
        ids = np.asarray(outputs[self.class_ids]).reshape(-1)[: len(scores)].astype(np.intp)
        class_ids = self._classes_of(ids)
        keep = np.flatnonzero((scores >= score_min) & (class_ids >= 0))
        found = to_detections(boxes[keep], scores[keep], class_ids[keep])
        return found if prefer is None else prefer.resolve(found, SAME_OBJECT_IOU)

    def _classes_of(self, ids: Ints) -> Ints:
        if not self.class_of_id:
            return ids - self.first_id
        known = (ids >= 0) & (ids < len(self.class_of_id))
        return np.where(known, np.array(self.class_of_id, np.intp)[np.where(known, ids, 0)], -1)


def choose_head(answer: TrialOutput, wanted: HeadName = "auto") -> OutputHead:
    """Return the head that fits `answer`. Raise UnknownLayout.

    `wanted`, else the file's metadata, settles what the outputs alone cannot. The sure signs come first: Hailo's
    metadata, then the names and the number of the outputs. A single output is tested last, because it has only a shape.
    """
    if "hailo" in answer.metadata:
        return hailo_head(answer.size, answer.outputs, answer.metadata)
    task = answer.metadata.get("task", "detect")
    if task != "detect":
        raise UnknownLayout(f"it was exported for the task `{task}`, not `detect`")
    if wanted == "auto":
        wanted = _head_named(answer.metadata)
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


def _head_named(metadata: Mapping[str, str]) -> HeadName:
    """Return the head that the file itself names."""
    name_given = metadata.get(HEAD_KEY, "auto")
    if name_given in get_args(HeadName):
        return cast("HeadName", name_given)
    raise UnknownLayout(f"its metadata {HEAD_KEY} says `{ascii(name_given)[1:-1][:40]}`, which is no head known here")


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
    return DetrHead(labels[0], boxes[0], scores[0], form=IMAGENET_STRETCHED if imagenet else STRETCHED)


def _yolo_family(answer: TrialOutput, wanted: HeadName) -> OutputHead:
    (name, array), *_ = answer.outputs.items()
    if array.ndim != 3 or array.shape[0] != 1:
        raise UnknownLayout("its output is not [1, rows, columns]")
    _, rows, columns = array.shape
    width, height = answer.size
    anchors = {sum((width // stride) * (height // stride) for stride in strides): strides for strides in STRIDES}
    fits: list[OutputHead] = []
    if wanted in ("auto", "yolox") and rows in anchors and columns >= 6:
        strides = anchors[rows]
        first = np.asarray(array[0, :, 0], np.float32)
        raw = float(first.mean()) <= width / 8  # else its boxes are decoded already (--decode_in_inference)
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


def rfdetr_head(
    size: tuple[int, int], outputs: Outputs, names: Sequence[str], *, asked: bool = False
) -> RfDetrHead | None:
    """RF-DETR where the outputs are its `dets` and `labels`; where it was asked for, whatever they are called.

    size: (width, height) of the input. names: of the classes, as far as anything says them.
    """
    if not asked and set(outputs) != {"dets", "labels"}:
        return None
    boxes = [name for name, each in outputs.items() if each.ndim == 3 and each.shape[2] == 4 and name != "labels"]
    logits = [name for name, each in outputs.items() if each.ndim == 3 and name not in boxes]
    if len(outputs) != 2 or (len(boxes), len(logits)) != (1, 1):
        return None
    if outputs[boxes[0]].shape[:2] != outputs[logits[0]].shape[:2] or outputs[logits[0]].shape[2] < 1:
        return None
    return RfDetrHead(boxes[0], logits[0], _class_of_slot(outputs[logits[0]].shape[2], names), size)


def _class_of_slot(slots: int, names: Sequence[str]) -> tuple[int, ...]:
    """Return the class that each slot of RF-DETR stands for.

    COCO's own weights have a slot for each id; weights trained on other sets one for each class, and one more, the
    last, for the background.
    """
    if slots == COCO_SLOTS and (not names or tuple(names) == COCO_80):
        return COCO_ID_SLOTS
    return tuple(range(slots)) if len(names) == slots or slots == 1 else (*range(slots - 1), -1)


def ssd_head(
    size: tuple[int, int], outputs: Outputs, names: Sequence[str], *, integers: bool = False
) -> SsdHead | None:
    """SSD's post-processing where the outputs are it, else None.

    integers: the input is uint8; a float input of TFLite's wants -1..1.
    """
    if torchvision := _torchvision_outputs(outputs):
        return _with_classes(SsdHead(*torchvision, size), names)
    if (named := _tensorflow_outputs(outputs)) is None:
        return None
    boxes, class_ids, scores, count = named
    first_id = 1 if "detection_classes" in class_ids else 0  # the label map's own ids, or TFLite's, counted from 0
    form = STRETCHED if integers else MINUS_ONE_TO_ONE
    return _with_classes(SsdHead(boxes, class_ids, scores, size, count, first_id, (), form), names)


def _with_classes(head: SsdHead, names: Sequence[str]) -> SsdHead:
    """Return the head with classes for its ids: networks of COCO answer with its ids, which have gaps.

    Others count their classes, with or without a name for the background.
    """
    if tuple(names) == COCO_80:
        gaps = COCO_ID_SLOTS if head.first_id else COCO_ID_SLOTS[1:]
    elif names and names[0] in BACKGROUNDS:
        gaps = tuple(range(len(names))) if head.first_id else tuple(range(1, len(names)))
    else:
        return head
    return replace(head, class_of_id=gaps)


def _torchvision_outputs(outputs: Outputs) -> tuple[str, str, str] | None:
    """Return the names of boxes, labels and scores: [n, 4], whole numbers [n] and floats [n]."""
    boxes = [name for name, each in outputs.items() if each.ndim == 2 and each.shape[1] == 4]
    flat = [name for name, each in outputs.items() if each.ndim == 1]
    labels = [name for name in flat if np.issubdtype(outputs[name].dtype, np.integer)]
    if len(outputs) != 3 or (len(boxes), len(flat), len(labels)) != (1, 2, 1):
        return None
    return boxes[0], labels[0], next(name for name in flat if name not in labels)


def _tensorflow_outputs(outputs: Outputs) -> tuple[str, str, str, str] | None:
    """Return the names of boxes, classes, scores and count: TensorFlow's, else in the order of TFLite's operator."""
    named = [f"detection_{what}" for what in ("boxes", "classes", "scores")] + ["num_detections"]
    if set(named) <= {name.partition(":")[0] for name in outputs}:
        found = [next(name for name in outputs if name.partition(":")[0] == each) for each in named]
    elif len(outputs) == 4 and next(iter(outputs)).startswith("TFLite_Detection_PostProcess"):
        found = sorted(outputs, key=lambda name: (len(name), name))
    else:
        return None
    boxes, class_ids, scores, count = found
    if outputs[boxes].ndim != 3 or outputs[boxes].shape[2] != 4 or outputs[count].size != 1:
        return None
    wanted = outputs[boxes].shape[:2]
    return (boxes, class_ids, scores, count) if outputs[class_ids].shape == wanted == outputs[scores].shape else None
