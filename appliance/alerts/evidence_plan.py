"""What each message of a question brings, and what the site offers to send after it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from appliance import wire
from appliance.alerts.evidence_moments import Moment, best_moment, choose_moments
from appliance.config import Escalation
from appliance.store.rows import StepEvidence
from appliance.types import BestView, Event, EvidenceStep, FrameBoxes

Cut = Literal["none", "crops", "frames", "frame"]
_ORDER: tuple[wire.Need, ...] = ("crop", "frame", "clip")
_FIRST: dict[EvidenceStep, tuple[StepEvidence, Cut, bool, tuple[wire.Need, ...]]] = {
    "facts": ("facts", "none", False, _ORDER),
    "crops": ("crop", "crops", False, ("frame", "clip")),
    "frames": ("frame", "frames", False, ("clip",)),
    "clip": ("clip", "crops", True, ("frame",)),
}
_CUT_FOR: dict[wire.Need, Cut] = {"crop": "crops", "frame": "frame", "clip": "none"}


@dataclass(frozen=True, slots=True)
class Plan:
    """One message. evidence: what it is called; cut: the pictures in it; clip: whether one goes along; can: what the
    site would send next."""

    evidence: StepEvidence
    cut: Cut
    clip: bool
    can: tuple[wire.Need, ...]


FACTS_ALONE = Plan("facts", "none", False, ())
"""Of a camera whose pixels may not leave the site."""


def plan(first: EvidenceStep, need: wire.Need | None, step: int, *, clips: bool = True) -> Plan:
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
    return Plan(evidence, cut, clip, can if step + 1 < wire.STEPS_MAX else ())


def moments_of(
    cut: Cut, settings: Escalation, event: Event, seen: Sequence[FrameBoxes], best: BestView | None
) -> list[Moment]:
    """When the pictures of a message are taken, oldest first."""
    if cut == "none":
        return []
    if cut == "frame":
        return [best_moment(event, seen)]
    return choose_moments(event, seen, best, settings.crops if cut == "crops" else settings.frames)
