"""Selects what each message of an escalation carries, and the frames that its images are cut from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from appliance import wire
from appliance.alerts.best_view import quality
from appliance.config import EscalationConfig
from appliance.store.rows import StepEvidence
from appliance.types import BestView, Box, Event, EvidenceStep, FrameBoxes


@dataclass(frozen=True, slots=True)
class EvidenceMoment:
    """A time at which a picture is wanted, and the object's box in it (None: not known)."""

    t: float
    box: Box | None


def spread_moments(event: Event, seen: Sequence[FrameBoxes], best: BestView | None, count: int) -> list[EvidenceMoment]:
    """At most `count` moments, oldest first: spread over the frames of `seen` that hold the event's track, the first
    and the last always among them; the best view fills an empty place, the event itself stands in for none."""
    found: dict[float, EvidenceMoment] = {}
    for frame in seen:
        for each in frame.objects:
            if each.track == event.track:
                found[frame.t] = EvidenceMoment(frame.t, each.box)
    moments = [found[t] for t in sorted(found)] or [_event_moment(event)]
    if len(moments) > count:
        last = len(moments) - 1
        moments = [moments[last if count == 1 else round(i * last / (count - 1))] for i in range(count)]
    elif best is not None and best.track == event.track and len(moments) < count and best.t not in found:
        moments = sorted([*moments, EvidenceMoment(best.t, best.box)], key=lambda moment: moment.t)
    return moments


def best_moment(event: Event, seen: Sequence[FrameBoxes]) -> EvidenceMoment:
    """The frame of `seen` in which the event's track is seen best; the event itself when it is in none."""
    views = [
        (quality(each.score, each.box), -frame.t, EvidenceMoment(frame.t, each.box))
        for frame in seen
        for each in frame.objects
        if each.track == event.track
    ]
    return max(views, key=lambda view: view[:2])[2] if views else _event_moment(event)


def _event_moment(event: Event) -> EvidenceMoment:
    return EvidenceMoment(event.t, event.box if any(event.box) else None)


ImageSet = Literal["none", "crops", "frames", "frame"]
_ORDER: tuple[wire.Need, ...] = ("crop", "frame", "clip")
_FIRST: dict[EvidenceStep, tuple[StepEvidence, ImageSet, bool, tuple[wire.Need, ...]]] = {
    "facts": ("facts", "none", False, _ORDER),
    "crops": ("crop", "crops", False, ("frame", "clip")),
    "frames": ("frame", "frames", False, ("clip",)),
    "clip": ("clip", "crops", True, ("frame",)),
}
_CUT_FOR: dict[wire.Need, ImageSet] = {"crop": "crops", "frame": "frame", "clip": "none"}


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """One message. evidence: what it is called; cut: the pictures in it; clip: whether one goes along; can: what the
    site would send next."""

    evidence: StepEvidence
    images: ImageSet
    clip: bool
    can: tuple[wire.Need, ...]


FACTS_ONLY = EvidencePlan("facts", "none", False, ())
"""Of a camera whose pixels may not leave the site."""


def plan_evidence(first: EvidenceStep, need: wire.Need | None, step: int, *, clips: bool = True) -> EvidencePlan:
    """Message number `step` (from 0) of a question: its first one, or one with what the cloud needs to see.

    clips: whether any may leave; a copied clip cannot be veiled.
    """
    if need is None:
        evidence, cut, clip, can = _FIRST[first]
    else:
        evidence, cut, clip = need, _CUT_FOR[need], need == "clip"
        can = _ORDER[_ORDER.index(need) + 1 :]
    if not clips:
        evidence = "crop" if clip and cut == "crops" else evidence
        clip, can = False, tuple(each for each in can if each != "clip")
    return EvidencePlan(evidence, cut, clip, can if step + 1 < wire.STEPS_MAX else ())


def select_moments(
    cut: ImageSet, settings: EscalationConfig, event: Event, seen: Sequence[FrameBoxes], best: BestView | None
) -> list[EvidenceMoment]:
    """When the pictures of a message are taken, oldest first."""
    if cut == "none":
        return []
    if cut == "frame":
        return [best_moment(event, seen)]
    return spread_moments(event, seen, best, settings.crops if cut == "crops" else settings.frames)
