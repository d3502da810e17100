"""A camera that trembles on its mast. The only effect that moves things, so the truth is moved with it."""

from __future__ import annotations

import cv2
import numpy as np

from appliance.weather.effect import Chance, Now, Stage
from appliance.weather.planes import Plane, Planes

_FRAMES_A_SWAY = 4
_UNITS = 8  # of each picture's pixel, so that halves of the colour planes are exact


class Shake:
    """Moves the picture by at most `px` in each direction, along a way that bends every few frames.

    The way is a function of the frame's number alone; `offset` is public because true boxes must go the same way.
    """

    stage = Stage.MOUNT

    def __init__(self, px: float, chance: Chance) -> None:
        self._px = px
        self._chance = chance

    def offset(self, frame: int) -> tuple[float, float]:
        """(x, y) in pixels, right and down, in eighths."""
        sway, share = divmod(frame, _FRAMES_A_SWAY)
        begin, end = (self._chance.of(each).uniform(-1, 1, 2) for each in (sway, sway + 1))
        ease = (1 - np.cos(np.pi * share / _FRAMES_A_SWAY)) / 2
        x, y = np.rint((begin + (end - begin) * ease) * self._px * _UNITS) / _UNITS
        return float(x), float(y)

    def apply(self, planes: Planes, now: Now) -> Planes:
        x, y = self.offset(now.frame)
        y_plane = _moved(planes.y, x, y)
        return Planes(
            y_plane, _moved(planes.u, x / 2, y / 2), _moved(planes.v, x / 2, y / 2), planes.black, planes.white
        )


def _moved(plane: Plane, x: float, y: float) -> Plane:
    way = np.array([[1, 0, x], [0, 1, y]], np.float32)
    size = (plane.shape[1], plane.shape[0])
    moved = cv2.warpAffine(plane, way, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(moved, np.uint8)
