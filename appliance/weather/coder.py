"""What is lost between the sensor and us: resolution, compression, everything."""

from __future__ import annotations

import cv2
import numpy as np

from appliance.weather.effect import Now, Stage
from appliance.weather.planes import Plane, Planes


class Scale:
    """A picture of `factor` times the sides. Boxes are shares of the picture, so the truth stays as it is."""

    stage = Stage.SENSOR

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def apply(self, planes: Planes, now: Now) -> Planes:
        width, height = (max(32, round(side * self._factor) // 2 * 2) for side in planes.size)
        y = cv2.resize(planes.y, (width, height), interpolation=cv2.INTER_AREA)
        u, v = (cv2.resize(p, (width // 2, height // 2), interpolation=cv2.INTER_AREA) for p in (planes.u, planes.v))
        return Planes(
            np.asarray(y, np.uint8), np.asarray(u, np.uint8), np.asarray(v, np.uint8), planes.black, planes.white
        )


class Compression:
    """Compressed and opened again, as JPEG: blocks, ringing, lost colour, without the memory that a film codec has."""

    stage = Stage.CODER

    def __init__(self, quality: float) -> None:
        self._options = [cv2.IMWRITE_JPEG_QUALITY, round(quality)]

    def apply(self, planes: Planes, now: Now) -> Planes:
        # Each plane on its own is what a JPEG does inside, and spares two conversions of colour.
        y, u, v = (self._squeezed(plane) for plane in (planes.y, planes.u, planes.v))
        return Planes(planes.y, u, v, planes.black, planes.white).with_y(y)

    def _squeezed(self, plane: Plane) -> Plane:
        _, data = cv2.imencode(".jpg", plane, self._options)
        opened = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
        assert opened is not None, "OpenCV opens what it wrote"
        return np.asarray(opened, np.uint8)


class Black:
    """Nothing but black."""

    stage = Stage.CODER

    def apply(self, planes: Planes, now: Now) -> Planes:
        grey = np.full_like(planes.u, 128)
        return Planes(np.full_like(planes.y, planes.black), grey, grey, planes.black, planes.white)
