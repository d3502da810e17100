"""Makes a clip that may be handed over: H.264 without sound, in which a mosaic hides what is nobody's business.

Outside the boxes that stay visible, every pixel of a frame is replaced by the mean of a large square of it before the
encoder sees the frame, so neither a still of the clip nor the sequence of its frames shows more. Nothing depends on
whether a detector found what is hidden. It runs in the media sandbox.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from av.error import FFmpegError, InvalidDataError
from numpy.typing import NDArray

from appliance.base.errors import EvidenceError
from appliance.base.local_files import discard_temporary, failed_clip, finish_file, temporary_path
from appliance.media.frames import at_host, quarter_turns
from appliance.media.recorded import (
    PERCENT,
    ROUNDING_S,
    ClipFile,
    ClipRedaction,
    RecordedSegment,
    even_size,
    progress_path,
)
from appliance.media.rendition import THREADS, FrameWriter
from appliance.media.segment_reader import open_segment
from appliance.media.stills import GREY, GROW, grown, mosaic
from appliance.types import Box

HEIGHT_MAX = 1080  # lines: a face in the box stays as sharp as most cameras record it
BRIDGE_S = 2.5  # between two frames that show an object, no further apart, its box is interpolated, as the page does
BRIDGE_MOMENTS = 2  # of which at most one examined frame in between did not show it
NEAR_S = 0.75  # an examined frame further away does not tell where people are (as `evidence.privacy`)
CRF = 23  # at which H.264 moves no pixel of a flat square by more than 12 of 255 levels (test_redacted_clip.py)
EDGE = 4  # pixels inside a box that stay hidden: half of a transform's block, which mixes both sides of the edge
_CHROMA_GREY = 128  # U and V of grey
_UNIT = Fraction(1, 90_000)

Plane = NDArray[np.uint8]


def make_redacted_clip(
    segments: Sequence[RecordedSegment], t0: float, t1: float, path: Path, redaction: ClipRedaction
) -> ClipFile:
    """Write the frames of t0..t1 as H.264 of at most `HEIGHT_MAX` lines to `path`; sound is left out.

    Raises EvidenceError when nothing can be decoded, or there is no encoder, DiskWriteError when the disk does not
    take it.
    """
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            progress_path(path).open("wb", buffering=0) as progress,
            av.open(str(temporary), "w", format="mp4", options={"movflags": "+faststart"}) as container,
        ):
            clip = _RedactedClip(container, t0, redaction)
            for t, frame in _frames(segments, t0, t1):
                clip.write(t, frame)
                done = int(PERCENT * (t - t0) / max(t1 - t0, ROUNDING_S))
                progress.write(b"." * (done - progress.tell()))
            clip.end()
        written = finish_file(path)
        return ClipFile(clip.t_start, clip.t_end, clip.size, clip.frames, written, clip.note(t0, t1), "h264")
    except (FFmpegError, ValueError, OSError) as error:
        raise failed_clip(error, "the clip cannot be made") from None
    finally:
        discard_temporary(temporary)
        discard_temporary(progress_path(path))


def _frames(segments: Sequence[RecordedSegment], t0: float, t1: float) -> Iterator[tuple[float, av.VideoFrame]]:
    """Yield the frames of t0..t1 with their camera time; a frame that cannot be decoded is left out."""
    for segment in segments:
        if segment.t_end < t0 or segment.t_start > t1:
            continue
        with open_segment(segment) as opened:
            context = opened.stream.codec_context
            context.thread_type, context.thread_count = "AUTO", THREADS
            offset = 0.0
            unit = float(opened.stream.time_base or 0)
            for timed in opened.packets():
                offset = timed.t - timed.pts * unit
                yield from _wanted(context, timed.packet, offset, unit, (t0, t1))
                if timed.order_t > t1:
                    break
            yield from _wanted(context, None, offset, unit, (t0, t1))


def _wanted(
    context: av.VideoCodecContext,
    packet: av.Packet[av.VideoStream] | None,
    offset: float,
    unit: float,
    span: tuple[float, float],
) -> Iterator[tuple[float, av.VideoFrame]]:
    try:
        frames = context.decode(packet)
    except InvalidDataError:
        return
    for frame in frames:
        if frame.pts is not None and span[0] - ROUNDING_S <= (t := offset + frame.pts * unit) <= span[1] + ROUNDING_S:
            yield t, frame


class _RedactedClip:
    """A clip being written. State: the encoder, made with the first frame, and the times of its frames."""

    def __init__(self, container: av.container.OutputContainer, t0: float, redaction: ClipRedaction) -> None:
        self._container = container
        self._redaction = redaction
        self._boxes = VisibleBoxes(redaction)
        self._writer: FrameWriter | None = None
        self.size = (0, 0)
        self.t_start = self.t_end = t0
        self.frames = 0

    def write(self, t: float, frame: av.VideoFrame) -> None:
        if quarter_turns(frame):
            raise EvidenceError("video that is stored on its side cannot be redacted")
        if self._writer is None:
            self.size, self.t_start = even_size(frame.width, frame.height, HEIGHT_MAX), t
            self._writer = FrameWriter(self._container, self.size, CRF)
        small = at_host(frame).reformat(*self.size, format="yuv420p", interpolation="AREA")
        yuv = np.array(small.to_ndarray(), np.uint8)  # a copy: the decoder still refers to its own
        self._hide(planes(yuv, self.size), t)
        hidden = av.VideoFrame.from_ndarray(yuv, format="yuv420p")
        hidden.pts, hidden.time_base = round((t - self.t_start) / _UNIT), _UNIT
        self._writer.write(hidden)
        self.t_end = t
        self.frames += 1

    def _hide(self, yuv: tuple[Plane, ...], t: float) -> None:
        others = self._boxes.others(t)
        own = [(box, [_part(each, box, self.size[1]).copy() for each in yuv]) for box in self._boxes.own(t)]
        if others is None:
            for each in yuv:
                each[:] = mosaic(each)
        else:
            for box in others:
                for part in (_part(each, box, self.size[1], outward=True) for each in yuv):
                    part[:] = mosaic(part)
        for box, kept in own:
            for plane, part in zip(yuv, kept, strict=True):
                _part(plane, box, self.size[1])[:] = part
        for mask in self._redaction.masks:
            for n, plane in enumerate(yuv):
                corners = np.round(np.asarray(mask) * (plane.shape[1], plane.shape[0])).astype(np.int32)
                cv2.fillPoly(plane, [corners], _CHROMA_GREY if n else GREY)

    def end(self) -> None:
        if self._writer is None:
            raise EvidenceError("the recording holds no frame of this time that can be decoded")
        self._writer.end()

    def note(self, t0: float, t1: float) -> str:
        """Return what is missing of the span, "" if nothing is."""
        missing = [
            f"{text} {seconds:.0f} s {word}"
            for text, seconds, word in (
                ("it begins", self.t_start - t0, "late"), ("it ends", t1 - self.t_end, "early"),
            )
            if seconds >= 1
        ]  # fmt: skip
        return "; ".join(missing)


class VisibleBoxes:
    """Where the objects that stay visible are at a time, and where the people to be hidden are. Pure."""

    def __init__(self, redaction: ClipRedaction) -> None:
        self._hide = redaction.hide
        self._times = [each.t for each in redaction.moments]
        self._moments = redaction.moments
        self._paths: dict[str, list[tuple[int, float, Box]]] = defaultdict(list)
        for n, moment in enumerate(redaction.moments):
            for track, box in moment.own:
                self._paths[track].append((n, moment.t, box))

    def own(self, t: float) -> list[Box]:
        """Return the boxes at `t`, interpolated between two examined frames that show the object."""
        return [box for path in self._paths.values() if (box := _box_at(path, t)) is not None]

    def others(self, t: float) -> list[Box] | None:
        """Return the boxes to hide, grown; None: everything outside `own` is to be hidden."""
        first, last = bisect_left(self._times, t - NEAR_S), bisect_left(self._times, t + NEAR_S)
        if self._hide == "surroundings" or first == last:
            return None
        return [grown(box, GROW) for moment in self._moments[first:last] for box in moment.others]


def _box_at(path: Sequence[tuple[int, float, Box]], t: float) -> Box | None:
    after = bisect_left(path, t - ROUNDING_S, key=lambda each: each[1])
    if after == len(path):
        return None
    n2, t2, box2 = path[after]
    if abs(t2 - t) <= ROUNDING_S:
        return box2
    if after == 0:
        return None
    n1, t1, box1 = path[after - 1]
    if t2 - t1 > BRIDGE_S or n2 - n1 > BRIDGE_MOMENTS:
        return None
    share = (t - t1) / (t2 - t1)
    x1, y1, x2, y2 = (low + (high - low) * share for low, high in zip(box1, box2, strict=True))
    return x1, y1, x2, y2


def planes(yuv: Plane, size: tuple[int, int]) -> tuple[Plane, ...]:
    """Return views of Y (H, W), U and V (H / 2, W / 2) of a yuv420p yuv (H * 3 / 2, W); H and W are even."""
    width, height = size
    flat = yuv.reshape(-1)
    luma, quarter = width * height, width * height // 4
    half = (height // 2, width // 2)
    return (
        flat[:luma].reshape(height, width),
        flat[luma : luma + quarter].reshape(half),
        flat[luma + quarter :].reshape(half),
    )


def _part(plane: Plane, box: Box, whole_height: int, *, outward: bool = False) -> Plane:
    """Return a view of the pixels `EDGE` inside the box, or, `outward`, of all that it touches; it may be empty.

    plane: Y, U or V; the edge is as wide on the halved planes.
    """
    height, width = plane.shape
    x1, y1, x2, y2 = (min(1.0, max(0.0, each)) for each in box)
    if outward:
        return plane[int(y1 * height) : int(np.ceil(y2 * height)), int(x1 * width) : int(np.ceil(x2 * width))]
    edge = EDGE * height // whole_height
    left, right, top, bottom = (
        int(np.ceil(x1 * width)) + edge, int(x2 * width) - edge, int(np.ceil(y1 * height)) + edge,
        int(y2 * height) - edge,
    )  # fmt: skip
    return plane[top : max(top, bottom), left : max(left, right)]
