"""What every detector promises, asked of each: the built-in one, a tiny network per layout, the real networks."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import cv2
import fake_nvidia
import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from appliance import config
from appliance.base.box_arrays import iou_matrix
from appliance.base.errors import DetectorError, MissingDependency, ModelError
from appliance.detect import detector, detector_loader, model_files, onnx_runtime
from appliance.detect.detector import ObjectDetector, UpscalingDetector
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from appliance.types import Detections
from tests.support import hailo_files
from tests.support import tiny_networks as tiny
from tests.support.openvino import openvino_runtime
from tests.support.tiny_networks import Thing

THINGS = [Thing((16, 16, 80, 112), 0.9, 0), Thing((60, 8, 120, 40), 0.6, 1), Thing((4, 80, 24, 124), 0.3, 0)]
CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
FILES = {
    "deimv2-femto": "deimv2_hgnetv2_femto_coco_416.onnx",
    "deimv2-atto": "deimv2_hgnetv2_atto_coco_320.onnx",
    "yolox-nano": "yolox_nano_416.onnx",
    "picodet-s": "picodet_s_416_coco.onnx",
    "nanodet-m": "nanodet_m_416.onnx",
    "fastestdet": "FastestDet_352.onnx",
}
TINY: dict[str, Callable[[Path], Path]] = {
    "tiny-yolox": lambda path: tiny.yolox(path, THINGS),
    "tiny-yolox-decoded": lambda path: tiny.yolox(path, THINGS, decoded=True),
    "tiny-yolo": lambda path: tiny.yolo(path, THINGS, ["person", "car"]),
    "tiny-end-to-end": lambda path: tiny.end_to_end(path, THINGS, ["person", "car"]),
    "tiny-detr": lambda path: tiny.detr(path, THINGS),
}
SIZES = [(64, 64), (1, 1), (37, 500), (641, 3), (1920, 1080)]


HEFS: dict[str, Callable[[Path], Path]] = {
    "nms-by-class": lambda path: hailo_files.nms(path, THINGS),
    "nms-by-score-nv12": lambda path: hailo_files.nms(path, THINGS, order=hailo_files.BY_SCORE, nv12=True),
}
OWN = ["vedette-nano", "vedette-nano-int8"]
SAME_HEADS = {"deimv2-atto", "nanodet-m"}  # as deimv2-femto and picodet-s, and fewer operators
# Once a week: each head is asked by ONNX Runtime, each runtime with a tiny network; what OpenVINO sees with one that
# ships, and in which shapes, is compared below, and test_tensorrt.py builds those for TensorRT.
OTHER_PAIRS = {
    ("openvino", "deimv2-femto"), ("openvino", "vedette-nano-int8"), ("openvino-bf16", "vedette-nano"),
    ("tensorrt", "vedette-nano"),
}  # fmt: skip
# A head reads what a runtime answers, whichever that is (test_network_runtimes.py asks those): with every network the
# recorded one, with the others a network of integers, one of two inputs and of bfloat16.
WAYS = {
    "onnx": (*TINY, *OWN, *FILES),
    "openvino": ("tiny-end-to-end", "vedette-nano-int8", "deimv2-femto"),
    "openvino-bf16": ("vedette-nano",),
    "tensorrt": ("tiny-detr", "vedette-nano"),  # its modules are stand-ins, which compute by ONNX Runtime
}


def of_each_runtime() -> Iterator[object]:
    yield pytest.param(("auto", "builtin:hog"), id="builtin:hog")
    for way, names in WAYS.items():
        for name in names:
            marks = [pytest.mark.shared] if name in FILES else []
            if name in SAME_HEADS or (way, name) in OTHER_PAIRS:
                marks.append(pytest.mark.slow)
            yield pytest.param((way, name), id=f"{way}-{name}", marks=marks)
    for name in HEFS:  # compiled for one device alone, which is a fake
        yield pytest.param(("hailo", name), id=f"hailo-{name}")


def asked(way: str, model: str, **others: object) -> config.DetectorConfig:
    """The settings of one of WAYS; skips where its package or its CPU is not here."""
    backend, _, precision = way.partition("-")
    if backend == "openvino":
        openvino_runtime(precision)
    return config.DetectorConfig.model_validate(
        {"backend": backend, "model": model, "precision": precision or "auto", **others}
    )


@pytest.fixture(scope="module", params=of_each_runtime())
def looker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectDetector]:
    way, name = request.param
    if way == "hailo":
        folder = tmp_path_factory.mktemp("hailo")
        device = hailo_files.FakeDevice(folder)
        yield detector_loader.load(config.DetectorConfig.model_validate(device.settings(HEFS[name](folder / "n.hef"))))
        return
    if name in TINY:
        name = str(TINY[name](tmp_path_factory.mktemp("tiny") / f"{name}.onnx"))
    elif name in FILES:
        name = str(request.getfixturevalue("shared_data") / "models" / FILES[name])
    with pytest.MonkeyPatch.context() as patch:
        if way == "tensorrt":
            patch.setenv("VEDETTE_ENGINES", str(tmp_path_factory.mktemp("engines")))
            fake_nvidia.install(patch)
        yield detector_loader.load(asked(way, name))


def test_gives_its_name_and_its_labels(looker: ObjectDetector) -> None:
    assert re.fullmatch(r"builtin:\w+|[\w-]+@[0-9a-f]{8}(\+[\w-]+)?", looker.name)
    assert looker.labels[0] == "person"
    assert len(set(looker.labels)) == len(looker.labels)


def test_answers_for_a_frame_of_any_size_in_the_shared_shape(looker: ObjectDetector) -> None:
    pictures = [noise(*size) for size in SIZES] + [noise(*looker.preferred_size(*SIZES[-1]))]
    answers = looker.detect(pictures)
    assert len(answers) == len(pictures)
    for found in answers:
        assert_in_shape(found, looker)


def test_wants_a_size_that_it_then_leaves_alone(looker: ObjectDetector) -> None:
    for size in SIZES:
        wanted = looker.preferred_size(*size)
        assert min(wanted) >= 1
        assert looker.preferred_size(*wanted) == wanted


def shrunk(picture: NDArray[np.uint8], looker: ObjectDetector) -> NDArray[np.uint8]:
    """As the detector wants it, scaled as the decoder would."""
    size = looker.preferred_size(picture.shape[1], picture.shape[0])
    way = cv2.INTER_AREA if size[0] < picture.shape[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(picture, size, interpolation=way), np.uint8)


def test_finds_the_same_in_the_size_it_wants_as_in_the_full_frame(looker: ObjectDetector) -> None:
    picture = noise(768, 576)
    assert_equal(*looker.detect([picture, shrunk(picture, looker)]))


def test_same_frame_same_answer_whatever_its_neighbours(looker: ObjectDetector) -> None:
    one, other = noise(320, 240, seed=1), noise(320, 240, seed=2)
    alone = looker.detect([one])[0]
    for found in looker.detect([one, other, one])[::2]:
        assert_equal(found, alone)


def test_the_shape_of_a_neighbour_changes_nothing(looker: ObjectDetector) -> None:
    """Parts of pictures come in many shapes, in any order, in one session."""
    parts = [noise(*size, seed=seed) for seed, size in enumerate([(416, 234), (192, 160), (64, 96), (416, 234)])]
    alone = [looker.detect([part])[0] for part in parts]
    for found, wanted in zip(looker.detect(parts[::-1]), alone[::-1], strict=True):
        assert_equal(found, wanted)


def test_two_threads_that_detect_at_once_get_each_their_own_answer(looker: ObjectDetector) -> None:
    pictures = [noise(320, 240, seed) for seed in range(2)]
    alone = [looker.detect([picture])[0] for picture in pictures]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            for found, expected in zip(pool.map(lambda each: looker.detect([each])[0], pictures), alone, strict=True):
                assert_equal(found, expected)


def test_no_frames_no_answers(looker: ObjectDetector) -> None:
    assert looker.detect([]) == []


def test_refuses_what_is_not_a_frame_rather_than_seeing_nothing(looker: ObjectDetector) -> None:
    four, floats = np.zeros((10, 10, 4), np.uint8), np.zeros((10, 10, 3), np.float32)
    for picture in (np.zeros((10, 10), np.uint8), four, floats):
        with pytest.raises(DetectorError, match="not a BGR uint8 picture"):
            looker.detect([np.asarray(picture)])


@pytest.mark.parametrize("name", TINY)
def test_boxes_colours_and_scores_come_out_as_the_network_means_them(name: str, tmp_path: Path) -> None:
    looker = detector_loader.load(asked("onnx", str(TINY[name](tmp_path / "n.onnx")), score_min=0.2))
    red = np.zeros((tiny.SIDE, tiny.SIDE, 3), np.uint8)
    red[:, :, 2] = 255
    found, half, blue = looker.detect([red, red // 2, red[:, :, ::-1].copy()])
    np.testing.assert_allclose(found.boxes, [np.array(thing.box) / tiny.SIDE for thing in THINGS], atol=1e-5)
    np.testing.assert_allclose(found.scores, [0.9, 0.6, 0.3], atol=1e-5)
    assert found.class_ids.tolist() == [0, 1, 0]
    np.testing.assert_allclose(half.scores, [0.9 * 127 / 255, 0.6 * 127 / 255], atol=1e-5)
    assert len(blue) == 0


def test_a_wide_frame_is_laid_into_the_input_as_each_family_was_trained(tmp_path: Path) -> None:
    """Twice as wide as high into a square: stretched, or with grey below (YOLOX), or above and below (YOLO)."""
    middle = [Thing((32, 48, 96, 80), 1.0, 0)]
    wide = np.full((150, 300, 3), 255, np.uint8)
    expected = {"detr": [0.25, 0.375, 0.75, 0.625], "yolox": [0.25, 0.75, 0.75, 1.0], "yolo": [0.25, 0.25, 0.75, 0.75]}
    files = {
        "detr": tiny.detr(tmp_path / "detr.onnx", middle),
        "yolox": tiny.yolox(tmp_path / "yolox.onnx", middle),
        "yolo": tiny.yolo(tmp_path / "yolo.onnx", middle, ["person"]),
    }
    for name, path in files.items():
        found = detector_loader.load(config.DetectorConfig(model=str(path))).detect([wide])[0]
        np.testing.assert_allclose(found.boxes, [expected[name]], atol=1e-5, err_msg=name)


def test_a_network_of_free_shape_sees_each_frame_in_a_small_input_that_holds_it() -> None:
    looker = own()
    assert looker.shape_step == 32
    assert looker.preferred_size(1920, 1080) == (416, 234)
    seen: list[tuple[int, int]] = []
    watch(looker, seen)
    looker.detect([noise(1920, 1080), noise(768, 576), noise(96, 160), noise(97, 160), noise(1, 1), noise(416, 416)])
    assert seen == [(416, 288), (416, 352), (96, 160), (160, 160), (32, 32), (416, 416)]


def test_a_part_of_a_frame_is_seen_as_it_is_in_the_whole() -> None:
    """At the whole picture's scale and on its grid, so the same person has the same box, and nearly the same score."""
    looker = own()
    with av.open(str(CLIPS / "yard.mp4")) as clip:
        frame = next(frame for number, frame in enumerate(clip.decode(video=0)) if number == 300)
    width, height = looker.preferred_size(frame.width, frame.height)
    whole = frame.to_ndarray(format="bgr24", width=width, height=height, interpolation="AREA")
    found = looker.detect([whole])[0]
    best = int(np.flatnonzero(found.class_ids == 0)[0])
    box = found.boxes[best] * np.array([width, height] * 2)
    left, top = (max(0, int(side - 48) // 32 * 32) for side in box[:2])
    right, bottom = min(width, left + 192), min(height, top + 192)
    part = looker.detect([np.ascontiguousarray(whole[top:bottom, left:right])])[0]
    mapped = part.boxes * np.array([right - left, bottom - top] * 2) + np.array([left, top] * 2)
    shared = iou_matrix(box[None].astype(np.float64), mapped.astype(np.float64))[0]
    assert shared.max() > 0.8
    assert part.scores[shared.argmax()] == pytest.approx(found.scores[best], abs=0.15)


def test_a_network_of_fixed_shape_says_so_and_works_as_ever(tmp_path: Path) -> None:
    for name in ("tiny-yolo", "tiny-detr"):
        looker = detector_loader.load(config.DetectorConfig(model=str(TINY[name](tmp_path / f"{name}.onnx"))))
        assert isinstance(looker, NetworkDetector)
        assert looker.shape_step == 0
        seen: list[tuple[int, int]] = []
        watch(looker, seen)
        looker.detect([noise(60, 40), noise(300, 150)])
        assert seen == [(tiny.SIDE, tiny.SIDE)] * 2


def test_a_network_that_only_says_that_its_shape_is_free_is_kept_in_its_usual_one(tmp_path: Path) -> None:
    """Exporters leave sides open that the graph has nailed down; a trial in a second shape tells."""
    path = tiny.loosened(tiny.yolo(tmp_path / "n.onnx", THINGS, ["person", "car"]), side=tiny.SIDE)
    looker = detector_loader.load(config.DetectorConfig(model=str(path)))
    assert isinstance(looker, NetworkDetector)
    assert looker.shape_step == 0
    assert len(looker.detect([np.full((80, 90, 3), 255, np.uint8)])[0]) == len(THINGS)


def test_bfloat16_is_asked_of_onnx_runtime_and_changes_nothing_where_the_cpu_has_none() -> None:
    """What it brings and costs on arm64 is unmeasured; that the option is known and reaches the session is not."""
    path = model_files.find_model("vedette-nano").path
    plain, fast = (NetworkDetector(path, OnnxRuntime(path, bf16=bf16)) for bf16 in (False, True))
    option = "mlas.enable_gemm_fastmath_arm64_bfloat16"
    assert fast.runtime._session.get_session_options().get_session_config_entry(option) == "1"
    if not model_files.cpu_has_bf16():
        assert_equal(*(looker.detect([noise(160, 96)])[0] for looker in (plain, fast)))


def test_sums_of_eight_bit_products_do_not_saturate_on_a_cpu_without_vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime is told to take its kernels that add in 32 bits, which give the same answers to the byte."""
    path = model_files.find_model("vedette-nano", precision="int8").path
    option = "session.x64quantprecision"
    looks = []
    for sums in (True, False):
        monkeypatch.setattr(onnx_runtime, "cpu_sums_int8", lambda sums=sums: sums)
        looker = NetworkDetector(path, OnnxRuntime(path))
        assert sums or looker.runtime._session.get_session_options().get_session_config_entry(option) == "1"
        looks.append(looker.detect([noise(160, 96)])[0])
    if model_files.cpu_sums_int8():  # else the first session is the one that saturates
        assert_equal(*looks)


def test_openvinos_integers_are_warned_of_where_their_sums_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="needs the extra `openvino`")
    asked = config.DetectorConfig(backend="openvino", device="cpu", precision="int8")
    for sums in (True, False):
        monkeypatch.setattr(model_files, "cpu_sums_int8", lambda sums=sums: sums)
        assert ("set detector.backend to onnx" in detector_loader.load(asked).warning) != sums


def test_cut_outs_of_any_size_are_enlarged_where_whole_frames_are_wanted() -> None:
    looker = own()
    seen: list[tuple[int, int]] = []
    watch(looker, seen)
    UpscalingDetector(looker).detect([noise(100, 50), noise(1000, 500), noise(416, 208)])
    assert seen == [(416, 224)] * 3


def own() -> NetworkDetector:
    looker = detector_loader.load(config.DetectorConfig())
    assert isinstance(looker, NetworkDetector)
    return looker


def watch(looker: NetworkDetector, seen: list[tuple[int, int]]) -> None:
    """Write down the (width, height) of every input."""
    run = looker.runtime.run

    def noted(feed: Mapping[str, Any]) -> object:
        (tensor,) = [each for each in feed.values() if each.ndim == 4]
        seen.append((tensor.shape[3], tensor.shape[2]))
        return run(feed)

    looker.runtime.run = noted  # type: ignore[method-assign,assignment]


def test_doubled_boxes_are_seen_once(tmp_path: Path) -> None:
    twice = [Thing((16, 16, 80, 112), 0.9, 0), Thing((18, 16, 82, 112), 0.8, 0)]
    red = np.full((tiny.SIDE, tiny.SIDE, 3), 255, np.uint8)
    for path in (tiny.yolox(tmp_path / "x.onnx", twice), tiny.detr(tmp_path / "d.onnx", twice)):
        assert len(detector_loader.load(config.DetectorConfig(model=str(path))).detect([red])[0]) == 1


@pytest.mark.shared
def test_every_network_of_the_reference_data_is_compared(shared_data: Path) -> None:
    assert {path.name for path in (shared_data / "models").glob("*.onnx")} == set(FILES.values())


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SAME_HEADS else name for name in FILES]
)
def test_agrees_with_the_reference_on_real_frames(name: str, shared_data: Path) -> None:
    reference = load_reference(shared_data)
    path = shared_data / "models" / FILES[name]
    looker = detector_loader.load(config.DetectorConfig(model=str(path), score_min=0.1))
    side = looker.preferred_size(64, 64)[0]
    theirs = {
        "yolox-nano": lambda: reference.YoloX(str(path), 1),
        "picodet-s": lambda: reference.Gfl(str(path), "picodet", 1),
        "nanodet-m": lambda: reference.Gfl(str(path), "nanodet", 1),
        "fastestdet": lambda: reference.FastestDet(str(path), 1),
    }.get(name, lambda: reference.Deim(str(path), side, 1))()
    compared = 0
    for whole in pets_frames(shared_data):
        frame = shrunk(whole, looker)  # the reference's own scaling skips pixels
        boxes, scores, class_ids = theirs(frame, 0.3)
        kept = reference.nms(boxes, scores, 0.7)  # the reference leaves DEIMv2's doubles in, we do not
        found = looker.detect([frame])[0]
        shared = iou_matrix(np.clip(boxes[kept] / (frame.shape[1::-1] * 2), 0, 1), found.boxes.astype(np.float64))
        for row, best in zip(kept, shared.argmax(axis=1), strict=True):
            assert shared.max(axis=1).min() > 0.98
            assert found.scores[best] == pytest.approx(scores[row], abs=1e-4)
            assert found.class_ids[best] == class_ids[row]
            compared += 1
    assert compared > 50


@pytest.mark.parametrize(
    ("way", "box", "score", "name"),
    [
        ("openvino", 0.99, 1e-3, "vedette-nano"),
        ("openvino-bf16", 0.9, 0.03, "vedette-nano"),
        pytest.param("openvino", 0.99, 1e-3, "yolox-nano", marks=pytest.mark.slow),
        pytest.param("openvino-bf16", 0.9, 0.03, "deimv2-femto", marks=pytest.mark.slow),
        pytest.param("openvino", 0.99, 1e-3, "picodet-s", marks=pytest.mark.slow),
    ],
)
@pytest.mark.shared
def test_another_runtime_sees_what_onnx_runtime_sees(
    name: str, way: str, box: float, score: float, shared_data: Path
) -> None:
    """box: the least IoU, score: the largest difference, of 95 % of what is sure enough to be reported: of two boxes
    that doubled one object, rounding decides which is left."""
    path = name if name in OWN else str(shared_data / "models" / FILES[name])
    usual, other = (detector_loader.load(asked(each, path, score_min=0.05)) for each in ("onnx", way))
    alike, apart = [], []
    for frame in pets_frames(shared_data):
        wanted, found = usual.detect([frame])[0], other.detect([frame])[0]
        shared = iou_matrix(wanted.boxes.astype(np.float64), found.boxes.astype(np.float64))
        for row in np.flatnonzero(wanted.scores >= 0.4):
            best = int(shared[row].argmax())
            assert found.class_ids[best] == wanted.class_ids[row]
            alike.append(shared[row, best])
            apart.append(abs(float(found.scores[best] - wanted.scores[row])))
    assert len(alike) > 30
    assert np.quantile(alike, 0.05) >= box
    assert np.quantile(apart, 0.95) <= score


def test_openvino_is_told_of_the_shapes_of_whole_frames_and_takes_every_other(tmp_path: Path) -> None:
    looker = detector_loader.load(asked("openvino", "vedette-nano"))
    assert isinstance(looker, NetworkDetector)
    runtime: Any = looker.runtime
    assert runtime._compiled == {}
    size = looker.preferred_size(1920, 1080)
    assert list(runtime._compiled) == [((1, 3, 288, 416),)]
    before = looker.detect([noise(*size), noise(160, 96)])
    for width, height in ((640, 480), (480, 640), (100, 100), (100, 20), (20, 100), (1920, 1080)):
        looker.preferred_size(width, height)
    assert len(runtime._compiled) == openvino_runtime().PREPARED_MAX, "as many as there is room for"
    for found, wanted in zip(looker.detect([noise(*size), noise(160, 96)]), before, strict=True):
        assert_equal(found, wanted)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "npu"}, "finds CPU here: an Intel NPU needs the driver"),
        ({"device": "gpu"}, "an Intel GPU needs its OpenCL driver"),
        ({"device": "cuda"}, "runs on cpu, gpu (Intel's) and npu"),
        ({"precision": "fp16"}, "detector.precision fp16 was asked of openvino"),
    ],
    ids=str,
)
def test_what_openvino_does_not_find_here_is_refused_with_the_cure(settings: dict[str, str], words: str) -> None:
    runtime = openvino_runtime()
    device = settings.get("device", "")
    if any(each.startswith(device.upper()) for each in runtime.ov.Core().available_devices if device):
        pytest.skip(f"this machine has a {device}")
    if settings.get("precision") == "fp16" and "FP16" in runtime.ov.Core().get_property(
        "CPU", "OPTIMIZATION_CAPABILITIES"
    ):
        pytest.skip("this processor multiplies fp16")
    with pytest.raises(ModelError, match=re.escape(words)):
        detector_loader.load(config.DetectorConfig.model_validate({"backend": "openvino", **settings}))


def test_what_openvino_compiles_for_a_gpu_is_kept_where_engines_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And its one stream answers as soon as it can; a CPU's network is compiled in a moment."""
    runtime = openvino_runtime()
    asked: list[dict[str, object]] = []
    monkeypatch.setenv("VEDETTE_ENGINES", str(tmp_path))
    monkeypatch.setattr(runtime, "_must_have", lambda *_: None)
    monkeypatch.setattr(runtime.OpenvinoRuntime, "_compile_any_shape", lambda self: asked.append(self._options))
    for device in ("gpu", "npu", "cpu"):
        with contextlib.suppress(ModelError):  # there is none here to compile with
            detector_loader.load(
                config.DetectorConfig.model_validate({"backend": "openvino", "device": device, "threads": 3})
            )
    gpu, npu, cpu = asked
    usual = {"INFERENCE_PRECISION_HINT": "f16", "PERFORMANCE_HINT": "LATENCY", "CACHE_DIR": str(tmp_path / "openvino")}
    assert gpu == {**usual, "NUM_STREAMS": 1}
    assert npu == usual
    assert cpu == {
        "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 3
    }  # fmt: skip


def test_a_device_of_openvino_is_not_asked_of_another_backend() -> None:
    with pytest.raises(ModelError, match=r"set detector\.backend to openvino"):
        detector_loader.load(config.DetectorConfig(device="npu"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"gone\.onnx: no such model file"):
        detector_loader.load(config.DetectorConfig(model=str(tmp_path / "gone.onnx")))


@pytest.mark.parametrize(("way", "words"), [("onnx", "not a usable ONNX file"), ("openvino", "cannot run it on CPU")])
@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"not a network at all", b"\x08\x09" + b"\xff" * 5000])
def test_garbage_is_refused_in_one_sentence(content: bytes, way: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "garbage.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"garbage\.onnx: .*{words}") as caught:
        detector_loader.load(asked(way, str(path)))
    assert "\n" not in str(caught.value)


def test_a_truncated_network_is_refused(tmp_path: Path) -> None:
    whole = tiny.yolox(tmp_path / "whole.onnx", THINGS).read_bytes()
    path = tmp_path / "cut.onnx"
    for share in (0.1, 0.5, 0.9, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ModelError):
            detector_loader.load(config.DetectorConfig(model=str(path)))


@pytest.mark.parametrize("shapes", [[(1, 2704, 80), (1, 2704, 32)], [(1, 85, 5, 5)], [(1, 10)] * 4], ids=str)
def test_a_network_of_an_unknown_layout_is_refused_with_what_was_seen(
    shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    path = tiny.of_shapes(tmp_path / "segmenter.onnx", shapes)
    with pytest.raises(ModelError, match="unknown output layout") as caught:
        detector_loader.load(config.DetectorConfig(model=str(path)))
    message = str(caught.value)
    known = ("segmenter.onnx", "input [1, 3,", f"o0 {list(shapes[0])}", "known: YOLOX", "DETR family", "PicoDet")
    assert all(part in message for part in known)


@pytest.mark.parametrize("kind", ["sequence", "map"])
def test_a_network_whose_output_is_no_tensor_is_refused(kind: str, tmp_path: Path) -> None:
    path = tiny.of_no_tensor(tmp_path / "listing.onnx", kind)
    with pytest.raises(ModelError, match=r"listing\.onnx: no detector: its output listed is a sequence or a map"):
        detector_loader.load(config.DetectorConfig(model=str(path)))


def test_cuda_that_is_not_there_is_not_replaced_by_the_cpu_in_silence(tmp_path: Path) -> None:
    path = tiny.yolox(tmp_path / "n.onnx", THINGS)
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this machine's ONNX Runtime is built for CUDA: it may come up")
    with pytest.raises(ModelError, match="onnxruntime-gpu"):
        detector_loader.load(config.DetectorConfig(model=str(path), device="cuda"))


def test_fp16_is_refused_where_it_would_be_ignored(tmp_path: Path) -> None:
    path = tiny.yolox(tmp_path / "n.onnx", THINGS)
    with pytest.raises(ModelError, match=r"detector\.precision"):
        detector_loader.load(config.DetectorConfig(model=str(path), precision="fp16"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "cuda"}, "onnxruntime-gpu"),
        ({"precision": "fp16"}, "set detector.precision to auto"),
        ({"backend": "hog", "device": "cuda"}, "set detector.device to cpu"),
        ({"model": "builtin:hog", "device": "cuda"}, "set detector.device to cpu"),
        ({"model": "builtin:hog", "precision": "fp16"}, "set detector.precision to auto"),
        ({"model": "builtin:hog", "backend": "onnx"}, "set backend to auto"),
        ({"model": "vedette-nano", "backend": "hog"}, "set backend to auto"),
        ({"model": "no-such-network"}, "there is no model `no-such-network`"),
    ],
    ids=str,
)
def test_what_was_asked_for_and_is_not_there_is_refused_with_the_cure(settings: dict[str, str], words: str) -> None:
    """Nothing stands in for it: a fallback watched for weeks with a detector that nobody had asked for."""
    if settings == {"device": "cuda"} and "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this machine's ONNX Runtime is built for CUDA: it may come up")
    with pytest.raises(ModelError, match=re.escape(words)):
        detector_loader.load(config.DetectorConfig.model_validate(settings))


