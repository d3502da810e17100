"""TensorRT's engine, its cache and its runtime, on stand-ins for NVIDIA's modules (see fake_nvidia): no GPU is here."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import fake_nvidia
import numpy as np
import pytest
from fake_nvidia import VERSIONS, FakeGpu

from appliance.base.clock import ManualClock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, MissingDependency, ModelError
from appliance.detect import detector, detector_loader, model_files, tensorrt_engine
from appliance.detect.letterbox import GpuFrame, PixelRange, Placement
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_header import OnnxHeader, read_header
from appliance.detect.tensorrt_engine import (
    EngineOrder,
    EnginePrecision,
    build_engine,
    choose_precision,
    load_tensorrt,
    must_run_on_dla,
)
from appliance.detect.tensorrt_plan_cache import PLANS_MAX, PlanCache, PlanKey, engine_folder
from appliance.detect.tensorrt_runtime import RECORDED_MAX, TensorrtRuntime
from models.variants import make_variant
from tests.support import tiny_networks as tiny
from tests.support.tiny_networks import SIDE, Thing, reds, scores_of

THINGS = [Thing((48, 40, 80, 88), 1.0, 0)]
CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "yard.mp4"
NEW, OLD = "10.16.1.11", "10.3.0"


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes any number of pictures; what it finds is scored by how red each is."""
    return tiny.of_any_batch(tiny.yolo(tmp_path_factory.mktemp("tiny") / "n.onnx", THINGS, ["person"]))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGpu:
    monkeypatch.setenv("VEDETTE_ENGINES", str(tmp_path / "engines"))
    return fake_nvidia.install(monkeypatch, NEW)


def plans(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "engines").glob("*.plan"))


def flags_of(plan: Path) -> dict[str, Any]:
    told = json.loads(plan.read_bytes().partition(b"\n")[2])
    return {name: told[name] for name in ("flags", "typed", "dla", "profiles")}


def header(precision: str) -> OnnxHeader:
    weights = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "float32"}[precision]
    return OnnxHeader((), (), {}, frozenset({weights}), precision == "int8", external=False)


