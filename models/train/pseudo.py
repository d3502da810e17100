"""Makes labels from two teachers: objects that both find are learnt, objects that only one finds are ignored.

    python -m models.train.pseudo --models ../shared/data/models PICTURE...     # look at what they say

The rule is that of data/train/MANIFEST.md: same class and IoU over 0.6 agree; the box is the score-weighted mean, the
score the mean; agreed from 0.35 on is a label; agreed below that, or seen by one alone from 0.35 on, is ignored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.detect.class_labels import COCO_80
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.types import iou
from models.train.index import CLASSES, Label

TEACHERS = ("deimv2_hgnetv2_femto_coco_416.onnx", "yolox_nano_416.onnx")
AGREE_IOU_MIN = 0.6
SCORE_MIN = 0.35
LOOK_MIN = 0.2
_TO_OURS = {COCO_80.index(name): number for number, name in enumerate(CLASSES)}


@dataclass(frozen=True, slots=True)
class Opinion:
    """The teachers' opinion of one picture."""

    boxes: tuple[Label, ...]
    ignore: tuple[Label, ...]


class Teachers:
    """Two detectors, loaded once; owned by one thread."""

    def __init__(self, models: Path, threads: int = 1) -> None:
        """Load the teachers. Raise ModelError where a teacher's file is missing."""
        self._pair = [
            NetworkDetector(
                models / name, OnnxRuntime(models / name, threads=threads), score_min=LOOK_MIN, label_names=COCO_80
            )
            for name in TEACHERS
        ]

    def label(self, picture: NDArray[np.uint8]) -> Opinion:
        """Return the labels of a BGR picture."""
        first, second = (self._look(teacher, picture) for teacher in self._pair)
        return agree(first, second)

    def _look(self, teacher: NetworkDetector, picture: NDArray[np.uint8]) -> list[Label]:
        found = teacher.detect([picture])[0]
        return [
            Label(_TO_OURS[int(cls)], float(box[0]), float(box[1]), float(box[2]), float(box[3]), float(score))
            for box, score, cls in zip(found.boxes, found.scores, found.class_ids, strict=True)
            if int(cls) in _TO_OURS
        ]


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
            agreed.append(_mean(ones.pop(i), others.pop(j)))
    alone = [label for label in (*ones.values(), *others.values()) if label.score >= SCORE_MIN]
    boxes = [label for label in agreed if label.score >= SCORE_MIN]
    doubtful = [label for label in agreed if label.score < SCORE_MIN] + alone
    return Opinion(tuple(boxes), tuple(doubtful))


def overlap(a: Label, b: Label) -> float:
    """Return the IoU."""
    return iou((a.x1, a.y1, a.x2, a.y2), (b.x1, b.y1, b.x2, b.y2))


def _mean(a: Label, b: Label) -> Label:
    share = a.score / (a.score + b.score)
    pairs = ((a.x1, b.x1), (a.y1, b.y1), (a.x2, b.x2), (a.y2, b.y2))
    x1, y1, x2, y2 = (one * share + other * (1 - share) for one, other in pairs)
    return Label(a.cls, x1, y1, x2, y2, (a.score + b.score) / 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the teachers say of pictures; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m models.train.pseudo", description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help=f"folder of {' and '.join(TEACHERS)}")
    parser.add_argument("picture", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    teachers = Teachers(options.models)
    for path in options.picture:
        picture = cv2.imread(str(path))
        if picture is None:
            print(f"{path}: not a picture")
            return 2
        said = teachers.label(np.asarray(picture, np.uint8))
        rows = {"boxes": [each.row() for each in said.boxes], "ignore": [each.row() for each in said.ignore]}
        print(json.dumps({"image": str(path), **rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