def test_the_cpu_stands_in_only_where_the_site_file_says_so_and_says_for_what() -> None:
    asked = config.DetectorConfig(backend="openvino", device="cuda", precision="bf16")
    with pytest.raises(ModelError):
        detector_loader.load(asked)
    found = detector_loader.load(asked.model_copy(update={"fallback": "cpu"}))
    assert found.name == detector_loader.load(config.DetectorConfig()).name
    reason = detector.fallback_reason(found)
    assert reason.startswith("detector.backend openvino on cuda did not come up, so vedette-nano@")
    assert reason.endswith("set detector.device to one"), "the cure"
    assert reason in found.warning
    assert detector.fallback_reason(detector_loader.load(config.DetectorConfig(fallback="cpu"))) == ""
    orin = config.DetectorConfig(backend="tensorrt", dla_core=0, fallback="cpu")
    assert "tensorrt" in detector.fallback_reason(detector_loader.load(orin))


@pytest.mark.parametrize("settings", [{"model": "no-such-network", "device": "npu"}, {"precision": "fp16"}], ids=str)
def test_nothing_stands_in_for_a_network_that_is_not_there_or_for_the_cpu(settings: dict[str, str]) -> None:
    with pytest.raises(ModelError, match=r"no-such-network|set detector\.precision to auto"):
        detector_loader.load(config.DetectorConfig.model_validate({**settings, "fallback": "cpu"}))


