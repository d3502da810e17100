"""`vedette tune` on small films: the same replay as a scenario run, each picture looked at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import UsageError
from appliance.lab.tune_command import TuneOptions, tune_command
from appliance.lab.tune_sweep import MemoizedDetectors, read_sweep
from appliance.scenario.scenario_loader import load_scenario
from appliance.scenario.scenario_runner import DetectorCache, run_scenario
from appliance.types import Detections
from tests.support.block_footage import BrightBlock, block_clip


class Unsure(BrightBlock):
    """A person scores 0.7, and is seen anew at every step, which adds up to 0.88; a ghost of 0.55 stands in the zone
    for the second half, which adds up to nothing. Counts its looks."""

    name = "scripted:unsure"

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    def _look(self, picture: NDArray[np.uint8]) -> Detections:
        self.looks += 1
        found = super()._look(picture)
        if len(found):
            return Detections(found.boxes, np.array([0.7], np.float32), found.class_ids)
        ghost = np.array([[0.9, 0.0, 1.0, 0.25]], np.float32)
        return Detections(ghost, np.array([0.55], np.float32), np.zeros(1, np.int32))


SCENARIO = """
clip: clip.mp4
cameras:
  gate:
    zones: {yard: [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]}
    rules: [{name: intruder, kind: enter, zone: yard, score_min: 0.9}]
expect: [{rule: intruder, at: 2.0, between: [1, 4]}]
others: never
"""


def test_a_swept_network_has_labels_of_its_own(footage: Path) -> None:
    plan = load_scenario(footage / "door.scenario.yaml")
    own = replace(plan.config, detector=DetectorConfig(model="own.onnx", labels=Path("own.txt"), precision="fp32"))
    sweep = read_sweep("detector.model=own.onnx,vedette-nano")
    assert [sweep.change(own, each).detector for each in sweep.values] == [
        own.detector, DetectorConfig(model="vedette-nano"),
    ]  # fmt: skip


@pytest.fixture
def footage(tmp_path: Path) -> Path:
    """A block walks in at 2 s and is gone at 4 s; then the ghost comes."""
    block_clip(tmp_path / "clip.mp4", 8, lambda t: 0.3 + t / 10 if t < 4 else None)
    (tmp_path / "door.scenario.yaml").write_text(SCENARIO)
    return tmp_path


def test_finds_the_threshold_between_the_person_and_the_ghost(
    footage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wishes = TuneOptions(sweeps=["rules.score_min=0.5:0.9:0.1"], as_json=True)
    assert tune_command([footage], "", wishes, MemoizedDetectors(lambda _: Unsure())) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"]["setting"] == {"rules.score_min": 0.7}, "the middle of those that do"
    assert (told["chosen"]["recall"]["value"], told["chosen"]["precision"]["value"]) == (1.0, 1.0)
    assert told["present"]["recall"]["value"] == 0.0, "0.9 in the file misses everybody"
    points = {each["setting"].get("rules.score_min"): each for each in told["points"]}
    assert points[0.5]["false_alarms"] > 0
    assert [points[each]["false_alarms"] for each in (0.6, 0.7, 0.8, 0.9)] == [0, 0, 0, 0]
    assert [points[each]["recall"]["value"] for each in (0.6, 0.7, 0.8, 0.9)] == [1.0, 1.0, 1.0, 0.0]


def test_every_point_equals_a_run_with_that_setting(footage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wishes = TuneOptions(sweeps=["detect.fps=2,5"], as_json=True, aim="f1")
    tune_command([footage], "", wishes, MemoizedDetectors(lambda _: Unsure()))
    points = json.loads(capsys.readouterr().out)["points"]
    plan = load_scenario(footage / "door.scenario.yaml")
    camera = plan.config.cameras["gate"]
    for told in points:
        fps = told["setting"].get("detect.fps", camera.detect.fps)
        detect = camera.detect.model_copy(update={"fps": fps})
        tried = replace(plan.config, cameras={"gate": camera.model_copy(update={"detect": detect})})
        verdict = run_scenario(plan, DetectorCache(load=lambda _: Unsure()), override=tried)
        assert verdict.events is not None
        assert told["alerts"] == verdict.events.alerts
        assert told["false_alarms"] == len(verdict.judgement.false_alarms)


def test_the_detector_runs_once_on_each_frame(footage: Path) -> None:
    once, often = Unsure(), Unsure()
    tune_command(
        [footage], "", TuneOptions(sweeps=["rules.score_min=0.5"], as_json=True), MemoizedDetectors(lambda _: once)
    )
    tune_command(
        [footage],
        "",
        TuneOptions(sweeps=["rules.score_min=0.1:0.9:0.1"], as_json=True),
        MemoizedDetectors(lambda _: often),
    )
    assert often.looks == once.looks


def test_reports_that_nothing_reaches_the_aim(footage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wishes = TuneOptions(sweeps=["rules.score_min=0.9,0.95"])
    assert tune_command([footage], "", wishes, MemoizedDetectors(lambda _: Unsure())) == 1
    out = capsys.readouterr().out
    assert "no point reaches the aim" in out
    assert "chosen: as it is" in out


def test_the_page_shows_the_trade_off_and_marks_the_choice(footage: Path) -> None:
    page = footage / "tuned.html"
    tune_command(
        [footage],
        "",
        TuneOptions(sweeps=["rules.score_min=0.5:0.9:0.1"], html=page),
        MemoizedDetectors(lambda _: Unsure()),
    )
    text = page.read_text()
    assert "chosen: rules.score_min 0.7" in text
    assert text.count('<svg class="plot"') == 2
    assert "<script" not in text
    assert not [part for part in ("href=", "src=", "url(", "@import") if part in text]


@pytest.mark.parametrize(
    ("sweeps", "says"),
    [
        (["rules.nobody.score_min=0.5"], "no rule here has it"),
        (["rules.score_min=1.5"], "is not possible"),
        (["rules.seconds=5"], "no rule here has it"),
    ],
)
def test_a_sweep_of_nothing_is_refused(footage: Path, sweeps: Sequence[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tune_command([footage], "", TuneOptions(sweeps=list(sweeps)), MemoizedDetectors(lambda _: Unsure()))


def test_scenarios_in_which_nothing_has_to_be_reported_cannot_be_tuned(footage: Path) -> None:
    file = footage / "door.scenario.yaml"
    file.write_text(SCENARIO.replace("expect: [{rule: intruder, at: 2.0, between: [1, 4]}]", "never: [{}]"))
    with pytest.raises(UsageError, match="no recall to tune for"):
        tune_command([footage], "", TuneOptions(sweeps=["rules.score_min=0.5"]), MemoizedDetectors(lambda _: Unsure()))
