"""`python -m models.export`: the exporters are fakes with the signatures of the real ones (Ultralytics 8.4.190, rfdetr
1.11.2, D-FINE's script), which were run by hand; what is written is loaded as the appliance does."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import onnx
import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import UsageError
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from appliance.store.segments import SegmentStore
from models import export, hailo_recipe, variants
from models.variants import over_the_day, spread
from tests.support import numbered_footage
from tests.support import tiny_networks as tiny
from tests.support.tiny_networks import Thing

ROOT = Path(__file__).parents[2]
THINGS = [Thing((16, 16, 80, 112), 0.9, 0)]
# What `format=onnx` of Ultralytics 8.4.190 takes (cfg/default.yaml); an unknown one is a SyntaxError there.
ONNX_ARGUMENTS = {"format", "imgsz", "opset", "dynamic", "simplify", "nms", "batch", "device", "quantize", "task"}


class FakeYOLO:
    """As ultralytics.YOLO; writes beside the weights, with its metadata."""

    asked: dict[str, Any] = {}

    def __init__(self, model: str | Path = "yolo26n.pt", task: str | None = None, verbose: bool = False) -> None:
        self._path = Path(model)

    def export(self, **kwargs: Any) -> str:
        assert set(kwargs) <= ONNX_ARGUMENTS
        FakeYOLO.asked = kwargs
        path = self._path.with_suffix(".onnx")
        names = ["person", "car"]
        if kwargs["nms"] is False:
            tiny.end_to_end(path, THINGS, names)
        else:
            notes = {
                "names": str(dict(enumerate(names))),
                "task": "detect",
                "stride": "32",
                "license": "AGPL-3.0 License",
            }
            tiny.yolo(path, THINGS, names, notes)
        return str(path)


class FakeRfdetr:
    """As rfdetr.RFDETRNano; its export takes what the real one does, by name."""

    class_names = ["person", "car"]
    model_config = types.SimpleNamespace(license="Apache-2.0")

    def __init__(self, pretrain_weights: str | None = None) -> None:
        assert Path(str(pretrain_weights)).is_file()

    def export(
        self,
        output_dir: str = "output",
        infer_dir: str | None = None,
        backbone_only: bool = False,
        opset_version: int = 17,
        verbose: bool = True,
        shape: tuple[int, int] | None = None,
        batch_size: int = 1,
    ) -> Path:
        return tiny.rf_detr(Path(output_dir) / "rfdetr-nano.onnx", THINGS, slots=3)


SCRIPT = """
import argparse, shutil
parser = argparse.ArgumentParser()
parser.add_argument("--config", "-c", type=str)
parser.add_argument("--resume", "-r", type=str)
args = parser.parse_args()
assert open(args.config).read() == "of the network"
shutil.copyfile({source!r}, args.resume.replace(".pth", ".onnx"))
raise SystemExit(3)  # as where onnxsim is missing, after the file was written
"""


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "best.pt"
    path.write_bytes(b"weights")
    return path


def notes_of(path: Path) -> dict[str, str]:
    return {each.key: each.value for each in onnx.load(str(path)).metadata_props}


def test_ultralytics_is_asked_for_the_layout_that_is_wanted_and_its_licence_is_said(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics", types.SimpleNamespace(YOLO=FakeYOLO))
    out = tmp_path / "models" / "yolo.onnx"
    assert export.main(["ultralytics", str(weights), "--out", str(out), "--size", "320", "192", "--json"]) == 0
    told, said = capsys.readouterr()
    assert "AGPL-3.0" in said
    found = json.loads(told)
    assert (found["head"], found["labels"], found["licence"]) == ("yolo", ["person", "car"], "AGPL-3.0 License")
    assert FakeYOLO.asked["imgsz"] == [192, 320], "height first"
    assert FakeYOLO.asked["nms"] is None
    notes = notes_of(out)
    assert notes["weights_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert notes["source"].endswith("best.pt")
    assert export.main(["ultralytics", str(weights), "--out", str(out), "--end-to-end"]) == 0
    assert FakeYOLO.asked["nms"] is False, "None would give the usual head of YOLO26 too"
    assert "read as yolo-e2e" in capsys.readouterr().out


def test_what_is_not_installed_is_named_with_its_cure(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("ultralytics", "rfdetr"):
        monkeypatch.setitem(sys.modules, package, None)
    out = ["--out", str(tmp_path / "x.onnx")]
    assert export.main(["ultralytics", str(weights), *out]) == 2
    assert "pip install 'vedette[export]'" in capsys.readouterr().err
    assert export.main(["rfdetr", "nano", "--weights", str(weights), *out]) == 2
    assert "pip install 'rfdetr[onnx]'" in capsys.readouterr().err
    assert export.main(["ultralytics", str(tmp_path / "gone.pt"), *out]) == 2
    assert "nothing is downloaded here" in capsys.readouterr().err


def test_rf_detr_gets_the_names_of_its_classes(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rfdetr", types.SimpleNamespace(RFDETRNano=FakeRfdetr))
    out = tmp_path / "rf.onnx"
    assert export.main(["rfdetr", "nano", "--weights", str(weights), "--out", str(out)]) == 0
    assert "read as rf-detr, 2 classes (person, car)" in capsys.readouterr().out
    assert (notes_of(out)["license"], notes_of(out)["vedette_head"]) == ("Apache-2.0", "rf-detr")


def test_dfine_and_deim_are_exported_by_their_own_script(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny.detr(tmp_path / "made.onnx", THINGS, metadata={})
    repository = tmp_path / "DEIMv2"
    (repository / "tools" / "deployment").mkdir(parents=True)
    script = repository / "tools" / "deployment" / "export_onnx.py"
    script.write_text(SCRIPT.format(source=str(source)))
    for name in ("deim_n.yml", "deimv2_dinov3_s.yml"):
        (repository / name).write_text("of the network")
    out = tmp_path / "deim.onnx"

    def run(settings: str, *more: str) -> int:
        asked = ["detr", str(repository), "--config", settings, "--weights", str(weights), "--out", str(out)]
        return export.main([*asked, *more])

    assert run("deim_n.yml") == 2, "nothing names its classes"
    assert "set detector.labels" in capsys.readouterr().err
    assert not out.exists()
    assert run("deim_n.yml", "--labels", "coco-80") == 0
    assert "read as detr, 80 classes" in capsys.readouterr().out
    assert "vedette_normalisation" not in notes_of(out)
    assert run("deimv2_dinov3_s.yml", "--labels", "coco-80") == 0
    assert notes_of(out)["vedette_normalisation"] == "imagenet"
    assert notes_of(out)["exporter"] == "DEIMv2 of no commit"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("deim_n.yml", "--labels", "coco-80") == 0, "without git, too"
    script.write_text("raise SystemExit('no torch here')")
    assert run("deim_n.yml") == 2
    assert "wrote nothing: no torch here" in capsys.readouterr().err


def test_a_variant_never_takes_the_place_of_what_it_is_made_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = tmp_path / "net.onnx"
    tiny.yolo(network, THINGS, ["person", "car"])
    before = network.read_bytes()
    assert (
        export.main(["variant", str(network), "--kind", "fp16", "--out", str(tmp_path / "x" / ".." / "net.onnx")]) == 2
    )
    assert "is the network that the variant is made of" in capsys.readouterr().err
    assert network.read_bytes() == before


def test_a_variant_that_cannot_be_loaded_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network, target = tmp_path / "net.onnx", tmp_path / "new" / "half.onnx"
    tiny.yolo(network, THINGS, ["person", "car"])
    assert export.main(["variant", str(network), "--kind", "fp16", "--out", str(target)]) == 0
    first = target.read_bytes()
    monkeypatch.setattr(export.variants, "make_variant", lambda source, draft, *_: draft.write_bytes(b"half of it"))
    assert export.main(["variant", str(network), "--kind", "fp16", "--out", str(target)]) == 2
    assert [each.name for each in target.parent.iterdir()] == ["half.onnx"]
    assert target.read_bytes() == first
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    assert export.main(["variant", str(tmp_path / "bad.onnx"), "--kind", "fp16", "--out", str(target)]) == 2
    assert "bad.onnx" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--every", "0"], ["--frames", "-1"]])
def test_counts_that_cannot_be_are_wrong_use(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        export.main(["variant", "net.onnx", "--kind", "int8", "--out", "x.onnx", *words])


def test_only_the_exporter_imports_what_is_agpl() -> None:
    """Of the appliance and the worker tests/unit/test_architecture.py holds it."""
    imports = re.compile(r"^\s*(import|from) ultralytics\b", re.MULTILINE)
    found = [path.name for path in (ROOT / "models").rglob("*.py") if imports.search(path.read_text())]
    assert found == ["export.py"]


HOUR_S, DAY_S = 3600.0, 86400.0


def test_clips_beside_a_site_are_refused_and_not_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.yolo(tmp_path / "tiny.onnx", THINGS, ["person", "car"])
    both = ["--site", str(tmp_path / "site.yaml"), "--clip", "gate.mp4", "--out", str(tmp_path / "out")]
    assert export.main(["variant", str(model), "--kind", "int8", *both]) == 2
    assert "--site and --clip are both given: calibrate on one of them" in capsys.readouterr().err
    assert hailo_recipe.main(["yolox_s_leaky", *both]) == 2
    assert "--site and --clip are both given: calibrate on one of them" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_recording_is_sampled_over_cameras_and_hours_of_the_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A camera that records on alerts has most of its segments at one hour."""
    db = Database(tmp_path / DATABASE, ManualClock(0))
    CameraStore(db).ensure({"gate": "file:x.mp4", "yard": "file:x.mp4"})
    store = SegmentStore(db)
    rare, busy = [2 * HOUR_S, 15 * HOUR_S, 22 * HOUR_S], [7 * HOUR_S + 60 * minute for minute in range(20)]
    rows = [
        numbered_footage.record(tmp_path, numbered_footage.encoded_footage(number, 2), DAY_S * 20 + t, camera="gate")
        for number, t in enumerate([*rare, *busy])
    ]
    for row in [
        *rows,
        numbered_footage.record(
            tmp_path, numbered_footage.encoded_footage(99, 2), DAY_S * 20 + 5 * HOUR_S, camera="yard"
        ),
    ]:
        store.put(row)
    shown = [numbered_footage.number(frame) for frame in variants.recorded_frames(tmp_path, ["gate", "yard"], 24)]
    assert {0, 1, 2, 99} <= set(shown), "each hour and camera there is"
    assert len(shown) == 13, "a half each, and of yard there is one"
    site = tmp_path / "site.yaml"
    site.write_text(f"storage: {{dir: {tmp_path}}}\ncameras: {{gate: {{url: 'file:x'}}, yard: {{url: 'file:x'}}}}\n")
    asked = ["yolox_s_leaky", "--site", str(site), "--out", str(tmp_path / "hailo"), "--count", "24"]
    assert hailo_recipe.main(asked) == 2, "the same frames, too few for Hailo's compiler"
    assert len(list((tmp_path / "hailo" / "calibration").glob("*.png"))) == 13
    model = tiny.yolo(tmp_path / "tiny.onnx", THINGS, ["person", "car"])
    asked = ["variant", str(model), "--kind", "tensorrt", "--site", str(site), "--out", str(tmp_path / "int8.onnx")]
    assert export.main(asked) == 0
    told, said = capsys.readouterr()
    assert "calibrating on 24 recorded frames; none is kept, and nothing leaves this box" in said, "all there are"
    assert "not yet measured: vedette scenario compare" in told
    (tmp_path / rows[0].path).unlink()  # retention was quicker
    assert len(variants.recorded_frames(tmp_path, ["gate", "yard"], 24)) == 12


def test_too_little_recording_is_said_with_the_remedy(tmp_path: Path) -> None:
    db = Database(tmp_path / DATABASE, ManualClock(0))
    CameraStore(db).ensure({"gate": "file:x.mp4"})
    with pytest.raises(UsageError, match=r"0 frames of the recording of gate .* record for a day, or name clips"):
        variants.recorded_frames(tmp_path, ["gate"], 50)


def test_what_is_spread_is_spread() -> None:
    assert spread(range(10), 3) == [1, 5, 8]
    assert spread([1, 2], 5) == [1, 2]
    assert over_the_day([], 5) == []
