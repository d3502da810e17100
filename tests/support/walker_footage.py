"""Films of a still, noisy place, coded as cameras do, that somebody walks through; and who finds them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.types import Detections

SIZE = (320, 240)
SMALL = (160, 120)
FPS = 15


def place(
    path: Path, seconds: float, visits: Sequence[tuple[float, float]] = (), *, fps: int = FPS, gop: int = 30,
    codec: str = "libx264", noise: float = 1.5, size: tuple[int, int] = SIZE, **options: str
) -> Path:  # fmt: skip
    """A place with sensor noise; during each visit (from, to; seconds) a bright visitor walks from left to right."""
    empty, (width, height) = _empty(noise, size), size
    wide, high, top = width // 16, height * 7 // 30, height * 3 // 8  # of the visitor
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = gop
        stream.options = _options(codec, gop, options)
        for n in range(round(seconds * fps)):
            image = empty.image(n)
            for begin, end in visits:
                if begin <= n / fps < end:
                    x = round((n / fps - begin) / (end - begin) * (width - wide))
                    image[top : top + high, x : x + wide] = 235
            colour = av.VideoFrame.from_ndarray(cv2.cvtColor(image, cv2.COLOR_GRAY2BGR), "bgr24")
            frame = colour.reformat(format=stream.pix_fmt, threads=1)  # several cost twice as much for a small picture
            frame.pts, frame.time_base = n, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


class _Empty:
    """The place while nobody is there, picture by picture: all films have the same, and to make noise is half of the
    work of a film."""

    def __init__(self, noise: float, size: tuple[int, int]) -> None:
        self._chance, self._noise = np.random.default_rng(7), noise
        coarse = self._chance.integers(60, 120, (12, 16)).astype(np.float32)
        self._ground = cv2.resize(coarse, size, interpolation=cv2.INTER_CUBIC)
        self._images: list[NDArray[np.uint8]] = []

    def image(self, n: int) -> NDArray[np.uint8]:
        while len(self._images) <= n:
            noisy = self._ground + self._chance.normal(0, self._noise, self._ground.shape)
            self._images.append(np.clip(noisy, 0, 255).astype(np.uint8))
        return self._images[n].copy()


_empty = functools.lru_cache(maxsize=2)(_Empty)


def _options(codec: str, gop: int, given: dict[str, str]) -> dict[str, str]:
    if codec == "mjpeg":
        return {}
    if codec == "libx265":
        more = "".join(f":{key}={value}" for key, value in given.items())
        more += ":log-level=none:pools=none:frame-threads=1"
        return {"preset": "ultrafast", "x265-params": f"keyint={gop}:min-keyint={gop}:scenecut=0{more}"}
    more = "".join(f":{key}={value}" for key, value in given.items())
    return {"preset": "superfast", "x264-params": f"keyint={gop}:min-keyint={gop}:scenecut=0{more}"}


class WalkerDetector:
    """A detector: what is bright is a person."""

    name = "scripted:lookout"
    warning = ""
    labels: tuple[str, ...] = ("person",)

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [self._look(image[:, :, 1]) for image in images]

    def _look(self, grey: NDArray[np.uint8]) -> Detections:
        bright = grey > 190
        ys, xs = (np.flatnonzero(bright.any(axis=axis)) for axis in (1, 0))
        if np.count_nonzero(bright) < 50:
            return Detections.empty()
        height, width = grey.shape
        box = [xs.min() / width, ys.min() / height, (xs.max() + 1) / width, (ys.max() + 1) / height]
        return Detections(np.array([box], np.float32), np.array([0.9], np.float32), np.zeros(1, np.int32))
