"""Runs rechecks in the ingest process: cuts crops out of recorded frames and detects in them at low priority."""

from __future__ import annotations

import base64
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

from appliance.base.clock import Clock
from appliance.base.errors import EvidenceError, VedetteError
from appliance.detect.detector import ObjectDetector, VariableInput
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import CONTEXT, Still, crop_region, cut_still, cut_stills
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
    is_same_place,
)

logger = logging.getLogger(__name__)

WAITING_MAX = 2  # commands
CROPS_MAX, SEGMENTS_MAX = 8, 16  # of one command
NICE = 10  # of the worker's thread: recording and live detection come first
# Larger is not better: a network sees best what is as large as the objects it learnt from. An object enlarged to two
# fifths of the input is missed more often than one of a quarter.
SHARE = 0.7  # of the network's input that a crop takes, so that the object takes 0.28 of it
IMAGES_MAX = 8  # pictures that were sent in, of one command; each costs an inference
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)

Image = NDArray[np.uint8]
Region = tuple[int, int, int, int]
"""left, top, right, bottom, in pixels."""


def crop_context(step: int) -> float:
    """Return the side of a crop in longer sides of the box.

    step: see `crop_size`. A network of fixed shape sees as much more around the object as there is room for.
    """
    return CONTEXT if step else CONTEXT / SHARE


