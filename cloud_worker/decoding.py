"""Decodes images and clips of unknown origin, in a sandbox (see `evidence`): bytes in, pixels out."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = "40000000"  # read when OpenCV is loaded: the second check of PIXELS_MAX
os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "protocol_whitelist;file"

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import VedetteError

PIXELS_MAX = 40_000_000  # 120 MB decoded; no camera has more
CLIP_PIXELS_MAX = 9_000_000  # 4096x2160; a decoder holds some twenty frames
FRAMES_MAX = 900  # a minute at 15 fps; a clip that travels lasts some seconds
_SOF = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_BARE = frozenset(
    {0x01, *range(0xD0, 0xDA)}
)  # markers without a length; none of them may stand before the frame header
Pixels = NDArray[np.uint8]


class Undecodable(VedetteError):
    """It is not what it says it is, or too large; the text says what."""


def image(data: bytes) -> list[object]:
    """Return [width, height, pixels], BGR. Raise Undecodable.

    A file that declares too many pixels is not decoded.
    """
    size = declared_size(data)
    if size is None:
        raise Undecodable("not a JPEG or WebP picture")
    if size[0] * size[1] > PIXELS_MAX or min(size) < 1:
        raise Undecodable(f"a picture of {size[0]}x{size[1]} is refused")
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error as error:
        raise Undecodable("the picture is damaged, or larger than it says") from error
    if pixels is None:
        raise Undecodable("the picture is damaged")
    return [pixels.shape[1], pixels.shape[0], pixels.tobytes()]


def frames(path: str, count: int, side_max: int) -> list[list[object]]:
    """Return `count` frames spread evenly over the clip, first and last included.

    Each is a list: seconds from the clip's start, width, height, pixels, and whether it was shrunk to `side_max`. Raise
    Undecodable when the file is no video or declares too large a frame. The work is bounded: only the first FRAMES_MAX
    frames are read.
    """
    total = sum(1 for _ in _read(path, pixels=False))
    count = min(count, total)
    wanted = {round(n * (total - 1) / max(1, count - 1)) for n in range(count)}
    found: list[list[object]] = []
    for n, (at_s, pixels) in enumerate(_read(path, wanted=wanted)):
        if n in wanted:
            small = shrink(pixels, side_max)
            found.append([at_s, small.shape[1], small.shape[0], small.tobytes(), small.shape != pixels.shape])
    if not found:
        raise Undecodable("no picture could be read from it")
    return found


def shrink(pixels: Pixels, side_max: int) -> Pixels:
    """Return the image with its longer side at most `side_max`; never enlarge it."""
    height, width = pixels.shape[:2]
    scale = side_max / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def declared_size(data: bytes) -> tuple[int, int] | None:
    """Return the (width, height) that the file's header declares; None when it is neither JPEG nor WebP."""
    try:
        if data[:2] == b"\xff\xd8":
            return _jpeg_size(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp_size(data)
    except (struct.error, IndexError):
        return None
    return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk the segments to the frame header (ITU-T T.81, B.2.2).

    libjpeg skips a marker without a length (B.1.1.3); a walk that takes the next two bytes for one lands elsewhere, and
    finds another frame header there: such a file is not read at all.
    """
    at = 2
    while at + 9 < len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _BARE:
            return None
        if marker in _SOF:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        length = int(struct.unpack_from(">H", data, at + 2)[0])
        if length < 2:
            return None
        at += 2 + length
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Read the size fields of the first chunk (RFC 9649, sections 2.5 to 2.7)."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + ((bits >> 14) & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


def _read(path: str, *, pixels: bool = True, wanted: set[int] | None = None) -> Iterator[tuple[float, Pixels]]:
    """Yield (seconds from the start, pixels) of each frame.

    Only those of `wanted` are decoded, and none without `pixels`.
    """
    nothing = np.zeros((0, 0, 3), np.uint8)
    video = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    try:
        size = video.get(cv2.CAP_PROP_FRAME_WIDTH), video.get(cv2.CAP_PROP_FRAME_HEIGHT)
        if not video.isOpened() or not size[0] * size[1] > 0:
            raise Undecodable("not a video that can be read")
        if size[0] * size[1] > CLIP_PIXELS_MAX:
            raise Undecodable(f"a video of {size[0]:.0f}x{size[1]:.0f} is refused")
        for n in range(FRAMES_MAX):
            if not video.grab():
                return
            at_s = max(0.0, video.get(cv2.CAP_PROP_POS_MSEC) / 1000)
            decode = pixels and (wanted is None or n in wanted)
            done, frame = video.retrieve() if decode else (True, nothing)
            if not done or frame is None:
                return
            if frame.shape[0] * frame.shape[1] > CLIP_PIXELS_MAX:  # a new size in the middle of the stream
                raise Undecodable(f"a frame of {frame.shape[1]}x{frame.shape[0]} is refused")
            yield at_s, np.asarray(frame, np.uint8)
    finally:
        video.release()
