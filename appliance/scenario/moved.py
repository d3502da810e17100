"""True boxes moved as the picture was: a camera that trembles shows everybody a little beside where they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from appliance.scenario.truth import TrueFrames, TrueObject
from appliance.types import Box, FrameBoxes
from appliance.weather.lens import offset
from appliance.weather.weather import Weather


def moved(frames: TrueFrames, looks: Iterable[FrameBoxes], weather: Weather, size: tuple[int, int]) -> TrueFrames:
    """The true objects of the frames that were looked at, where they stood in the picture that was looked at.

    size: (width, height) of the footage. Only shaking moves anything; without it the frames come back as they are.
    """
    if not any(each.kind.name == "shake" for each in weather.conditions):
        return frames
    found = {}
    for look in looks:
        x, y = offset(weather, look.frame, look.t)
        objects = (_moved(each, x / size[0], y / size[1]) for each in frames.get(look.frame, ()))
        found[look.frame] = tuple(each for each in objects if each.box[2] > each.box[0] and each.box[3] > each.box[1])
    return found


def _moved(each: TrueObject, x: float, y: float) -> TrueObject:
    x1, y1, x2, y2 = each.box
    box: Box = (_inside(x1 + x), _inside(y1 + y), _inside(x2 + x), _inside(y2 + y))
    return replace(each, box=box)


def _inside(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)
