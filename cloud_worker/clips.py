"""Single pictures out of a fetched clip, for models that look at pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import cv2
import numpy as np

from cloud_worker.media import MediaRefused, Picture
from cloud_worker.pictures import PIXELS_MAX, Pixels

FRAMES_MAX = 900  # a minute at 15 fps; a clip that travels lasts some seconds


def frames_of(clip: Picture, count: int) -> list[tuple[float, Pixels]]:
    """`count` pictures spread evenly over the clip, first and last included, each with the camera's time.

    Raises MediaRefused when it is no video or declares too large a picture. Bounded: the first FRAMES_MAX frames.
    """
    who = f"clip {clip.ref.id[:8]}"
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        file.write(clip.data)
        file.flush()
        total = sum(1 for _ in _read(file.name, who, pixels=False))
        count = min(count, total)
        wanted = {round(n * (total - 1) / max(1, count - 1)) for n in range(count)}
        found = [
            (clip.ref.t + at_s, pixels)
            for n, (at_s, pixels) in enumerate(_read(file.name, who, wanted=wanted))
            if n in wanted
        ]
    if not found:
        raise MediaRefused(f"{who}: no picture could be read from it")
    return found


def _read(
    path: str, who: str, *, pixels: bool = True, wanted: set[int] | None = None
) -> Iterator[tuple[float, Pixels]]:
    """(seconds from the start, picture) of each frame; only those of `wanted` are unpacked."""
    nothing = np.zeros((0, 0, 3), np.uint8)
    video = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    try:
        size = video.get(cv2.CAP_PROP_FRAME_WIDTH), video.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if not video.isOpened() or not 0 < size[0] * size[1] <= PIXELS_MAX:
            raise MediaRefused(f"{who}: not a video that can be read")
        for n in range(FRAMES_MAX):
            if not video.grab():
                return
            at_s = max(0.0, video.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            unpack = pixels and (wanted is None or n in wanted)
            done, picture = video.retrieve() if unpack else (True, nothing)
            if not done or picture is None:
                return
            yield at_s, np.asarray(picture, np.uint8)
    finally:
        video.release()
