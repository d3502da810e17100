"""Measures one way to run a network, in a process of its own: python -m appliance.lab.bench_measurement.

Reads {"settings": a DetectorConfig, "seconds": S, "threads": [1, 2]} from standard input and prints a Measurement, or
{"error": why}, as JSON: memory, and what a library leaves behind, are then those of that way alone.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import av
import numpy as np
from numpy.typing import NDArray

from appliance.analysis.session_tracks import InferenceRequest, SessionTracks
from appliance.base.clock import Clock, SystemClock, process_cpu_s
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, MissingDependency, VedetteError
from appliance.base.machine import process_usage
from appliance.detect import detector_loader
from appliance.detect.detector import ObjectDetector
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.runtime_choice import TRIAL_SIZE, trial_frame
from appliance.inference.camera_queue import CameraQueue, FrameAges
from appliance.inference.inference_worker import InferenceWorker, QueuedInference
from appliance.media.frames import FrameConverter
from appliance.sensors.linux_sensors import EnergyMeter, RaplCounters
from appliance.types import Detections, DropReason

WARM_UP = 3  # the first inferences allocate and choose kernels
RUNS_MIN = 10  # a median and its spread
CAMERAS = (1, 4, 16)  # one, a house, and a small site
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True)
class Measurement:
    """name: of the detector. p50_ms, p99_ms: of one detection in a whole 16:9 frame, on the wall clock, one thread.

    cpu_ms: of all cores, for one. network_share: of that, what the network itself takes; None: it cannot be told apart.
    rates: detections a second, by the number of threads that call the detector; batch_rates: by frames in a run, one
    thread; camera_rates: by cameras that share it through the scheduler, from decoded 720p to boxes. efficiency: see
    `Efficiency`; by CPU time on a CPU, by the clock on a device. memory_mb: PSS of the process. joules: for one
    detection, see `ProcessorEnergy`; None: the kernel does not tell.
    """

    name: str
    runtime: str
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    network_share: float | None
    rates: dict[int, float]
    batch_rates: dict[int, float]
    camera_rates: dict[int, float]
    efficiency: Efficiency | None
    memory_mb: float
    joules: float | None


class ProcessorEnergy:
    """The energy that RAPL counts for this machine since this object was made, whoever uses it: see `RaplCounters`."""

    def __init__(self, root: Path, clock: Clock) -> None:
        """root: of the file system that /sys lies in."""
        self._counters, self._meter, self._clock = RaplCounters(root), EnergyMeter(), clock
        self._meter.add(self._counters.read().energy, clock.monotonic())

    def joules(self) -> float | None:
        """Return what was used since the last call; None: the kernel does not tell (it is often root's alone)."""
        used = self._meter.add(self._counters.read().energy, self._clock.monotonic())
        return sum(used.joules.values()) if used is not None else None


def measure(settings: DetectorConfig, seconds: float, threads: Sequence[int]) -> Measurement:
    """Measure. seconds: of each thing. Raises VedetteError, MissingDependency."""
    network = detector_loader.load(settings)
    frame = trial_frame(network)
    for _ in range(WARM_UP):
        network.detect([frame])
    energy = ProcessorEnergy(Path("/"), _CLOCK)
    cpu, began = process_cpu_s(), _CLOCK.monotonic()
    took: list[float] = []
    while len(took) < RUNS_MIN or _CLOCK.monotonic() - began < seconds:
        at = _CLOCK.monotonic()
        network.detect([frame])
        took.append((_CLOCK.monotonic() - at) * 1000)
    meter = process_cpu_s if detector_loader.with_device(settings).device == "cpu" else _CLOCK.monotonic
    usage = process_usage(os.getpid())
    memory_mb = 0.0 if usage is None else round(usage.memory_bytes / 2**20, 1)
    cpu_ms, joules = (process_cpu_s() - cpu) * 1000 / len(took), energy.joules()
    by_batch: dict[int, float] = {}
    compared = None
    if isinstance(network, NetworkDetector):
        by_batch = batch_rates(network, TRIAL_SIZE, seconds, _CLOCK)
        compared = efficiency(network, CAMERAS[-1], TRIAL_SIZE, seconds, _CLOCK, meter)
    return Measurement(
        network.name,
        network.runtime.version if isinstance(network, NetworkDetector) else "opencv, cpu",
        round(statistics.median(took), 2),
        round(float(np.quantile(took, 0.99)), 2),
        round(cpu_ms, 2),
        _network_share(network, frame, len(took)),
        {count: round(_rate(network, frame, count, seconds), 1) for count in threads},
        _rounded(by_batch),
        _rounded({n: rate(network, n, TRIAL_SIZE, seconds, _CLOCK) for n in CAMERAS}),
        compared,
        memory_mb,
        round(joules / len(took), 4) if joules else None,
    )


def _rounded(rates: dict[int, float]) -> dict[int, float]:
    return {count: round(rate, 1) for count, rate in rates.items()}


def _network_share(network: ObjectDetector, frame: NDArray[np.uint8], runs: int) -> float | None:
    """Return the network's share of a detection's CPU time.

    Detections take turns with the network alone on a tensor of the same shape.
    """
    if not isinstance(network, NetworkDetector):
        return None
    feed = network.trial_feed((frame.shape[1], frame.shape[0]))
    whole, bare = 0.0, 0.0
    for _ in range(min(runs, 100)):
        at = process_cpu_s()
        network.detect([frame])
        between = process_cpu_s()
        network.runtime.run(feed)
        whole, bare = whole + between - at, bare + process_cpu_s() - between
    return round(min(1.0, bare / whole), 3) if whole else None


def _rate(network: ObjectDetector, frame: NDArray[np.uint8], threads: int, seconds: float) -> float:
    deadline = _CLOCK.monotonic() + seconds

    def work(_: int) -> int:
        done = 0
        while not done or _CLOCK.monotonic() < deadline:
            network.detect([frame])
            done += 1
        return done

    began = _CLOCK.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, range(threads)))
    return done / (_CLOCK.monotonic() - began)


def main() -> None:
    """See the module."""
    asked = json.load(sys.stdin)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        settings = DetectorConfig.model_validate(asked["settings"])
        row: dict[str, object] = asdict(measure(settings, asked["seconds"], asked["threads"]))
    except (VedetteError, MissingDependency) as error:
        row = {"error": str(error)}
    print(json.dumps(row))


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
        self.detector = detector  # of the session
        self._frame, self._image = frame, image
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
        return self._converter.bgr(self._frame, self.detector.preferred_size(self._frame.width, self._frame.height))

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
        """Call the detector once; return how many frames got their boxes. Raise DetectorError: it fails."""
        self._answered.clear()
        self._worker.run_once()
        if self._worker.warning:
            raise DetectorError(self._worker.warning)
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
    """Compare, in turns, with the network alone on as many frames, so that other load falls on all alike.

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


if __name__ == "__main__":
    main()
