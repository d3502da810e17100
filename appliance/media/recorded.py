"""Defines the recording's segments, clips and images as plain values.

A caller that only asks for them loads this and neither FFmpeg nor OpenCV nor numpy, which are 25 MB in a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.base.local_files import WrittenFile
from appliance.types import Box, Point

ROUNDING_S = 0.001  # times are stored rounded to a millisecond
JPEG_QUALITY = 85  # OpenCV's own is 95, of more bytes
RENDITION_HEIGHT_MAX = 720  # lines: a CPU encodes them in real time
PERCENT = 100  # hundredths in one
CLIP_BYTES_MAX = 512 * 1024 * 1024  # a cut stretch in the page's folder: ten minutes at 6 Mbit/s

FramePart = Literal["frame", "crop", "region"]


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """A segment on disk. Times are the camera's; nothing after `t_end` is read (it may be half written)."""

    path: Path
    t_start: float
    t_end: float


@dataclass(frozen=True, slots=True)
class ClipFile:
    """A finished clip. A player at `currentTime` shows camera time `t_start + currentTime`.

    note: what is missing of the requested span, for a person; "" if nothing is. codec: as FFmpeg names its decoder.
    """

    t_start: float
    t_end: float
    size: tuple[int, int]
    frames: int
    written: WrittenFile
    note: str
    codec: str = ""
    sound: bool = False


@dataclass(frozen=True, slots=True)
class Redaction:
    """The parts of an image that are hidden, all coordinates as shares of the frame.

    Attributes:
        blur: "people": those in `others`; "surroundings": everything but `own`; "none".
        masks: polygons that are painted over.
        others: boxes of people who are not of the alert; None: nobody knows, so that "people" hides as "surroundings".
        own: boxes of the alert's objects, which stay visible.
    """

    blur: Literal["none", "people", "surroundings"]
    masks: tuple[tuple[Point, ...], ...]
    others: tuple[Box, ...] | None
    own: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class ExaminedMoment:
    """The objects in an examined frame at camera time `t`, boxes as shares of the frame.

    Attributes:
        own: the track's key and box of each object that stays visible.
        others: boxes of people who are to be hidden.
    """

    t: float
    own: tuple[tuple[str, Box], ...]
    others: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class ClipRedaction:
    """The parts of a clip that become a mosaic, and `masks`, polygons that are painted over.

    Attributes:
        hide: "surroundings": everything outside the boxes in `own`; "people": the boxes in `others`, and everything
            outside `own` at a time that no examined frame is near to.
        moments: oldest first.
    """

    hide: Literal["surroundings", "people"]
    masks: tuple[tuple[Point, ...], ...]
    moments: tuple[ExaminedMoment, ...]


@dataclass(frozen=True, slots=True)
class ImageOrder:
    """An image that is to be made of a frame.

    Attributes:
        part: the whole frame; a "crop" around `box` for people; a "region", the square around it that shows more.
        side_max: pixels of its longer side; None: as the frame has them. It is never enlarged.
        quality: of JPEG.
        webp_bytes_max: WebP of at most so many bytes, instead of JPEG.
        redaction: done before anything is cut; None: nothing is hidden.
    """

    part: FramePart = "frame"
    box: Box | None = None
    side_max: int | None = None
    quality: int = JPEG_QUALITY
    webp_bytes_max: int | None = None
    redaction: Redaction | None = None


@dataclass(frozen=True, slots=True)
class FrameImage:
    """An image that was made of a frame.

    Attributes:
        data: JPEG or WebP, as ordered.
        size: (width, height) in pixels.
        region: the part of the frame that it shows, in shares, where a region was ordered.
        problem: why it could not be made; "" where it was.
    """

    data: bytes
    size: tuple[int, int]
    region: Box | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FrameImages:
    """The images made of the frame at camera time `t`, in the order of their orders. size: of the frame."""

    t: float
    size: tuple[int, int]
    images: tuple[FrameImage, ...]


def progress_path(path: Path) -> Path:
    """Return the path of a file that grows by a byte for each hundredth of the rendition `path` that is done."""
    return path.with_suffix(".progress")


def even_size(width: int, height: int, height_max: int = RENDITION_HEIGHT_MAX) -> tuple[int, int]:
    """Return the (width, height) of a rendition: of the same shape, within `height_max` lines.

    Encoders take even numbers only.
    """
    scale = min(1.0, height_max / max(1, height))
    return max(2, round(width * scale / 2) * 2), max(2, round(height * scale / 2) * 2)