def test_a_header_is_what_onnx_runtime_reads(network: Path) -> None:
    import onnxruntime as ort

    for path in (network, *sorted(Path("models").glob("vedette-nano*.onnx"))):
        session, found = ort.InferenceSession(str(path)), read_header(path)
        assert [(each.name, list(each.shape)) for each in found.inputs] == [
            (each.name, each.shape) for each in session.get_inputs()
        ]
        assert [each.name for each in found.outputs] == [each.name for each in session.get_outputs()]
        assert found.metadata == session.get_modelmeta().custom_metadata_map
        assert found.precision == ("int8" if "int8" in path.name else "fp32")
        assert not found.external


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.9998])  # the last: within the metadata
def test_half_a_file_is_no_network(share: float, network: Path, tmp_path: Path) -> None:
    whole = network.read_bytes()
    (tmp_path / "cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match="not a usable ONNX file"):
        read_header(tmp_path / "cut.onnx")


@pytest.mark.parametrize(
    ("asked", "own", "major", "built"),
    [
        ("auto", "fp32", 10, EnginePrecision("fp16", ("FP16",))),
        ("auto", "fp32", 11, EnginePrecision("tf32", typed=True, tf32=True)),
        ("fp32", "fp32", 10, EnginePrecision("fp32")),
        ("fp32", "fp32", 11, EnginePrecision("fp32", typed=True)),
        ("bf16", "fp32", 10, EnginePrecision("bf16", ("BF16",))),
        ("auto", "fp16", 10, EnginePrecision("fp16", typed=True)),
        ("fp16", "fp16", 11, EnginePrecision("fp16", typed=True)),
        ("auto", "int8", 10, EnginePrecision("int8", ("INT8", "FP16"))),
        ("int8", "int8", 11, EnginePrecision("int8", typed=True)),
    ],
)
def test_each_version_is_told_the_precision_in_its_own_way(
    asked: Any, own: str, major: int, built: EnginePrecision
) -> None:
    assert choose_precision(asked, header(own), Path("n.onnx"), (major, 3, 0), dla=False) == built


@pytest.mark.parametrize(
    ("asked", "own", "major", "dla", "words"),
    [
        ("fp16", "fp32", 11, False, r"modelopt\.onnx\.autocast --onnx_path n\.onnx"),
        ("int8", "fp32", 10, False, r"needs a file that is quantised"),
        ("fp32", "int8", 10, False, r"exported in int8 and cannot run in fp32"),
        ("fp32", "fp32", 10, True, r"a DLA computes in fp16 and int8 alone.*dla_core to null"),
        ("int8", "int8", 11, True, r"a DLA takes networks of Q/DQ from TensorRT 11\.4\.1 on: name .*precision to fp16"),
    ],
)
def test_a_precision_that_is_not_to_be_had_is_refused_with_the_cure(
    asked: Any, own: str, major: int, dla: bool, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        choose_precision(asked, header(own), Path("n.onnx"), (major, 3, 0), dla=dla)


@pytest.mark.parametrize(
    ("version", "model", "flags", "typed"),
    [
        (OLD, "vedette-nano", ["FP16"], False),
        (NEW, "int8", ["FP16", "INT8"], False),
        (VERSIONS[2], "vedette-nano", ["TF32"], True),
        (VERSIONS[2], "int8", [], True),
    ],
)
def test_our_networks_are_built_on_every_version(
    version: str, model: str, flags: list[str], typed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """int8: as models.variants makes it for TensorRT; in the sizes of one frame first, then of batches."""
    if model == "int8":
        rng = np.random.default_rng(0)
        frames = [rng.integers(0, 256, (416, 416, 3), np.uint8) for _ in range(2)]
        own = model_files.find_model("vedette-nano").path
        model = str(make_variant(own, tmp_path / "int8.onnx", "tensorrt", frames))
    monkeypatch.setenv("VEDETTE_ENGINES", str(tmp_path / "engines"))
    fake_nvidia.install(monkeypatch, version)
    looker = detector_loader.load(DetectorConfig(model=model, backend="tensorrt"))
    assert isinstance(looker, detector.Batching)
    (plan,) = plans(tmp_path)
    told = flags_of(plan)
    assert (told["flags"], told["typed"]) == (flags, typed)
    batch = looker.batch_max
    assert [list(shapes.values()) for shapes in told["profiles"]] == [
        [[[1, 3, high, 416], [max(1, most // 2), 3, high, 416], [most, 3, high, 416]]]
        for most in sorted({1, batch})
        for high in (288, 352, 416)
    ]
    looker.close()


def test_whole_frames_go_into_the_smallest_of_three_inputs(gpu: FakeGpu) -> None:
    looker = detector_loader.load(DetectorConfig(backend="tensorrt"))
    assert isinstance(looker, detector.Batching)
    sizes = [(1920, 1080), (768, 576), (600, 600), (300, 900)]
    assert [looker.input_size(*looker.preferred_size(*size)) for size in sizes] == [
        (416, 288), (416, 352), (416, 416), (416, 416)
    ]  # fmt: skip


def test_an_engine_is_built_once_and_kept(gpu: FakeGpu, network: Path, tmp_path: Path) -> None:
    for _ in range(2):
        runtime = TensorrtRuntime(network)
        assert scores_of(runtime.run(reds(0.5))) == [0.5]
        runtime.close()
    assert gpu.builds == 1
    assert (tmp_path / "engines").stat().st_mode & 0o777 == 0o700


def test_a_detector_that_is_needed_later_has_its_engine_by_then(gpu: FakeGpu, network: Path) -> None:
    settings = DetectorConfig(model=str(network), backend="tensorrt")
    detector_loader.make_ready(settings)
    assert (gpu.builds, gpu.blocks) == (1, {}), "built, and nothing of it is held"
    detector_loader.load(settings).close()
    assert gpu.builds == 1
    with pytest.raises(ModelError, match="no such model file"):
        detector_loader.make_ready(DetectorConfig(model="gone.onnx"))


def test_another_version_precision_or_network_is_another_engine(
    gpu: FakeGpu, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TensorrtRuntime(network).close()
    TensorrtRuntime(network, precision="fp32").close()
    TensorrtRuntime(tiny.yolo(tmp_path / "other.onnx", THINGS, ["person"])).close()
    fake_nvidia.install(monkeypatch, OLD, gpu)
    TensorrtRuntime(network).close()
    assert gpu.builds == len(plans(tmp_path)) == 4


@pytest.mark.parametrize("harm", ["cut", "flipped", "foreign", "refused"])
def test_an_engine_that_is_damaged_or_foreign_is_built_again(
    harm: str, gpu: FakeGpu, network: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    TensorrtRuntime(network).close()
    (plan,) = plans(tmp_path)
    whole = plan.read_bytes()
    if harm == "cut":
        plan.write_bytes(whole[:-100])
    elif harm == "flipped":
        plan.write_bytes(whole[:-100] + b"x" + whole[-99:])
    elif harm == "foreign":
        plan.write_bytes(whole.replace(b"NVIDIA L4", b"NVIDIA T4", 1))
    else:
        cache, key = PlanCache(tmp_path / "engines"), json.loads(whole.partition(b"\n")[0])["key"]
        cache.store(PlanKey(**key), b"{}")
    with caplog.at_level(logging.WARNING):
        runtime = TensorrtRuntime(network)
    assert scores_of(runtime.run(reds(0.25))) == [0.25]
    assert gpu.builds == 2
    assert "built again" in caplog.text
    assert plan.read_bytes() == whole


def test_few_engines_are_kept_the_most_recently_used(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "engines")
    keys = [PlanKey(f"{n}", "10.3.0", "Orin", "8.7", "aarch64 Linux", "fp16", "images 1x3x416x416") for n in range(12)]
    for n, key in enumerate(keys):
        cache.store(key, f"plan {n}".encode())
        os.utime(tmp_path / "engines" / f"{key.digest}.plan", (n, n))
        if n > 0:
            assert cache.load(keys[0]) == b"plan 0", "used again and again"
    assert len(plans(tmp_path)) == PLANS_MAX
    assert cache.load(keys[1]) is None
    assert not list((tmp_path / "engines").glob(".*"))


def test_a_folder_of_engines_never_keeps_a_network_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder of root's, read by all; a disk that another process works on; a kill in the middle of writing."""
    folder = tmp_path / "engines"
    cache, key = PlanCache(folder), PlanKey("0", "10.3.0", "Orin", "8.7", "aarch64 Linux", "fp16", "images 1x3x416x416")
    for part in (1, 2):
        (folder / f".{part}.plan.{part}.part").write_bytes(b"half")
    (folder / "gone.plan").symlink_to(folder / "nothing")
    cache.store(key, b"plan")
    assert len(list(folder.glob(".*.part"))) == 1, "that may be of another process"

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    assert cache.load(key) == b"plan", "though nobody may note that it was used"
    (folder / "onnxruntime").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert cache.subfolder("onnxruntime") is None
    assert "onnxruntime cannot be made, so engines are built at each start: File exists" in caplog.text


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o702, 0o755])
def test_a_folder_that_others_may_write_to_is_not_read(
    gpu: FakeGpu, network: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    """An engine is code, whether it is the owner's group or everybody who may put one there."""
    others_write = mode != 0o755
    TensorrtRuntime(network).close()
    (tmp_path / "engines").chmod(mode)
    TensorrtRuntime(network).close()
    assert gpu.builds == (2 if others_write else 1)
    assert ("chmod go-w" in caplog.text) == others_write


def test_where_engines_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("VEDETTE_ENGINES", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert engine_folder() == tmp_path / ".cache" / "vedette" / "engines"
    monkeypatch.setenv("CACHE_DIRECTORY", "/var/cache/vedette:/else")
    assert engine_folder() == Path("/var/cache/vedette/engines")
    monkeypatch.setenv("VEDETTE_ENGINES", str(tmp_path / "mine"))
    assert engine_folder() == tmp_path / "mine"


def test_what_was_learnt_of_kernels_makes_the_next_build_shorter(gpu: FakeGpu, network: Path, tmp_path: Path) -> None:
    TensorrtRuntime(network).close()
    TensorrtRuntime(network, precision="fp32").close()
    (timing,) = (tmp_path / "engines").glob("*.timing")
    assert timing.read_bytes().partition(b"\n")[2] == b"learnt;learnt;"
    foreign = tensorrt_engine.load_tensorrt()
    order = EngineOrder(network, EnginePrecision("fp32"), ())
    assert build_engine(foreign, order, b"of another GPU").timing == b"learnt;", "it is refused, and a fresh one begun"


def test_a_build_says_how_far_it_is(gpu: FakeGpu, network: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    monitor = tensorrt_engine.make_progress(tensorrt_engine.load_tensorrt(), "n.onnx", clock)
    with caplog.at_level(logging.INFO):
        monitor.phase_start("Building Engine", None, 40)
        for step in range(40):
            clock.advance(1)
            assert monitor.step_complete("Building Engine", step) is True
        monitor.phase_finish("Building Engine")
    said = [record.message for record in caplog.records]
    assert said[0] == "TensorRT builds n.onnx: Building Engine, 5 of 40"
    assert len(said) == 8, "a line in five seconds"


def test_from_the_second_time_on_a_shape_is_one_recorded_graph(gpu: FakeGpu, network: Path) -> None:
    runtime = TensorrtRuntime(network)
    for turn in (0.25, 0.5, 0.75):
        assert scores_of(runtime.run(reds(turn, turn / 2))) == [turn, round(turn / 2, 2)]
    assert gpu.calls.count("cudaStreamBeginCapture") == 1
    assert gpu.calls.count("cudaGraphLaunch") == 2
    runtime.prepare({"images": (4, 3, SIDE, SIDE)})
    del gpu.calls[:]
    assert scores_of(runtime.run(reds(1, 0.5, 0.25, 0))) == [1, 0.5, 0.25, 0]
    assert gpu.calls == ["cudaGraphLaunch", "cudaStreamSynchronize"]
    runtime.close()


def test_a_network_that_cannot_be_recorded_runs_call_by_call(
    gpu: FakeGpu, network: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.fails["record"] = 1
    runtime = TensorrtRuntime(network)
    with caplog.at_level(logging.INFO):
        assert [scores_of(runtime.run(reds(share))) for share in (0.25, 0.5, 0.75)] == [[0.25], [0.5], [0.75]]
    assert gpu.calls.count("cudaGraphLaunch") == 0
    assert gpu.calls.count("cudaStreamBeginCapture") == 1, "it is tried once"
    assert "not recorded as a CUDA graph" in caplog.text


def test_few_shapes_are_kept_ready(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.detect.tensorrt_runtime.RECORDED_MAX", 2)
    network = tiny.of_any_batch(tiny.yolo(tmp_path / "n.onnx", THINGS, ["person"]))
    runtime = TensorrtRuntime(network)
    for _ in range(2):
        for count in (1, 2, 3, 4):
            runtime.prepare({"images": (count, 3, SIDE, SIDE)})
    assert gpu.graphs == 2
    assert scores_of(runtime.run(reds(0.5, 0.25))) == [0.5, 0.25]
    assert RECORDED_MAX == 12


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ({"cudaMalloc": 2}, r"does not come up: cudaMalloc: cudaErrorMemoryAllocation \(CUDA error 2\)"),
        ({"cudaMallocHost": 2}, "cudaMallocHost: cudaErrorMemoryAllocation"),
        ({"cudaStreamCreateWithFlags": 999}, "gives no stream: cudaStreamCreateWithFlags: cudaErrorUnknown"),
        ({"cudaGetDeviceCount": 35}, r"finds no GPU here .*cudaErrorInsufficientDriver.*nvidia-smi works"),
        ({"runtime": 1}, r"does not come up: pybind11.*is the driver new enough"),
        ({"build": 1}, r"builds no engine: Error Code 10.*Could not find any implementation"),
        ({"plugins": 1}, "its plugins do not load"),
        ({"context": 1}, "gives no context"),
        ({"deserialize": 1}, r"does not load the engine it has built: Error Code 6"),
        ({"shapes": 1}, "depend on what is seen"),
    ],
    ids=str,
)
def test_what_fails_when_it_opens_is_a_sentence_and_leaves_nothing(
    fails: dict[str, int], words: str, gpu: FakeGpu, network: Path
) -> None:
    gpu.fails = fails
    with pytest.raises(ModelError, match=words) as caught:
        TensorrtRuntime(network)
    assert "\n" not in str(caught.value)
    assert (gpu.blocks, gpu.streams) == ({}, 0)


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ({"execute": 1}, "TensorRT does not run: Error Code 1: Cuda Runtime"),
        ({"cudaMemcpyAsync": 700}, r"cudaMemcpyAsync: cudaErrorIllegalAddress \(CUDA error 700\)"),
        ({"cudaStreamSynchronize": 700}, "cudaStreamSynchronize: cudaErrorIllegalAddress"),
    ],
    ids=str,
)
def test_what_fails_in_a_run_is_no_empty_answer_and_the_next_run_is_good(
    fails: dict[str, int], words: str, gpu: FakeGpu, network: Path
) -> None:
    runtime = TensorrtRuntime(network)
    gpu.fails = fails
    with pytest.raises(DetectorError, match=words):
        runtime.run(reds(0.5))
    gpu.fails = {}
    gpu.queue.clear()
    assert scores_of(runtime.run(reds(0.75))) == [0.75]


def test_closing_gives_everything_back(gpu: FakeGpu, network: Path) -> None:
    runtime = TensorrtRuntime(network)
    runtime.prepare({"images": (2, 3, SIDE, SIDE)})
    assert gpu.blocks
    assert (gpu.streams, gpu.graphs) == (1, 1)
    runtime.close()
    runtime.close()
    assert (gpu.blocks, gpu.streams, gpu.graphs) == ({}, 0, 0)
    with pytest.raises(DetectorError, match="was closed"):
        runtime.run(reds(0.5))
    frame, place = GpuFrame(1, 8, 1, 8, 8, 8), Placement(0, 0, SIDE, SIDE, (SIDE, SIDE))
    pixels = PixelRange(True, (1.0,) * 3, (0.0,) * 3)
    with pytest.raises(DetectorError, match="was closed"):
        runtime.run_frames([frame], [place], pixels, {})


def test_an_input_of_another_type_is_refused(gpu: FakeGpu, network: Path) -> None:
    with pytest.raises(DetectorError, match="images is float64, and the network takes float32"):
        TensorrtRuntime(network).run({"images": np.zeros((1, 3, SIDE, SIDE))})


def test_a_dla_is_asked_for_by_name_and_refused_where_there_is_none(gpu: FakeGpu, tmp_path: Path) -> None:
    settings = DetectorConfig(backend="tensorrt", dla_core=1)
    with pytest.raises(ModelError, match=r"dla_core 1 was asked for, and there are 0 here.*from 11\.4\.1 on"):
        detector_loader.load(settings)
    gpu.dla_cores = 2
    looker = detector_loader.load(settings)
    assert looker.name.endswith("+tensorrt-fp16-dla1")
    told = flags_of(plans(tmp_path)[0])
    assert (told["flags"], told["dla"]) == (["FP16", "GPU_FALLBACK"], 1)
    assert told["profiles"] == [{"images": [[1, 3, 416, 416]] * 3}], "no range of shapes, which a DLA does not take"


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (["DLA", "Reformat", "PointWiseV2"], ""),
        (["CaskConvolution"] * 2 + ["Myelin"], "2 of 3 convolutions run on the GPU and 0 parts of it on the DLA"),
        (["DLA"] + ["CaskConvolution"] * 2, "2 of 3 convolutions run on the GPU and 1 parts"),
        (["DLA", "CaskConvolution"], ""),
    ],
)
def test_an_engine_is_on_the_dla_if_most_of_its_convolutions_are(
    gpu: FakeGpu, tmp_path: Path, kinds: list[str], words: str
) -> None:
    """ForeignNode in a name marks Myelin's subgraphs on the GPU as well, so names tell nothing."""
    layers = [{"Name": "{ForeignNode[conv.0...conv.9]}", "LayerType": kind} for kind in kinds]

    class Inspected:
        def create_engine_inspector(self) -> Any:
            return SimpleNamespace(get_engine_information=lambda form: json.dumps({"Layers": [*layers, "shuffle"]}))

    order = EngineOrder(tmp_path / "n.onnx", EnginePrecision("fp16"), ())
    with pytest.raises(ModelError, match=words) if words else contextlib.nullcontext():
        must_run_on_dla(load_tensorrt(), Inspected(), order, 3)


def test_a_type_that_numpy_lacks_is_a_refusal(gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nptype(kind: Any) -> Any:
        raise TypeError("Could not resolve TensorRT datatype to an equivalent numpy datatype.")

    network = tiny.yolo(tmp_path / "n.onnx", [Thing((8, 8, 64, 64), 1.0, 0)], ["person"])
    monkeypatch.setattr(load_tensorrt(), "nptype", nptype)
    with pytest.raises(ModelError, match="which numpy has not: export it with float32 there"):
        TensorrtRuntime(network)


def test_integers_of_another_quantiser_are_refused_with_what_makes_the_right_ones(gpu: FakeGpu, tmp_path: Path) -> None:
    """TensorRT's parser takes int8 with a zero point of 0 alone (onnx-tensorrt issue 850)."""
    shipped = model_files.find_model("vedette-nano", precision="int8").path
    assert read_header(shipped).integers >= {"uint8", "int32"}
    for precision in ("int8", "auto"):
        with pytest.raises(ModelError, match=r"int32 and uint8.*models\.export variant .*--kind tensorrt"):
            TensorrtRuntime(shipped, precision=precision)


def test_weights_in_another_file_are_refused(gpu: FakeGpu, network: Path, tmp_path: Path) -> None:
    import onnx

    model = onnx.load(str(network))
    path = tmp_path / "outside.onnx"
    onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    with pytest.raises(ModelError, match="keeps weights in other files"):
        TensorrtRuntime(path)


def test_a_version_that_is_too_old_and_a_module_without_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia.install(monkeypatch, NEW)
    import tensorrt  # type: ignore[import-not-found,unused-ignore]

    monkeypatch.setattr(tensorrt, "__version__", "10.2.0.19")
    with pytest.raises(MissingDependency, match=r"needs TensorRT 10\.3 or later, and this is 10\.2\.0\.19"):
        tensorrt_engine.load_tensorrt()


def test_on_the_cpu_tensorrt_is_refused() -> None:
    assert DetectorConfig(backend="tensorrt").device == "cuda", "it has one device"
    with pytest.raises(ModelError, match=r"set detector\.device to cuda, not cpu"):
        detector_loader.load(DetectorConfig(backend="tensorrt", device="cpu"))


def on_gpu(gpu: FakeGpu, planes: Any) -> GpuFrame:
    """A frame as a decoder leaves it there. planes: PyAV's NV12."""
    height, width = planes.shape[0] * 2 // 3, planes.shape[1]
    at = gpu.allocate(planes.nbytes)
    ctypes.memmove(at, np.ascontiguousarray(planes).tobytes(), planes.nbytes)
    return GpuFrame(at, width, at + width * height, width, width, height)


def test_a_frame_that_stays_on_the_gpu_is_seen_as_on_the_host(gpu: FakeGpu) -> None:
    looker = detector_loader.load(DetectorConfig(backend="tensorrt"))
    assert isinstance(looker, NetworkDetector)
    with av.open(str(CLIP)) as clip:
        frame = next(each for n, each in enumerate(clip.decode(video=0)) if n == 300)
    width, height = looker.preferred_size(frame.width, frame.height)
    small = frame.to_ndarray(format="bgr24", width=width, height=height, interpolation="AREA")
    (wanted,) = looker.detect([small])
    frames = [on_gpu(gpu, frame.to_ndarray(format="nv12")) for _ in range(2)]
    del gpu.calls[:]
    assert isinstance(looker.runtime, TensorrtRuntime)
    from_host = looker.runtime.recorded
    for found in [looker.detect_on_gpu([each])[0] for each in frames]:
        sure = wanted.scores >= 0.4
        assert sure.any()
        np.testing.assert_allclose(found.boxes[: sure.sum()], wanted.boxes[sure], atol=0.01)
        np.testing.assert_allclose(found.scores[: sure.sum()], wanted.scores[sure], atol=0.05)
    assert gpu.calls.count("cuLaunchKernel") == 2
    assert gpu.calls.count("nvrtcCompileProgram") == 1, "compiled with the first"
    assert looker.runtime.recorded == from_host + 1, "and what follows the kernel is recorded: a graph of its own"
    uploads = [call for call in gpu.calls[gpu.calls.index("cudaGraphLaunch") :] if call == "cudaMemcpyAsync"]
    assert not uploads, "nothing of the frame is copied in"
    looker.close()


@pytest.mark.parametrize(
    ("fails", "error", "words"),
    [
        ({"nvrtcCompileProgram": 999}, ModelError, r"not compiled: nvrtcCompileProgram: .*expected a ;"),
        ({"cuModuleLoadData": 999}, ModelError, "does not take the kernel nv12_letterbox.cu: cuModuleLoadData"),
        ({"cuLaunchKernel": 700}, DetectorError, r"cuLaunchKernel: cudaErrorIllegalAddress \(CUDA error 700\)"),
    ],
    ids=str,
)
def test_a_kernel_that_fails_is_a_sentence(
    fails: dict[str, int], error: type[Exception], words: str, gpu: FakeGpu, network: Path
) -> None:
    looker = detector_loader.load(DetectorConfig(model=str(network), backend="tensorrt"))
    assert isinstance(looker, NetworkDetector)
    gpu.fails = fails
    with pytest.raises(error, match=words):
        looker.detect_on_gpu([on_gpu(gpu, np.zeros((192, 128), np.uint8))])


def test_frames_on_the_gpu_need_tensorrt() -> None:
    looker = detector_loader.load(DetectorConfig())
    assert isinstance(looker, NetworkDetector)
    with pytest.raises(DetectorError, match=r"need detector\.backend tensorrt"):
        looker.detect_on_gpu([GpuFrame(1, 8, 1, 8, 8, 8)])
