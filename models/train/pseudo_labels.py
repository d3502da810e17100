"""Labels from teachers' answers: what several of them find is learnt, what only one finds is ignored.

Two teachers (third-party footage): the rule is that of data/train/MANIFEST.md. Same class and IoU over 0.6 agree; the
box is the score-weighted mean, the score the mean; agreed from 0.35 on is a label; agreed below that, or seen by one
alone from 0.35 on, is ignored. Three teachers (public pictures): weighted box fusion (arXiv:1910.13302). An object that
two of them see is learnt, with the score that they give it on the mean. One teacher (`gather --quick`): what it is
sure of is learnt, what it doubts is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.detect.class_labels import COCO_80
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.types import Detections, iou
from models.train.dataset import CLASSES, Label, kin

PAIR = ("deimv2_hgnetv2_femto_coco_416.onnx", "yolox_nano_416.onnx")
PANEL = (*PAIR, "picodet_s_416_coco.onnx")
QUICK = PAIR[1:]
AGREE_IOU_MIN = 0.6
SCORE_MIN = 0.35
LOOK_MIN = 0.2
FUSE_IOU_MIN = 0.55
SEEN_BY_MIN = 2
ALONE_MIN, ALONE_DOUBT_MIN = 0.5, 0.25  # of one teacher: the usual threshold of a detector, and half of it
_OURS = {COCO_80.index(name): number for number, name in enumerate(CLASSES)}


@dataclass(frozen=True, slots=True)
class Opinion:
    """The teachers' opinion of one picture."""

    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]


class Teachers:
    """Detectors whose answers become labels, loaded once; owned by one thread."""

    def __init__(
        self, models: Path, names: Sequence[str], opinion: Callable[[Sequence[Sequence[Label]]], Opinion]
    ) -> None:
        """Load the files of these names. `opinion` makes one of their answers. Raise ModelError: a file is missing."""
        self._opinion = opinion
        self._detectors = [
            NetworkDetector(models / name, OnnxRuntime(models / name), score_min=LOOK_MIN, label_names=COCO_80)
            for name in names
        ]

    def label(self, picture: NDArray[np.uint8]) -> Opinion:
        """Return the labels of a BGR picture."""
        return self._opinion([list(_ours(each.detect([picture])[0])) for each in self._detectors])


def pair(models: Path) -> Teachers:
    """Return the two teachers that must agree."""
    return Teachers(models, PAIR, lambda answers: agree(*answers))


def panel(models: Path) -> Teachers:
    """Return the three teachers of which two must agree."""
    return Teachers(models, PANEL, fuse)


def quick(models: Path) -> Teachers:
    """Return the one teacher that takes a quarter of the time of three."""
    return Teachers(models, QUICK, lambda answers: alone(*answers))


def alone(labels: Sequence[Label]) -> Opinion:
    """Return what one teacher is sure of, and what it doubts."""
    sure = tuple(label for label in labels if label.score >= ALONE_MIN)
    return Opinion(sure, tuple(label for label in labels if ALONE_DOUBT_MIN <= label.score < ALONE_MIN))


def _ours(found: Detections) -> Iterator[Label]:
    for box, score, cls in zip(found.boxes, found.scores, found.class_ids, strict=True):
        x1, y1, x2, y2 = (float(side) for side in box)
        if int(cls) in _OURS and x2 > x1 and y2 > y1:
            yield Label(_OURS[int(cls)], x1, y1, x2, y2, float(score))


def agree(first: Sequence[Label], second: Sequence[Label]) -> Opinion:
    """Pair off two teachers' answers, the surest first."""
    pairs = sorted(
        ((overlap(a, b), i, j) for i, a in enumerate(first) for j, b in enumerate(second) if a.cls == b.cls),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    ones, others = dict(enumerate(first)), dict(enumerate(second))
    agreed = []
    for shared, i, j in pairs:
        if shared > AGREE_IOU_MIN and i in ones and j in others:
            agreed.append(_pair_mean(ones.pop(i), others.pop(j)))
    alone = [label for label in (*ones.values(), *others.values()) if label.score >= SCORE_MIN]
    boxes = [label for label in agreed if label.score >= SCORE_MIN]
    doubtful = [label for label in agreed if label.score < SCORE_MIN] + alone
    return Opinion(tuple(boxes), tuple(doubtful))


def overlap(a: Label, b: Label) -> float:
    """Return the IoU."""
    return iou((a.x1, a.y1, a.x2, a.y2), (b.x1, b.y1, b.x2, b.y2))


def _pair_mean(a: Label, b: Label) -> Label:
    share = a.score / (a.score + b.score)
    pairs = ((a.x1, b.x1), (a.y1, b.y1), (a.x2, b.x2), (a.y2, b.y2))
    x1, y1, x2, y2 = (one * share + other * (1 - share) for one, other in pairs)
    return Label(a.cls, x1, y1, x2, y2, (a.score + b.score) / 2)


def fuse(answers: Sequence[Sequence[Label]]) -> Opinion:
    """Fuse several teachers' answers into one opinion, box by box."""
    groups: list[list[tuple[int, Label]]] = []
    everything = [(number, label) for number, each in enumerate(answers) for label in each]
    for number, label in sorted(everything, key=lambda pair: -pair[1].score):
        fits = [
            (overlap(_group_mean(group), label), place)
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
        label = _group_mean(group)
        sure = len(group) >= SEEN_BY_MIN and label.score >= SCORE_MIN
        twice = any(other.cls in kin(label.cls) and overlap(other, label) > FUSE_IOU_MIN for other in boxes)
        if sure and not twice:
            boxes.append(label)
        elif label.score >= SCORE_MIN or len(group) >= SEEN_BY_MIN:
            doubtful.append(label)
    return Opinion(tuple(boxes), tuple(doubtful))


def _on(label: Label, drawn: Sequence[Label]) -> bool:
    return any(other.cls in kin(label.cls) and overlap(other, label) > 0.4 for other in drawn)


def _group_mean(group: Sequence[tuple[int, Label]]) -> Label:
    """Return the box weighted by scores, and the mean of the scores."""
    labels = [label for _, label in group]
    total = sum(label.score for label in labels)
    sides = [sum(getattr(label, side) * label.score for label in labels) / total for side in ("x1", "y1", "x2", "y2")]
    return Label(labels[0].cls, sides[0], sides[1], sides[2], sides[3], total / len(labels))
