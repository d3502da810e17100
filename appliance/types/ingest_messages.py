"""Messages between the core and the ingest process beside boxes: camera state, segments, counters, health, re-
checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from appliance.types.frames import FrameBoxes, StreamHeader
from appliance.types.literals import Box, CameraStateName, Decision, DecodeState, DropReason, HealthKind, SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CropRequest:
    """Look at this place of the picture of time `t`; box: where the flagged object was seen."""

    t: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class FootageSpan:
    """A recorded segment: path relative to the storage folder, and which of the camera's time is readable in it."""

    path: str
    t_start: float
    t_end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckCommand:
    """To the ingest process: look again at one alert's object. id: comes back with the answer."""

    type: Literal["second_look"] = "second_look"
    id: str
    camera: str
    glimpses: tuple[CropRequest, ...]
    footage: tuple[FootageSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckDetection:
    """One object, its box in shares of the camera's whole picture."""

    label: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class CropResult:
    """What was found around one glimpse; `box` is the glimpse's."""

    t: float
    box: Box
    found: tuple[RecheckDetection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckResult:
    """What a second look saw. error: why there was none, in a sentence, and then `sightings` says nothing: it is never
    "nothing there". ms: from when it began until the last answer, its waiting for the detector included."""

    type: Literal["second_sight"] = "second_sight"
    id: str
    camera: str
    model: str = ""
    ms: float = 0.0
    sightings: tuple[CropResult, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeVerdict:
    """What the box itself says of an alert after a second look; the cloud's word, when it comes, stands above it.

    decision: confirmed or unsure; a box never withdraws an alert by itself. confidence: the chance that the alert is
    right, 0..1. why: what kept the cloud from answering. seen: in so many of the `looks` pictures the object was found;
    score: the mean of how sure it was of it, 0 where it was not found. ms: see SecondSight.
    """

    decision: Decision
    confidence: float
    reason: str
    model: str
    why: str
    looks: int
    seen: int
    score: float
    ms: float
    source: Literal["edge"] = "edge"


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraState:
    """The camera changed state. `reason` is one sentence for a person, without secrets."""

    type: Literal["state"] = "state"
    camera: str
    state: CameraStateName
    t: float
    reason: str = ""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraMeter:
    """What a camera did since the previous meter message (deltas, about one message a second per camera).

    received: bytes from the camera's socket (TCP payload as the kernel counted it; `exact`), or, where the kernel
    cannot say, the sum of packet sizes (`exact` False). unexamined: frames due for a look that did not get one.
    unrecorded: packets that the recorder could not keep. skipped: packets that were never decoded; decoding: what is
    decoded now, None from a process that does not say, with the reason where there is one. why: `unexamined` by reason.
    ages: of the pictures that the tracker heard of, how many were how old, a count for each of AGE_EDGES_MS and one
    above them, then the sum in milliseconds; () from a process that does not say. retried: looks that were asked for
    again because the detector failed. behind_s: how late, at most, packets were read since the last message.
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
    why: Mapping[DropReason, int] = field(default_factory=dict)
    ages: tuple[int, ...] = ()
    retried: int = 0
    behind_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestHealth:
    """A sign of life of the ingest process, about one a second.

    load: share of the time in which the detector was at work. age_p95_ms: of the pictures that the trackers heard of in
    the last seconds, those decoded late left out.
    """

    type: Literal["health"] = "health"
    t: float
    detector_ms: float
    queue: int
    rss_bytes: int
    warning: str = ""
    load: float = 0.0
    age_p95_ms: float = 0.0


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
class RebaselineCommand:
    """To the ingest process: a person says that what a camera shows is right as it is (see HealthEvent)."""

    type: Literal["relearn"] = "relearn"
    camera: str
    kind: HealthKind


IngestMessage = (
    StreamHeader
    | FrameBoxes
    | CameraState
    | SegmentRow
    | Gap
    | CameraMeter
    | IngestHealth
    | HealthEvent
    | RecheckResult
)
Command = RebaselineCommand | RecheckCommand
"""What the core says to the ingest process."""
