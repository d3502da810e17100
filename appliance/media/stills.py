"""Cuts still images out of the recording: exactly the frame that was examined, so that its box fits.

Makes images of it as they are ordered: redacted, cut, made smaller, and encoded as JPEG or WebP. It runs in the media
sandbox, so that pixels never reach the core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import av
import cv2
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from appliance.base.errors import EvidenceError
from appliance.media.frames import upright_bgr
from appliance.media.recorded import JPEG_QUALITY, ROUNDING_S, FrameImage, ImageOrder, RecordedSegment, Redaction
from appliance.media.segment_reader import OpenSegment, TimedPacket, open_segment
from appliance.types import Box

CONTEXT = 2.5  # side of a region in longer sides of the box: the surroundings show what a person is doing
REGION_SIDE_MIN = 96  # pixels of the camera's frame
SIDE_MIN = 24  # pixels; a smaller image shows nothing
SHRINK = 0.8  # from one size that does not fit to the next
QUALITIES = (75, 60, 45)  # of WebP, tried before the size is reduced
GROW = 0.2  # of a box: hair, a bag, a step since the examined frame
OWN_GROW = 0.1  # of the box of the alert's own object
CELLS = 4  # across the shorter side of what is hidden: a face is a square or two
GREY = 114  # of masks

Pixels = NDArray[np.uint8]


def make_image(image: Pixels, order: ImageOrder) -> FrameImage:
    """Make the ordered image of a camera's frame (H, W, 3) BGR, which stays as it was. If it cannot be, say why."""
    shown = image if order.redaction is None else redact(image, order.redaction)
    region: Box | None = None
    if order.box is not None and order.part == "crop":
        shown = crop(shown, order.box)
    elif order.box is not None and order.part == "region":
        height, width = shown.shape[:2]
        left, top, right, bottom = crop_region(order.box, width, height)
        shown, region = shown[top:bottom, left:right], (left / width, top / height, right / width, bottom / height)
    side_max = max(shown.shape[:2]) if order.side_max is None else order.side_max
    try:
        if order.webp_bytes_max is not None:
            data, shown = encode_within(shown, side_max, order.webp_bytes_max)
        else:
            shown = downscale(shown, side_max)
            data = encode_jpeg(shown, quality=order.quality)
    except EvidenceError as error:
        return FrameImage(b"", (0, 0), None, str(error))
    return FrameImage(data, (shown.shape[1], shown.shape[0]), region)


def redact(image: Pixels, hidden: Redaction) -> Pixels:
    """`image` (H, W, 3) as it may leave the site. The alert's own objects stay visible, except under a mask."""
    redacted = image
    if hidden.blur == "surroundings" or (hidden.blur == "people" and hidden.others is None):
        redacted = mosaic(image)
    elif hidden.blur == "people" and hidden.others:
        redacted = image.copy()
        for box in hidden.others:
            part = _part(redacted, grown(box, GROW))
            part[:] = mosaic(part)
    if redacted is not image:
        for box in hidden.own:
            _part(redacted, grown(box, OWN_GROW))[:] = _part(image, grown(box, OWN_GROW))
    return _masked(redacted, hidden)


def crop_region(box: Box, width: int, height: int, context: float = CONTEXT) -> tuple[int, int, int, int]:
    """Return the square around `box` (shares) in pixels (left, top, right, bottom), moved or cut to fit the frame.

    context: its side in longer sides of the box.
    """
    x1, y1, x2, y2 = box
    side = max((x2 - x1) * width * context, (y2 - y1) * height * context, REGION_SIDE_MIN)
    left, right = span_inside((x1 + x2) / 2 * width, side, width)
    top, bottom = span_inside((y1 + y2) / 2 * height, side, height)
    return left, top, right, bottom


