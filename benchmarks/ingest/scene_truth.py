"""The true objects in the footage of one camera, frame by frame, over all its loops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Box = tuple[float, float, float, float]
VISIBLE_MIN = 0.5
HEIGHT_MIN = 0.06


@dataclass(frozen=True, slots=True)
class Sight:
    """An object in one frame: its visible part's box in shares of the picture, and how much of it is visible."""

    box: Box
    visible: float

    @property
    def counts(self) -> bool:
        """True if it must be found: it is at least half visible and not tiny."""
        return self.visible >= VISIBLE_MIN and self.box[3] - self.box[1] >= HEIGHT_MIN


@dataclass(frozen=True, slots=True)
class Visit:
    """One object from its first frame to its last. sights: by frame of the loop."""

    label: str
    sights: dict[int, Sight]


@dataclass(frozen=True, slots=True)
class Truth:
    """The visits of a loop of `frames` frames at `fps`; a camera that begins at `phase` (frames) plays it for ever."""

    fps: int
    frames: int
    visits: tuple[Visit, ...]
    phase: int = 0

    def shown(self, begin: int, end: int) -> Iterator[Visit]:
        """Yield the visits between two frames counted since the camera began, passes apart, with frames so counted."""
        first, last = (begin + self.phase) // self.frames, (end + self.phase) // self.frames
        for loop in range(first, last + 1):
            shift = loop * self.frames - self.phase
            for visit in self.visits:
                sights = {n + shift: each for n, each in visit.sights.items() if begin <= n + shift < end}
                if sights:
                    yield Visit(visit.label, sights)

    def as_json(self) -> dict[str, Any]:
        visits = [
            {"label": each.label, "sights": [[n, *sight.box, sight.visible] for n, sight in each.sights.items()]}
            for each in self.visits
        ]
        return {"fps": self.fps, "frames": self.frames, "phase": self.phase, "visits": visits}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Truth:
        visits = tuple(
            Visit(each["label"], {n: Sight((x1, y1, x2, y2), seen) for n, x1, y1, x2, y2, seen in each["sights"]})
            for each in data["visits"]
        )
        return cls(data["fps"], data["frames"], visits, data["phase"])