def crop_size(whole: tuple[int, int], step: int) -> tuple[int, int]:
    """Return the (width, height) to which a crop is scaled.

    whole: the size in which the network wants a whole frame of that shape. step: it takes smaller ones at less cost, in
    multiples of this (0: it does not).
    """
    if not step:
        return whole
    longer = max(whole)
    side = max(step, int(longer * SHARE) // step * step)
    return max(1, round(whole[0] * side / longer)), max(1, round(whole[1] * side / longer))


def crop_image(image: Image, region: Region, size: tuple[int, int]) -> Image:
    """Return the region of `image` (H, W, 3) in `size` (width, height), enlarged or scaled down."""
    left, top, right, bottom = region
    how = cv2.INTER_LINEAR if size[0] > right - left else cv2.INTER_AREA
    return np.ascontiguousarray(cv2.resize(image[top:bottom, left:right], size, interpolation=how), np.uint8)


def found_objects(
    seen: Detections, labels: Sequence[str], region: Region, size: tuple[int, int]
) -> tuple[RecheckDetection, ...]:
    """Return the objects found in the region, their boxes in shares of the whole frame.

    size: (width, height) of that frame.
    """
    return tuple(
        RecheckDetection(label=labels[int(kind)], score=round(float(score), 3), box=_box_in_frame(box, region, size))
        for box, score, kind in zip(seen.boxes.tolist(), seen.scores, seen.class_ids, strict=True)
    )


def _box_in_frame(box: Sequence[float], region: Region, size: tuple[int, int]) -> Box:
    x1, y1, x2, y2 = box
    left, top, right, bottom = region
    across, down = right - left, bottom - top
    return (
        round((left + x1 * across) / size[0], 4),
        round((top + y1 * down) / size[1], 4),
        round((left + x2 * across) / size[0], 4),
        round((top + y2 * down) / size[1], 4),
    )


class RecheckWorker:
    """Carries out rechecks. Owner of one named thread of low priority that decodes, cuts crops and detects.

    Invariant: each command is answered by exactly one RecheckResult; one that cannot be done, by its reason. Bounded:
    WAITING_MAX commands wait, more are refused at once. Pixels stay here; only boxes are emitted.
    """

    def __init__(
        self,
        root: Path,
        load_detector: Callable[[], ObjectDetector],
        emit: Callable[[RecheckResult], None],
        clock: Clock,
    ) -> None:
        """root: the storage folder. load_detector: called with the first command."""
        self._root = root.absolute()
        self._load_detector = load_detector
        self._detector: ObjectDetector | None = None
        self._emit = emit
        self._clock = clock
        self._commands: Queue[RecheckCommand | None] = Queue(WAITING_MAX)
        self._stopping = False
        self._thread = threading.Thread(target=self.run, name="second look", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no more commands; the thread ends after the one it is at."""
        self._stopping = True
        with contextlib.suppress(Full):
            self._commands.put_nowait(None)

    def submit(self, command: RecheckCommand) -> None:
        """Queue a recheck. Any thread; never waits."""
        try:
            self._commands.put_nowait(command)
        except Full:
            self._emit(_failed(command, "too many second looks are under way"))

    def run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)  # on Linux of this thread alone
        while not self._stopping:
            try:
                command = self._commands.get(timeout=1.0)
            except Empty:
                continue
            if command is not None:
                self._emit(self.recheck(command))

    def recheck(self, command: RecheckCommand) -> RecheckResult:
        """Return the result of a command. Never raise: a failure is a result with its reason."""
        began = self._clock.monotonic()
        try:
            detector = self._detector = self._detector or self._load_detector()
            crops = _detect_in(detector, command.images) if command.images else self._check(detector, command)
        except VedetteError as error:
            return _failed(command, str(error))
        except Exception as error:  # the top of this thread's loop: recording and live detection go on
            logger.exception("a recheck failed in an unexpected way")
            return _failed(command, f"it failed: {type(error).__name__}")
        ms = round(1000 * (self._clock.monotonic() - began), 1)
        return RecheckResult(id=command.id, camera=command.camera, model=detector.name, ms=ms, sightings=crops)

    def _check(self, detector: ObjectDetector, command: RecheckCommand) -> tuple[CropResult, ...]:
        """Return what the first crop shows, and unless that is enough, what the others show.

        A frame that is not recorded is left out. Raise EvidenceError if none is.
        """
        if not 0 < len(command.glimpses) <= CROPS_MAX or len(command.footage) > SEGMENTS_MAX:
            raise EvidenceError("it asks for nothing, or for too much")
        segments = [self._segment(each) for each in command.footage]
        found: list[CropResult] = []
        problem = ""
        for crops in (command.glimpses[:1], command.glimpses[1:]):
            try:
                found += [_check_crop(detector, crop, still) for crop, still in _stills(segments, crops)]
            except EvidenceError as error:
                problem = str(error)
            if found and _is_enough(found[0], command):
                break
        if not found:
            raise EvidenceError(problem)
        return tuple(found)

    def _segment(self, footage: FootageSpan) -> RecordedSegment:
        return RecordedSegment(inside(self._root, footage.path, SEGMENTS), footage.t_start, footage.t_end)


def _detect_in(detector: ObjectDetector, images: Sequence[str]) -> tuple[CropResult, ...]:
    """Return what whole pictures show; `t` is the number of each. Raise EvidenceError for one that is none."""
    found = []
    for n, each in enumerate(images[:IMAGES_MAX]):
        image = cv2.imdecode(np.frombuffer(base64.b64decode(each), np.uint8), cv2.IMREAD_COLOR)
        if image is None:
            raise EvidenceError("a picture cannot be read")
        height, width = image.shape[:2]
        region = (0, 0, width, height)
        seen = detector.detect(
            [crop_image(np.asarray(image, np.uint8), region, detector.preferred_size(width, height))]
        )
        objects = found_objects(seen[0], detector.labels, region, (width, height))
        found.append(CropResult(t=float(n), box=WHOLE, found=objects))
    return tuple(found)


def _check_crop(detector: ObjectDetector, crop: CropRequest, still: Still) -> CropResult:
    step = detector.shape_step if isinstance(detector, VariableInput) else 0
    region = crop_region(crop.box, *still.size, crop_context(step))
    size = crop_size(detector.preferred_size(region[2] - region[0], region[3] - region[1]), step)
    seen = detector.detect([crop_image(still.image, region, size)])[0]
    return CropResult(t=crop.t, box=crop.box, found=found_objects(seen, detector.labels, region, still.size))


def _is_enough(crop: CropResult, command: RecheckCommand) -> bool:
    return any(
        each.label == command.label and each.score >= command.enough and is_same_place(each.box, crop.box)
        for each in crop.found
    )


def _stills(segments: Sequence[RecordedSegment], crops: Sequence[CropRequest]) -> list[tuple[CropRequest, Still]]:
    """Return the frames that can be had; raise EvidenceError if none can.

    They are read together, as each group of pictures is then decoded once; if that fails, they are read one by one.
    """
    try:
        return list(zip(crops, cut_stills(segments, [crop.t for crop in crops]), strict=True))
    except EvidenceError as error:
        found = [(crop, still) for crop in crops for still in _if_there(segments, crop.t)]
        if not found:
            raise error from None
        return found


def _if_there(segments: Sequence[RecordedSegment], t: float) -> list[Still]:
    try:
        return [cut_still(segments, t)]
    except EvidenceError as error:
        logger.debug("a recheck goes without a frame: %s", error)
        return []


def _failed(command: RecheckCommand, why: str) -> RecheckResult:
    return RecheckResult(id=command.id, camera=command.camera, error=why)
