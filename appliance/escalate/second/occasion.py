"""When the box looks at an alert once more by itself: because nobody else answers, and it has time to spare. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.config import Router, SecondLook
from appliance.store.rows import Delivery

SETTLED_S = 2.0  # the object should have been seen more than once
DOWN_S = 3.0  # a link is not gone because it has just been made
LOAD_MAX = 1.5  # running tasks per core, where router.load_max says nothing

Obstacle = Literal["", "ingest", "detector", "box", "rate"]
OBSTACLE_WORDS: dict[Obstacle, str] = {
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
class Cloud:
    """How the way to the cloud is. asked: the site has an uplink; down_s: since the link was lost, None: it is up;
    silent: it is up and nobody answers."""

    asked: bool = False
    down_s: float | None = None
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """How this box is. starts: which life of the ingest process it is, 0: it does not run; load: running tasks per
    core; detector_load: share of the time it is at work, detector_queue: cameras that wait for it."""

    starts: int = 0
    load: float | None = None
    temperature_c: float | None = None
    detector_load: float = 0.0
    detector_queue: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One alert without a verdict. age_s: since it was written; question_s: since its question was made; sent_s: since
    that left; wait, refused: why the router keeps it back, or asked nothing."""

    age_s: float
    ended: bool = False
    delivery: Delivery | None = None
    question_s: float = 0.0
    sent_s: float | None = None
    wait: str = ""
    refused: str = ""


def reason_of(case: Case, cloud: Cloud, settings: SecondLook) -> str:
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


def obstacle_of(box: Box, looks_last_minute: int, settings: SecondLook, router: Router) -> Obstacle:
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