@pytest.mark.parametrize("settings", [{"model": "builtin:hog"}, {"backend": "hog"}], ids=str)
def test_hog_is_what_one_gets_who_asks_for_it_by_name(settings: dict[str, str]) -> None:
    assert detector_loader.load(config.DetectorConfig.model_validate(settings)).name == "builtin:hog"


def test_without_a_driver_cuda_is_refused_before_it_is_tried(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nvidia-smi"):
        onnx_runtime.check_cuda(tmp_path / "n.onnx", ["CUDAExecutionProvider"], tmp_path / "no-driver")


def test_tensorrt_within_onnx_runtime_is_refused_where_it_is_not(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"detector\.backend to tensorrt, or detector\.provider to cuda"):
        onnx_runtime.check_cuda(tmp_path / "n.onnx", ["CUDAExecutionProvider"], provider="tensorrt")
    with pytest.raises(
        ModelError, match=r"provider tensorrt runs on NVIDIA's GPUs alone: set detector\.device to cuda"
    ):
        detector_loader.load(config.DetectorConfig(provider="tensorrt"))


def test_a_backend_that_is_not_installed_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "appliance.detect.onnx_runtime", None)
    with pytest.raises(MissingDependency, match="pip install onnxruntime"):
        detector_loader.load(config.DetectorConfig())
    monkeypatch.setitem(sys.modules, "appliance.detect.openvino_runtime", None)
    with pytest.raises(MissingDependency, match=r"pip install 'vedette\[openvino\]'"):
        detector_loader.load(config.DetectorConfig(backend="openvino"))


