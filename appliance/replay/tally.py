"""What one lane of a replay has counted so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.types import Alert, Event, FrameBoxes, Gap, HealthEvent, LogVerdict, Route, Step


@dataclass(slots=True)
class Tally:
    """Counts of one lane as it goes."""

    size: tuple[int, int] = (0, 0)
    examined: int = 0
    unlooked: int = 0
    boxes: int = 0
    tracks: set[tuple[int, int]] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    suppressed: list[Event] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    verdicts: list[LogVerdict] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    health: dict[str, HealthEvent] = field(default_factory=dict)
    t: float = 0.0

    def look(self, run: int, boxes: FrameBoxes) -> None:
        self.examined += 1
        self.unlooked += not boxes.looked
        self.boxes += len(boxes.objects)
        self.tracks.update((run, found.track) for found in boxes.objects)

    def step(self, step: Step, routes: Sequence[Route]) -> None:
        self.events += step.events
        self.suppressed += step.suppressed
        self.alerts += [change.alert for change in step.changes if change.kind == "ended"]
        self.routes += routes
