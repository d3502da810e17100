"""Messages of the ingest process beside boxes: camera state, segments, counters, health; re-checks and commands."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from appliance.types.frames import FrameBoxes, StreamHeader
from appliance.types.literals import Box, CameraStateName, Decision, DecodeState, DropReason, HealthKind, SegmentKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CropRequest:
    """Examine the surroundings of `box`, where the flagged object was detected, in the frame of time `t`."""

    t: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class FootageSpan:
    """A recorded segment: its path in the storage folder, and from when to when (camera time) it is readable."""

    path: str
    t_start: float
    t_end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckCommand:
    """To the ingest process: re-check one alert's object. id: comes back with the result.

    label, enough: if the first crop shows this label at its place with a score of `enough` or more, the others are not
    examined; above 1, all are. images: JPEG as base64, in which all is detected instead; a result each.
    """

    type: Literal["second_look"] = "second_look"
    id: str
    camera: str
    glimpses: tuple[CropRequest, ...]
    footage: tuple[FootageSpan, ...]
    label: str = ""
    enough: float = 2.0
    images: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckDetection:
    """One object, its box in shares of the whole frame."""

    label: str
    score: float
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class CropResult:
    """The detections around the box of one CropRequest, whose t and `box` it repeats."""

    t: float
    box: Box
    found: tuple[RecheckDetection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecheckResult:
    """The result of a recheck.

    error: why it failed, in a sentence; then `sightings` means nothing, and never "nothing there". ms: from its
    beginning to the last inference, waiting for the detector included.
    """

    type: Literal["second_sight"] = "second_sight"
    id: str
    camera: str
    model: str = ""
    ms: float = 0.0
    sightings: tuple[CropResult, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeVerdict:
    """The appliance's own verdict on an alert after a re-check; a person's or a language model's stands above it.

    decision: rechecked or unsure; a detector confirms nothing, and the appliance withdraws no alert by itself.
    confidence: the chance that the alert is right, 0..1. why: what kept the cloud from answering. seen: in so many of
    the `looks` crops the object was detected; score: the mean of its scores there, 0 where it was not. ms: see
    RecheckResult.
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


