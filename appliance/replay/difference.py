"""What differs between two replay logs, as values; `diff` finds it, `diff_words` says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.types import Decision, Point

Change = Literal["missing", "new", "changed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackChange:
    """begin_s, end_s: by how much later the second log begins and ends it. goes_on: the track of the other log that was
    in its place, where one object has two tracks in one log and one in the other."""

    camera: str
    change: Change
    track: int
    other: int | None = None
    label: str
    other_label: str = ""
    t_start: float
    t_end: float
    near: Point
    begin_s: float = 0.0
    end_s: float = 0.0
    goes_on: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventChange:
    """moved_s: by how much later the second log tells it."""

    camera: str
    change: Change
    rule: str
    label: str
    track: int
    t: float
    moved_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertChange:
    """what: in words, for one that changed."""

    camera: str
    change: Change
    rules: tuple[str, ...]
    t: float
    what: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictChange:
    """What the cloud said of an alert that is in both logs; None: nothing."""

    camera: str
    rules: tuple[str, ...]
    t: float
    before: Decision | None
    after: Decision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts of one log."""

    looks: int
    tracks: int
    events: int
    alerts: int
    questions: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """All of it. same: the same was decided, whatever the settings; first_t: the first moment that differs, at
    first_camera. looks_changed: looks of both logs whose boxes are not the same. notes: what a reader must know."""

    before: str
    after: str
    same: bool
    settings: tuple[str, ...]
    notes: tuple[str, ...]
    first_t: float | None
    first_camera: str
    looks_changed: int
    looks_shared: int
    tracks: tuple[TrackChange, ...]
    events: tuple[EventChange, ...]
    alerts: tuple[AlertChange, ...]
    routes: tuple[str, ...]
    total_before: Totals
    total_after: Totals
    verdicts: tuple[VerdictChange, ...] = ()