def test_classes_that_have_only_numbers_ask_for_labels(tmp_path: Path) -> None:
    path = tiny.yolo(tmp_path / "n.onnx", THINGS, ["0", "1", "2"])
    with pytest.raises(ModelError, match=r"numbers for names \(0, 1, 2\).*set detector\.labels"):
        detector_loader.load(config.DetectorConfig(model=str(path)))
    labels = tmp_path / "labels.txt"
    labels.write_text("cat\ndog\nperson\n")
    assert detector_loader.load(config.DetectorConfig(model=str(path), labels=labels)).labels == (
        "cat",
        "dog",
        "person",
    )


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    picture = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    picture[:, :, 2] |= 128  # enough red for the tiny networks to answer
    return picture


def assert_in_shape(found: Detections, looker: ObjectDetector) -> None:
    count = len(found)
    assert (found.boxes.dtype, found.boxes.shape) == (np.float32, (count, 4))
    assert (found.scores.dtype, found.scores.shape) == (np.float32, (count,))
    assert (found.class_ids.dtype, found.class_ids.shape) == (np.int32, (count,))
    assert ((found.boxes >= 0) & (found.boxes <= 1)).all()
    assert (found.boxes[:, 2:] > found.boxes[:, :2]).all()
    assert ((found.scores >= 0.1) & (found.scores <= 1)).all()
    assert ((found.class_ids >= 0) & (found.class_ids < len(looker.labels))).all()
    rows = [(-score, *box) for score, box in zip(found.scores.tolist(), found.boxes.tolist(), strict=True)]
    assert rows == sorted(rows)


def assert_equal(a: Detections, b: Detections) -> None:
    np.testing.assert_array_equal(a.boxes, b.boxes)
    np.testing.assert_array_equal(a.scores, b.scores)
    np.testing.assert_array_equal(a.class_ids, b.class_ids)


def load_reference(shared_data: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("detectors_ref", shared_data / "tools" / "detectors_ref.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def pets_frames(shared_data: Path) -> list[NDArray[np.uint8]]:
    """Eleven of the clip's 795."""
    with av.open(str(shared_data / "footage" / "pets09_s2l1_vtest_768x576.mp4")) as clip:
        return [f.to_ndarray(format="bgr24") for i, f in enumerate(clip.decode(video=0)) if i % 79 == 0]
