"""The steps of benchmarks.gpu: each measures one thing and returns its figures, or raises why it cannot."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from appliance.base.clock import SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import MissingDependency, VedetteError
from appliance.detect import detector_loader, model_files
from appliance.detect.accelerators import accelerators
from appliance.detect.cuda_runtime import DRIVER_CURE, CudaRuntime
from appliance.detect.letterbox import Letterbox, Nv12Kernel, PixelRange, kernel_values
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.tensorrt_engine import load_tensorrt
from appliance.detect.tensorrt_runtime import TensorrtRuntime
from appliance.inference.camera_queue import CameraQueue
from appliance.inference.scheduler import InferenceScheduler, measure_batching
from appliance.media.hardware_probe import open_codec, probe_kind, proof_clip
from benchmarks.gpu_reference import compare, decode, frames, lay, nv12, sized, upload

PACKAGES = (
    "tensorrt", "tensorrt-cu12", "tensorrt-cu13", "cuda-bindings", "onnxruntime", "onnxruntime-gpu", "av",
    "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "onnx", "numpy",
)  # fmt: skip
P99_MS_MAX = 10.0  # of one frame in vedette-nano: the bar that placement of detectors was planned with
CAMERA_FPS = 10.0
COPIED_BYTES = 8 << 20  # four frames of 1080p in NV12 have 12 MB
OPENED_TIMES = 20  # a leak of a buffer each time would be 160 MB
LOST_MIB_MAX = 8  # of other processes' coming and going
CAMERAS = (4, 8, 16, 32, 64, 128, 256)
SERVED_MIN = 0.95
WARM_UP, RUNS_MIN = 5, 20
# (IoU of 95 % of boxes, 95 % of score differences) against ONNX Runtime on the CPU, as the contract suite asks.
TOLERANCES = {"fp32": (0.99, 1e-3), "auto": (0.9, 0.03)}
_CLOCK = SystemClock()


class NotMet(Exception):
    """A figure that misses its bar. figures: all that was measured."""

    def __init__(self, why: str, figures: Mapping[str, object]) -> None:
        super().__init__(why)
        self.figures = figures


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """model: as detector.model. folder: for engines and files of this run. share: of each measuring time."""

    model: str
    folder: Path
    share: float = 1.0

    def seconds(self, usual: float) -> float:
        return usual * self.share


def box(plan: GpuPlan) -> dict[str, object]:
    """Describe the machine, and what the later steps will lack. Raise NotMet, with the cure, when it has no GPU."""
    figures: dict[str, object] = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}, {model_files.cpu_name()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "hardware decoders in PyAV": ", ".join(av.codec.hwaccel.hwdevices_available()) or "none",
        "wheels for all of it": "tensorrt-cu13<11 cuda-bindings nvidia-cuda-nvrtc onnx onnxruntime-gpu[cuda,cudnn] "
        "(a driver before 580: tensorrt-cu12<11 'cuda-bindings<13' nvidia-cuda-nvrtc-cu12)",
    }
    try:
        figures["TensorRT"] = load_tensorrt().__version__
    except VedetteError as error:
        figures["TensorRT"] = f"not here: {error}"
    if not any(each.kind == "cuda" for each in accelerators()):
        raise NotMet(f"there is no NVIDIA GPU, or its driver is not loaded: {DRIVER_CURE}", figures)
    try:
        cuda = CudaRuntime()
        figures["GPU"] = f"{cuda.gpu}, {cuda.gpu.memory_bytes >> 20} MiB"
        cuda.close()
    except MissingDependency as error:
        figures["GPU"] = f"a driver is loaded; {error}"
    except VedetteError as error:
        raise NotMet(str(error), figures) from None
    return figures


def runtime(plan: GpuPlan) -> dict[str, object]:
    """Measure copies of page-locked memory, alone and as a recorded graph; what is closed has to be given back."""
    cuda = CudaRuntime()
    buffer = cuda.buffer(COPIED_BYTES)
    buffer.view(np.dtype(np.uint8), (COPIED_BYTES,))[:] = np.arange(COPIED_BYTES, dtype=np.uint32).astype(np.uint8)

    def there_and_back() -> None:
        cuda.upload(buffer, COPIED_BYTES)
        cuda.download(buffer, COPIED_BYTES)

    def copied() -> None:
        there_and_back()
        cuda.wait()

    rate = _rate(copied, plan.seconds(3))
    cuda.begin_capture()
    there_and_back()
    graph = cuda.end_capture()

    def replayed() -> None:
        cuda.launch(graph)
        cuda.wait()

    figures: dict[str, object] = {
        "copied there and back GB/s": round(2 * COPIED_BYTES * rate / 1e9, 2),
        "by graph p50, p99 ms": _percentiles(replayed, plan.seconds(2)),
    }
    intact = bool((buffer.view(np.dtype(np.uint8), (256,)) == np.arange(256)).all())
    cuda.close()
    held = [_free_bytes() for _ in range(3)]  # the first makes the context, which stays
    for _ in range(OPENED_TIMES):
        again = CudaRuntime()
        again.buffer(COPIED_BYTES)
        again.close()
    figures["MiB lost by opening and closing"] = lost = (held[-1] - _free_bytes()) >> 20
    if not intact or lost > LOST_MIB_MAX:
        raise NotMet(f"{lost} MiB were not given back" if intact else "what came back is not what went there", figures)
    return figures


def engine(plan: GpuPlan) -> dict[str, object]:
    """Time the first start, which builds the engine, and the second, which loads it."""
    took = {}
    for start in ("built in s", "loaded in s"):
        at = _CLOCK.monotonic()
        network = load(plan)
        took[start] = round(_CLOCK.monotonic() - at, 2)
        version = network.runtime.version
        network.close()
    sizes = [each.stat().st_size for each in (plan.folder / "engines").glob("*.plan")]
    return {"runtime": version, **took, "engine MB": round(max(sizes, default=0) / 1e6, 3)}


def parity(plan: GpuPlan) -> dict[str, object]:
    """Compare the boxes with those of ONNX Runtime on the CPU, in float32 and as `auto` builds it."""
    figures: dict[str, object] = {}
    usual = detector_loader.load(DetectorConfig(model=plan.model, backend="onnx", score_min=0.05))
    missed = []
    for precision, (box_min, score_max) in TOLERANCES.items():
        other = load(plan, precision=precision, score_min=0.05)
        alike, apart = compare(usual, other, frames(20))
        other.close()
        iou = round(float(np.quantile(alike, 0.05)), 4) if alike else 0.0
        score = round(float(np.quantile(apart, 0.95)), 4) if apart else 1.0
        figures[other.runtime.mark] = {"boxes": len(alike), "IoU of 95 %": iou, "scores within": score}
        if not alike or iou < box_min or score > score_max:
            missed.append(f"{precision}: IoU {iou} (at least {box_min}), scores {score} (at most {score_max})")
    if missed:
        raise NotMet("; ".join(missed), figures)
    return figures


def latency(plan: GpuPlan) -> dict[str, object]:
    """Time one frame at a time: the network alone, and with what comes before and after it."""
    network = load(plan)
    frame = sized(network, frames()[0])
    feed = network.trial_feed((frame.shape[1], frame.shape[0]))
    figures: dict[str, object] = {
        "network p50, p99 ms": _percentiles(lambda: network.runtime.run(feed), plan.seconds(4)),
        "detection p50, p99 ms": (whole := _percentiles(lambda: network.detect([frame]), plan.seconds(4))),
        "recorded graphs": held.recorded if isinstance(held := network.runtime, TensorrtRuntime) else 0,
    }
    network.close()
    if whole[1] >= P99_MS_MAX:
        raise NotMet(f"p99 is {whole[1]} ms, at most {P99_MS_MAX:g} is the bar", figures)
    return figures


def batches(plan: GpuPlan) -> dict[str, object]:
    """Measure the frames a second of the network alone, by how many go into a run."""
    network = load(plan, model=any_batch(plan))
    width, height = network.input_size(*network.preferred_size(1280, 720))
    figures: dict[str, object] = {"runtime": network.runtime.version}
    name = network.runtime.inputs[0].name
    for count in network.runtime.batch_sizes:
        feed = {name: np.full((count, 3, height, width), 0.45, network.runtime.inputs[0].dtype)}
        network.runtime.run(feed)
        rate = _rate(partial(network.runtime.run, feed), plan.seconds(2))
        figures[f"frames/s, {count} a run"] = round(count * rate)
    network.close()
    return figures


def scheduler(plan: GpuPlan) -> dict[str, object]:
    """Cameras at 10 frames a second through the scheduler: the most of which nearly every frame is examined."""
    network = load(plan, model=any_batch(plan))
    frame = sized(network, frames()[0])
    bare = _rate(lambda: network.detect([frame] * network.batch_max), plan.seconds(2)) * network.batch_max
    measured = measure_batching(network, _CLOCK)
    figures: dict[str, object] = {"batch": measured.size_max, "detections/s without cameras": round(bare)}
    most = 0
    for count in CAMERAS:
        offered, examined, ages = serve(network, frame, count, plan.seconds(3))
        figures[f"{count} cameras"] = {"examined": round(examined / max(1, offered), 3), "age p99 ms": ages}
        if examined < SERVED_MIN * offered:
            break
        most = count
    figures["cameras of 10 fps"] = most
    network.close()
    return figures


def kernel(plan: GpuPlan) -> dict[str, object]:
    """Compare NV12 on the GPU, turned into a network's input, with numpy: the kernel alone, without an engine.

    Where TensorRT is here, time a whole detection of a frame that is there as well.
    """
    cuda = CudaRuntime()
    made = Nv12Kernel(cuda.gpu.compute)
    luma, chroma = nv12(frames(form="nv12")[0])
    frame = upload(cuda, luma, chroma)
    place = Letterbox(416, 416, "centre", step=32).placement(416, 234)
    pixels = PixelRange(True, (1.0,) * 3, (0.0,) * 3)
    width, height = place.input_size
    out = cuda.buffer(3 * width * height * 4)

    def laid() -> NDArray[np.float32]:
        made.launch(
            kernel_values(frame, place, pixels, out.device, half_floats=False), (width, height), int(cuda.stream)
        )
        cuda.download(out, 3 * width * height * 4)
        cuda.wait()
        return out.view(np.dtype(np.float32), (3, height, width))

    apart = float(np.abs(laid() - lay(luma, chroma, place, pixels)).max())
    figures: dict[str, object] = {
        "largest difference of 255": round(apart, 3),
        "laid p50, p99 ms": _percentiles(laid, plan.seconds(2)),
    }
    made.close()
    try:
        network = load(plan, precision="fp32")
        figures["detection on the GPU p50, p99 ms"] = _percentiles(
            lambda: network.detect_on_gpu([frame]), plan.seconds(3)
        )
        network.close()
    except VedetteError as error:
        figures["detection on the GPU"] = f"not here: {error}"
    cuda.close()
    if apart > 0.1:
        raise NotMet(f"the kernel and numpy are {apart:.2f} of 255 apart", figures)
    return figures


def nvdec(plan: GpuPlan) -> dict[str, object]:
    """Compare the GPU's decoder with the processor's: the same frames, and how many a second.

    First CUDA, then NVDEC, as in the process that holds a detector: its decoder has to come up in a context that is
    there already.
    """
    figures: dict[str, object] = {}
    try:
        cuda: CudaRuntime | None = CudaRuntime()
        figures["contexts"] = "CUDA, then NVDEC"
    except MissingDependency as error:
        cuda, figures["contexts"] = None, f"NVDEC alone: {error}"
    clip = proof_clip("libx264")
    probed = probe_kind("cuda", None, "ffmpeg")
    figures["as Vedette decodes"] = probed.text
    if not probed.works:
        raise NotMet(f"the probe of decode.hardware refuses it: {probed.reason}", figures)
    hardware, by_gpu = decode(clip, plan.seconds(6), open_codec(probed.ways["h264"], clip.info))
    software, by_cpu = decode(clip, plan.seconds(6), None)
    figures |= {"frames/s by NVDEC": round(by_gpu), "by the CPU": round(by_cpu)}
    if cuda is not None:
        cuda.close()
    if not hardware or hardware != software:
        raise NotMet("NVDEC gives other frames (PTS) than software", figures)
    return figures


def onnx_cuda(plan: GpuPlan) -> dict[str, object]:
    """ONNX Runtime's CUDA and TensorRT providers, for comparison. Raises what is missing of them."""
    figures: dict[str, object] = {}
    for provider in ("cuda", "tensorrt"):
        try:
            network = load(plan, backend="onnx", device="cuda", provider=provider)
        except VedetteError as error:
            figures[provider] = f"not here: {error}"
            continue
        asked = partial(network.detect, [sized(network, frames()[0])])
        figures[f"{provider} p50, p99 ms"] = _percentiles(asked, plan.seconds(3))
        network.close()
    if all(str(value).startswith("not here") for value in figures.values()):
        raise MissingDependency(str(figures["cuda"]))
    return figures


