"""A picture as three planes that effects work on, made of a decoded frame and turned into one again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import av
import cv2
import numpy as np
from av.video.reformatter import ColorRange, VideoReformatter
from numpy.typing import NDArray

from appliance.ingest.picture import quarter_turns

Plane = NDArray[np.uint8]
Share = NDArray[np.float32]
GREY = 128


@dataclass(frozen=True, slots=True)
class Planes:
    """An upright picture. y: (H, W), u, v: (H/2, W/2), uint8; black, white: y of the darkest and brightest.

    The arrays are handed on, never written into: what an effect does not change it passes on as it is.
    """

    y: Plane
    u: Plane
    v: Plane
    black: int
    white: int

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)"""
        return self.y.shape[1], self.y.shape[0]

    def with_y(self, y: Plane) -> Planes:
        """Another brightness, held between black and white."""
        if self.black > 0:
            y = np.clip(y, np.uint8(self.black), np.uint8(self.white))
        return replace(self, y=y)

    def with_colour(self, share: float) -> Planes:
        """With `share` of the colour; 0 is grey."""
        return replace(self, u=_towards_grey(self.u, share), v=_towards_grey(self.v, share))

    def level(self, share: float) -> float:
        """y of a brightness 0..1."""
        return self.black + share * (self.white - self.black)


def _towards_grey(plane: Plane, share: float) -> Plane:
    return np.asarray(cv2.convertScaleAbs(plane, alpha=share, beta=GREY * (1 - share)), np.uint8)


class Copies:
    """Makes planes of frames. State: a scaler, costly to make."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def planes(self, frame: av.VideoFrame) -> Planes:
        """Upright, with even sides."""
        width, height = frame.width // 2 * 2, frame.height // 2 * 2
        plain = frame
        if frame.format.name not in ("yuv420p", "yuvj420p") or (width, height) != (frame.width, frame.height):
            plain = self._reformatter.reformat(frame, width, height, "yuv420p")
        flat = np.asarray(plain.to_ndarray(), np.uint8).reshape(-1)
        pixels, quarter, turns = width * height, width * height // 4, quarter_turns(frame)
        y = flat[:pixels].reshape(height, width)
        u = flat[pixels : pixels + quarter].reshape(height // 2, width // 2)
        v = flat[pixels + quarter :].reshape(height // 2, width // 2)
        full = plain.format.name == "yuvj420p" or plain.color_range == ColorRange.JPEG
        y, u, v = (np.ascontiguousarray(np.rot90(plane, turns)) for plane in (y, u, v))
        return Planes(y, u, v, *((0, 255) if full else (16, 235)))


def frame_of(planes: Planes, like: av.VideoFrame) -> av.VideoFrame:
    """A frame with `like`'s colours and time stamp; it is upright, so it has no rotation."""
    width, height = planes.size
    flat = np.concatenate([plane.reshape(-1) for plane in (planes.y, planes.u, planes.v)])
    frame = av.VideoFrame.from_ndarray(flat.reshape(height * 3 // 2, width), format="yuv420p")
    frame.colorspace = like.colorspace
    frame.color_range = ColorRange.JPEG if planes.black == 0 else ColorRange.MPEG
    frame.pts = like.pts
    if like.time_base is not None:
        frame.time_base = like.time_base
    return frame
