"""What the box says of an alert after its second look. Pure.

It answers "is there such an object at this place?", and nothing more. Finding it again confirms the alert; not finding
it again makes the box unsure, and never withdraws the alert: a network that misses somebody once misses him again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from appliance.boxes import at_place
from appliance.escalate.calibration import Stability
from appliance.types import EdgeVerdict, SecondSight, Sighting

SCORE_MIN = 0.5  # from which a picture speaks for the object
SHARE_MIN = 0.5  # of the pictures must
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


def _spread(scores: Sequence[float], mean: float) -> float:
    return sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) if scores else 0.0


def _reason(label: str, confirmed: bool, found: int, of: int, why: str) -> str:
    pictures = "1 picture" if of == 1 else f"{of} pictures"
    said = f"found the {label} again in {found} of {pictures}"
    if not confirmed:
        said = f"found the {label} again in only {found} of {pictures}" if found else f"did not find the {label} again"
        said += ", which proves nothing: the alert stands"
    return f"A second look on this box {said}. It looked because {why}."
