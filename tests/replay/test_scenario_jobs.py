"""Kept scenarios run by a job: one that cannot be run here keeps no other from it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance import config
from appliance.base.config_model import DetectorConfig
from appliance.replay.recording_tasks import SCENARIOS_TASK, ScenariosTask
from appliance.scenario import sandboxed_jobs
from tests.support.block_footage import block_clip
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
