"""The detector's throughput for cameras behind the scheduler, compared with its network by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import av
import numpy as np
from numpy.typing import NDArray

from appliance.analysis.session_tracks import InferenceRequest, SessionTracks
from appliance.base.clock import Clock
from appliance.detect.detector import ObjectDetector
from appliance.detect.network_detector import NetworkDetector
from appliance.inference.camera_queue import CameraQueue, FrameAges
from appliance.inference.inference_worker import InferenceWorker, QueuedInference
from appliance.media.frames import FrameConverter
from appliance.types import Detections, DropReason

Seconds = Callable[[], float]
ROUNDS_MIN, ROUNDS_MAX = 5, 200  # a median needs five; more than 200 only take time
CAMERA_FPS, HEARTBEAT_S = 1000.0, 60.0  # a frame is always due, and no deadline disturbs the order


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Detections end to end in the time that the network alone takes for one.

    scaled: from frames in the size that the network wants, offered to the scheduler, to boxes at their camera. decoded:
    from decoded frames of a camera, which are scaled first.
    """

    scaled: float
    decoded: float


class _Camera:
    """A camera of which a frame always waits. It plays the session of its own requests."""

    def __init__(
        self,
        detector: ObjectDetector,
        frame: av.VideoFrame,
        image: NDArray[np.uint8] | None,
        answered: list[tuple[_Camera, bool]],
    ) -> None:
        """Show the detector `image`, or with None the frame, scaled each time.

        answered: gets, for each frame, whether its boxes came.
        """
        self.queue: CameraQueue[QueuedInference] = CameraQueue(fps=CAMERA_FPS, heartbeat_s=HEARTBEAT_S, late_max=1)
        self.ages = FrameAges()
        self._answered = answered
        self._detector, self._frame, self._image = detector, frame, image
        self._converter = FrameConverter()
        size = detector.preferred_size(frame.width, frame.height)
        self._drawn = size
        self._size = detector.input_size(*size) if isinstance(detector, NetworkDetector) else size

    def offer(self, now: float) -> None:
        tracks = cast(SessionTracks, self)
        request = InferenceRequest(tracks, 0, now, self._frame, 0.0, self._drawn, input_size=self._size)
        self.queue.offer(QueuedInference(request), now, size=self._size)

    def detector_input(self, request: InferenceRequest) -> NDArray[np.uint8]:
        if self._image is not None:
            return self._image
        return self._converter.bgr(self._frame, self._detector.preferred_size(self._frame.width, self._frame.height))

    def complete(self, queued: QueuedInference, detections: Detections | None, reason: DropReason = "failed") -> None:
        self._answered.append((self, detections is not None))


class DetectorBench:
    """A worker with cameras that always have a frame. Owner: the thread that calls."""

    def __init__(self, detector: ObjectDetector, cameras: int, size: tuple[int, int], clock: Clock, *, scaled: bool):
        """size: (width, height) of the cameras' decoded frames."""
        noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
        frame = av.VideoFrame.from_ndarray(noise, format="bgr24").reformat(format="yuv420p")
        width, height = detector.preferred_size(*size)
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8) if scaled else None
        self._answered: list[tuple[_Camera, bool]] = []
        self._cameras = [_Camera(detector, frame, image, self._answered) for _ in range(cameras)]
        self._worker = InferenceWorker(detector, self._cameras, clock)
        self._clock = clock
        self._worker.measure_batching()
        for each in self._cameras:
            each.offer(clock.monotonic())

    def run_once(self) -> int:
        """One call of the detector; how many frames got their boxes."""
        self._answered.clear()
        self._worker.run_once()
        now = self._clock.monotonic()
        for camera, _ in self._answered:
            camera.offer(now)
        return sum(got for _, got in self._answered)


def rate(detector: ObjectDetector, cameras: int, size: tuple[int, int], seconds: float, clock: Clock) -> float:
    """Return the detections a second of so many cameras together, from their decoded frames to their boxes."""
    bench = DetectorBench(detector, cameras, size, clock, scaled=False)
    began, done = clock.monotonic(), 0
    while not done or clock.monotonic() - began < seconds:
        done += bench.run_once()
    return done / (clock.monotonic() - began)


def batch_rates(network: NetworkDetector, size: tuple[int, int], seconds: float, clock: Clock) -> dict[int, float]:
    """Return the detections a second by frames in a run, with the detector called by itself."""
    width, height = network.preferred_size(*size)
    frame = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    found: dict[int, float] = {}
    count = 1
    while count <= network.batch_max:
        network.detect([frame] * count)
        began, done = clock.monotonic(), 0
        while not done or clock.monotonic() - began < seconds:
            network.detect([frame] * count)
            done += count
        found[count] = done / (clock.monotonic() - began)
        count *= 2
    return found


def efficiency(
    network: NetworkDetector, cameras: int, size: tuple[int, int], seconds: float, clock: Clock, meter: Seconds
) -> Efficiency:
    """In turns with the network alone on as many frames, so that whatever else the machine does falls on all alike.

    meter: CPU seconds where the network runs on a CPU, else those of the clock.
    """
    benches = [DetectorBench(network, cameras, size, clock, scaled=each) for each in (True, False)]
    feeds = {count: network.trial_feed(size, count) for count in range(1, network.batch_max + 1)}
    spent, bare, began = [0.0, 0.0], [0.0, 0.0], clock.monotonic()
    for done in range(ROUNDS_MAX):
        for way, bench in enumerate(benches):
            at = meter()
            count = bench.run_once()
            between = meter()
            network.runtime.run(feeds[max(1, count)])
            if done:  # the first pays for memory
                spent[way] += between - at
                bare[way] += meter() - between
        if done >= ROUNDS_MIN and clock.monotonic() - began > seconds:
            break
    scaled, decoded = (round(min(1.0, each / max(whole, 1e-9)), 3) for each, whole in zip(bare, spent, strict=True))
    return Efficiency(scaled, decoded)