def encode_within(image: Pixels, side_max: int, bytes_max: int) -> tuple[bytes, Pixels]:
    """`image` as WebP of at most `bytes_max` bytes, and the pixels that were encoded.

    First the quality is lowered, then the size; it is never enlarged. Raises EvidenceError when even a tiny image does
    not fit.
    """
    for side in _sides(min(side_max, max(image.shape[:2]))):
        small = downscale(image, side)
        for quality in QUALITIES:
            data = _webp(small, quality)
            if len(data) <= bytes_max:
                return data, small
    raise EvidenceError(f"an image does not fit into {bytes_max} bytes")


def _sides(largest: int) -> Iterator[int]:
    side = float(largest)
    while round(side) >= SIDE_MIN or side == largest:
        yield round(side)
        side *= SHRINK


def _webp(image: Pixels, quality: int) -> bytes:
    try:
        done, data = cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, quality])
    except cv2.error as error:
        raise EvidenceError(f"the image could not be encoded as WebP: {error.err}") from None
    if not done:
        raise EvidenceError("the image could not be encoded as WebP")
    return data.tobytes()


def _masked(image: Pixels, hidden: Redaction) -> Pixels:
    if not hidden.masks:
        return image
    painted = image.copy()
    size = np.array([image.shape[1], image.shape[0]])
    corners = [np.round(np.asarray(points) * size).astype(np.int32) for points in hidden.masks]
    for polygon in corners:  # one by one: together, where two overlap would stay bare
        cv2.fillPoly(painted, [polygon], (GREY, GREY, GREY))
    return painted


def grown(box: Box, share: float) -> Box:
    dx, dy = (box[2] - box[0]) * share, (box[3] - box[1]) * share
    return box[0] - dx, box[1] - dy, box[2] + dx, box[3] + dy


def _part(image: Pixels, box: Box) -> Pixels:
    """Return a view of at least one pixel."""
    height, width = image.shape[:2]
    left, top = (int(min(max(0.0, share) * side, side - 1)) for share, side in ((box[0], width), (box[1], height)))
    right, bottom = (int(np.ceil(min(1.0, share) * side)) for share, side in ((box[2], width), (box[3], height)))
    return image[top : max(bottom, top + 1), left : max(right, left + 1)]