def load(plan: GpuPlan, **others: object) -> NetworkDetector:
    """Load the plan's detector. Raise ModelError, MissingDependency."""
    network = detector_loader.load(
        DetectorConfig.model_validate({"model": plan.model, "backend": "tensorrt", **others})
    )
    assert isinstance(network, NetworkDetector)
    return network


def any_batch(plan: GpuPlan) -> str:
    """Return the path of the model, made to take any number of frames. Raise MissingDependency without onnx."""
    try:
        import onnx

        from models import shapes
    except ImportError:
        raise MissingDependency("a batch needs a network that takes one: pip install onnx, which frees ours") from None
    path = model_files.find_model(plan.model).path
    made = plan.folder / f"{path.stem}-any.onnx"
    if not made.exists():
        onnx.save(shapes.free(onnx.load(str(path))), str(made))
    return str(made)


def _free_bytes() -> int:
    """Return what is free of the GPU's memory."""
    cuda = CudaRuntime()
    free, _ = cuda.call("cudaMemGetInfo")
    cuda.close()
    return int(free)


def serve(network: NetworkDetector, frame: NDArray[np.uint8], cameras: int, seconds: float) -> tuple[int, int, float]:
    """Return the frames offered and examined, and the age in ms that 99 % stay under."""
    queues = [CameraQueue[NDArray[np.uint8]](fps=CAMERA_FPS, heartbeat_s=4.0, late_max=0) for _ in range(cameras)]
    chooser = InferenceScheduler(queues, measure_batching(network, _CLOCK))
    size = network.input_size(frame.shape[1], frame.shape[0])
    stop, offered = threading.Event(), 0

    def feed() -> None:
        nonlocal offered
        due = [_CLOCK.monotonic() + n / cameras / CAMERA_FPS for n in range(cameras)]
        while not stop.is_set():
            now = _CLOCK.monotonic()
            for n, at in enumerate(due):
                if at <= now:
                    queues[n].offer(frame, now, priority=0.1, size=size)
                    offered += 1
                    due[n] = at + 1 / CAMERA_FPS
            stop.wait(0.001)

    feeder = threading.Thread(target=feed, name="cameras", daemon=True)
    feeder.start()
    examined, ages, until = 0, list[float](), _CLOCK.monotonic() + seconds
    while (now := _CLOCK.monotonic()) < until:
        selected = chooser.next(now)
        if not selected:
            stop.wait(0.0005)
            continue
        network.detect([each.frame.item for each in selected])
        done = _CLOCK.monotonic()
        chooser.done(selected, done - now, done)
        examined += len(selected)
        ages += [(done - each.frame.at) * 1000 for each in selected]
    stop.set()
    feeder.join()
    return offered, examined, round(float(np.quantile(ages, 0.99)), 1) if ages else 0.0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _percentiles(work: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return (median, 99 %) in ms, after a warm-up."""
    for _ in range(WARM_UP):
        work()
    took: list[float] = []
    began = _CLOCK.monotonic()
    while len(took) < RUNS_MIN or _CLOCK.monotonic() - began < seconds:
        at = _CLOCK.monotonic()
        work()
        took.append((_CLOCK.monotonic() - at) * 1000)
    return round(statistics.median(took), 3), round(float(np.quantile(took, 0.99)), 3)


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Return the calls a second, after a warm-up."""
    for _ in range(WARM_UP):
        work()
    count, began = 0, _CLOCK.monotonic()
    while not count or _CLOCK.monotonic() - began < seconds:
        work()
        count += 1
    return count / (_CLOCK.monotonic() - began)
