"""For pictures that are not parts of one: each is handed over in the size in which the detector wants a whole one."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.detect.wrapper import Wrapper
from appliance.types import Detections


class Whole(Wrapper):
    """An ObjectDetector that enlarges small pictures too.

    A detector of free shape takes a small picture for a part of one and keeps its scale; whoever looks at stills and
    cut-outs of any size (a second look, a labelled set) wants them as large as it can see them.
    """

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        """As the detector's own, each picture filling its input."""
        return self._detector.detect([self._enlarged(picture) for picture in pictures])

    def _enlarged(self, picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if picture.ndim != 3 or picture.size == 0:
            return picture  # the detector says what is wrong with it
        size = self._detector.picture_size(picture.shape[1], picture.shape[0])
        if size[0] <= picture.shape[1]:
            return picture
        return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR), np.uint8)
