"""Kept scenarios run by a job: one that cannot be run here keeps no other from it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance import config
from appliance.base.config_model import DetectorConfig
from appliance.detect import detector_loader
from appliance.replay.recording_tasks import SCENARIOS_TASK, ScenariosTask
from appliance.scenario import sandboxed_jobs
from appliance.scenario.scenario_runner import DetectorCache
from tests.support.block_footage import BrightBlock, block_clip
from tests.support.yard_scenarios import YARD, write

HOG = DetectorConfig(model="builtin:hog")
SCENE: dict[str, Any] = {
    "clip": "visit.mp4", "cameras": {"gate": YARD}, "detector": {"model": "builtin:hog"},
    "never": [{"rule": "intruder"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({"detector": {"model": "vedette-nano", "backend": "tensorrt"}}, "not run"),
        ({"clip": None, "clips": {"gate": "visit.mp4", "yard": "visit.mp4"}, "cameras": {"gate": YARD, "yard": YARD}},
         "passed"),
    ],
)  # fmt: skip
def test_one_that_cannot_be_run_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], then: str
) -> None:
    """A backend that this appliance has no more, and a second camera that somebody wrote into the file."""
    monkeypatch.setattr(os, "nice", lambda by: 0)
    block_clip(tmp_path / "visit.mp4", 2, lambda t: None)
    odd = {key: value for key, value in {**SCENE, **changes}.items() if value is not None}
    files = tuple(str(write(tmp_path, scene, name)) for name, scene in (("odd", odd), ("plain", SCENE)))
    site = replace(config.of_cameras({"gate": {"url": "rtsp://recorded/", **YARD}}).for_decisions(), detector=HOG)
    task = SCENARIOS_TASK.dump_python(ScenariosTask(files, {"gate": site}, HOG), mode="json")
    steps = sandboxed_jobs.run_scenarios(task)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            first, second = end.value
            break
    assert (first["then"], first["now"]) == (then, "")
    assert bool(first["then_text"]) is (then == "not run")
    assert (second["then"], second["now"]) == ("passed", "passed")


def test_another_network_runs_with_its_own_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scenario's network has classes of its own, and so has the one that is tried."""
    loaded: list[DetectorConfig] = []
    monkeypatch.setattr(os, "nice", lambda by: 0)
    monkeypatch.setattr(detector_loader, "load", lambda settings: loaded.append(settings) or BrightBlock())
    block_clip(tmp_path / "visit.mp4", 2, lambda t: None)
    own = {"model": "own.onnx", "labels": "own.txt", "head": "yolox", "precision": "fp32"}
    file = str(write(tmp_path, {**SCENE, "detector": own}, "own"))
    ways = (DetectorConfig(model="nano.onnx"), DetectorConfig(model="site.onnx", labels=Path("site.txt"), head="detr"))
    for way in ways:
        values = {"file": file, "model_folder": "", "model": way.model, "way": way.model_dump(mode="json")}
        assert list(sandboxed_jobs.run_scenario(values)) == [0.0]
    assert tuple(loaded) == ways
    DetectorCache("nano.onnx").get(DetectorConfig.model_validate(own))
    assert loaded[-1] == ways[0]
