"""What a rule fired for, and the incident that a person reviews."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from appliance.types.words import Box, Decision, EventKind, Severity


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
