"""What `vedette check` expects of this machine when every camera moves: told before the box is overloaded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from appliance.cli import site_check

CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"


def findings(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, cameras: int, cores: int
) -> dict[str, tuple[str, str]]:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    lines = [f"  c{n}: {{url: 'file:{CLIP}', detect: {{fps: 60}}}}" for n in range(cameras)]
    text = "\n".join(["cameras:", *lines, "dashboard: {enabled: false}", f"storage: {{dir: {folder / 'data'}}}", ""])
    path = folder / "site.yaml"
    path.write_text(text)
    assert site_check.check(path, probe=True, as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["runtimes"][0]["state"] in ("chosen", "unmeasured")
    found = answer["findings"]
    return {each["about"]: (each["level"], each["text"]) for each in found}


def test_too_many_cameras_for_one_core_are_told_beforehand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(tmp_path, capsys, monkeypatch, cameras=12, cores=1)  # no core is that fast
    assert found["detector"][0] == "warning"
    assert "cameras will be overloaded" in found["detector"][1]
    level, text = found["machine"]
    assert (level, "of this machine's 1; cameras will be overloaded" in text) == ("warning", True)


def test_one_camera_on_many_cores_is_fine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    level, text = findings(tmp_path, capsys, monkeypatch, cameras=1, cores=64)["machine"]
    assert (level, text.endswith("of this machine's 64")) == ("ok", True)