def mosaic(image: Pixels) -> Pixels:
    """Return the means of squares, CELLS across the shorter side: nothing of what was inside can be computed back."""
    height, width = image.shape[:2]
    if not image.size:
        return image
    cell = max(2, -(-min(height, width) // CELLS))
    small = cv2.resize(image, (max(1, width // cell), max(1, height // cell)), interpolation=cv2.INTER_AREA)
    return cast("Pixels", np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8))


FRAME_OFF_S_MAX = 0.1  # a frame at the edge of a recording stands for a moment this near: a frame's length at 10 fps
CROP_MARGIN = 0.25  # of the box, on each side
CROP_SIDE_MIN = 96  # pixels of the camera's frame


@dataclass(frozen=True, slots=True)
class Still:
    """A decoded frame: `image` (H, W, 3) uint8 BGR, at camera time `t`."""

    t: float
    image: NDArray[np.uint8]

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)."""
        return self.image.shape[1], self.image.shape[0]


@dataclass(frozen=True, slots=True)
class _FramePosition:
    """Where the frame of a moment lies: its pts, and the key frame (both in the file's own units) to decode from."""

    segment: RecordedSegment
    pts: int
    key_pts: int
    t: float
    off_s: float
    certain: bool  # frames on both sides of the moment are in this file, so no other file can hold a nearer one


def cut_still(segments: Sequence[RecordedSegment], t: float) -> Still:
    """Return the frame shown at `t`. Raise EvidenceError when the recording does not (yet) hold it."""
    return cut_stills(segments, [t])[0]


def cut_stills(segments: Sequence[RecordedSegment], times: Sequence[float]) -> list[Still]:
    """Return the frames at `times`, in that order; each group of pictures is decoded at most once.

    A frame counts as the one of `t` when it is the nearest of the two around `t`, or (at the edge of a recording) no
    further than a frame's length. Raise EvidenceError when one of them is not there.
    """
    positions = _find_frames(segments, times)
    decoded: dict[tuple[RecordedSegment, int], Still] = {}
    for segment in {position.segment for position in positions}:
        inside = [position for position in positions if position.segment == segment]
        for position, still in _decode(segment, inside):
            decoded[segment, position.pts] = still
    missing = [position for position in positions if (position.segment, position.pts) not in decoded]
    if missing:
        raise EvidenceError(f"{len(missing)} of {len(times)} frames could not be decoded from the recording")
    return [decoded[position.segment, position.pts] for position in positions]


def cut_key_frame(segment: RecordedSegment, t: float, side_max: int) -> Still:
    """Return the last key frame at or before `t` in a segment (its first one, if all are later). One packet is decoded.

    Its longer side is at most `side_max`. Raise EvidenceError.
    """
    with open_segment(segment) as opened:
        key: TimedPacket | None = None
        for timed in opened.packets():
            if key is not None and timed.order_t > t:
                break
            if timed.is_key and (key is None or timed.t <= t + ROUNDING_S):
                key = timed
        if key is None:
            raise EvidenceError(f"the segment {segment.path.name} holds no key frame that can be read")
        opened.stream.thread_type = "NONE"
        try:
            for packet in (key.packet, None):
                for frame in opened.stream.codec_context.decode(packet):
                    return Still(key.t, _bgr_within(frame, side_max))
        except FFmpegError as error:
            raise EvidenceError(f"the segment {segment.path.name} cannot be decoded: {error.strerror}") from None
    raise EvidenceError(f"the key frame in {segment.path.name} cannot be decoded")


def encode_jpeg(image: NDArray[np.uint8], *, side_max: int | None = None, quality: int = JPEG_QUALITY) -> bytes:
    """Return a BGR image as JPEG, its longer side at most `side_max`; never enlarged. Raise EvidenceError."""
    if side_max is not None:
        image = downscale(image, side_max)
    done, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    if not done:
        raise EvidenceError("the image could not be encoded as JPEG")
    return data.tobytes()


def downscale(image: NDArray[np.uint8], side_max: int) -> NDArray[np.uint8]:
    """Return the image with its longer side at most `side_max`; never enlarged."""
    height, width = image.shape[:2]
    if max(height, width) <= side_max:
        return image
    scale = side_max / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cast("NDArray[np.uint8]", cv2.resize(image, size, interpolation=cv2.INTER_AREA))


def load_still(path: Path, t: float) -> Still:
    """Return an image file that was written before. Raise EvidenceError."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise EvidenceError(f"{path.name} cannot be read")
    return Still(t, np.asarray(image, np.uint8))


def crop(image: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    """Return the part of an image around `box` (shares), widened by CROP_MARGIN, of at least CROP_SIDE_MIN pixels."""
    height, width = image.shape[:2]
    x0, x1 = _stretch(box[0] * width, box[2] * width, width)
    y0, y1 = _stretch(box[1] * height, box[3] * height, height)
    return np.ascontiguousarray(image[y0:y1, x0:x1])


def span_inside(middle: float, length: float, limit: int) -> tuple[int, int]:
    """Return the `length` pixels around `middle` as (begin, end), moved inward where they would leave 0..limit."""
    whole = max(1, min(round(length), limit))
    begin = min(max(0, round(middle - whole / 2)), limit - whole)
    return begin, begin + whole


def _stretch(low: float, high: float, limit: int) -> tuple[int, int]:
    half = max((high - low) * (0.5 + CROP_MARGIN), CROP_SIDE_MIN / 2)
    middle = (low + high) / 2
    begin = int(max(0, min(middle - half, limit - 1)))
    return begin, int(max(begin + 1, min(middle + half, limit)))


def _find_frames(segments: Sequence[RecordedSegment], times: Sequence[float]) -> list[_FramePosition]:
    """Return where the frames of `times` lie, in that order; each segment is read once. Raise EvidenceError."""
    best: dict[float, _FramePosition] = {}
    problems: dict[float, str] = {}
    for segment in segments:
        near = [t for t in times if segment.t_start - 1 <= t <= segment.t_end + 1]
        if not near:
            continue
        try:
            with open_segment(segment) as opened:
                found = _nearest_frames(opened, near)
        except EvidenceError as error:
            problems.update(dict.fromkeys(near, f" ({error})"))
            continue
        for t, position in found.items():
            if t not in best or position.off_s < best[t].off_s:
                best[t] = position
    for t in times:
        problem = problems.get(t, "")
        if t not in best:
            raise EvidenceError(f"the recording does not hold the moment asked for{problem}")
        if not best[t].certain and best[t].off_s > FRAME_OFF_S_MAX:
            raise EvidenceError(f"the recording's nearest frame is {best[t].off_s:.2f} s away{problem}")
    return [best[t] for t in times]


def _nearest_frames(opened: OpenSegment, times: Sequence[float]) -> dict[float, _FramePosition]:
    """Return the nearest frame of each of `times`; an empty dict if the segment holds no key frame."""
    index: list[tuple[float, int, int]] = []  # camera time, pts, pts of the key frame to decode from
    key_pts: int | None = None
    previous_key: int | None = None
    for timed in opened.packets():
        if timed.is_key:
            key_pts, previous_key = timed.pts, key_pts
        if key_pts is None:
            continue
        # Frames shown before their key frame (open GOP) need the GOP before it as well.
        start = previous_key if timed.pts < key_pts and previous_key is not None else key_pts
        index.append((timed.t, timed.pts, start))
        if timed.order_t > max(times) + 1:
            break
    found = {}
    for t in times if index else ():
        shown_t, pts, start = min(index, key=lambda each: abs(each[0] - t))
        certain = min(index)[0] <= t <= max(index)[0]
        found[t] = _FramePosition(opened.segment, pts, start, shown_t, abs(shown_t - t), certain)
    return found


def _decode(segment: RecordedSegment, positions: Sequence[_FramePosition]) -> Iterator[tuple[_FramePosition, Still]]:
    """Decode each group of pictures that holds a wanted frame, from its key frame until they all came out."""
    wanted = {position.pts: position for position in positions}
    with open_segment(segment) as opened:
        opened.stream.thread_type = "NONE"
        try:
            for packet in _needed_packets(opened, wanted):
                for frame in opened.stream.codec_context.decode(packet):
                    position = None if frame.pts is None else wanted.pop(frame.pts, None)
                    if position is not None:
                        yield position, Still(position.t, upright_bgr(frame))
                if not wanted:
                    return
        except FFmpegError as error:
            raise EvidenceError(f"the segment {segment.path.name} cannot be decoded: {error.strerror}") from None


def _needed_packets(
    opened: OpenSegment, wanted: Mapping[int, _FramePosition]
) -> Iterator[av.Packet[av.VideoStream] | None]:
    """Yield the packets to decode, and None at the end, to drain the decoder.

    wanted: by pts; the caller takes out what came, so that packets up to the next key frame that is needed are skipped.
    """
    starts = {position.key_pts for position in wanted.values()}
    begun: set[int] = set()
    skipped = False
    for timed in opened.packets():
        if timed.is_key and timed.pts in starts:
            begun.add(timed.pts)
        if any(position.key_pts in begun for position in wanted.values()):
            if skipped:  # its references belong to what was decoded before the gap
                opened.stream.codec_context.flush_buffers()
            skipped = False
            yield timed.packet
        else:
            skipped = bool(begun)
    yield None


def _bgr_within(frame: av.VideoFrame, side_max: int) -> NDArray[np.uint8]:
    """Made smaller before it becomes BGR: a thumbnail of 4K takes a tenth of the time so."""
    scale = min(1.0, side_max / max(frame.width, frame.height))
    width, height = (max(1, round(side * scale)) for side in (frame.width, frame.height))
    small = frame.reformat(width=width, height=height, format="bgr24", interpolation="AREA")
    return upright_bgr(small, frame)
