"""Scripted sources, detectors and trackers for tests of the ingest process, and small clips made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.analysis.session_tracks import InferenceRequest
from appliance.base.errors import DetectorError, SourceError
from appliance.detect.detector import ObjectDetector
from appliance.ingest.file_source import FileSource
from appliance.media.decoder import DecodedFrame
from appliance.media.source import ReceivedBytes, StreamInfo, VideoPacket
from appliance.track.tracker import Tracker
from appliance.types import Box, Detections, FrameBoxes, IngestMessage, TrackedObject
from tests.support.numbered_footage import encoded_footage, number


def clip(
    path: Path,
    count: int = 40,
    *,
    first: int = 0,
    fps: float = 10,
    gop: int = 10,
    b_frames: int = 0,
    codec: str = "libx264",
    size: tuple[int, int] = (320, 240),
) -> Path:
    """A file whose frames say their number (`media.number`); the container by the suffix of `path`."""
    made = encoded_footage(first, count, fps=fps, gop=gop, b_frames=b_frames, codec=codec, size=size)
    source = made.source  # stays open: the film is kept for the next test that wants it
    source.seek(0)
    template = source.streams.video[0]
    with av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(template, opaque=True)
        for packet in source.demux(template):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    return path


class Heard:
    """Collects messages from any thread."""

    def __init__(self) -> None:
        self.messages: list[IngestMessage] = []

    def __call__(self, message: IngestMessage) -> None:
        self.messages.append(message)

    def of(self, kind: type) -> list:
        return [message for message in tuple(self.messages) if isinstance(message, kind)]


class ScriptedSource:
    """A source that does what it is told, one connection after the other.

    Each step is a clip (its packets come at once, then the stream is lost with `end`), or an error that `open` raises.
    """

    def __init__(self, *steps: Path | SourceError, end: SourceError | None = None, loops: bool = False) -> None:
        self.loops = loops
        self.opened = 0
        self.closed = 0
        self._steps = list(steps)
        self._end = end
        self._file: FileSource | None = None
        self._bytes = 0

    def open(self) -> StreamInfo:
        self.opened += 1
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        if isinstance(step, SourceError):
            raise step
        self._file = FileSource("scripted", str(step))
        return self._file.open()

    def packets(self) -> Iterator[VideoPacket]:
        assert self._file is not None
        for packet in self._file.packets():
            self._bytes += packet.size
            yield packet
        if self._end is not None:
            raise self._end

    def unread_bytes(self) -> int | None:
        return None

    def received(self) -> ReceivedBytes:
        return ReceivedBytes(self._bytes, exact=False)

    def close(self) -> None:
        self.closed += 1
        if self._file is not None:
            self._file.close()


class NumberReader:
    """A detector that reads the number a picture shows and says it as a box: x1 = number / 1000."""

    name = "number-reader"
    warning = ""
    labels = ("number",)

    def __init__(self, *, fail: Callable[[int], bool] = lambda n: False) -> None:
        self.seen: list[int] = []
        self._fail = fail

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def detect(self, images: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [self._look(image) for image in images]

    def _look(self, image: NDArray[np.uint8]) -> Detections:
        n = number(image)
        self.seen.append(n)
        if self._fail(n):
            raise DetectorError(f"frame {n} is too much for me")
        box = np.array([[n / 1000, 0.1, n / 1000 + 0.0001, 0.2]], np.float32)
        return Detections(box, np.array([0.98765], np.float32), np.zeros(1, np.int32))


class CountingTracker:
    """Every detection is an object of its own; ids count up in the run."""

    def __init__(self, labels: tuple[str, ...], places: object = None) -> None:
        self._labels = labels
        self._next = 1
        self.times: list[float] = []
        self.active_boxes: tuple[Box, ...] = ()
        self.has_unconfirmed = False

    def update(
        self, detections: Detections, t: float, planes: object = (), parts: object = ()
    ) -> tuple[TrackedObject, ...]:
        self.times.append(t)
        found = []
        for box, score, class_id in zip(detections.boxes, detections.scores, detections.class_ids, strict=True):
            x1, y1, x2, y2 = (float(side) for side in box)
            label = self._labels[int(class_id)]
            found.append(TrackedObject(track=self._next, label=label, score=float(score), box=(x1, y1, x2, y2)))
            self._next += 1
        self.active_boxes = tuple(each.box for each in found)
        return tuple(found)


class FrameByFrame:
    """A `CameraAnalysis` that is given frames one by one, without packets and threads."""

    def __init__(
        self, camera: str, detector: ObjectDetector, tracker: Tracker, settings: config.DetectConfig, **more: Any
    ) -> None:
        self.analysis = CameraAnalysis(camera, detector, lambda labels: tracker, settings, **more)
        self._detector = detector

    def select(self, index: int, t: float, av_frame: av.VideoFrame, *, next_s: float = 0.0) -> InferenceRequest | None:
        frame = DecodedFrame(index, t, av_frame, next_s=next_s)
        if self.analysis.begins_session(frame):
            self.analysis.start_session(frame)
        return self.analysis.select(frame)

    def infer(self, request: InferenceRequest) -> FrameBoxes:
        """Raises DetectorError."""
        return self.result(request, self._detector.detect([self.analysis.detector_input(request)])[0])

    def result(self, request: InferenceRequest, detections: Detections | None) -> FrameBoxes:
        return self.analysis.result(request, detections)

    def examine(self, index: int, t: float, av_frame: av.VideoFrame) -> FrameBoxes | None:
        """The whole way of one frame; None: it is not due. A detector that fails gives `looked=False`."""
        request = self.select(index, t, av_frame)
        try:
            return None if request is None else self.infer(request)
        except DetectorError:
            assert request is not None
            return self.result(request, None)
