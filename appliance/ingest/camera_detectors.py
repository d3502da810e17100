"""The networks in use: one for all cameras, perhaps another for some, and others that take their places while they run.

A new network is loaded in a thread of its own, beside those in force, and examines a frame in the size of each camera.
Only then does the main loop hand it to the cameras, each of which begins a session with its next frame. What does not
load, or is not ready in time, changes nothing.

A second network may examine the same frames elsewhere: the core asks for a frame that was examined. Its pixels go into
one file in memory, which the next one replaces; what was found goes by the channel. Nobody asks, nothing is done. Whole
frames alone are handed over: of a mosaic another network would need another one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import av
from pydantic import ValidationError

from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, MissingDependency, ModelError, ModelForbidden
from appliance.base.local_files import SAMPLE_FILE
from appliance.detect.detector import ObjectDetector, calibration_of
from appliance.detect.runtime_choice import trial_frame
from appliance.types import (
    Detections,
    IngestMessage,
    NetworksAnswer,
    NetworksCommand,
    RecheckDetection,
    SampleCommand,
    SampledFrame,
)

logger = logging.getLogger(__name__)

SHARED = ""  # name of the network of all cameras that have none of their own
NICE = 10  # of the thread that loads: cameras come first
Load = Callable[[DetectorConfig], ObjectDetector]
SIDE_MAX = 1280  # pixels: 2.8 MB of 16:9, in a folder of which containers have 64
FREE_BYTES_MIN = 8_000_000  # stay free there: live video uses it, too


@dataclass(frozen=True, slots=True)
class NetworkTable:
    """The loaded networks by name, and the name of each camera's that has one of its own."""

    loaded: Mapping[str, ObjectDetector]
    cameras: Mapping[str, str]

    @property
    def shared(self) -> ObjectDetector:
        """The network of all cameras that have none of their own."""
        return self.loaded[SHARED]

    def of(self, camera: str) -> ObjectDetector:
        """Return the network of a camera; that of all where its own could not be loaded."""
        return self.loaded.get(self.cameras.get(camera, SHARED), self.shared)


class Networks:
    """Owns the networks of the ingest process.

    State: the table in force, and the one that is ready. `submit` is called by any thread, all else by the main loop.
    Invariant: one set is loaded at a time.
    """

    def __init__(self, table: NetworkTable, load: Load, answer: Callable[[NetworksAnswer], None]) -> None:
        """load: finds and warms up a network; raises ModelError, MissingDependency."""
        self.table = table
        self._load = load
        self._answer = answer
        self._lock = threading.Lock()
        self._loading = False
        self._ready: tuple[str, NetworkTable] | None = None
        self._sizes: Collection[tuple[int, int]] = ()

    def submit(self, command: NetworksCommand) -> None:
        """Begin to load what is asked for; the answer comes once it is in force, or will not be."""
        with self._lock:
            if self._loading:
                why = "another network is being loaded, or does not come back"
                self._answer(NetworksAnswer(id=command.id, outcome="restart", reason=why))
                return
            self._loading = True
        threading.Thread(target=self._run, args=(command,), name="network", daemon=True).start()

    def note_sizes(self, sizes: Collection[tuple[int, int]]) -> None:
        """Take the (width, height) of the cameras' frames, in which new networks are warmed up."""
        self._sizes = tuple(each for each in sizes if each != (0, 0))

    def take_ready(self) -> bool:
        """Put the table in force that was loaded; False: none was."""
        ready, self._ready = self._ready, None
        if ready is None:
            return False
        command, self.table = ready
        self._answer(NetworksAnswer(id=command, outcome="in force"))
        return True

    def _run(self, command: NetworksCommand) -> None:
        with contextlib.suppress(OSError):  # where the kernel has no priority a thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            self._ready = command.id, self._loaded(command)
        except (ModelError, MissingDependency, DetectorError, ValidationError) as error:
            # A folder that came after this process was confined is out of its reach: the next one reads it.
            outcome: Literal["restart", "refused"] = "restart" if isinstance(error, ModelForbidden) else "refused"
            self._answer(NetworksAnswer(id=command.id, outcome=outcome, reason=str(error)))
        except Exception as error:  # a network is foreign code: whatever it raises, the one in force goes on
            logger.exception("a network failed in an unexpected way while it was loaded")
            self._answer(NetworksAnswer(id=command.id, outcome="refused", reason=type(error).__name__))
        finally:
            with self._lock:
                self._loading = False

    def _loaded(self, command: NetworksCommand) -> NetworkTable:
        loaded = {}
        for name, values in command.networks.items():
            if values is None:
                loaded[name] = self.table.loaded[name]
                continue
            network = self._load(DetectorConfig.model_validate(values))
            for size in self._sizes:
                network.detect([trial_frame(network, size)])
            loaded[name] = network
        return NetworkTable(loaded, command.cameras)


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
