"""Rule events, the alerts merged from them, the router's decision about an alert, and the lines of a replay log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.types.frames import FrameBoxes, StreamHeader
from appliance.types.ingest_messages import Gap, HealthEvent
from appliance.types.literals import (
    AuditSide,
    Box,
    Decision,
    EdgeAnswer,
    EventKind,
    EvidenceStep,
    JudgeKind,
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
    """One incident on one camera, merged from events, for a person to review. `t_end` None while it lasts.

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
    """A change by the alert policy: an alert was opened, extended or ended; `event` is the cause, if one was."""

    kind: Literal["opened", "extended", "ended"]
    alert: Alert
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """The decisions of the pipeline about one message, in order."""

    events: tuple[Event, ...] = ()
    changes: tuple[AlertChange, ...] = ()
    suppressed: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackStability:
    """How steadily a track was seen."""

    score: float = 0.0
    """Mean of its scores."""
    spread: float = 0.0
    """Standard deviation of these scores."""
    looks: int = 0
    """How often it was detected."""
    seconds: float = 0.0
    """For how long it was detected."""
    moved: float = 0.0
    """Distance from its first place, in its own heights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedChance:
    """The calibration's estimate for an alert, and the bounds that it allows the router."""

    chance: float = 0.0
    """Probability of being real."""
    chance_n: int = 0
    """Number of verdicts and reviews of this camera and label that `chance` was learnt from."""
    chance_min: float = 0.0
    """Below it the router does not escalate; 0: it may not leave anything out yet."""
    chance_max: float = 1.0
    """From it on the appliance is sure; 1: too little is known to be sure of anything."""
    error_high: float = 1.0
    """The largest share of such alerts that is wrong, with 95 % confidence."""
    learn_share: float = 1.0
    """Below 1: the share of likely sure alerts that is still escalated while the appliance learns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemLoad:
    """State of link, appliance, workers and budget; None: unknown, or there is none."""

    link_up: bool | None = None
    queue_age_s: float | None = None
    load: float | None = None
    """1 minute mean of running tasks per core."""
    temperature_c: float | None = None
    off_peak_in_s: float | None = None
    """Seconds until the hours in which such an alert is escalated."""
    budget_left: float | None = None
    """The scarcest budget's share that is left."""
    pool_wait_s: float | None = None
    """How long an escalation is expected to wait for a worker."""
    gpu_hour: float | None = None
    """The price that the workers announce."""
    offload: bool = False
    """The appliance is hot, and sends what it is not sure of to the cloud."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteInputs:
    """The knowledge of the router when it decided; None: unknown, and not held against the escalation."""

    label: str = ""
    severity: Severity = "warning"
    own_question: bool = False
    """The rule has its own `ask`."""
    privacy: PrivacyLevel = "free"
    stability: TrackStability = TrackStability()
    """Of the track that it is judged by."""
    calibrated: CalibratedChance = CalibratedChance()
    repeat: bool = False
    """This object, unmoved, was escalated before."""
    system_load: SystemLoad = SystemLoad()
    audit_share: float = 0.0
    """Above 0 it is escalated only as one of an audit sample of this share."""
    audit_of: AuditSide = ""
    """The population that the audit samples."""
    crowd: int = 0
    """Objects in view."""
    rechecked: Decision | None = None
    """The answer of the appliance's own recheck."""
    KEYS = (
        "label", "severity", "own_question", "privacy", "score", "spread", "looks", "seconds", "moved", "chance",
        "chance_n", "chance_min", "repeat", "link_up", "queue_age_s", "load", "temperature_c", "off_peak_in_s",
        "budget_left", "audit_share", "audit_of", "chance_max", "error_high", "learn_share", "crowd", "rechecked",
        "pool_wait_s", "gpu_hour", "offload",
    )  # fmt: skip
    """The keys of the flat record (`flat` in base/json_lines.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCost:
    """The cost of an escalation, and what it is worth."""

    value: float = 0.0
    """Rank of what the verdict is worth for the bytes it costs (router/decide.py)."""
    bytes: int = 0
    """message_bytes plus picture_bytes, measured in a replay, expected live."""
    message_bytes: int = 0
    """The message with subject and headers."""
    picture_bytes: int = 0
    """The chunks of its images with their headers."""
    pictures: int = 0
    pictures_guessed: int = 0
    """Images that could not be cut from the footage and count with the mean size of the others."""
    gpu_s: float = 0.0
    """Expected GPU time of the verdict."""
    money: float = 0.0
    """Expected cost of the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeAnswer:
    """The tier that answers, and the appliance's own answer."""

    tier: Tier = "edge"
    edge: EdgeAnswer = ""
    """The appliance's own verdict."""
    certainty: float = 0.0
    """Probability that `edge` is right."""
    flagged: str = ""
    """Why the appliance's answer stands for now although the cloud is asked, in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The router's decision about an alert, and what that puts on the uplink.

    It is a line of the replay log and a row of the `decision` table.
    """

    type: Literal["route"] = "route"
    camera: str
    alert: str
    event: str
    t: float
    """Time of the event that was decided about, UTC seconds."""
    ask: bool
    """It is escalated; False: never."""
    priority: str = ""
    reason: str = ""
    question: str = ""
    cost: RouteCost = RouteCost()
    when: SendTiming = "never"
    evidence: EvidenceStep = "frames"
    """The step with which it begins."""
    wait: str = ""
    """The reason why an escalation of "later" waits, not before `until_t` where that is known."""
    until_t: float | None = None
    cascade: CascadeAnswer = CascadeAnswer()
    inputs: RouteInputs = RouteInputs()
    KEYS = (
        "type", "camera", "alert", "event", "t", "ask", "priority", "reason", "question", "bytes", "message_bytes",
        "picture_bytes", "pictures", "pictures_guessed", "when", "evidence", "value", "wait", "until_t", "gpu_s",
        "money", "tier", "edge", "certainty", "flagged", "inputs",
    )  # fmt: skip
    """The keys of the flat record (`flat` in base/json_lines.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVerdict:
    """The cloud's verdict on an alert, in a replay that was given verdicts (replay log only).

    t: when it would have come: the escalation's time and the recorded latency. match: whether it answers exactly what
    was escalated, was found on a cassette by nearness, or made by a stand-in. step: how often the judge had asked for
    more evidence before; kind: who judged; more_bytes: what that put on the uplink beyond the route's `bytes`.
    """

    type: Literal["verdict"] = "verdict"
    camera: str
    alert: str
    escalation: str
    t: float
    decision: Decision
    reason: str
    confidence: float | None = None
    kind: JudgeKind = "unknown"
    engine: str
    model: str
    prompt_version: str = ""
    step: int = 0
    match: Literal["exact", "nearest", "stand-in"] = "exact"
    more_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Last line of a camera in a replay log; a log without it was cut off.

    t: seconds from the first frame to the last. examined: frames selected for the detector; unlooked: of those, how
    many it failed for. decode_errors: packets that could not be decoded. time_jumps: places where the clip's time
    stamps made no sense. suppressed: ids of the events that a cooldown held back. error: why the footage could not be
    read to its end. skipped: of `frames`, how many were not decoded.
    """

    type: Literal["end"] = "end"
    camera: str
    run: str
    t: float
    reason: str
    frames: int
    examined: int
    unlooked: int
    decode_errors: int
    time_jumps: int
    footage_bytes: int
    suppressed: tuple[str, ...] = ()
    error: str | None = None
    skipped: int = 0


LogLine = StreamHeader | FrameBoxes | Event | Alert | Route | LogVerdict | Gap | LogEnd | HealthEvent
