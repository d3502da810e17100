"""Makes labels from several teachers by weighted box fusion (arXiv:1910.13302).

An object that two of them see is learnt, with the score that they give it on the mean. An object that only one sees is
left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.detect.class_labels import COCO_80
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.types import Detections
from models.train.index import CLASSES, Label, kin
from models.train.pseudo import LOOK_MIN, SCORE_MIN, Opinion, overlap

NETWORKS = ("deimv2_hgnetv2_femto_coco_416.onnx", "yolox_nano_416.onnx", "picodet_s_416_coco.onnx")
FUSE_IOU_MIN = 0.55
SEEN_BY_MIN = 2
_OURS = {COCO_80.index(name): number for number, name in enumerate(CLASSES)}


class Panel:
    """Three detectors, loaded once; owned by one thread."""

    def __init__(self, models: Path, threads: int = 1) -> None:
        """Load the teachers. Raise ModelError where a teacher's file is missing."""
        self._teachers = [
            NetworkDetector(
                models / name, OnnxRuntime(models / name, threads=threads), score_min=LOOK_MIN, label_names=COCO_80
            )
            for name in NETWORKS
        ]

    def answers(self, picture: NDArray[np.uint8]) -> list[list[Label]]:
        """Return the labels that each teacher finds in a BGR picture, in our classes."""
        found = [teacher.detect([picture])[0] for teacher in self._teachers]
        return [list(_ours(each)) for each in found]

    def label(self, picture: NDArray[np.uint8]) -> Opinion:
        """Return the labels of a BGR picture."""
        return fuse(self.answers(picture))


def fuse(answers: Sequence[Sequence[Label]]) -> Opinion:
    """Fuse several teachers' answers into one opinion."""
    groups: list[list[tuple[int, Label]]] = []
    everything = [(number, label) for number, each in enumerate(answers) for label in each]
    for number, label in sorted(everything, key=lambda pair: -pair[1].score):
        fits = [
            (overlap(_mean(group), label), place)
            for place, group in enumerate(groups)
            if group[0][1].cls == label.cls and all(teacher != number for teacher, _ in group)
        ]
        best = max(fits, default=(0.0, -1))
        if best[0] > FUSE_IOU_MIN:
            groups[best[1]].append((number, label))
        else:
            groups.append([(number, label)])
    return _opinion(groups)


def with_drawn(drawn: Sequence[Label], said: Opinion) -> Opinion:
    """Return the labels that people drew, and those of the teachers that do not lie on them.

    People have the last word.
    """
    rest = [label for label in said.boxes if not _on(label, drawn)]
    doubtful = [label for label in said.ignore if not _on(label, drawn)]
    return Opinion((*drawn, *rest), tuple(doubtful))


def _opinion(groups: Sequence[Sequence[tuple[int, Label]]]) -> Opinion:
    boxes: list[Label] = []
    doubtful: list[Label] = []
    for group in groups:
        label = _mean(group)
        sure = len(group) >= SEEN_BY_MIN and label.score >= SCORE_MIN
        twice = any(other.cls in kin(label.cls) and overlap(other, label) > FUSE_IOU_MIN for other in boxes)
        if sure and not twice:
            boxes.append(label)
        elif label.score >= SCORE_MIN or len(group) >= SEEN_BY_MIN:
            doubtful.append(label)
    return Opinion(tuple(boxes), tuple(doubtful))


def _ours(found: Detections) -> Iterator[Label]:
    for box, score, cls in zip(found.boxes, found.scores, found.class_ids, strict=True):
        x1, y1, x2, y2 = (float(side) for side in box)
        if int(cls) in _OURS and x2 > x1 and y2 > y1:
            yield Label(_OURS[int(cls)], x1, y1, x2, y2, float(score))


def _on(label: Label, drawn: Sequence[Label]) -> bool:
    return any(other.cls in kin(label.cls) and overlap(other, label) > 0.4 for other in drawn)


def _mean(group: Sequence[tuple[int, Label]]) -> Label:
    """Return the box weighted by scores, and the mean of the scores."""
    labels = [label for _, label in group]
    total = sum(label.score for label in labels)
    sides = [sum(getattr(label, side) * label.score for label in labels) / total for side in ("x1", "y1", "x2", "y2")]
    return Label(labels[0].cls, sides[0], sides[1], sides[2], sides[3], total / len(labels))
