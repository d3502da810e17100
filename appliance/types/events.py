"""Rule events, the alerts merged from them, and the router's decision about an alert."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from appliance.types.literals import (
    AuditSide,
    Box,
    Decision,
    EdgeAnswer,
    EventKind,
    EvidenceStep,
    PrivacyLevel,
    SendTiming,
    Severity,
    Tier,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A rule fired for a track. `t` is the time of the frame that made it fire; `box` the object's box then."""

    type: Literal["event"] = "event"
    camera: str
    rule: str
    kind: EventKind
    track: int
    label: str
    t: float
    score: float = 0.0
    box: Box = (0.0, 0.0, 0.0, 0.0)
    zone: str = ""
    line: str = ""
    severity: Severity = "warning"
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestView:
    """The moment at which a track is best seen: where the still is cut."""

    track: int
    label: str
    t: float
    score: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """What a person reviews: one incident on one camera, merged from events. `t_end` None while it lasts.

    verdict: the cloud's, in a replay that was given verdicts; None: there is none (a live alert has it in the store).
    """

    type: Literal["alert"] = "alert"
    camera: str
    id: str
    rules: tuple[str, ...]
    severity: Severity
    t_start: float
    t_end: float | None
    tracks: tuple[int, ...]
    labels: tuple[str, ...] = ()
    score: float = 0.0
    run: str = ""
    best: BestView | None = None
    end_reason: str = ""
    verdict: Decision | None = None


@dataclass(frozen=True, slots=True)
class AlertChange:
    """What the alert policy decided: an alert was opened, extended or ended; `event` is the cause, if one was."""

    kind: Literal["opened", "extended", "ended"]
    alert: Alert
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """All that one message made the pipeline decide, in order."""

    events: tuple[Event, ...] = ()
    changes: tuple[AlertChange, ...] = ()
    suppressed: tuple[Event, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteInputs:
    """What the router knew when it decided; None: unknown, and not held against the escalation.

    score: mean of the scores of the track it judged by; spread: their standard deviation; looks, seconds: how often and
    for how long it was detected; moved: how far it got from its first place, in its own heights. chance: of being
    real; chance_n: from how many verdicts and reviews of this camera and label it was learnt; chance_min: below it the
    router does not ask (0: it may not leave anything out yet). repeat: this object, unmoved, was escalated before.
    budget_left: the scarcest budget's share that is left. audit_share: above 0 it is escalated only as one of an
    audit sample of this share; audit_of: of what the sample is. own_question: the rule has its own question (`ask`).
    chance_max: from it on the appliance is sure (1: too little is known to be sure of anything); error_high: of such
    alerts no larger share is wrong, with 95 % confidence. learn_share: below 1 the share of likely sure alerts that is
    still asked about while the appliance learns. crowd: objects in view. rechecked: what the appliance's own second
    detection said. pool_wait_s: for how long an escalation is expected to wait for a worker; gpu_hour: the price that
    the workers announce. offload: the box is hot, and what it is not sure of goes to the cloud.
    """

    label: str = ""
    severity: Severity = "warning"
    own_question: bool = False
    privacy: PrivacyLevel = "free"
    score: float = 0.0
    spread: float = 0.0
    looks: int = 0
    seconds: float = 0.0
    moved: float = 0.0
    chance: float = 0.0
    chance_n: int = 0
    chance_min: float = 0.0
    repeat: bool = False
    link_up: bool | None = None
    queue_age_s: float | None = None
    load: float | None = None
    temperature_c: float | None = None
    off_peak_in_s: float | None = None
    budget_left: float | None = None
    audit_share: float = 0.0
    audit_of: AuditSide = ""
    chance_max: float = 1.0
    error_high: float = 1.0
    learn_share: float = 1.0
    crowd: int = 0
    rechecked: Decision | None = None
    pool_wait_s: float | None = None
    gpu_hour: float | None = None
    offload: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What the router decided about an alert, and what that puts on the uplink: a line of the replay log and a row of
    the `decision` table.

    t: of the event that was decided about. ask: when is not "never". evidence: the step with which it begins.
    value: what the verdict is worth for the bytes it costs, a rank (see router/decide.py). wait: what an escalation of
    "later" waits for, and not before until_t where that is known. gpu_s, money: what the verdict is expected to cost.
    bytes: message_bytes (the message with subject and headers) plus picture_bytes (the chunks of its images with
    theirs), measured in a replay, expected live. pictures_guessed: how many of the images could not be cut from the
    footage and count with the mean size of the others. tier: who answers; edge, certainty: what the appliance itself
    says of the alert and the probability that this is right; flagged: why its answer stands for now although the cloud
    is asked, in a sentence.
    """

    type: Literal["route"] = "route"
    camera: str
    alert: str
    event: str
    t: float
    ask: bool
    priority: str = ""
    reason: str = ""
    question: str = ""
    bytes: int = 0
    message_bytes: int = 0
    picture_bytes: int = 0
    pictures: int = 0
    pictures_guessed: int = 0
    when: SendTiming = "never"
    evidence: EvidenceStep = "frames"
    value: float = 0.0
    wait: str = ""
    until_t: float | None = None
    gpu_s: float = 0.0
    money: float = 0.0
    tier: Tier = "edge"
    edge: EdgeAnswer = ""
    certainty: float = 0.0
    flagged: str = ""
    inputs: RouteInputs = RouteInputs()
