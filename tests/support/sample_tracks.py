"""Made-up objects for tests of rules, policy and pipeline: feet on a path, looks at a rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.config import CameraConfig
from appliance.types import Event, FrameBoxes, Point, StreamHeader, TrackedObject

YARD = [[0.4, 0.4], [0.8, 0.4], [0.8, 0.9], [0.4, 0.9]]
DOOR = [[0.5, 0.2], [0.5, 0.8]]


def camera(*rules: dict[str, object], **more: object) -> CameraConfig:
    """A camera with the zone `yard` and the line `door` (walked downwards: its left is the right of the screen)."""
    return CameraConfig.model_validate(
        {"url": "file:clip.mp4", "zones": {"yard": YARD}, "lines": {"door": DOOR}, "rules": list(rules), **more}
    )


def header(run: str = "run-1", name: str = "gate") -> StreamHeader:
    return StreamHeader(camera=name, clip="clip.mp4", model="scripted", size=(1000, 1000), run=run)


def person(
    foot: Point, track: int = 1, score: float = 0.8, *, label: str = "person", height: float = 0.2
) -> TrackedObject:
    x, y = foot
    return TrackedObject(track=track, label=label, score=score, box=(x - 0.03, y - height, x + 0.03, y))


def look(t: float, *objects: TrackedObject, looked: bool = True, name: str = "gate") -> FrameBoxes:
    frame = round(t * 10)
    return FrameBoxes(camera=name, seq=frame, frame=frame, t=round(t, 3), looked=looked, objects=objects)


def inferences(
    feet: Sequence[Point | None], t: float = 0.0, every_s: float = 0.2, score: float = 0.8
) -> list[FrameBoxes]:
    """One look after the other at one person; None: it is not found in that look."""
    return [
        look(t + index * every_s, *([] if foot is None else [person(foot, score=score)]))
        for index, foot in enumerate(feet)
    ]


def fired(feed: Callable[[FrameBoxes], tuple[Event, ...]], frames: Sequence[FrameBoxes]) -> list[tuple[str, float]]:
    """(rule, time) of each event that the frames make."""
    return [(event.rule, event.t) for frame in frames for event in feed(frame)]
