"""Decides when an alert is re-checked on the appliance, which object at which moments, and what verdict follows.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal

from appliance.config import RecheckConfig, RouterConfig
from appliance.geometry import is_same_place
from appliance.router.calibration import TrackStability
from appliance.router.track_stats import CameraTrackStats
from appliance.store.rows import AlertRow, Delivery
from appliance.types import Box, CropRequest, CropResult, EdgeVerdict, FrameBoxes, RecheckResult

SETTLED_S = 2.0  # the object should have been seen more than once
DOWN_S = 3.0  # a link is not gone because it has just been made
LOAD_MAX = 1.5  # running tasks per core, where router.load_max says nothing

Blocker = Literal["", "ingest", "detector", "box", "rate"]
BLOCKER_TEXT: dict[Blocker, str] = {
    "ingest": "the ingest process does not run",
    "detector": "the detector has no time to spare",
    "box": "the box is too busy or too hot",
    "rate": "too many alerts wait for one",
}
_WAITS = {
    "budget": "the question waits for the budget to be renewed",
    "box": "the question waits for the box to be less loaded",
    "queue": "the question waits for the queue to be shorter",
    "off-peak": "the question waits for the off-peak hours",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudStatus:
    """How the way to the cloud is. asked: the site has an uplink; down_s: since the link was lost, None: it is up;
    silent: it is up and nobody answers."""

    asked: bool = False
    down_s: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceStatus:
    """How this box is. starts: which life of the ingest process it is, 0: it does not run; load: running tasks per
    core; detector_load: share of the time it is at work, detector_queue: cameras that wait for it."""

    starts: int = 0
    load: float | None = None
    temperature_c: float | None = None
    detector_load: float = 0.0
    detector_queue: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckCandidate:
    """One alert without a verdict. age_s: since it was written; question_s: since its question was made; sent_s: since
    that left; wait, refused: why the router keeps it back, or asked nothing."""

    age_s: float
    ended: bool = False
    delivery: Delivery | None = None
    question_s: float = 0.0
    sent_s: float | None = None
    wait: str = ""
    refused: str = ""


def recheck_reason(case: RecheckCandidate, cloud: CloudStatus, settings: RecheckConfig) -> str:
    """Why nobody else answers (in time), for a person; "": somebody will, or it is too early to say."""
    if not settings.enabled or (case.age_s < SETTLED_S and not case.ended):
        return ""
    if not cloud.asked:
        return "this site asks no cloud"
    if case.delivery is None:
        return f"the cloud was not asked: {case.refused}" if case.refused else ""
    if case.delivery == "expired":
        return "no answer came in time"
    if case.wait:
        return _WAITS.get(case.wait, "the question waits")
    if cloud.down_s is not None and cloud.down_s >= DOWN_S:
        return "the cloud cannot be reached"
    if cloud.silent:
        return "the cloud does not answer"
    if case.sent_s is not None and case.delivery == "sent":
        return f"the cloud has not answered for {case.sent_s:.0f} s" if case.sent_s >= settings.after_s else ""
    return f"the question has not left for {case.question_s:.0f} s" if case.question_s >= settings.after_s else ""


def find_blocker(
    box: ApplianceStatus, looks_last_minute: int, settings: RecheckConfig, router: RouterConfig
) -> Blocker:
    """What keeps the box from a second look now; "": nothing."""
    if not box.starts:
        return "ingest"
    if box.detector_load > settings.detector_load_max or box.detector_queue > 0:
        return "detector"
    load_max = LOAD_MAX if router.load_max is None else router.load_max
    if box.load is not None and box.load > load_max:
        return "box"
    if box.temperature_c is not None and box.temperature_c > (router.temperature_max_c or float("inf")):
        return "box"
    return "rate" if looks_last_minute >= settings.per_minute else ""


@dataclass(frozen=True, slots=True)
class RecheckSubject:
    """label, seen: what the live looks said of it; glimpses: where it is to be looked at again, oldest first."""

    label: str
    seen: TrackStability
    glimpses: tuple[CropRequest, ...]


def choose_subject(
    alert: AlertRow, frames: Sequence[FrameBoxes], until_t: float, size: tuple[int, int], count: int
) -> RecheckSubject | None:
    """The object of the alert's best view, or its newest. None: it was in none of `frames` up to `until_t` (what is
    later is not recorded yet). size: of the picture."""
    track = alert.best.track if alert.best is not None else alert.tracks[-1] if alert.tracks else None
    seen = [
        (frame.t, each)
        for frame in frames
        for each in frame.objects
        if each.track == track and frame.looked and frame.t <= until_t
    ]
    if track is None or not seen:
        return None
    sightings = CameraTrackStats()
    sightings.begin(size)
    for frame in frames:
        sightings.observe(frame)
    known = sightings.of(track)
    assert known is not None, "it is in at least one of the frames"
    views = [(view_score(each.score, each.box), CropRequest(t=t, box=each.box)) for t, each in seen]
    return RecheckSubject(known.label, known.stability, _best_of_parts(views, count))


def view_score(score: float, box: Box) -> float:
    """How well it is to be seen: sure and large."""
    return score * sqrt(max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]))


def _best_of_parts(views: Sequence[tuple[float, CropRequest]], count: int) -> tuple[CropRequest, ...]:
    """The best of each of `count` equal parts."""
    parts = min(count, len(views))
    bounds = [len(views) * n // parts for n in range(parts + 1)]
    return tuple(max(views[begin:end], key=lambda view: view[0])[1] for begin, end in pairwise(bounds))


SCORE_MIN = 0.5  # from which a picture speaks for the object
SHARE_MIN = 0.5  # of the pictures must
_DIGITS = 3

ChanceOf = Callable[[TrackStability], float]
"""The probability that an alert about an object that was seen so is right."""


def judge_recheck(label: str, seen: TrackStability, sight: RecheckResult, why: str, chance: ChanceOf) -> EdgeVerdict:
    """label, seen: what the live looks said. why: what keeps the cloud from answering.

    The confidence is the chance of the router's own calibration, of an object that was seen as sure as the second look
    saw it. Where that is unsure, it is never above the chance of before.
    """
    scores = [score_at(each, label) for each in sight.sightings]
    found = sum(score >= SCORE_MIN for score in scores)
    confirmed = bool(scores) and found >= SHARE_MIN * len(scores)
    mean = sum(scores) / len(scores) if scores else 0.0
    again = TrackStability(score=mean, spread=_score_deviation(scores, mean), looks=seen.looks, moved=seen.moved)
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


def score_at(sighting: CropResult, label: str) -> float:
    """How sure it is that the object is there; 0: it is not found there."""
    at = (each.score for each in sighting.found if each.label == label and is_same_place(each.box, sighting.box))
    return max(at, default=0.0)


def _score_deviation(scores: Sequence[float], mean: float) -> float:
    return sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) if scores else 0.0


def _reason(label: str, confirmed: bool, found: int, of: int, why: str) -> str:
    pictures = "1 picture" if of == 1 else f"{of} pictures"
    said = f"found the {label} again in {found} of {pictures}"
    if not confirmed:
        said = f"found the {label} again in only {found} of {pictures}" if found else f"did not find the {label} again"
        said += ", which proves nothing: the alert stands"
    return f"A second look on this box {said}. It looked because {why}."
