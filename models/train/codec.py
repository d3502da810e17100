"""Adds the artefacts of H.264: encodes a picture with a real encoder and decodes it, as the second of two frames.

PyAV is needed for it; on a machine without, pictures go through JPEG instead and a warning says so once.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from typing import Any

import numpy as np

from models.train import looks
from models.train.picture import Pixels

av: Any = None
with contextlib.suppress(ImportError):  # a borrowed GPU machine may have PyTorch and OpenCV only
    av = importlib.import_module("av")

log = logging.getLogger(__name__)
FPS = 10


def warn() -> None:
    """Tell, once a run, what this machine cannot do."""
    if av is None:
        log.warning("PyAV is not installed: H.264 artefacts are left out, pictures meant for them go through JPEG")


def h264(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Return `pixels` (even sides) as a predicted frame of a starved stream. The same libx264 gives the same bytes."""
    quantiser, drift = int(rng.integers(28, 44)), tuple(int(value) for value in rng.integers(-3, 4, 2))
    if av is None:
        return looks.jpeg(pixels, rng)
    before = np.roll(pixels, drift, axis=(0, 1))
    frames = _decoded(_coded((before, pixels), quantiser))
    return frames[-1] if len(frames) == 2 else pixels


def _coded(pictures: tuple[Pixels, ...], quantiser: int) -> list[Any]:
    height, width = pictures[0].shape[:2]
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.framerate, encoder.thread_count = FPS, 1
    encoder.options = {"preset": "superfast", "tune": "zerolatency", "qp": str(quantiser)}
    packets = []
    for number, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(picture, "bgr24")
        frame.pts = number
        packets += encoder.encode(frame)
    return [*packets, *encoder.encode(None)]


def _decoded(packets: list[Any]) -> list[Pixels]:
    decoder = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    frames = [frame for packet in packets for frame in decoder.decode(packet)]
    frames += decoder.decode(None)
    return [np.asarray(frame.to_ndarray(format="bgr24"), np.uint8) for frame in frames]
