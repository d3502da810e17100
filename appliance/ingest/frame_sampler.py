"""Hands a frame that was examined to the core when it asks, for a second network that examines it elsewhere.

The pixels go into one file in memory, which the next one replaces; what was found goes by the channel. Nobody asks,
nothing is done. Whole frames alone are handed over: of a mosaic another network would need another one.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import av

from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.local_files import SAMPLE_FILE
from appliance.detect.detector import calibration_of
from appliance.types import Detections, IngestMessage, RecheckDetection, SampleCommand, SampledFrame

SIDE_MAX = 1280  # pixels: 2.8 MB of 16:9, in a folder of which containers have 64
FREE_BYTES_MIN = 8_000_000  # stay free there: live video uses it, too


class FrameHandOver:
    """State: what was asked for last. `ask` is called by any thread, `offer` by the detector's."""

    def __init__(self, folder: Path | None, emit: Callable[[IngestMessage], None]) -> None:
        """folder: in memory; None: this machine has none, and every request is refused."""
        self._folder = folder
        self._emit = emit
        self._lock = threading.Lock()
        self._asked: SampleCommand | None = None

    def ask(self, command: SampleCommand) -> None:
        """Want the next whole frame of a camera, and no other one that was asked for before."""
        with self._lock:
            self._asked = command

    def offer(self, request: InferenceRequest, found: Detections) -> None:
        """Hand a frame over if it is the one that is wanted."""
        asked, tracks = self._asked, request.tracks
        if asked is None or request.mosaic is not None or asked.camera != tracks.camera:
            return
        with self._lock:
            self._asked = None if self._asked is asked else self._asked
        sample = SampledFrame(id=asked.id, camera=asked.camera, t=request.t, model=tracks.detector.name)
        try:
            size = self._write(request, min(asked.side, SIDE_MAX))
        except (OSError, ValueError, av.FFmpegError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            self._emit(replace(sample, error=f"no frame can be handed over in memory: {why}"))
            return
        rows = zip(found.class_ids.tolist(), found.scores.tolist(), found.boxes.tolist(), strict=True)
        labels = tracks.detector.labels
        objects = tuple(RecheckDetection(label=labels[kind], score=score, box=tuple(box)) for kind, score, box in rows)
        self._emit(replace(sample, size=size, objects=objects, calibration=calibration_of(tracks.detector)))

    def _write(self, request: InferenceRequest, side: int) -> tuple[int, int]:
        """Replace the file by the frame, and return its (width, height). Raise OSError."""
        if self._folder is None:
            raise FileNotFoundError(2, "there is no folder in memory (/dev/shm)")
        pixels = request.tracks.whole_frame(request, side)
        space = os.statvfs(self._folder)
        if space.f_bavail * space.f_frsize < pixels.nbytes + FREE_BYTES_MIN:
            raise OSError(28, "it is full")
        part = self._folder / f".{SAMPLE_FILE}"
        try:
            with part.open("wb") as file:
                file.write(pixels.data)
            part.replace(self._folder / SAMPLE_FILE)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        return pixels.shape[1], pixels.shape[0]
