"""`vedette replay` as a person types it: files, folders, cameras together, and one sentence when it is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from appliance.__main__ import main
from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader
from appliance.lab.replay_command import ReplaySelection, replay_targets, video_files
from tests.support.block_footage import BrightBlock, block_clip, site


@pytest.fixture(scope="module")
def footage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("footage")
    block_clip(folder / "b.mp4", 3, lambda t: 0.1 + 0.25 * min(t, 2.4))
    block_clip(folder / "a.mp4", 2, lambda t: 0.7)
    (folder / "notes.txt").write_text("not footage")
    return folder


@pytest.fixture
def vedette(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs `vedette replay` in a folder with one.yaml and two.yaml (cameras gate and yard); one detector for all."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(detector_loader, "load", lambda settings: BrightBlock())
    plain = site().model_dump(mode="json", include={"cameras", "detector"}, exclude_none=True)
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(plain))
    plain["cameras"]["yard"] = {"url": "file:x.mp4"}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(plain))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["replay", *map(str, arguments)])
        texts = capsys.readouterr()
        return code, texts.out, texts.err

    return run


Vedette = Callable[..., tuple[int, str, str]]


def test_a_folder_is_replayed_file_by_file_in_order(vedette: Vedette, footage: Path, tmp_path: Path) -> None:
    code, out, _ = vedette("--config", "one.yaml", footage, "--log", "logs", "--json")
    assert code == 0
    assert [run["clip"] for run in json.loads(out)["runs"]] == ["a.mp4", "b.mp4"]
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["a.mp4.jsonl", "b.mp4.jsonl"]


def test_another_network_has_labels_and_precision_of_its_own(
    vedette: Vedette, footage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[DetectorConfig] = []
    monkeypatch.setattr(detector_loader, "load", lambda settings: loaded.append(settings) or BrightBlock())
    plain = yaml.safe_load((tmp_path / "one.yaml").read_text())
    plain["detector"] = {"model": "own.onnx", "labels": "own.txt", "head": "yolox", "precision": "fp32"}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(plain))
    assert vedette("--config", "own.yaml", footage / "a.mp4", "--model", "builtin:hog")[0] == 0
    assert loaded == [DetectorConfig(model="builtin:hog")]


def test_hardware_that_is_asked_for_and_not_there_is_refused_with_the_cure(vedette: Vedette, footage: Path) -> None:
    code, _, said = vedette(footage / "b.mp4", "--config", "one.yaml", "--hardware", "drm")
    assert code == 2
    assert "--hardware drm does not work here" in said
    assert "Raspberry Pi OS's own ffmpeg" in said


def test_one_clip_gives_one_object_as_ever(vedette: Vedette, footage: Path) -> None:
    code, out, _ = vedette(footage / "b.mp4", "--config", "one.yaml", "--json", "--camera", "gate")
    reported = json.loads(out)
    assert (code, reported["frames"], reported["camera"], reported["routes"][0]["ask"]) == (0, 30, "gate", False)


def test_a_folder_that_was_done_in_part_is_finished(vedette: Vedette, footage: Path, tmp_path: Path) -> None:
    arguments = ("--config", "one.yaml", footage, "--log", "logs", "--json")
    first = vedette(*arguments)[1]
    logs = {path.name: path.read_bytes() for path in (tmp_path / "logs").iterdir()}
    (tmp_path / "logs" / "b.mp4.jsonl").write_bytes(logs["b.mp4.jsonl"][:-40])
    again = json.loads(vedette(*arguments, "--resume")[1])["runs"]
    assert {path.name: path.read_bytes() for path in (tmp_path / "logs").iterdir()} == logs
    assert [run["events"] for run in again] == [run["events"] for run in json.loads(first)["runs"]]


def test_a_clip_alone_is_replayed_with_the_defaults(vedette: Vedette, footage: Path) -> None:
    code, out, err = vedette(footage / "b.mp4", "--json")
    found = json.loads(out)
    assert (code, err, found["camera"]) == (0, "", "clip")
    assert {event["zone"] for event in found["events"]} <= {"picture"}
    assert found["boxes"] > 0
    code, out, _ = vedette("--camera", f"yard={footage / 'a.mp4'}", "--camera", f"gate={footage / 'b.mp4'}")
    assert (code, "Runs (2)" in out) == (0, True)
    code, _, err = vedette("--camera", "gate", "--from", "2026-11-20T10:00")
    assert (code, "say which with --config" in err) == (2, True)


def test_a_rule_for_a_class_that_the_network_does_not_have_is_named_with_its_line(
    vedette: Vedette, footage: Path, tmp_path: Path
) -> None:
    plain = yaml.safe_load((tmp_path / "one.yaml").read_text())
    plain["cameras"]["gate"]["rules"] = [
        {"name": "dog", "kind": "enter", "zone": "yard", "labels": ["dog"]},
        {"name": "both", "kind": "enter", "zone": "yard", "labels": ["person", "cat"]},
    ]
    plain["cameras"]["gate"]["zones"] = {"yard": [[0, 0], [1, 0], [1, 1]]}
    (tmp_path / "dog.yaml").write_text(yaml.safe_dump(plain))
    line = next(n for n, text in enumerate((tmp_path / "dog.yaml").read_text().splitlines(), 1) if "- dog" in text)
    code, _, err = vedette(footage / "b.mp4", "--config", "dog.yaml", "--json")
    assert code == 0
    first, second = err.splitlines()
    assert first.startswith(f"vedette: dog.yaml: line {line}: cameras.gate.rules.0.labels.0: rule `dog` wants `dog`")
    assert "never fires" in first
    assert "rule `both` wants `cat`" in second
    assert "never fires" not in second


def test_each_clip_of_a_folder_is_named_before_its_tables(vedette: Vedette, footage: Path) -> None:
    _, out, _ = vedette("--config", "one.yaml", footage)
    order = [out.index(text) for text in ("a.mp4 as camera", "b.mp4 as camera", "Runs (2)")]
    assert order == sorted(order)
    assert out.index("b.mp4 as camera") < out.index("Events (")


def test_one_bad_clip_of_many_is_reported_and_the_others_are_replayed(
    vedette: Vedette, footage: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.mp4").write_text("no video")
    code, out, _ = vedette("bad.mp4", footage / "a.mp4", "--config", "one.yaml", "--json")
    reported = json.loads(out)
    assert code == 1
    assert [run["clip"] for run in reported["runs"]] == ["a.mp4"]
    assert "bad.mp4 is not a video" in reported["failed"][0]["error"]


def test_cameras_together(vedette: Vedette, footage: Path) -> None:
    code, out, _ = vedette(
        "--config", "two.yaml", "--camera", f"yard={footage / 'a.mp4'}", "--camera", f"gate={footage / 'b.mp4'}"
    )
    assert code == 0
    assert "a.mp4 as camera yard" in out
    assert "Runs (2)" in out


def test_a_log_may_go_to_a_device(vedette: Vedette, footage: Path) -> None:
    assert vedette(footage / "a.mp4", "--config", "one.yaml", "--log", "/dev/null", "--json")[0] == 0
    assert not Path("/dev/null.looks").exists()


@pytest.mark.parametrize("speed", ["max", "1000", "1000x"])
def test_speeds(vedette: Vedette, footage: Path, speed: str) -> None:
    assert vedette(footage / "a.mp4", "--config", "one.yaml", "--speed", speed)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config", "one.yaml"], "say what to replay, in one way"),
        (["x.mp4", "--config", "one.yaml", "--from", "2026-11-20T10:00"], "say what to replay, in one way"),
        (["--config", "one.yaml", "--to", "2026-11-20T10:00"], "--to needs --from"),
        (["--config", "two.yaml", "--camera", "gate=a.mp4", "--camera", "yard"], "say of every camera what it plays"),
        (["--config", "two.yaml", "--camera", "gate=a.mp4", "--camera", "gate=b.mp4"], "names one twice"),
        (["--config", "two.yaml", "--camera", "gate=a.mp4", "--camera", "yrd=b.mp4"], "there is no camera `yrd`"),
        (["x.mp4", "--config", "two.yaml"], "say which with --camera (gate, yard)"),
        (["x.mp4", "--config", "two.yaml", "--camera", "gate", "--camera", "yard"], "clips go to one camera"),
        (["x.mp4", "--config", "one.yaml", "--resume"], "say which with --log"),
        (["a/x.mp4", "b/x.mp4", "--config", "one.yaml", "--log", "logs"], "two of the clips are called x.mp4"),
        (["x.mp4", "y.mp4", "--config", "one.yaml", "--log", "one.yaml"], "several runs need a folder"),
        (["--config", "one.yaml", "--from", "2026-11-20T10:00"], "has this appliance recorded with this storage.dir"),
    ],
)
def test_wrong_use_is_one_sentence(vedette: Vedette, arguments: list[str], sentence: str) -> None:
    code, _, err = vedette(*arguments)
    assert code in (1, 2)
    assert sentence in err
    assert "Traceback" not in err


def test_an_empty_folder_is_an_error_that_names_the_suffixes(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception, match=r"there is no video in .*looked for .*\.mp4"):
        video_files([tmp_path / "empty"])


def test_no_speed_is_wrong_use(vedette: Vedette, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        vedette("x.mp4", "--config", "one.yaml", "--speed", "fast")
    assert stopped.value.code == 2
    assert "write 1, 10, 0.5 or max" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["replay"], ["replay", "diff"]])
def test_help_teaches_with_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--help"])
    texts = capsys.readouterr().out
    assert stopped.value.code == 0
    assert f"usage: vedette {' '.join(words)}" in texts
    assert texts.count("\n  vedette replay") >= 2
    assert "replay-diff" not in texts


def test_a_camera_s_name_is_checked_before_anything_is_read() -> None:
    (item,) = replay_targets(ReplaySelection(paths=(Path("x.mp4"),)), site().for_replay(), Path("one.yaml"))
    assert (item.name, item.cameras) == ("x.mp4", ("gate",))
