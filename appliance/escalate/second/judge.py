"""What the box says of an alert after its second look. Pure.

It answers "is there such an object at this place?", and nothing more. Finding it again confirms the alert; not finding
it again makes the box unsure, and never withdraws the alert: a network that misses somebody once misses him again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from appliance.escalate.calibration import Stability
from appliance.types import Box, EdgeVerdict, SecondSight, Sighting

SCORE_MIN = 0.5  # from which a picture speaks for the object
SHARE_MIN = 0.5  # of the pictures must
IOU_MIN = 0.3
PLACE_SCALE = 1.5  # a centre this much outside the flagged box still counts: live look and close-up disagree a little
SIZE_RATIO_MAX = 2.0  # but not when it is another size
_DIGITS = 3

Chance = Callable[[Stability], float]
"""The probability that an alert about an object that was seen so is right."""


def judge(label: str, seen: Stability, sight: SecondSight, why: str, chance: Chance) -> EdgeVerdict:
    """label, seen: what the live looks said. why: what keeps the cloud from answering.

    The confidence is the chance of the router's own calibration, of an object that was seen as sure as the second look
    saw it. Where that is unsure, it is never above the chance of before.
    """
    scores = [score_at(each, label) for each in sight.sightings]
    found = sum(score >= SCORE_MIN for score in scores)
    confirmed = bool(scores) and found >= SHARE_MIN * len(scores)
    mean = sum(scores) / len(scores) if scores else 0.0
    again = Stability(score=mean, spread=_spread(scores, mean), looks=seen.looks, moved=seen.moved)
    confidence = chance(again) if confirmed else min(chance(seen), chance(again))
    return EdgeVerdict(
        decision="confirmed" if confirmed else "unsure",
        confidence=round(confidence, _DIGITS),
        reason=_reason(label, confirmed, found, len(scores), why),
        model=sight.model,
        why=why,
        looks=len(scores),
        seen=found,
        score=round(mean, _DIGITS),
        ms=sight.ms,
    )


def score_at(sighting: Sighting, label: str) -> float:
    """How sure it is that the object is there; 0: it is not found there."""
    at = (each.score for each in sighting.found if each.label == label and at_place(each.box, sighting.box))
    return max(at, default=0.0)


def at_place(found: Box, flagged: Box) -> bool:
    """IoU of at least IOU_MIN, or about as tall with its centre inside the flagged box enlarged by PLACE_SCALE."""
    ax, ay = (found[0] + found[2]) / 2, (found[1] + found[3]) / 2
    bx, by = (flagged[0] + flagged[2]) / 2, (flagged[1] + flagged[3]) / 2
    reach_x, reach_y = (flagged[2] - flagged[0]) * PLACE_SCALE / 2, (flagged[3] - flagged[1]) * PLACE_SCALE / 2
    near = abs(ax - bx) <= reach_x and abs(ay - by) <= reach_y
    ratio = (found[3] - found[1]) / max(flagged[3] - flagged[1], 1e-6)
    return (near and 1 / SIZE_RATIO_MAX <= ratio <= SIZE_RATIO_MAX) or _iou(found, flagged) >= IOU_MIN


def _spread(scores: Sequence[float], mean: float) -> float:
    return sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) if scores else 0.0


def _reason(label: str, confirmed: bool, found: int, of: int, why: str) -> str:
    pictures = "1 picture" if of == 1 else f"{of} pictures"
    said = f"found the {label} again in {found} of {pictures}"
    if not confirmed:
        said = f"found the {label} again in only {found} of {pictures}" if found else f"did not find the {label} again"
        said += ", which proves nothing: the alert stands"
    return f"A second look on this box {said}. It looked because {why}."


def _iou(a: Box, b: Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)
