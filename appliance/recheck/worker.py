"""Runs re-checks in the ingest process: cuts close-ups out of recorded frames and detects in them at low priority."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Full, Queue

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.clock import Clock
from appliance.detect.detector import ObjectDetector, VariableInput
from appliance.errors import EvidenceError, VedetteError
from appliance.media.segment_reader import RecordedSegment
from appliance.media.stills import Still, cut_still, cut_stills
from appliance.store.paths import SEGMENTS, inside
from appliance.types import (
    Box,
    CropRequest,
    CropResult,
    Detections,
    FootageSpan,
    RecheckCommand,
    RecheckDetection,
    RecheckResult,
)

logger = logging.getLogger(__name__)

CONTEXT = 2.5  # the side of the close-up, in longer sides of the box
SHARE = 0.7  # of the network's input that the close-up takes, so that the object takes 0.28 of it
SIDE_MIN = 96  # pixels of the camera's picture

Image = NDArray[np.uint8]
Region = tuple[int, int, int, int]
"""left, top, right, bottom, in pixels."""


def close_up_region(box: Box, width: int, height: int, step: int) -> Region:
    """The square around `box` (shares) in a picture of `width` x `height`, moved or cut to lie in it.

    step: see `size_of`. A network of fixed shape sees as much more around the object as there is room for.
    """
    context = CONTEXT if step else CONTEXT / SHARE
    x1, y1, x2, y2 = box
    side = max((x2 - x1) * width * context, (y2 - y1) * height * context, SIDE_MIN)
    left, right = _span((x1 + x2) / 2 * width, side, width)
    top, bottom = _span((y1 + y2) / 2 * height, side, height)
    return left, top, right, bottom


def close_up_size(whole: tuple[int, int], step: int) -> tuple[int, int]:
    """The (width, height) of the close-up. whole: in which the network wants a whole picture of that shape; step: it
    takes smaller ones at less cost, in multiples of this (0: it does not)."""
    if not step:
        return whole
    longer = max(whole)
    side = max(step, int(longer * SHARE) // step * step)
    return max(1, round(whole[0] * side / longer)), max(1, round(whole[1] * side / longer))


def close_up(image: Image, region: Region, size: tuple[int, int]) -> Image:
    """The region of `image` (H, W, 3) in `size` (width, height), enlarged or scaled down."""
    left, top, right, bottom = region
    how = cv2.INTER_LINEAR if size[0] > right - left else cv2.INTER_AREA
    return np.ascontiguousarray(cv2.resize(image[top:bottom, left:right], size, interpolation=how), np.uint8)


def found_objects(
    seen: Detections, labels: Sequence[str], region: Region, size: tuple[int, int]
) -> tuple[RecheckDetection, ...]:
    """What was seen in the region, in shares of the whole picture of `size` (width, height)."""
    return tuple(
        RecheckDetection(label=labels[int(kind)], score=round(float(score), 3), box=_placed(box, region, size))
        for box, score, kind in zip(seen.boxes.tolist(), seen.scores, seen.class_ids, strict=True)
    )


def _placed(box: Sequence[float], region: Region, size: tuple[int, int]) -> Box:
    x1, y1, x2, y2 = box
    left, top, right, bottom = region
    across, down = right - left, bottom - top
    return (
        round((left + x1 * across) / size[0], 4),
        round((top + y1 * down) / size[1], 4),
        round((left + x2 * across) / size[0], 4),
        round((top + y2 * down) / size[1], 4),
    )


def _span(middle: float, length: float, limit: int) -> tuple[int, int]:
    """`length` pixels around `middle`, moved inward where they would leave 0..limit."""
    whole = max(1, min(round(length), limit))
    begin = min(max(0, round(middle - whole / 2)), limit - whole)
    return begin, begin + whole


WAITING_MAX = 2
CROPS_MAX = 8
SEGMENTS_MAX = 16
NICE = 10


class RecheckWorker:
    """Owner of one named thread that is nicer than all others: it decodes, cuts out, and has the eye look.

    Each order is answered by exactly one SecondSight, one that cannot be done by its reason. Bounded: WAITING_MAX
    orders wait, what is beyond is refused at once. The pictures stay here; what is told is boxes.
    """

    def __init__(
        self,
        root: Path,
        eye_of: Callable[[], ObjectDetector],
        emit: Callable[[RecheckResult], None],
        clock: Clock,
    ) -> None:
        """root: the storage folder. eye_of: who looks; asked with the first order, for it may have to be loaded."""
        self._root = root.absolute()
        self._eye_of = eye_of
        self._eye: ObjectDetector | None = None
        self._emit = emit
        self._clock = clock
        self._orders: Queue[RecheckCommand | None] = Queue(WAITING_MAX)
        self._stopping = False
        self._thread = threading.Thread(target=self.run, name="second look", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more orders; the thread ends after the one it is at."""
        self._stopping = True
        with contextlib.suppress(Full):
            self._orders.put_nowait(None)

    def submit(self, wanted: RecheckCommand) -> None:
        """Have it looked at. Any thread; never waits."""
        try:
            self._orders.put_nowait(wanted)
        except Full:
            self._emit(_failed(wanted, "too many second looks are under way"))

    def run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, where the system can
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._stopping:
            try:
                wanted = self._orders.get(timeout=1.0)
            except Empty:
                continue
            if wanted is not None:
                self._emit(self.recheck(wanted))

    def recheck(self, wanted: RecheckCommand) -> RecheckResult:
        """What is seen now. Never raises: what failed is told as failed."""
        began = self._clock.monotonic()
        try:
            eye = self._eye = self._eye or self._eye_of()
            sightings = tuple(self._sighting(eye, glimpse, still) for glimpse, still in self._stills(wanted))
        except VedetteError as error:
            return _failed(wanted, str(error))
        except Exception as error:  # the top of this thread's loop: recording and the live looks go on
            logger.exception("a second look failed in an unexpected way")
            return _failed(wanted, f"it failed: {type(error).__name__}")
        ms = round(1000 * (self._clock.monotonic() - began), 1)
        return RecheckResult(id=wanted.id, camera=wanted.camera, model=eye.name, ms=ms, sightings=sightings)

    def _stills(self, wanted: RecheckCommand) -> list[tuple[CropRequest, Still]]:
        """The pictures that can be had: together, for each segment is then decoded once, else one by one."""
        if not 0 < len(wanted.glimpses) <= CROPS_MAX or len(wanted.footage) > SEGMENTS_MAX:
            raise EvidenceError("it asks for nothing, or for too much")
        footage = [self._recorded(each) for each in wanted.footage]
        try:
            stills = cut_stills(footage, [glimpse.t for glimpse in wanted.glimpses])
            return list(zip(wanted.glimpses, stills, strict=True))
        except EvidenceError as error:
            found = [(glimpse, still) for glimpse in wanted.glimpses for still in _if_there(footage, glimpse.t)]
            if not found:
                raise error from None
            return found

    def _recorded(self, footage: FootageSpan) -> RecordedSegment:
        return RecordedSegment(inside(self._root, footage.path, SEGMENTS), footage.t_start, footage.t_end)

    @staticmethod
    def _sighting(eye: ObjectDetector, glimpse: CropRequest, still: Still) -> CropResult:
        step = eye.shape_step if isinstance(eye, VariableInput) else 0
        region = close_up_region(glimpse.box, *still.size, step)
        size = close_up_size(eye.preferred_size(region[2] - region[0], region[3] - region[1]), step)
        seen = eye.detect([close_up(still.image, region, size)])[0]
        return CropResult(t=glimpse.t, box=glimpse.box, found=found_objects(seen, eye.labels, region, still.size))


def _if_there(footage: Sequence[RecordedSegment], t: float) -> list[Still]:
    try:
        return [cut_still(footage, t)]
    except EvidenceError as error:
        logger.debug("a second look goes without a picture: %s", error)
        return []


def _failed(wanted: RecheckCommand, why: str) -> RecheckResult:
    return RecheckResult(id=wanted.id, camera=wanted.camera, error=why)
