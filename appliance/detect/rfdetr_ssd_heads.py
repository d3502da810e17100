"""Output heads of networks that answer with finished boxes in another order or unit.

They are RF-DETR, and SSD's post-processing in TensorFlow's and torchvision's exports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from appliance.detect.class_labels import COCO_80, COCO_ID_SLOTS
from appliance.detect.class_preference import ClassPreference
from appliance.detect.letterbox import Normalisation, Placing
from appliance.detect.nms import non_maximum_suppression, to_detections
from appliance.types import Detections

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Ints = NDArray[np.intp]

IMAGENET_RGB = Normalisation((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
MINUS_ONE_TO_ONE = Normalisation((127.5,) * 3, (127.5,) * 3)
COCO_SLOTS = len(COCO_ID_SLOTS)  # 91: COCO's category ids 0..90, of which 80 are classes
SAME_OBJECT_IOU = 0.7  # of boxes of one object that two queries, or two classes of one query, answered with
BACKGROUNDS = ("background", "__background__", "???")


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
    placing: Placing = "stretch"
    rgb: bool = True
    scale: float = 1 / 255
    normalisation: Normalisation | None = IMAGENET_RGB

    @property
    def classes(self) -> int:
        return max(self.class_of_slot) + 1

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
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
    normalisation: Normalisation | None = None
    classes: int | None = None
    name: str = "ssd"
    placing: Placing = "stretch"
    rgb: bool = True
    scale: float = 1 / 255

    def decode(
        self, outputs: Mapping[str, Array], score_min: float, prefer: ClassPreference | None = None
    ) -> Detections:
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


def rfdetr_head(
    size: tuple[int, int], outputs: Mapping[str, Array], names: Sequence[str], *, asked: bool = False
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
    size: tuple[int, int], outputs: Mapping[str, Array], names: Sequence[str], *, integers: bool = False
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
    normalisation = None if integers else MINUS_ONE_TO_ONE
    return _with_classes(SsdHead(boxes, class_ids, scores, size, count, first_id, (), normalisation), names)


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


def _torchvision_outputs(outputs: Mapping[str, Array]) -> tuple[str, str, str] | None:
    """Return the names of boxes, labels and scores: [n, 4], whole numbers [n] and floats [n]."""
    boxes = [name for name, each in outputs.items() if each.ndim == 2 and each.shape[1] == 4]
    flat = [name for name, each in outputs.items() if each.ndim == 1]
    labels = [name for name in flat if np.issubdtype(outputs[name].dtype, np.integer)]
    if len(outputs) != 3 or (len(boxes), len(flat), len(labels)) != (1, 2, 1):
        return None
    return boxes[0], labels[0], next(name for name in flat if name not in labels)


def _tensorflow_outputs(outputs: Mapping[str, Array]) -> tuple[str, str, str, str] | None:
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
