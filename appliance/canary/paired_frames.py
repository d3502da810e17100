"""Pairs the objects that two networks found in the same frame. Pure; without numpy, for the core.

An object counts if one network gives it a calibrated score of at least SURE. The other network has lost it if it finds
no object of that kind with at least SEEN at that place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from appliance.bundle.manifest import SCORE_KINDS
from appliance.canary.judge import Light, PairedObject
from appliance.types import Box, iou

if TYPE_CHECKING:  # the core never loads numpy
    import numpy as np
    from numpy.typing import NDArray

SURE, SEEN = 0.5, 0.2  # score of an object that counts; of one that the other network sees all the same
NIGHT_MEAN, NIGHT_SATURATION = 75.0, 4.0  # of 255: dark, or the grey of an infrared lamp
SAME_IOU_MIN = 0.35  # boxes of two networks on the same object
_KIND_OF = {label: kind for kind, labels in SCORE_KINDS.items() for label in labels}


@dataclass(frozen=True, slots=True)
class FoundObject:
    """A detection; score: on the common scale."""

    kind: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True)
class SurveyedFrame:
    """Detections of a network in a frame. cpu_ms: CPU time of the inference, all threads of the child."""

    t: float
    light: Light
    cpu_ms: float
    objects: tuple[FoundObject, ...]


@dataclass(frozen=True, slots=True)
class KnownObject:
    """An object that was answered for: from t0 to t1 it is there (right), or it is false, at any time."""

    t0: float
    t1: float
    kind: str
    box: Box
    right: bool


def kind_of(label: str) -> str:
    """Return the label to compare by: cars, buses and trucks are `vehicle`."""
    return _KIND_OF.get(label, label)


def paired_objects(
    camera: str, old: SurveyedFrame, new: SurveyedFrame, known: Sequence[KnownObject] = ()
) -> Iterator[PairedObject]:
    """Yield the objects of a frame of `camera` that both examined."""
    about = {"camera": camera, "t": old.t, "light": old.light}
    for one, other, alone in ((old, new, "old"), (new, old, "new")):
        for each in one.objects:
            if each.score < SURE:
                continue
            match = _match(each, other.objects)
            seen = match is not None and match.score >= SEEN
            if seen and alone == "new":
                if match is not None and match.score >= SURE:
                    continue  # the pair was counted from the other side
                yield _pair(each, about, "both", known, None)
            elif seen and match is not None:
                yield _pair(each, about, "both", known, _logit(match.score) - _logit(each.score))
            else:
                yield _pair(each, about, alone, known, None)


def _pair(
    each: FoundObject, about: Mapping[str, Any], found: Any, known: Sequence[KnownObject], shift: float | None
) -> PairedObject:
    x1, _, x2, y2 = each.box
    column, row = min(2, int((x1 + x2) / 2 * 3)), min(2, int(y2 * 3))
    truth = _truth(each, about["t"], known)
    place = row * 3 + column
    return PairedObject(kind=each.kind, place=place, found=found, shift=shift, truth=truth, box=each.box, **about)


def _match(each: FoundObject, others: Sequence[FoundObject]) -> FoundObject | None:
    same = [other for other in others if other.kind == each.kind and iou(each.box, other.box) >= SAME_IOU_MIN]
    return max(same, key=lambda other: other.score, default=None)


def _truth(each: FoundObject, t: float, known: Sequence[KnownObject]) -> bool | None:
    answers = [
        one.right
        for one in known
        if one.kind == each.kind and iou(one.box, each.box) >= SAME_IOU_MIN and (not one.right or one.t0 <= t <= one.t1)
    ]
    return None if not answers else any(answers)


def common_score(score: float, line: tuple[float, float] | None) -> float:
    """Return a score on the common scale. line: of its label, as `detector.calibration_of` has it."""
    if line is None:
        return score
    return 1 / (1 + math.exp(-(line[0] * _logit(score) + line[1])))


def _logit(score: float) -> float:
    bounded = min(max(score, 0.01), 0.99)
    return math.log(bounded / (1 - bounded))


def rounded_box(corners: Sequence[float]) -> Box:
    """Return a box with four digits, a thirtieth of a pixel."""
    x1, y1, x2, y2 = (round(float(side), 4) for side in corners)
    return (x1, y1, x2, y2)


def light_of(pixels: NDArray[np.uint8]) -> Light:
    """Return whether a BGR frame is dark, or grey as under an infrared lamp."""
    small = pixels[::16, ::16].astype("int16")
    saturation = float((small.max(axis=2) - small.min(axis=2)).mean())
    return "night" if float(small.mean()) < NIGHT_MEAN or saturation < NIGHT_SATURATION else "day"
