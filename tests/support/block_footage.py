"""Small films of one bright block, a detector that finds it, and a site that watches it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import DetectorError
from appliance.config import SiteConfig
from appliance.types import Detections

WIDTH, HEIGHT, FPS = 320, 240, 10
BLOCK = (24, 60)


def block_clip(path: Path, seconds: float, left_of: Callable[[float], float | None]) -> Path:
    """A film in which a block stands at x = left_of(t) (share of the width); None: it is not there."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"qscale": "2"}
        for index in range(round(seconds * FPS)):
            image = np.full((HEIGHT, WIDTH, 3), 40, np.uint8)
            left = left_of(index / FPS)
            if left is not None:
                x = round(left * WIDTH)
                image[100 : 100 + BLOCK[1], x : x + BLOCK[0]] = 230
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "bgr24")))
        container.mux(stream.encode(None))
    return path


class BrightBlock:
    """A detector: the bright part of a picture is a person. `fails`: how many looks it first leaves unanswered."""

    name = "scripted:bright-block"
    warning = ""
    labels: tuple[str, ...] = ("person",)

    def __init__(self, fails: int = 0) -> None:
        self._fails = fails

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        self._fails -= 1
        if self._fails >= 0:
            raise DetectorError("scripted to fail")
        return [self._look(image) for image in images]

    def _look(self, image: NDArray[np.uint8]) -> Detections:
        bright = image[:, :, 1] > 150
        ys, xs = (np.flatnonzero(bright.any(axis=axis)) for axis in (1, 0))
        if len(xs) == 0:
            return Detections.empty()
        height, width = image.shape[:2]
        box = [xs.min() / width, ys.min() / height, (xs.max() + 1) / width, (ys.max() + 1) / height]
        return Detections(np.array([box], np.float32), np.array([0.9], np.float32), np.zeros(1, np.int32))


def site(detector: str = "builtin:hog", **camera: object) -> SiteConfig:
    """One camera `gate`: the right half is the zone `yard`, its border the line `door`, walked upwards."""
    watched: dict[str, object] = {
        "url": "file:clip.mp4",
        "zones": {"yard": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]},
        "lines": {"door": [[0.5, 1.0], [0.5, 0.0]]},
        "rules": [
            {"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert"},
            {"name": "leaver", "kind": "exit", "zone": "yard"},
            {"name": "loiterer", "kind": "dwell", "zone": "yard", "seconds": 2},
            {"name": "in", "kind": "line", "line": "door", "direction": "left_to_right"},
            {"name": "out", "kind": "line", "line": "door", "direction": "right_to_left"},
        ],
    }
    return SiteConfig.model_validate({"detector": {"model": detector}, "cameras": {"gate": {**watched, **camera}}})
