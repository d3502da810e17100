"""What a replay found and what it cost."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.types import Alert, Event, Gap, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """One replay of one camera's footage.

    frames: pictures decoded; examined: frames that were due for a look; unlooked: of those, how many the detector
    did not answer for; boxes: objects in all looks; tracks: different ones. footage_s: from the first frame to the
    last. decode_errors: packets that could not be decoded; time_jumps: places where the clip's time stamps made no
    sense. wall_s and cpu_s are never written to the log; of cameras that were replayed together each has those of the
    whole. error: why the footage could not be read to its end.

    routes: what the router decided; sent_bytes: what asking would put on the uplink (see `Route`); footage_bytes: the
    size of the footage. behind_s: how far a paced replay fell behind. remembered: looks taken from a killed replay.
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
