"""How steadily each track of a camera was detected: what tells a person from a flicker."""

from __future__ import annotations

import math
from dataclasses import dataclass

from appliance.router.calibration import TrackStability
from appliance.types import Box, FrameBoxes, TrackedObject

TRACKS_MAX = 512  # of one camera; the one unseen for longest goes
DIGITS = 3  # decimals in the row of the decision


@dataclass(slots=True)
class TrackStats:
    """One track so far. mean, square: of its scores (Welford); start: its foot at first; tall: its greatest height."""

    label: str
    box: Box
    t_first: float
    t_last: float
    start: tuple[float, float]
    tall: float
    looks: int = 0
    mean: float = 0.0
    square: float = 0.0
    reach: float = 0.0

    def update(self, found: TrackedObject, t: float, aspect: float) -> None:
        self.looks += 1
        self.box, self.t_last = found.box, max(self.t_last, t)
        change = found.score - self.mean
        self.mean += change / self.looks
        self.square += change * (found.score - self.mean)
        x, y = _foot(found.box)
        self.tall = max(self.tall, found.box[3] - found.box[1])
        self.reach = max(self.reach, math.hypot((x - self.start[0]) * aspect, y - self.start[1]))

    @property
    def moved(self) -> float:
        """How far it got from where it was first seen, in its own heights."""
        return self.reach / max(self.tall, 0.01)

    @property
    def seconds(self) -> float:
        return round(self.t_last - self.t_first, DIGITS)

    @property
    def stability(self) -> TrackStability:
        """Rounded, so that what is logged is what was judged by."""
        return TrackStability(
            score=round(self.mean, DIGITS),
            spread=round(math.sqrt(self.square / self.looks), DIGITS),
            looks=self.looks,
            moved=round(self.moved, DIGITS),
        )


class CameraTrackStats:
    """Tracks of one camera's present run. Owner: its planner.

    Bounded: of TRACKS_MAX the one unseen for longest makes room.
    """

    def __init__(self) -> None:
        self._tracks: dict[int, TrackStats] = {}
        self._aspect = 16 / 9
        self.crowd = 0
        """Objects in the last examined frame."""

    def begin(self, size: tuple[int, int]) -> None:
        """Begin a run: track numbers of before mean others."""
        self._tracks.clear()
        self.crowd = 0
        self._aspect = size[0] / size[1] if min(size) > 0 else 16 / 9

    def observe(self, boxes: FrameBoxes) -> None:
        self.crowd = len(boxes.objects)
        for found in boxes.objects:
            seen = self._tracks.pop(found.track, None)
            if seen is None:
                tall = found.box[3] - found.box[1]
                seen = TrackStats(found.label, found.box, boxes.t, boxes.t, _foot(found.box), tall)
            seen.update(found, boxes.t, self._aspect)
            self._tracks[found.track] = seen
        while len(self._tracks) > TRACKS_MAX:
            del self._tracks[next(iter(self._tracks))]

    def of(self, track: int) -> TrackStats | None:
        return self._tracks.get(track)


def _foot(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, box[3]
