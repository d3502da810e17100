"""The result of a scenario: whether it passed, its figures, and each fault in words with the frames that show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.replay.footage_conditions import describe_conditions
from appliance.scenario.expectations import NO_MATCHES, EventMatches
from appliance.scenario.loss_attribution import CulpritName
from appliance.scenario.metrics import EventFigures, TrackFigures
from appliance.types import Alert, Box, Point, TrackedObject

ScenarioStatus = Literal["passed", "failed", "skipped", "known failing"]
FaultKind = Literal["miss", "false alarm", "limit", "figure", "footage", "mark"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMoment:
    """A frame that the report shows. focus: the track that is meant, None without a detection.

    truth: the true box of the object, if that is known.
    """

    camera: str
    t: float
    frame: int
    objects: tuple[TrackedObject, ...] = ()
    focus: int | None = None
    truth: Box | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that was wrong. t: seconds of the clip to seek to; fails: False where only a required share decides.

    title: what; detail: why, as far as the detections tell; source: the entry of the file that expected it. culprit: of
    a miss, the part of the pipeline that decided; "": none was looked for.
    """

    kind: FaultKind
    title: str
    detail: str = ""
    culprit: CulpritName | Literal[""] = ""
    source: str = ""
    note: str = ""
    camera: str = ""
    t: float | None = None
    zone: str = ""
    line: str = ""
    fails: bool = True
    moments: tuple[FaultMoment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedCamera:
    """One camera's part: its footage, its alerts, and the zones and lines that its rules use."""

    camera: str
    clip: Path
    size: tuple[int, int]
    footage_s: float
    frames: int
    examined: int
    alerts: tuple[Alert, ...]
    zones: tuple[tuple[str, tuple[Point, ...]], ...]
    lines: tuple[tuple[str, tuple[Point, Point]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResult:
    """One scenario's outcome. reason: why it was skipped, or is known to fail.

    judged_by: what answered its escalations, as text. weather: the conditions put on the footage, as
    `ConditionSet.parse` takes them. wall_s: how long the run took.
    """

    name: str
    file: Path
    note: str
    status: ScenarioStatus
    reason: str = ""
    model: str = ""
    faults: tuple[Fault, ...] = ()
    judgement: EventMatches = NO_MATCHES
    events: EventFigures | None = None
    tracks: TrackFigures | None = None
    bytes: int = 0
    watched: tuple[WatchedCamera, ...] = ()
    wall_s: float = 0.0
    judged_by: str = ""
    weather: tuple[str, ...] = ()
    seed: int = 0

    @property
    def conditions_text(self) -> str:
        """The conditions put on the footage, for people who read the report; "" without any."""
        return describe_conditions(self.weather, self.seed)

    @property
    def failures(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.fails)

    @property
    def text(self) -> str:
        """All faults, as terminal, JUnit and pytest show them."""
        return "\n".join(line for fault in self.faults for line in fault_lines(fault))


def fault_lines(fault: Fault) -> list[str]:
    """`missed at 0:12.0: …`, and below it why and which entry expected it."""
    tail = " ".join(part for part in (f"[{fault.source}]" if fault.source else "", fault.note) if part)
    counted = "" if fault.fails else " (counted, does not fail by itself)"
    return [f"{fault.title}{counted}", *(f"  {line}" for line in (fault.detail, tail) if line)]
