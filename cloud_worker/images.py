"""Decodes evidence into pixels: JPEG and WebP after a look at the declared size, and frames out of a clip."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from cloud_worker.media_fetch import EvidenceFile, MediaRefused

PIXELS_MAX = 40_000_000  # 120 MB decoded; no camera has more
JPEG_QUALITY = 85  # of what the model is shown; above that only bytes grow
_SOF = frozenset({0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
Pixels = NDArray[np.uint8]
FRAMES_MAX = 900  # a minute at 15 fps; a clip that travels lasts some seconds


def decode_image(file: EvidenceFile) -> Pixels:
    """uint8 (height, width, 3), BGR. Raises MediaRefused; a file that declares too many pixels is not decoded."""
    who = f"{file.ref.kind} {file.ref.id[:8]}"
    size = declared_size(file.data)
    if size is None:
        raise MediaRefused(f"{who}: not a JPEG or WebP picture")
    if size[0] * size[1] > PIXELS_MAX or min(size) < 1:
        raise MediaRefused(f"{who}: a picture of {size[0]}x{size[1]} is refused")
    pixels = cv2.imdecode(np.frombuffer(file.data, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise MediaRefused(f"{who}: the picture is damaged")
    return np.asarray(pixels, np.uint8)


def declared_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that the file's header declares; None when it is neither JPEG nor WebP."""
    try:
        if data[:2] == b"\xff\xd8":
            return _jpeg_size(data)
        if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            return _webp_size(data)
    except (struct.error, IndexError):
        return None
    return None


def shrink(pixels: Pixels, side_max: int) -> Pixels:
    """The image with its longer side at most `side_max`; never larger than it was."""
    height, width = pixels.shape[:2]
    scale = side_max / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def encode_jpeg(pixels: Pixels) -> bytes:
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    if not done:
        raise MediaRefused("the picture cannot be written as JPEG")
    return data.tobytes()


def frames_of(clip: EvidenceFile, count: int) -> list[tuple[float, Pixels]]:
    """`count` frames spread evenly over the clip, first and last included, each with the camera's time.

    Raises MediaRefused when it is no video or declares too large a frame. Bounded: the first FRAMES_MAX frames.
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


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Walk the segments to the frame header (ITU-T T.81, B.2.2)."""
    at = 2
    while at + 9 < len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _SOF:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + int(struct.unpack_from(">H", data, at + 2)[0])
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """The first chunk's size fields (RFC 9649, sections 2.5 to 2.7)."""
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


def _read(
    path: str, who: str, *, pixels: bool = True, wanted: set[int] | None = None
) -> Iterator[tuple[float, Pixels]]:
    """(seconds from the start, pixels) of each frame; only those of `wanted` are decoded, without `pixels` none."""
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
            decode = pixels and (wanted is None or n in wanted)
            done, frame = video.retrieve() if decode else (True, nothing)
            if not done or frame is None:
                return
            yield at_s, np.asarray(frame, np.uint8)
    finally:
        video.release()
