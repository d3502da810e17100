"""Decides when an alert is rechecked, which object at which moments, and what verdict follows.

It does no I/O. A recheck answers "is there such an object at this place?", and nothing more. If so, the alert is
rechecked, which confirms nothing. If not, the appliance is unsure and the alert stays, because a network that misses a
person may do so twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Literal

from appliance.config import RecheckConfig, RouterConfig
from appliance.router.track_stats import CameraTrackStats
from appliance.store.escalations import Delivery
from appliance.types import (
    Alert,
    Box,
    CropRequest,
    CropResult,
    EdgeVerdict,
    FrameBoxes,
    RecheckResult,
    TrackStability,
    is_same_place,
)

SETTLED_S = 2.0  # after an alert was written: its object should have been seen more than once
DOWN_S = 3.0  # a link that has been down for less may be just connecting
LOAD_MAX = 1.5  # running tasks per core, where router.load_max says nothing
SCORE_MIN = 0.5  # from which a crop counts as showing the object
SHARE_MIN = 0.5  # of the crops that must show it
ENOUGH = 0.6  # of the best crop, to spare the others: 237 of 258 true alerts have it
NO_CLOUD = "this site asks no cloud"
_DIGITS = 3  # decimals of a score in logs

Blocker = Literal["", "ingest", "detector", "box", "rate"]
BLOCKER_TEXT: dict[Blocker, str] = {
    "ingest": "the ingest process does not run",
    "detector": "the detector has no time to spare",
    "box": "the appliance is too busy or too hot",
    "rate": "too many alerts wait for one",
}
_WAITS = {
    "budget": "the question waits for the budget to be renewed",
    "box": "the question waits for the appliance to be less loaded",
    "queue": "the question waits for the queue to be shorter",
    "pool": "the question waits for workers that answer in time",
    "price": "the question waits for a lower price of the workers",
    "off-peak": "the question waits for the off-peak hours",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudStatus:
    """The state of the cloud link: if the cloud can answer.

    Attributes:
        configured: the site has an uplink.
        down_s: since the link was lost; None: it is up.
        silent: the link is up and no escalation is answered.
    """

    configured: bool = False
    down_s: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceStatus:
    """The load of the appliance: if it has capacity for a re-check.

    Attributes:
        starts: how often the ingest process was started; 0: it does not run.
        load: running tasks per core; None: not known.
        detector_load: share of the time that the detector is busy, 0..1.
        detector_queue: cameras that wait for it.
        hot: it does less already because of heat.
    """

    starts: int = 0
    load: float | None = None
    temperature_c: float | None = None
    detector_load: float = 0.0
    detector_queue: int = 0
    hot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckCandidate:
    """One alert without a verdict.

    Attributes:
        age_s: since the alert was written.
        ended: the alert is over.
        delivery: how far its escalation got; None: there is none.
        escalated_s, sent_s: since its escalation was made, and sent.
        wait: why the router postpones it; refused: why the router made none.
    """

    age_s: float
    ended: bool = False
    delivery: Delivery | None = None
    escalated_s: float = 0.0
    sent_s: float | None = None
    wait: str = ""
    refused: str = ""


def recheck_reason(candidate: RecheckCandidate, cloud: CloudStatus, settings: RecheckConfig) -> str:
    """Why the cloud does not answer (in time), for a person; "": it will, or it is too early to say."""
    if not settings.enabled or (candidate.age_s < SETTLED_S and not candidate.ended):
        return ""
    if not cloud.configured:
        return NO_CLOUD
    if candidate.delivery is None:
        return f"the cloud was not asked: {candidate.refused}" if candidate.refused else ""
    if candidate.delivery == "expired":
        return "no answer came in time"
    if candidate.wait:
        return _WAITS.get(candidate.wait, "the question waits")
    if away := cloud_away(cloud):
        return away
    if candidate.sent_s is not None and candidate.delivery == "sent":
        return (
            f"the cloud has not answered for {candidate.sent_s:.0f} s" if candidate.sent_s >= settings.after_s else ""
        )
    return (
        f"the question has not left for {candidate.escalated_s:.0f} s"
        if candidate.escalated_s >= settings.after_s
        else ""
    )


def cloud_away(cloud: CloudStatus) -> str:
    """Return why the cloud does not answer anybody, for a person; "": it does."""
    if cloud.down_s is not None and cloud.down_s >= DOWN_S:
        return "the cloud cannot be reached"
    return "the cloud does not answer" if cloud.silent else ""


def busy_text(appliance: ApplianceStatus, settings: RecheckConfig, router: RouterConfig) -> str:
    """Return what keeps the appliance from being idle, for a person; "": nothing, detection included."""
    blocker = find_blocker(appliance, 0, settings, router)
    return "" if blocker == "ingest" else BLOCKER_TEXT.get(blocker, "")


def find_blocker(
    appliance: ApplianceStatus, rechecks_last_minute: int, settings: RecheckConfig, router: RouterConfig
) -> Blocker:
    """Return what prevents a re-check now; "" if nothing does."""
    if not appliance.starts:
        return "ingest"
    if appliance.detector_load > settings.detector_load_max or appliance.detector_queue > 0:
        return "detector"
    if appliance.hot:
        return "box"
    load_max = LOAD_MAX if router.load_max is None else router.load_max
    if appliance.load is not None and appliance.load > load_max:
        return "box"
    if appliance.temperature_c is not None and appliance.temperature_c > (router.temperature_max_c or float("inf")):
        return "box"
    return "rate" if rechecks_last_minute >= settings.per_minute else ""


@dataclass(frozen=True, slots=True)
class RecheckSubject:
    """The object that is re-checked.

    Attributes:
        label, seen: of the object, by the live detections.
        crops: where it is to be detected again, the best view first.
    """

    label: str
    seen: TrackStability
    crops: tuple[CropRequest, ...]


def choose_subject(
    alert: Alert, frames: Sequence[FrameBoxes], until_t: float, size: tuple[int, int], count: int
) -> RecheckSubject | None:
    """Return the object of the alert's best view, or its newest.

    Return None if none of `frames` up to `until_t` holds it (later ones are not recorded yet). size: (width, height) of
    a frame.
    """
    track = alert.best.track if alert.best is not None else alert.tracks[-1] if alert.tracks else None
    seen = [
        (frame.t, each)
        for frame in frames
        for each in frame.objects
        if each.track == track and frame.looked and frame.t <= until_t
    ]
    if track is None or not seen:
        return None
    stats = CameraTrackStats()
    stats.begin(size)
    for frame in frames:
        stats.observe(frame)
    known = stats.of(track)
    assert known is not None, "it is in at least one of the frames"
    views = [(view_score(each.score, each.box), CropRequest(t=t, box=each.box)) for t, each in seen]
    return RecheckSubject(known.label, known.stability, _best_of_parts(views, count))


def view_score(score: float, box: Box) -> float:
    """How good a view is: sure and large."""
    return score * sqrt(max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1]))


def _best_of_parts(views: Sequence[tuple[float, CropRequest]], count: int) -> tuple[CropRequest, ...]:
    """Return the best view of each of `count` equal parts, the best of them first."""
    parts = min(count, len(views))
    bounds = [len(views) * n // parts for n in range(parts + 1)]
    best = [max(views[begin:end], key=lambda view: view[0]) for begin, end in pairwise(bounds)]
    return tuple(crop for _, crop in sorted(best, key=lambda view: view[0], reverse=True))


ChanceOf = Callable[[TrackStability], float]
"""The probability that an alert about an object seen like this is right."""


def judge_recheck(label: str, seen: TrackStability, result: RecheckResult, why: str, chance: ChanceOf) -> EdgeVerdict:
    """Return the appliance's own verdict.

    label, seen: by the live detections. why: what keeps the cloud from answering. The confidence comes from the
    router's calibration, for an object seen as surely as in the re-check. An unsure verdict never has a higher
    confidence than the live detections gave.
    """
    scores = [score_at(each, label) for each in result.sightings]
    found = sum(score >= SCORE_MIN for score in scores)
    found_there = bool(scores) and found >= SHARE_MIN * len(scores)
    mean = sum(scores) / len(scores) if scores else 0.0
    spread = sqrt(sum((score - mean) ** 2 for score in scores) / len(scores)) if scores else 0.0
    rechecked = TrackStability(score=mean, spread=spread, looks=seen.looks, moved=seen.moved)
    confidence = chance(rechecked) if found_there else min(chance(seen), chance(rechecked))
    return EdgeVerdict(
        decision="rechecked" if found_there else "unsure",
        confidence=round(confidence, _DIGITS),
        reason=_reason(label, found_there, found, len(scores), why),
        model=result.model,
        why=why,
        looks=len(scores),
        seen=found,
        score=round(mean, _DIGITS),
        ms=result.ms,
    )


def score_at(crop: CropResult, label: str) -> float:
    """Return the score of the object at its place; 0 if it was not found there."""
    at = (each.score for each in crop.found if each.label == label and is_same_place(each.box, crop.box))
    return max(at, default=0.0)


def _reason(label: str, found_there: bool, found: int, of: int, why: str) -> str:
    images = "1 picture" if of == 1 else f"{of} pictures"
    text = f"found the {label} again in {found} of {images}"
    if not found_there:
        text = f"found the {label} again in only {found} of {images}" if found else f"did not find the {label} again"
        text += ", which proves nothing: the alert stands"
    return f"A second look on this appliance {text}. It looked because {why}."
