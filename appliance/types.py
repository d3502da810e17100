"""The values that travel between rooms: frozen, slotted, without behaviour beyond arithmetic on themselves.

Coordinates are shares of the picture (0..1), boxes are `(x1, y1, x2, y2)`. Times are UTC seconds live and seconds
since the clip's first frame in a replay. Objects that carry a `type` are JSON lines on the ingest channel and in the
replay log (see `appliance.wire`); their fields may grow, those that stand here stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
Point = tuple[float, float]
Severity = Literal["info", "warning", "alert"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "alert")
EventKind = Literal["enter", "exit", "line", "dwell"]
CameraStateName = Literal["connecting", "live", "stalled", "lost", "ended"]
Decision = Literal["confirmed", "rejected", "unsure"]
Review = Literal["reviewed", "false_alarm"]
When = Literal["now", "later", "never"]
EvidenceStep = Literal["facts", "crops", "frames", "clip"]
EVIDENCE_STEPS: tuple[EvidenceStep, ...] = ("facts", "crops", "frames", "clip")
Privacy = Literal["free", "image_free", "never"]
HealthKind = Literal["stalled", "frozen", "black", "covered", "moved", "clock", "detector", "unexamined"]
HEALTH_KINDS: tuple[HealthKind, ...] = (
    "stalled", "frozen", "black", "covered", "moved", "clock", "detector", "unexamined",
)  # fmt: skip
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Detections:
    """What one look at one picture found.

    boxes: float32 (N, 4) xyxy, shares of the picture; scores: float32 (N,) 0..1; class_ids: int32 (N,), an index
    into the detector's `labels`. Empty arrays mean "looked and saw nothing"; "nobody looked" is `None`, never this.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    class_ids: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.scores)

    @classmethod
    def empty(cls) -> Detections:
        return cls(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int32))

    def select(self, index: NDArray[np.bool_] | NDArray[np.intp]) -> Detections:
        """The rows that `index` (a mask or positions) picks."""
        return Detections(self.boxes[index], self.scores[index], self.class_ids[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedObject:
    """One object in one examined frame. `score` is this frame's detection score, rounded to 3 places; `box` to 4."""

    track: int
    label: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHeader:
    """First line of a camera run (or of a replay log). A new `run` makes all earlier track ids of the camera stale."""

    type: Literal["header"] = "header"
    schema: int = SCHEMA
    camera: str
    clip: str
    model: str
    size: tuple[int, int]
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameBoxes:
    """What is known of one examined frame; the only picture-derived thing that crosses the ingest boundary.

    seq counts these messages per camera run from 0; frame is the 0-based index of the decoded frame in the run.
    looked=False: the detector did not answer for this frame, so `objects` says nothing.
    """

    type: Literal["boxes"] = "boxes"
    camera: str
    seq: int
    frame: int
    t: float
    looked: bool
    objects: tuple[TrackedObject, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraState:
    """The camera changed state. `reason` is one sentence for a person, without secrets."""

    type: Literal["state"] = "state"
    camera: str
    state: CameraStateName
    t: float
    reason: str = ""


SegmentKind = Literal["continuous", "pre_roll", "alert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """A recorded segment began, grew (each fragment flushed to disk) or was closed (`complete`).

    path is relative to the storage folder. t_start is the time of the first packet, t_end the end of the last packet
    that is readable on disk; pts 0 of the file is t_start. kind: of a continuous recording, of a pre-roll ring, or
    taken out of the ring because an alert needs it.
    """

    type: Literal["segment"] = "segment"
    camera: str
    path: str
    t_start: float
    t_end: float
    bytes: int
    frames: int
    codec: str
    size: tuple[int, int]
    complete: bool
    kind: SegmentKind = "continuous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Nothing was received, or nothing could be recorded, between two times. `t_end` None while it lasts."""

    type: Literal["gap"] = "gap"
    camera: str
    t_start: float
    t_end: float | None
    reason: str


DecodeState = Literal["everything", "active", "idle"]
"""What of a camera's pictures is decoded: all (by order, or because the stream allows nothing else), all as long as
something may happen, key frames only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraMeter:
    """What a camera did since the previous meter message (deltas, about one message a second per camera).

    received: bytes from the camera's socket (TCP payload as the kernel counted it; `exact`), or, where the kernel
    cannot say, the sum of packet sizes (`exact` False). unexamined: frames due for a look that did not get one.
    unrecorded: packets that the recorder could not keep. skipped: packets that were never decoded; decoding: what is
    decoded now, None from a process that does not say, with the reason where there is one.
    """

    type: Literal["meter"] = "meter"
    camera: str
    t: float
    received: int
    exact: bool
    packets: int
    decoded: int
    examined: int
    unexamined: int
    reconnects: int = 0
    unrecorded: int = 0
    skipped: int = 0
    decoding: DecodeState | None = None
    decoding_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestHealth:
    """A sign of life of the ingest process, about one a second."""

    type: Literal["health"] = "health"
    t: float
    detector_ms: float
    queue: int
    rss_bytes: int
    warning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """Something about a camera (or, with camera "", about the box) is not as it should be; told anew when it changes.

    t: when this was said, t_start when it began, t_end when it was over (None while it lasts). reason: one sentence
    without secrets. recovery: what was tried last to mend it, attempts: how often; times: how often it came back within
    the same event.
    """

    type: Literal["health_event"] = "health_event"
    camera: str
    id: str
    kind: HealthKind
    t: float
    t_start: float
    t_end: float | None = None
    reason: str = ""
    recovery: str = ""
    attempts: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Relearn:
    """To the ingest process: a person says that what a camera shows is right as it is (see HealthEvent)."""

    type: Literal["relearn"] = "relearn"
    camera: str
    kind: HealthKind


IngestMessage = StreamHeader | FrameBoxes | CameraState | SegmentRow | Gap | CameraMeter | IngestHealth | HealthEvent


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

    verdict: what the cloud said, in a replay that was given answers; None: nothing (a live alert has it in the store).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteInputs:
    """What the router knew when it decided; None: unknown, and not held against the question.

    score: mean of the scores of the track it judged by; spread: their standard deviation; looks, seconds: how often and
    for how long it was seen; moved: how far it got from where it was first seen, in its own heights. chance: of being
    real; chance_n: how many answers of this camera and label it was learnt from; chance_min: below it the router does
    not ask (0: it may not leave anything out yet). repeat: this very object, unmoved, was asked about before.
    budget_left: the scarcest budget's share that is left. audit_share: above 0 it is asked about only as one of an
    audit sample of this share.
    """

    label: str = ""
    severity: Severity = "warning"
    own_question: bool = False
    privacy: Privacy = "free"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What the router decided about an alert, and what asking puts on the uplink: a line of the replay log, and a row
    of the `decision` table.

    t: of the event that was decided about. ask: when is not "never". evidence: the step with which the question begins.
    value: what the answer is worth for the bytes it costs, a rank (see router/decide.py). wait: what a question of
    "later" waits for, and not before until_t where that is known. gpu_s, money: what the answer is expected to cost.
    bytes: message_bytes (the question with subject and headers) plus picture_bytes (the chunks of its pictures with
    theirs), measured in a replay, expected live. pictures_guessed: how many of the pictures could not be cut from the
    footage and count with the mean size of the others.
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
    when: When = "never"
    evidence: EvidenceStep = "frames"
    value: float = 0.0
    wait: str = ""
    until_t: float | None = None
    gpu_s: float = 0.0
    money: float = 0.0
    inputs: RouteInputs = RouteInputs()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogVerdict:
    """What the cloud said of an alert, in a replay that was given answers (replay log only).

    t: when it would have come: the question's time and the recorded latency. match: whether it answers exactly what was
    asked, or was found on a cassette by nearness, or made by a stand-in. step: how often the judge had asked for more
    evidence before; more_bytes: what that put on the uplink beyond the route's `bytes`.
    """

    type: Literal["verdict"] = "verdict"
    camera: str
    alert: str
    escalation: str
    t: float
    decision: Decision
    reason: str
    confidence: float | None = None
    engine: str
    model: str
    prompt_version: str = ""
    step: int = 0
    match: Literal["exact", "nearest", "stand-in"] = "exact"
    more_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Last line of a camera in a replay log; a log without it was cut off. See `ReplayResult` for the counts.

    suppressed: ids of the events that a cooldown held back. skipped: of `frames`, how many were not decoded.
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


@dataclass(frozen=True, slots=True)
class AlertChange:
    """What the alert policy decided: an alert was opened, extended or ended; `event` is the cause, if one was."""

    kind: Literal["opened", "extended", "ended"]
    alert: Alert
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """All that one message made the pipeline decide, in order."""

    events: tuple[Event, ...] = ()
    changes: tuple[AlertChange, ...] = ()
    suppressed: tuple[Event, ...] = field(default=())