@dataclass(frozen=True, slots=True)
class MeasuredSegment:
    """Readable part of a segment: seconds from its first frame to the end of its last, and how many frames.

    bytes: the length to which the file was cut because its end was not readable; None: it was left as it is.
    """

    seconds: float
    frames: int
    codec: str
    size: tuple[int, int]
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Nothing was received, or nothing could be recorded, between two times. `t_end` None while it lasts."""

    type: Literal["gap"] = "gap"
    camera: str
    t_start: float
    t_end: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class DecodeStatus:
    """The decoding of a camera: which of its packets are decoded now, and why, where there is a reason.

    behind_s: how late packets are read; in a meter message, the most since the one before. promised_fps, examined_fps:
    inferences a second that were due, and that came, in the last seconds; None: not known. decoder: `software`, or
    which hardware decodes; '': nothing decodes.
    """

    state: DecodeState
    reason: str = ""
    behind_s: float = 0.0
    promised_fps: float | None = None
    examined_fps: float | None = None
    decoder: str = "software"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectCounts:
    """The counts of what is decoded and examined of a camera, over any time.

    decoded, examined: frames. unexamined: frames that were due for an inference and did not get one; dropped: the same
    by reason. skipped: packets that were never decoded. ages: how many of the frames that reached the tracker were how
    old: a count for each of AGE_EDGES_MS and one above them, then the sum in milliseconds. retries: inferences that
    were requested once more because the detector failed. decoder_failures: of the hardware decoder.
    """

    decoded: int
    examined: int
    unexamined: int
    dropped: Mapping[DropReason, int] = field(default_factory=dict)
    skipped: int = 0
    ages: tuple[int, ...] = ()
    retries: int = 0
    decoder_failures: int = 0

    def __add__(self, other: DetectCounts) -> DetectCounts:
        return self._each(operator.add, other)

    def since(self, before: DetectCounts) -> DetectCounts:
        """Return what came to `before`; reasons of which nothing came are left out."""
        return self._each(operator.sub, before)

    def _each(self, of: Callable[[int, int], int], other: DetectCounts) -> DetectCounts:
        dropped = {
            reason: of(self.dropped.get(reason, 0), other.dropped.get(reason, 0))
            for reason in {**self.dropped, **other.dropped}
        }
        return DetectCounts(
            decoded=of(self.decoded, other.decoded),
            examined=of(self.examined, other.examined),
            unexamined=of(self.unexamined, other.unexamined),
            dropped={reason: count for reason, count in dropped.items() if count},
            skipped=of(self.skipped, other.skipped),
            ages=tuple(of(*pair) for pair in zip_longest(self.ages, other.ages, fillvalue=0)),
            retries=of(self.retries, other.retries),
            decoder_failures=of(self.decoder_failures, other.decoder_failures),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraMeter:
    """The work of a camera since the previous meter message: differences, about one message a second per camera."""

    type: Literal["meter"] = "meter"
    camera: str
    t: float
    received: int
    """Bytes from the camera's socket: TCP payload as the kernel counted it (`exact`), else the sum of packet sizes."""
    exact: bool
    packets: int
    reconnects: int = 0
    detect_received: int = 0
    """Bytes of `received` that came as a second stream to detect on; 0 where there is one stream."""
    unrecorded: int = 0
    """Packets that the recorder could not keep."""
    detect: DetectCounts
    decoding: DecodeStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestHealth:
    """A sign of life of the ingest process, about one a second.

    load: share of the time in which the detector was at work. age_p95_ms: of the frames that reached the
    trackers in the last seconds, without those decoded late. hardware: that decodes, and its sessions; '': none was
    asked for.
    """

    type: Literal["health"] = "health"
    t: float
    detector_ms: float
    queue: int
    rss_bytes: int
    warning: str = ""
    load: float = 0.0
    age_p95_ms: float = 0.0
    hardware: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """A fault of a camera (or, with camera "", of the appliance); emitted again when it changes.

    t: when this was emitted, t_start when it began, t_end when it was over (None while it lasts). reason: one sentence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureCommand:
    """To the ingest process: run these cameras from now on; those that are as they were are not touched.

    cameras: the section of the site file, its variables expanded.
    """

    type: Literal["configure"] = "configure"
    cameras: Mapping[str, object]


CACHES, RINGS = 1, 2
"""Steps against lack of memory, each with those before it; see appliance/health/load_shedding.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShedLoadCommand:
    """To the ingest process: do less from now on, or all of it again.

    fps_share: of the detections a second that a camera gets while something moves; input_share: of the sides of what
    the detector is shown of a whole frame. memory_step: 0: nothing, else CACHES or RINGS.
    """

    type: Literal["shed_load"] = "shed_load"
    fps_share: float = 1.0
    input_share: float = 1.0
    memory_step: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworksCommand:
    """To the ingest process: examine by these networks, which are loaded beside those in force while frames go on.

    id: comes back with the answer. networks: by name, "" for all cameras that `cameras` does not name; the settings of
    one that is to be loaded (a `detector` section that leaves nothing open), None: the one that is loaded stays.
    """

    type: Literal["networks"] = "networks"
    id: str
    networks: Mapping[str, Mapping[str, object] | None]
    cameras: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworksAnswer:
    """The outcome of a NetworksCommand: in force from the next frame of each camera on; refused, or only by a restart.

    With the last two, what was in force still is.
    """

    type: Literal["networks"] = "networks"
    id: str
    outcome: Literal["in force", "refused", "restart"]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCommand:
    """To the ingest process: hand over the next frame of a camera that is examined as a whole, with the answer.

    id: comes back with it. side: of the frame's longer side, pixels, that another network wants to see.
    """

    type: Literal["sample"] = "sample"
    id: str
    camera: str
    side: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledFrame:
    """A frame that was examined, and what was found. Its pixels are in memory (`ingest.networks`).

    size: (width, height) of the pixels. calibration: as in StreamHeader. error: why there are no pixels.
    """

    type: Literal["sample"] = "sample"
    id: str
    camera: str
    t: float
    model: str
    size: tuple[int, int] = (0, 0)
    objects: tuple[RecheckDetection, ...] = ()
    calibration: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    error: str = ""


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
    | NetworksAnswer
    | SampledFrame
)
Command = RebaselineCommand | RecheckCommand | ConfigureCommand | ShedLoadCommand | NetworksCommand | SampleCommand
"""Messages from the core to the ingest process."""
