"""What is written for Hailo's compiler is what the appliance then runs: the same network, frames and notes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest

from appliance.base.box_arrays import iou_matrix
from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader, hef_file
from appliance.detect.letterbox import Letterbox
from appliance.detect.network_detector import NetworkDetector
from appliance.detect.onnx_runtime import OnnxRuntime
from models import hailo_recipe, shapes, variants
from models.train import sources
from tests.support import hailo_files
from tests.support import tiny_networks as tiny
from tests.support.hailo_files import FakeDevice
from tests.support.scripted_sources import clip
from tests.support.tiny_networks import Thing

ROOT = Path(__file__).parents[2]
OWN = ROOT / "models" / "vedette-nano.onnx"
COLOURED = ROOT / "fixtures" / "clips" / "gate.mp4"


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("footage") / "gate.mp4", 70, fps=20, gop=10)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe") / "own"
    arguments = ["vedette-nano", "--out", str(folder), "--clip", str(COLOURED), "--every", "1", "--count", "64"]
    assert hailo_recipe.main(arguments) == 0
    return folder


def test_the_cut_network_on_a_device_finds_what_the_whole_one_finds(written: Path, tmp_path: Path) -> None:
    """The fake device computes what was written by ONNX Runtime; boxes are decoded by the head for raw grids."""
    cut = onnx.load(str(written / "vedette_nano.onnx"))
    outputs = [
        {"name": each.name, "order": "NHWC", "shape": [side.dim_value for side in each.type.tensor_type.shape.dim][1:]}
        for each in cut.graph.output
    ]
    assert {each["name"]: each["shape"][0] for each in outputs} == {
        f"{part}_{stride}": channels for stride in (8, 16, 32) for part, channels in (("sides", 4), ("classes", 8))
    }
    for each in outputs:
        channels, height, width = each["shape"]
        each["shape"] = [height, width, channels]
    network = {
        "onnx": str(written / "vedette_nano.onnx"), "outputs": outputs,
        "input": {"name": "vedette_nano/input_layer1", "shape": [416, 416, 3], "order": "NHWC"},
    }  # fmt: skip
    hef = hailo_files.write(tmp_path / "vedette-nano.hailo8l.hef", network, names=None)
    hef_file.notes_file(hef).write_bytes((written / "vedette-nano.hailo8l.hef.json").read_bytes())
    device = FakeDevice(tmp_path)
    compiled = detector_loader.load(DetectorConfig.model_validate(device.settings(hef)))
    onnx.save(shapes.fix(onnx.load(str(OWN)), 416, 416), str(tmp_path / "fixed.onnx"))
    whole = NetworkDetector(tmp_path / "fixed.onnx", OnnxRuntime(tmp_path / "fixed.onnx"))
    assert compiled.labels == whole.labels
    frames = [frame for _, frame, _ in islice(sources.frames(COLOURED, 100), 3)]
    compared = 0
    for wanted, found in zip(whole.detect(frames), compiled.detect(frames), strict=True):
        shared = iou_matrix(wanted.boxes.astype(np.float64), found.boxes.astype(np.float64))
        for row in np.flatnonzero(wanted.scores >= 0.3):
            best = int(shared[row].argmax())
            assert shared[row, best] > 0.99
            assert found.scores[best] == pytest.approx(wanted.scores[row], abs=1e-3)
            assert found.class_ids[best] == wanted.class_ids[row]
            compared += 1
    assert compared >= 2


def test_the_calibration_set_is_frames_as_the_appliance_lays_them_out(written: Path) -> None:
    rows = np.load(written / "calibration.npy", mmap_mode="r")
    assert (rows.shape, rows.dtype) == ((64, 416, 416, 3), np.uint8)
    frames = [frame for _, frame, _ in islice(sources.frames(COLOURED, 1), 64)]
    for number in (0, 63):
        laid = Letterbox(416, 416, "centre").lay(frames[number])
        np.testing.assert_array_equal(rows[number], cv2.cvtColor(laid, cv2.COLOR_BGR2RGB))
    assert not list(written.glob("*.part"))


def test_scripts_and_commands_name_what_lies_there(written: Path) -> None:
    commands = (written / "compile.sh").read_text().splitlines()[3:]
    assert [line.split()[:2] for line in commands] == [
        ["yes", "n"], ["hailo", "optimize"], ["hailo", "compiler"], ["mv", "vedette_nano.hef"],
    ]  # fmt: skip
    assert {"calibration.npy", "vedette_nano.onnx", "vedette_nano.alls"} <= {each.name for each in written.iterdir()}
    script = (written / "vedette_nano.alls").read_text()
    assert "normalization([0.0, 0.0, 0.0], [255.0, 255.0, 255.0])" in script
    assert "calibset_size=64" in script
    made = {line.split()[-1] for line in commands}
    assert "vedette-nano.hailo8l.hef" in made


def test_the_commands_run_through_the_compiler_to_a_file_that_fits(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over a stand-in with the options of Dataflow Compiler 3.x; what the real one makes of it is unmeasured."""
    folder = shutil.copytree(written, tmp_path / "hailo", ignore=shutil.ignore_patterns("*.hef"))
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "hailo").write_text(
        f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tests.contract.fake_hailo.dataflow_compiler "$@"\n'
    )
    (tools / "hailo").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run([folder / "compile.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert hailo_recipe.main(["--check", str(folder)]) == 0
    assert "for hailo8l, by Dataflow Compiler 3.31.0, 8 classes" in capsys.readouterr().out
    assert b'"nms": false' in (folder / "vedette-nano.hailo8l.hef").read_bytes(), "the head is the appliance's"

    np.save(folder / "calibration.npy", np.load(folder / "calibration.npy")[:63])
    short = subprocess.run([folder / "compile.sh"], env=environment, capture_output=True, text=True, check=False)
    assert short.returncode != 0, "a step that fails ends it, so that no older file is taken for the new one"
    assert "the calibration set is too small" in short.stderr


def test_what_came_out_is_checked_against_what_was_asked(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hef = written / "vedette-nano.hailo8l.hef"
    hef.unlink(missing_ok=True)
    assert hailo_recipe.main(["--check", str(written)]) == 2
    assert "is not there: run compile.sh" in capsys.readouterr().out
    notes = hef_file.notes_file(hef).read_bytes()
    for architecture, kept, words in (
        (1, notes, "was compiled for hailo8, not hailo8l"),
        (3, b"{}", "names no classes"),
        (3, notes, "for hailo8l, by Dataflow Compiler 3.31.0, 8 classes"),
    ):
        hailo_files.write(hef, {}, architecture=architecture, names=None)
        hef_file.notes_file(hef).write_bytes(kept)
        assert hailo_recipe.main(["--check", str(written)]) == (0 if "by Dataflow" in words else 2)
        assert words in capsys.readouterr().out
    hef.write_bytes(b"what the compiler left when the disk was full")
    assert hailo_recipe.main(["--check", str(written)]) == 2


def test_a_network_of_the_zoo_gets_images_and_notes(
    footage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = ["--clip", str(footage), "--every", "1", "--count", "64", "--arch", "hailo8"]
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "00070.png").write_bytes(b"of another site")
    assert hailo_recipe.main(["yolox_s_leaky", "--out", str(tmp_path), *clips]) == 0
    assert "the appliance wants yolox_s_leaky.hailo8.hef and its .json" in capsys.readouterr().out
    assert len(list((tmp_path / "calibration").glob("*.png"))) == 64
    command = "hailomz compile yolox_s_leaky --hw-arch hailo8 --calib-path calibration/"
    assert command in (tmp_path / "compile.sh").read_text()
    assert hef_file.read_notes(tmp_path / "yolox_s_leaky.hailo8.hef").placing == "corner"
    assert json.loads((tmp_path / "recipe.json").read_text())["input"] == [640, 640, 3]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["vedette-nano", "--every", "60"], "2 frames are too few to calibrate with, 64 the least"),
        (["yolov8n"], "is neither vedette-nano, yolox_s_leaky nor a file"),
    ],
    ids=str,
)
def test_what_cannot_be_written_is_refused(
    arguments: list[str], words: str, footage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hailo_recipe.main([*arguments, "--out", str(tmp_path), "--clip", str(footage)]) == 2
    assert words in capsys.readouterr().out


def test_a_file_that_is_not_of_ours_is_named_with_what_it_lacks(
    footage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tiny.yolo(tmp_path / "other.onnx", [Thing((16, 16, 80, 112), 0.9, 0)], ["person"])
    assert hailo_recipe.main([str(other), "--out", str(tmp_path), "--clip", str(footage)]) == 2
    assert "its metadata lack imgsz, which models.train.export writes" in capsys.readouterr().out
    (tmp_path / "recipe.json").write_text("{}")
    assert hailo_recipe.main(["--check", str(tmp_path)]) == 2
    assert "recipe.json: it is no recipe of ours ('hef'): write it anew" in capsys.readouterr().out


def test_a_long_film_gives_no_more_frames_than_memory_holds(footage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(variants.clip_frames([footage], 7)) == 10
    monkeypatch.setattr(variants, "CLIP_FRAMES_MAX", 20)
    assert len(variants.clip_frames([footage], 1)) == 18, "each fourth of seventy"
