"""What a replay found and what it cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from appliance.types import Alert, Event, Gap, HealthEvent, LogVerdict, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One replay of one camera's footage.

    frames: pictures in the footage; skipped: of those, how many were not decoded; examined: frames that were due for a
    look; unlooked: of those, how many the detector did not answer for; boxes: objects in all looks; tracks: different
    ones. footage_s: from the first frame to the last. decode_errors: packets that could not be decoded; time_jumps:
    places where the clip's time stamps made no sense. wall_s and cpu_s are never written to the log; of cameras that
    were replayed together each has those of the whole. error: why the footage could not be read to its end.

    routes: what the router decided; sent_bytes: what asking would put on the uplink (see `Route`); footage_bytes: the
    size of the footage. behind_s: how far a paced replay fell behind. remembered: looks taken from a killed replay.

    answered_by: who answered the questions, in words ("": nobody was to). verdicts: what they said; a question of
    `routes` without one has no answer, see `unanswered`. weather: what was made of the footage, in words ("": nothing).
    health: what was wrong with the picture, each as it was last told.
    """

    clip: str
    camera: str
    model: str
    run: str
    size: tuple[int, int]
    frames: int
    examined: int
    unlooked: int
    boxes: int
    tracks: int
    events: tuple[Event, ...]
    suppressed: tuple[Event, ...]
    alerts: tuple[Alert, ...]
    footage_s: float
    wall_s: float
    cpu_s: float
    decode_errors: int
    time_jumps: int
    error: str | None = None
    routes: tuple[Route, ...] = ()
    gaps: tuple[Gap, ...] = ()
    sent_bytes: int = 0
    footage_bytes: int = 0
    behind_s: float = 0.0
    remembered: int = 0
    answered_by: str = ""
    verdicts: tuple[LogVerdict, ...] = ()
    unanswered: int = 0
    weather: str = ""
    health: tuple[HealthEvent, ...] = ()
    skipped: int = 0


def sent_bytes(routes: Iterable[Route], verdicts: Iterable[LogVerdict]) -> int:
    """What asking would put on the uplink: the questions, and what their judges asked to see beyond."""
    return sum(route.bytes for route in routes) + sum(verdict.more_bytes for verdict in verdicts)


def unanswered(routes: Iterable[Route], verdicts: Iterable[LogVerdict]) -> int:
    """Questions that nobody answered, where somebody was to."""
    return len({route.alert for route in routes if route.ask} - {verdict.alert for verdict in verdicts})
