"""The lines that only a replay log has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from appliance.types.events import Alert, Event, Route
from appliance.types.frames import FrameBoxes, StreamHeader
from appliance.types.ingest_messages import Gap, HealthEvent
from appliance.types.literals import Decision, JudgeKind


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
