"""How well an object is seen, and in which frame it is seen best: there the still is cut."""

from __future__ import annotations

from collections import deque
from math import sqrt

from appliance.types import BestView, Box, FrameBoxes, TrackedObject

_EDGE = 0.01  # share of the frame
_CUT_OFF = 0.5  # weight of a view whose box touches the frame's border: half of the object may be outside
# A track that walks out of view is missed for 3 s before its exit fires: 15 frames, or 180 of the fastest camera.
_FRAMES_MAX = 256


def quality(score: float, box: Box) -> float:
    """Score times the root of the area: sure and large; halved where the frame's edge cuts the object off."""
    x1, y1, x2, y2 = box
    whole = x1 > _EDGE and y1 > _EDGE and x2 < 1 - _EDGE and y2 < 1 - _EDGE
    return score * sqrt(max(0.0, x2 - x1) * max(0.0, y2 - y1)) * (1.0 if whole else _CUT_OFF)


def view_of(found: TrackedObject, t: float) -> BestView:
    return BestView(track=found.track, label=found.label, t=t, score=found.score, box=found.box)


class RecentFrames:
    """The last 256 examined frames, for an event about a track that is no longer in view."""

    def __init__(self) -> None:
        self._frames: deque[FrameBoxes] = deque(maxlen=_FRAMES_MAX)

    def add(self, frame: FrameBoxes) -> None:
        self._frames.append(frame)

    def last_view(self, track: int) -> BestView | None:
        """Return the track as it was last seen; None: not in these frames."""
        for frame in reversed(self._frames):
            for found in frame.objects:
                if found.track == track:
                    return view_of(found, frame.t)
        return None

    def clear(self) -> None:
        self._frames.clear()
