"""Decoded frames as arrays: upright BGR for the detector; brightness planes for motion gate and tamper detector."""

from __future__ import annotations

import av
import cv2
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from appliance.types import Box

SMALL_LUMA_SIZE = (160, 90)  # (width, height) of the tamper detector's plane: 16:9, 10-pixel blocks
MOTION_WIDTH_MAX = 480  # pixels; the gate's cells are 8 of a 720p frame
PLANES_WIDTH_MAX = 640  # pixels; colours of a person are told apart at it
_ON_DEVICE = frozenset({"cuda", "vaapi", "qsv", "drm_prime"})
_PLANAR_8_BIT = frozenset({"yuv420p", "yuvj420p", "yuv422p", "yuvj422p", "yuv444p", "yuvj444p", "nv12", "gray"})


def quarter_turns(frame: av.VideoFrame) -> int:
    """How many quarter turns counter-clockwise make the frame upright (display matrix); 0 where it makes no sense."""
    rotation = frame.rotation
    return int(rotation // 90) % 4 if rotation % 90 == 0 and abs(rotation) <= 360 else 0


def upright_size(frame: av.VideoFrame) -> tuple[int, int]:
    """(width, height) as the frame is shown."""
    return (frame.height, frame.width) if quarter_turns(frame) % 2 else (frame.width, frame.height)


def upright_box(box: Box, turns: int) -> Box:
    """Return a box in shares of the frame as it was decoded, in shares of the upright one."""
    for _ in range(turns % 4):
        x1, y1, x2, y2 = box
        box = (y1, 1 - x2, y2, 1 - x1)
    return box


def upright_bgr(frame: av.VideoFrame, shown: av.VideoFrame | None = None) -> NDArray[np.uint8]:
    """uint8 BGR (height, width, 3) as the frame is shown: as the detector sees it, and as boxes and masks are meant.

    shown: the frame whose display matrix counts, where `frame` is a smaller copy of it.
    """
    image, turns = np.asarray(frame.to_ndarray(format="bgr24"), np.uint8), quarter_turns(shown or frame)
    return np.ascontiguousarray(np.rot90(image, turns)) if turns else image


def at_host(frame: av.VideoFrame) -> av.VideoFrame:
    """Return a frame that a device has decoded, copied from there in the format it has there; any other as it is."""
    there = device_format(frame)
    return frame if there is None else frame.reformat(format=there)


def device_format(frame: av.VideoFrame) -> str | None:
    """Return the format of a frame's pixels on the device where it lies; None: it lies in memory."""
    if frame.format.name not in _ON_DEVICE:
        return None
    there = getattr(frame, "sw_format", None)  # PyAV 17 (Python 3.10, so JetPack 6) does not tell
    return "nv12" if there is None else str(there.name)


class FrameConverter:
    """Converts frames to arrays. State: scaler contexts, costly to make, hence one of these per camera and thread."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()

    def bgr(self, frame: av.VideoFrame, size: tuple[int, int]) -> NDArray[np.uint8]:
        """uint8 BGR (height, width, 3), upright; size is (width, height) as the frame is shown."""
        turns = quarter_turns(frame)
        width, height = (size[1], size[0]) if turns % 2 else size
        # AREA: the detector sees the same small people whatever the ratio; FAST_BILINEAR drops every other row.
        # One thread: swscale's own are started for each frame, and bring nothing at this size.
        scaled = self._reformatter.reformat(frame, width, height, "bgr24", interpolation=Interpolation.AREA, threads=1)
        image = np.asarray(scaled.to_ndarray(), np.uint8)
        # PyAV's rows may be padded, and detectors insist on plain ones.
        return np.ascontiguousarray(np.rot90(image, turns) if turns else image)

    def planes(self, frame: av.VideoFrame) -> tuple[NDArray[np.uint8], ...]:
        """Upright brightness (H, W) and, where the camera has colours, two colour planes (h, w), uint8.

        As they were decoded, without a copy, and good as long as the frame. Other formats are converted, no wider than
        PLANES_WIDTH_MAX.
        """
        turns = quarter_turns(frame)
        if frame.format.name not in _PLANAR_8_BIT:
            width = min(PLANES_WIDTH_MAX, max(2, frame.width // 2 * 2))
            height = max(2, frame.height * width // frame.width // 2 * 2)
            frame = self._reformatter.reformat(
                frame, width, height, "yuv420p", interpolation=Interpolation.AREA, threads=1
            )
        if frame.format.name == "nv12":
            pairs = _bytes(frame.planes[1], 2 * frame.planes[1].width)
            found = [_bytes(frame.planes[0], frame.width), pairs[:, 0::2], pairs[:, 1::2]]
        else:
            found = [_bytes(plane, plane.width) for plane in frame.planes]
        return tuple(np.rot90(each, turns) for each in found) if turns else tuple(found)

    def small_luma(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        """uint8 (90, 160): brightness only, not rotated, for measuring change."""
        if frame.format.name in _PLANAR_8_BIT:
            rows = _bytes(frame.planes[0], frame.width)
            # In two steps: averaging by a ratio that is no whole number costs five times as much.
            twice = cv2.resize(rows, (2 * SMALL_LUMA_SIZE[0], 2 * SMALL_LUMA_SIZE[1]), interpolation=cv2.INTER_LINEAR)
            return np.asarray(cv2.resize(twice, SMALL_LUMA_SIZE, interpolation=cv2.INTER_AREA), np.uint8)
        small = self._reformatter.reformat(
            frame, *SMALL_LUMA_SIZE, "gray8", interpolation=Interpolation.AREA, threads=1
        )
        return np.asarray(small.to_ndarray(), np.uint8)

    def motion_plane(self, frame: av.VideoFrame) -> NDArray[np.uint8]:
        """uint8 (H, W), W at most MOTION_WIDTH_MAX: brightness, not rotated, in which small and far people still show.

        Halved until it fits, since halving uses every pixel and costs a tenth of any other ratio.
        """
        if frame.format.name not in _PLANAR_8_BIT:
            width = min(MOTION_WIDTH_MAX, max(2, frame.width // 2 * 2))
            height = max(2, frame.height * width // frame.width // 2 * 2)
            made = self._reformatter.reformat(
                frame, width, height, "gray8", interpolation=Interpolation.AREA, threads=1
            )
            return np.asarray(made.to_ndarray(), np.uint8)
        rows = _bytes(frame.planes[0], frame.width)
        while rows.shape[1] > MOTION_WIDTH_MAX:
            rows = halved(rows)
        return rows


def halved(plane: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """uint8 (H, W) to (H // 2, W // 2), each the mean of four; the last row of a strip stays."""
    height, width = max(1, plane.shape[0] // 2), plane.shape[1] // 2
    whole = plane[: 2 * height, : 2 * width]
    return np.asarray(cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def _bytes(plane: av.video.plane.VideoPlane, width: int) -> NDArray[np.uint8]:
    """(height, width) of a plane, without the padding of its rows."""
    return np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)[: plane.height, :width]
