"""Parts of `backend: hailo` that need no device: what a HEF says of itself, how its answers are read, cures."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.__main__ import main
from appliance.base.config_model import DetectorConfig, HailoConfig
from appliance.base.errors import ModelError
from appliance.bundle import manifest
from appliance.dashboard.recording_jobs import model_places
from appliance.detect import detector, detector_loader, hailo_runtime, hef_file, model_files, yolo_detr_ssd_heads
from appliance.detect.accelerators import python_with_bindings
from appliance.detect.hailo_client import HelperFailed
from appliance.detect.hailo_runtime import HailoRuntime
from appliance.detect.hef_file import HefHeader
from appliance.detect.output_head import UnknownLayout
from appliance.detect.yolo_detr_ssd_heads import TrialOutput
from tests.support import hailo_files
from tests.support import tiny_networks as tiny
from tests.support.tiny_networks import Thing

PLAIN: dict[str, Any] = {"input": {}, "outputs": []}
THING = Thing((16, 24, 80, 112), 0.9, 1)


@pytest.mark.parametrize(
    ("command", "model", "words"),
    [
        (["check", "--no-probe", "site.yaml"], "auto", "python -m models.hailo_recipe vedette-nano"),
        (["run", "--config", "site.yaml"], "auto", "python -m models.hailo_recipe vedette-nano"),
        (["replay", "clip.mp4", "--config", "site.yaml"], "yard.hef", "sudo apt install hailo-all"),
    ],
    ids=["check", "run", "replay"],
)
def test_hailo_where_there_is_none_is_refused_wherever_a_detector_is_used(
    command: list[str], model: str, words: str,
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With the default model, which nobody has compiled, and with a HEF on a machine without HailoRT."""
    monkeypatch.chdir(tmp_path)
    hailo_files.nms(tmp_path / "yard.hef", [THING])
    (tmp_path / "clip.mp4").symlink_to(Path(__file__).parents[2] / "fixtures" / "clips" / "yard.mp4")
    Path("site.yaml").write_text(
        "cameras: {gate: {url: 'file:clip.mp4'}}\ndashboard: {port: 0}\n"
        f"detector: {{backend: hailo, model: {model}, hailo: {{python: {sys.executable}}}}}\n"
    )
    assert main(command) == 2
    said = capfd.readouterr()
    assert words in " ".join((said.out + said.err).split())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "gpu"}, "leave out detector.device gpu"),
        ({"precision": "int8"}, "set detector.precision to auto, not int8"),
        ({"head": "yolo"}, "set detector.head to auto, not yolo"),
        ({"model": "builtin:hog"}, "does not run builtin:hog"),
        ({"model": "x.onnx"}, "runs .hef files"),
        ({"model": "absent.hef"}, "no such model file"),
        ({"backend": "auto", "model": "x.hef"}, "set detector.backend to hailo"),
    ],
    ids=str,
)
def test_what_hailo_does_not_do_is_refused_in_words(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        detector_loader.load(DetectorConfig.model_validate({"backend": "hailo", **settings}))


def test_the_cpu_stands_in_where_the_site_file_allows_it(tmp_path: Path) -> None:
    hef = hailo_files.nms(tmp_path / "yard.hef", [THING])
    (tmp_path / "labels.txt").write_text("person\ncar\n")
    settings = {"backend": "hailo", "model": str(hef), "labels": str(tmp_path / "labels.txt"), "fallback": "cpu",
                "hailo": {"python": sys.executable}}  # fmt: skip
    found = detector_loader.load(DetectorConfig.model_validate(settings))
    assert found.name.startswith("vedette-nano@")
    assert len(found.labels) == 8
    reason = detector.fallback_reason(found)
    assert reason.startswith("detector.backend hailo did not come up")
    assert "sudo apt install hailo-all" in reason


def test_a_job_in_a_sandbox_has_no_device_and_is_refused_before_it_begins() -> None:
    with pytest.raises(ModelError, match="a job in a sandbox does not get; vedette replay decides again"):
        model_places(DetectorConfig(backend="hailo", model="yard.hef"))


def test_another_network_for_second_looks_runs_where_it_can() -> None:
    shared = DetectorConfig(backend="hailo", model="yard.hef")
    assert detector_loader.recheck_settings("vedette-nano", shared).backend == "auto"
    assert detector_loader.recheck_settings("large.hef", shared).backend == "hailo"
    assert detector_loader.recheck_settings("large.hef", DetectorConfig()).backend == "hailo"
    on_a_gpu = DetectorConfig(backend="openvino", device="gpu")
    assert detector_loader.recheck_settings("large.hef", on_a_gpu).device == "auto"


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_hef_says_for_which_device_it_was_compiled_and_by_what(version: int, tmp_path: Path) -> None:
    path = hailo_files.write(tmp_path / "x.hef", PLAIN, architecture=1)
    data = path.read_bytes()
    size = {0: 32, 1: 28, 2: 44, 3: 56}[version]
    path.write_bytes(data[:4] + bytes([0, 0, 0, version]) + data[8:12] + bytes(size - 12) + data[32:])
    assert hef_file.read_header(path) == HefHeader("hailo8", "3.31.0")


def test_what_is_no_hef_is_refused_and_what_is_unknown_is_left_to_hailort(tmp_path: Path) -> None:
    path = tmp_path / "x.hef"
    for content in (b"", b"\x01HE", b"no network at all", b"\x01HEF\0\0\0\x09" + bytes(60)):
        path.write_bytes(content)
        with pytest.raises(ModelError, match="HEF"):
            hef_file.read_header(path)
    path.write_bytes(b"\x01HEF" + bytes(100))
    assert hef_file.read_header(path) == HefHeader("", "")
    hailo_files.write(path, PLAIN, architecture=77)
    assert hef_file.read_header(path).architecture == ""
    assert hef_file.runs_on("", "hailo8")


def test_a_device_runs_what_hailort_says_it_does() -> None:
    assert hef_file.runs_on("hailo8l", "hailo8l")
    assert hef_file.runs_on("hailo8l", "hailo8")
    assert not hef_file.runs_on("hailo8", "hailo8l")
    assert not hef_file.runs_on("hailo10h", "hailo8")


def test_a_hef_without_names_is_refused_with_both_ways_to_name_them(tmp_path: Path) -> None:
    path = hailo_files.nms(tmp_path / "yard.hef", [THING], names=None)
    with pytest.raises(ModelError, match=r"write yard\.hef\.json beside it .*or set detector\.labels"):
        HailoRuntime(path)
    hef_file.notes_file(path).write_text('{"names": "coco-80", "placing": "corner"}')
    assert hef_file.read_notes(path).labels[:2] == ("person", "bicycle")
    hef_file.notes_file(path).write_text('{"names": ["person"], "placing": "middle"}')
    with pytest.raises(ModelError, match=r"yard\.hef\.json: placing: "):
        hef_file.read_notes(path)


def test_a_name_is_the_network_that_was_compiled_for_the_device_with_its_bundle(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not compiled for a Hailo device"):
        model_files.find_compiled_model("vedette-nano", (tmp_path,))
    compiled = hailo_files.write(tmp_path / "yard.hailo8l.hef", PLAIN)
    assert model_files.find_compiled_model("yard", (tmp_path,)).path == compiled
    hailo_files.write(tmp_path / "yard.hailo8.hef", PLAIN)
    with pytest.raises(ModelError, match=r"several devices \(yard\.hailo8\.hef, yard\.hailo8l\.hef\): name the file"):
        model_files.find_compiled_model("yard", (tmp_path,))
    assert model_files.find_compiled_model("yard.hailo8.hef", (tmp_path,)).path.name == "yard.hailo8.hef"
    sha256 = manifest.sha256_of(compiled)
    (tmp_path / "models.toml").write_text(
        f'[gate]\nfile = "yard.hailo8l.hef"\nsha256 = "{sha256}"\nlicence = "MIT"\n'
        'labels = ["person"]\ninput = [1, 1]\n'
    )
    found = model_files.find_compiled_model("gate", (tmp_path,))
    assert (found.path, found.labels) == (compiled, ("person",))
    compiled.write_bytes(b"another")
    with pytest.raises(ModelError, match="sha256 differs"):
        model_files.find_compiled_model("gate", (tmp_path,))


def decoded(streams: dict[str, NDArray[np.float32]], score_min: float = 0.3, **told: object) -> Any:
    """What the head for raw streams of a 128x128 network of two classes finds."""
    notes = {"outputs": {name: {"order": "NHWC", "classes": 0} for name in streams}, "scores": "sigmoid",
             "sides": "distribution", **told}  # fmt: skip
    metadata = {"hailo": json.dumps(notes), "names": "{0: 'person', 1: 'car'}"}
    head = yolo_detr_ssd_heads.choose_head(TrialOutput((tiny.SIDE, tiny.SIDE), streams, "", metadata))
    return head.decode(streams, score_min)


def one_thing(channels: dict[str, int], stride: int = 16) -> tuple[dict[str, NDArray[np.float32]], tuple[int, int]]:
    """Empty streams [1, rows, columns, channels] of three strides, and the cell (row, column) of THING at `stride`."""
    streams = {
        f"{name}{each}": np.zeros((1, tiny.SIDE // each, tiny.SIDE // each, count), np.float32)
        for each in (8, 16, 32)
        for name, count in channels.items()
    }
    x1, y1, x2, y2 = THING.box
    return streams, (int((y1 + y2) / 2) // stride, int((x1 + x2) / 2) // stride)


def assert_found(found: Any, score: float = 0.9) -> None:
    np.testing.assert_allclose(found.boxes, [THING.box], atol=1e-3)
    np.testing.assert_allclose(found.scores, [score], atol=1e-5)
    assert found.class_ids.tolist() == [1]


def reaches(row: int, column: int, stride: int = 16) -> NDArray[np.float32]:
    """How far the four sides of THING are from the middle of a cell, in strides."""
    x, y = (column + 0.5) * stride, (row + 0.5) * stride
    x1, y1, x2, y2 = THING.box
    return np.array([x - x1, y - y1, x2 - x, y2 - y], np.float32) / stride


def test_raw_grids_with_distributions_are_read_as_yolov8_means_them() -> None:
    streams, (row, column) = one_thing({"box": 64, "class": 2})
    for side, reach in enumerate(reaches(row, column)):
        low = int(reach)
        bins = streams["box16"][0, row, column, 16 * side : 16 * side + 16]
        bins[:] = -50
        bins[low], bins[low + 1] = np.log(1 - (reach - low) + 1e-9), np.log(reach - low + 1e-9)
    streams["class16"][0, row, column, 1] = 0.9
    assert_found(decoded(streams))


def test_raw_grids_of_ours_are_read_with_logits_and_exponents() -> None:
    streams, (row, column) = one_thing({"sides": 4, "classes": 2})
    for name in streams:
        if name.startswith("classes"):
            streams[name] -= 20
    streams["sides16"][0, row, column] = np.log(reaches(row, column))
    streams["classes16"][0, row, column, 1] = np.log(0.9 / 0.1)
    assert_found(decoded(streams, scores="logits", sides="exponent"))


@pytest.mark.parametrize("joint", [False, True])
def test_raw_grids_of_yolox_are_read_in_three_streams_and_in_one(joint: bool) -> None:
    streams, (row, column) = one_thing({"reg": 4, "obj": 1, "cls": 2})
    x1, y1, x2, y2 = THING.box
    streams["reg16"][0, row, column] = [
        (x1 + x2) / 32 - column, (y1 + y2) / 32 - row, np.log((x2 - x1) / 16), np.log((y2 - y1) / 16),
    ]  # fmt: skip
    streams["obj16"][0, row, column, 0] = 0.95
    streams["cls16"][0, row, column, 1] = 0.8
    if joint:
        streams = {
            f"out{each}": np.concatenate([streams[f"{name}{each}"] for name in ("reg", "obj", "cls")], axis=3)
            for each in (8, 16, 32)
        }
    assert_found(decoded(streams), 0.95 * 0.8)


@pytest.mark.parametrize(
    ("channels", "words"),
    [({"a": 64, "b": 3}, r"\[3, 64\] channels for 2 classes"), ({"a": 6}, "`sides` of NAME.hef.json is distribution")],
    ids=str,
)
def test_streams_of_no_known_layout_are_refused(channels: dict[str, int], words: str) -> None:
    with pytest.raises(UnknownLayout, match=words):
        decoded(one_thing(channels)[0])


def test_a_buffer_that_promises_more_than_it_holds_is_read_as_far_as_it_goes() -> None:
    for order, answer in (
        (hailo_files.BY_CLASS, np.array([[3, 0.1, 0.1, 0.5, 0.5, 0.9, 900, 0.1]], np.float32)),
        (hailo_files.BY_SCORE, np.full((1, 2 + 22), 255, np.uint8)),
    ):
        told = {"outputs": {"nms": {"order": order, "classes": 2}}, "scores": "sigmoid", "sides": "distribution"}
        head = yolo_detr_ssd_heads.choose_head(TrialOutput((64, 64), {"nms": answer}, "", {"hailo": json.dumps(told)}))
        assert len(head.decode({"nms": answer}, 0.1)) <= 1


@pytest.mark.parametrize(
    ("status", "known", "words"),
    [
        (76, {"library": "4.23.0", "driver": "4.20.1"}, "HailoRT 4.23.0, driver 4.20.1 (HailoRT says"),
        (73, {}, "another process has the device"),
        (64, {}, "no Hailo driver is loaded"),
        (64, {"driver": "4.23.0"}, "lspci | grep Hailo"),
        (78, {}, "sudo systemctl enable --now hailort.service"),
        (93, {"architecture": "hailo8"}, "hailomz compile --hw-arch hailo8"),
        (26, {}, "the file is damaged"),
        (92, {"library": "4.18.0"}, "Dataflow Compiler 3.33.0, which HailoRT 4.18.0 does not know"),
        (5, {"numpy": "2.2.4"}, "misread arrays of numpy 2.2.4"),
        (8, {}, "hailortcli fw-control identify"),
    ],
    ids=str,
)
def test_every_status_of_hailort_has_its_cure(status: int, known: dict[str, str], words: str) -> None:
    failure = HelperFailed(f"libhailort failed with error: {status}", {"step": "device", "status": status}, known)
    assert words in hailo_runtime.cure(failure, Path("/usr/bin/python3"), HefHeader("hailo8l", "3.33.0"), service=True)


def test_the_python_that_has_the_bindings_is_taken() -> None:
    assert python_with_bindings(HailoConfig()) == Path("/usr/bin/python3"), "there are none in this one"
    assert python_with_bindings(HailoConfig(python="/opt/hailo/bin/python")) == Path("/opt/hailo/bin/python")
