"""What can be seen in one small brightness plane alone: whether it is black, and since when it has not changed."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Plane = NDArray[np.uint8]

BLACK_MAX = 32  # of 255, where video black is 16: under 8 % of the way to white
BLACK_SHARE = 0.99  # a lamp or the burnt-in clock may be brighter
FLAT_MAX = 6.0
STEP_MIN = 2
STILL_SHARE = 0.02
_EDGE_ROWS = 8  # of ten: the burnt-in clock may go on above a frozen picture


def is_black(plane: Plane) -> bool:
    """Nearly all of it is as dark as video gets, and nothing stands out of it. plane: uint8 (H, W)."""
    bright = np.count_nonzero(plane > BLACK_MAX)
    if bright > (1 - BLACK_SHARE) * plane.size:
        return False
    deviation = float(cv2.meanStdDev(plane)[1][0, 0])
    return deviation <= FLAT_MAX


class Stillness:
    """Since when a picture has not changed. State: the plane and time at which it last had.

    A living sensor's noise moves some pixels all the time: of the quietest real footage at hand at least a tenth of
    the pixels are two levels or more away from where they were 7 s before (see docs/health.md); what is frozen stays
    where it is, but for a few pixels when the encoder makes a key frame of it. Rows at the top and bottom do not
    count: cameras write the time there.
    """

    def __init__(self) -> None:
        self._anchor: Plane | None = None
        self._since = 0.0

    def since(self, t: float, plane: Plane) -> float:
        """The time at which the picture became what it is now; `t` when it has just changed."""
        margin = plane.shape[0] // _EDGE_ROWS
        middle = plane[margin:-margin]
        if self._anchor is None or t < self._since or self._anchor.shape != middle.shape:
            self._keep(t, middle)
        else:
            changed = np.count_nonzero(cv2.absdiff(middle, self._anchor) >= STEP_MIN)
            if changed > STILL_SHARE * middle.size:
                self._keep(t, middle)
        return self._since

    def _keep(self, t: float, middle: Plane) -> None:
        self._anchor, self._since = middle.copy(), t
