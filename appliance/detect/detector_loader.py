"""Loads the detector that the section `detector` asks for: finds its file, opens its runtime, or its fallback."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import MissingDependency, ModelError
from appliance.detect import class_labels, model_files
from appliance.detect.model_files import ModelFile
from appliance.detect.tensorrt_plan_cache import engine_folder

if TYPE_CHECKING:  # the core asks here which file a detector is, and loads neither OpenCV nor numpy for that
    from appliance.detect.hog_detector import HogDetector
    from appliance.detect.network_detector import NetworkDetector
    from appliance.detect.network_runtime import NetworkRuntime
    from appliance.detect.openvino_runtime import OwnPrecision
log = logging.getLogger(__name__)


def load(settings: DetectorConfig) -> NetworkDetector | HogDetector:
    """Find, check and warm up the detector that is asked for. Raises ModelError or MissingDependency.

    A model, backend, device or precision that is asked for and not there is refused, never replaced. `auto` is the
    network that comes with Vedette. A precision that is left open is the file's own: the appliance asks
    `runtime_choice.settle_runtime` first. With `fallback: cpu` ONNX Runtime on the CPU stands in for what does not come
    up, and the detector says so (`fallback_reason`). Sets OpenCV's thread count for the whole process.
    """
    settings = with_device(settings)
    try:
        return _load(settings)
    except (ModelError, MissingDependency) as error:
        usual = _fallback_settings(settings)
        if usual is None:
            raise
        try:
            network = _load(usual)
        except (ModelError, MissingDependency):
            raise error from None
        reason = str(error)
    device = "" if settings.backend == "hailo" else f" on {settings.device}"
    asked = f"detector.backend {settings.backend}{device}"
    network.stands_in = f"{asked} did not come up, so {network.name} on the CPU stands in for it: {reason}"
    network.warning = "; ".join(filter(None, (network.warning, network.stands_in)))
    log.warning("%s", network.stands_in)
    return network


def _fallback_settings(settings: DetectorConfig) -> DetectorConfig | None:
    """Return the settings of the fallback on the CPU.

    It is None if none is allowed, or if the settings asked for the CPU already.
    """
    if settings.fallback != "cpu" or (settings.device == "cpu" and settings.backend in ("auto", "onnx", "hog")):
        return None
    plain = {"backend": "onnx", "device": "cpu", "provider": "cuda", "dla_core": None, "precision": "auto"}
    usual: dict[str, object] = {"fallback": "refuse", **plain}
    if settings.model.endswith(".hef"):  # it is another network that stands in, with classes of its own
        usual |= {"model": model_files.AUTO_MODEL, "labels": None}
    return settings.model_copy(update=usual)


def _load(settings: DetectorConfig) -> NetworkDetector | HogDetector:
    import cv2

    cv2.setNumThreads(settings.threads)
    found = locate(settings)
    if found is None:
        from appliance.detect.hog_detector import HogDetector

        return HogDetector(score_min=settings.score_min)
    return _load_network(settings, found)


def with_device(settings: DetectorConfig) -> DetectorConfig:
    """Return `settings` with a device in place of `auto`, as long as nothing was measured.

    It is a GPU for TensorRT, and the CPU for every other backend. bfloat16 on a CPU is OpenVINO's where ONNX Runtime
    has no such products (x86).
    """
    here = settings.device in ("auto", "cpu") and settings.model != model_files.HOG_MODEL
    if settings.backend == "auto" and settings.precision == "bf16" and here and not model_files.cpu_has_bf16():
        return settings.model_copy(update={"backend": "openvino", "device": "cpu"})
    if settings.device != "auto":
        return settings
    return settings.model_copy(update={"device": "cuda" if settings.backend == "tensorrt" else "cpu"})


def locate(settings: DetectorConfig) -> ModelFile | None:
    """Return the model file that is asked for, with its backend and what is known of it before it is loaded.

    It is None for builtin:hog, which has no file. Raises ModelError.
    """
    settings = with_device(settings)
    backend = settings.backend
    if backend == "auto":
        backend = "hog" if settings.model == model_files.HOG_MODEL else "onnx"
    if backend == "hog":
        _must_suit_hog(settings)
        return None
    if settings.model == model_files.HOG_MODEL:
        raise ModelError(
            f"detector.backend {backend} does not run {settings.model}: set backend to auto, or another model"
        )
    model = model_files.named_model(settings.model)
    if backend == "hailo":
        _must_suit_hailo(settings)
        return model_files.find_compiled_model(model)
    if model.endswith(".hef"):
        raise ModelError(f"{model} was compiled for a Hailo device: set detector.backend to hailo")
    # OpenVINO and TensorRT multiply a file in the precision they are told; for ONNX Runtime it is a matter of the file.
    by_backend = (backend in ("openvino", "tensorrt") or settings.provider == "tensorrt") and settings.precision in (
        "bf16",
        "fp16",
    )
    # Who wrote `auto` wants to be watched over: where the bundle in force is damaged, by the network of Vedette's own.
    stand_in = model_files.OWN_MODEL if settings.model == model_files.AUTO_MODEL else ""
    return model_files.find_model(model, precision="auto" if by_backend else settings.precision, stand_in=stand_in)


def make_ready(settings: DetectorConfig) -> None:
    """Prepare a detector that is loaded only when it is needed.

    Its file must be there. An engine that TensorRT would build for minutes is built now. Raises ModelError,
    MissingDependency.
    """
    if "tensorrt" in (settings.backend, settings.provider):
        load(settings).close()
    else:
        locate(settings)


def recheck_settings(model: str, shared: DetectorConfig) -> DetectorConfig:
    """Return the settings of another network for re-checks (`second_look.model`), beside the `detector` section."""
    backend = "auto" if "hog" in (shared.backend, model.partition(":")[2]) else shared.backend
    usual: dict[str, object] = {"model": model, "precision": "auto", "labels": None, "backend": backend}
    if model.endswith(".hef") or backend == "hailo":  # what was not compiled runs elsewhere, and the other way round
        usual |= {"backend": "hailo" if model.endswith(".hef") else "auto", "device": "auto", "dla_core": None}
    return shared.model_copy(update=usual)


def _must_suit_hog(settings: DetectorConfig) -> None:
    """Raise ModelError if the settings ask for a model, device or precision that HOG does not have."""
    if settings.model not in (model_files.HOG_MODEL, model_files.AUTO_MODEL):
        raise ModelError(f"detector.backend hog has no model files: set backend to auto to run {settings.model}")
    if settings.device != "cpu":
        raise ModelError(f"builtin:hog runs on the CPU alone: set detector.device to cpu, not {settings.device}")
    if settings.precision not in ("auto", "fp32"):
        raise ModelError(f"builtin:hog has one precision: set detector.precision to auto, not {settings.precision}")


def _must_suit_hailo(settings: DetectorConfig) -> None:
    """Raise ModelError if the settings ask for a device, precision or head that a HEF does not leave open."""
    if settings.device != "cpu":
        raise ModelError(f"detector.backend hailo has its own device: leave out detector.device {settings.device}")
    if settings.precision != "auto":
        raise ModelError(
            f"a HEF has the precision it was compiled with: set detector.precision to auto, not {settings.precision}"
        )
    if settings.head != "auto":
        raise ModelError(f"a HEF says itself how it is read: set detector.head to auto, not {settings.head}")


def _load_network(settings: DetectorConfig, found: ModelFile) -> NetworkDetector:
    from appliance.detect.network_detector import NetworkDetector  # OpenCV and heads: not for who only locates

    labels = class_labels.read(settings.labels) if settings.labels else found.labels
    network = NetworkDetector(
        found.path,
        _open_runtime(settings, found),
        score_min=settings.score_min,
        head=settings.head if settings.head != "auto" else found.head,
        label_names=labels if settings.backend != "hailo" else (),  # of a HEF its runtime knows, with its notes
        calibration=found.calibration,
    )
    asked = settings.backend, settings.device, settings.precision
    if asked == ("openvino", "cpu", "int8") and not model_files.cpu_sums_int8():
        sentence = "sums of 8-bit products saturate in OpenVINO on this CPU (no VNNI): set detector.backend to onnx"
        network.warning = "; ".join(filter(None, (network.warning, sentence)))
        log.warning("%s: %s", network.name, sentence)
    return network


def _open_runtime(settings: DetectorConfig, found: ModelFile) -> NetworkRuntime:
    """Import and open the chosen runtime: only that one need be installed.

    Raises ModelError, MissingDependency.
    """
    if special := {"openvino": _open_openvino, "tensorrt": _open_tensorrt, "hailo": _open_hailo}.get(settings.backend):
        return special(settings, found)
    if settings.dla_core is not None:
        raise ModelError("detector.dla_core is TensorRT's: set detector.backend to tensorrt, or dla_core to null")
    if settings.provider != "cuda" and settings.device != "cuda":
        raise ModelError(
            f"detector.provider {settings.provider} runs on NVIDIA's GPUs alone: set detector.device to cuda"
        )
    if settings.device not in ("cpu", "cuda"):
        raise ModelError(
            f"detector.device {settings.device} is OpenVINO's: set detector.backend to openvino, or device to cpu"
        )
    try:
        from appliance.detect.onnx_runtime import OnnxRuntime
    except ImportError:
        raise MissingDependency(
            "detector.backend onnx needs the package onnxruntime: pip install onnxruntime (for device cuda: "
            "onnxruntime-gpu)"
        ) from None
    return OnnxRuntime(
        found.path,
        threads=settings.threads,
        device=settings.device,
        bf16=found.bf16,
        provider=settings.provider,
        precision=settings.precision,
    )


def _open_hailo(settings: DetectorConfig, found: ModelFile) -> NetworkRuntime:
    from appliance.detect.hailo_runtime import HailoRuntime  # with a process and its thread: not for who does without

    labels = class_labels.read(settings.labels) if settings.labels else ()
    return HailoRuntime(
        found.path, settings.hailo, score_min=settings.score_min, labels=labels, labels_otherwise=found.labels
    )


def _open_openvino(settings: DetectorConfig, found: ModelFile) -> NetworkRuntime:
    if settings.device == "auto" or settings.device == "cuda":  # noqa: PLR1714  (it narrows)
        raise ModelError("detector.backend openvino runs on cpu, gpu (Intel's) and npu: set detector.device to one")
    try:
        from appliance.detect.openvino_runtime import OpenvinoRuntime
    except ImportError:
        raise MissingDependency(
            "detector.backend openvino needs the package openvino: pip install 'vedette[openvino]'"
        ) from None
    asked = settings.precision
    # A GPU and an NPU are made for fp16; a file of integers keeps them, whatever is multiplied beside them.
    usual: OwnPrecision = "fp32" if settings.device == "cpu" else "fp16"
    precision: OwnPrecision = asked if asked != "auto" and asked != "int8" else usual  # noqa: PLR1714  (it narrows)
    folder = engine_folder() if settings.device != "cpu" else None
    return OpenvinoRuntime(
        found.path,
        threads=settings.threads,
        device=settings.device,
        precision=precision,
        cache=folder and folder / "openvino",
    )


def _open_tensorrt(settings: DetectorConfig, found: ModelFile) -> NetworkRuntime:
    if settings.device != "cuda":
        raise ModelError(
            f"detector.backend tensorrt runs on NVIDIA's GPUs alone: set detector.device to cuda, not {settings.device}"
        )
    # NVIDIA's libraries are looked for when it opens.
    from appliance.detect.tensorrt_runtime import TensorrtRuntime

    return TensorrtRuntime(found.path, precision=settings.precision, dla_core=settings.dla_core)
