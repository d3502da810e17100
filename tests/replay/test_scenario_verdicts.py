"""Scenarios that are judged once the cloud has spoken, by a cassette or by a stand-in that says what it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import ConfigError
from appliance.lab.replay_verdicts import CassetteRecorder
from appliance.lab.scenario import html_report
from appliance.lab.scenario.scenario_command import junit_report, summary_lines, total_figures
from appliance.scenario import scenario_loader
from appliance.scenario.scenario_result import ScenarioResult
from tests.support.block_footage import BrightBlock
from tests.support.scripted_verdicts import ScriptedCloud, asking, play, visits
from tests.support.yard_scenarios import YARD, verdict_of, write

Change = Callable[[dict[str, Any]], None]
TWO_VISITS: dict[str, Any] = {
    "clip": "visits.mp4",
    "cameras": {"gate": {**YARD, "rules": YARD["rules"][:1]}},
    "expect": [{"rule": "intruder", "at": 2.8, "note": "the postman"}],
    "never": [{"rule": "intruder", "between": [15, 30], "note": "a fox"}],
    "at_most": {"alerts": 1},
    "verdicts": "visits.cassette.jsonl",
    "after_verdicts": True,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two visits, and what the cloud said: the first is a person, the second is not."""
    folder = tmp_path_factory.mktemp("footage")
    visits(folder / "visits.mp4")
    config = asking(rules=TWO_VISITS["cameras"]["gate"]["rules"])
    config = config.model_copy(update={"escalation": config.escalation.model_copy(update={"first": "crops"})})
    recorder = CassetteRecorder(folder / "visits.cassette.jsonl", ScriptedCloud("confirmed", "rejected"), ManualClock())
    play(folder / "visits.mp4", config, recorder)
    recorder.close()
    return folder


def run(folder: Path, change: Change | None = None) -> ScenarioResult:
    data = copy.deepcopy(TWO_VISITS)
    if change:
        change(data)
    return verdict_of(write(folder, data, "two"), lambda _: BrightBlock())


def test_what_the_cloud_rejects_is_no_false_alarm_and_no_alert_too_many(folder: Path) -> None:
    verdict = run(folder)
    assert (verdict.status, verdict.text) == ("passed", "")
    assert verdict.judged_by == "a cassette of scripted vlm, prompt 1"
    assert verdict.events is not None
    assert verdict.events.alerts == 1


def test_without_after_verdicts_every_alert_counts(folder: Path) -> None:
    verdict = run(folder, lambda data: data.update(after_verdicts=False))
    assert [fault.kind for fault in verdict.failures] == ["false alarm", "limit"]


def test_a_wrongly_rejected_alert_is_a_miss(folder: Path) -> None:
    verdict = run(folder, lambda data: data.update(verdicts="stand-in:error=1"))
    assert [fault.kind for fault in verdict.failures] == ["miss", "false alarm"]


def test_a_question_without_an_answer_fails_and_is_never_taken_for_one(folder: Path) -> None:
    def ask_otherwise(data: dict[str, Any]) -> None:
        data["cameras"]["gate"]["rules"][0]["ask"] = "Is it the postman?"

    verdict = run(folder, ask_otherwise)
    assert "2 of 2 questions have no answer on this cassette: record again with" in verdict.text
    assert verdict.status == "failed"

    def nearest(data: dict[str, Any]) -> None:
        ask_otherwise(data)
        data["verdicts_match"] = "nearest"

    assert run(folder, nearest).status == "passed"


def test_a_stand_in_is_named_wherever_its_figures_are(folder: Path) -> None:
    verdict = run(folder, lambda data: data.update(verdicts="stand-in:error=0,seed=1"))
    label = "stand-in (answers made from the truth)"
    assert verdict.status == "passed"
    assert verdict.judged_by == label
    assert f"verdicts by {label}" in summary_lines([verdict])
    page = html_report.html_report([verdict], [{}], total_figures([verdict]), 0.0)
    assert page.count(f"verdicts by {label}") == 2, "at the head of the page and of the scenario"
    case = ElementTree.fromstring(junit_report([verdict], 0.0)).find(".//property")
    assert case is not None
    assert case.attrib == {"name": "verdicts_by", "value": label}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: data.update(verdicts="none.jsonl"), r"line \d+: verdicts: .*none.jsonl cannot be read"),
        (lambda data: data.update(verdicts="visits.mp4"), r"line \d+: verdicts: .*is not a verdict cassette"),
        (lambda data: data.update(verdicts="stand-in:error=7"), r"line \d+: verdicts: .*takes error=0\.\.1"),
        (lambda data: data.update(verdicts="stand-in:truth=x"), r"the truth is this scenario itself"),
        (lambda data: data.pop("verdicts"), "after_verdicts and verdicts_match need `verdicts:`"),
    ],
)
def test_a_slip_is_told_with_its_line_before_anything_is_run(folder: Path, change: Change, sentence: str) -> None:
    data = copy.deepcopy(TWO_VISITS)
    change(data)
    with pytest.raises(ConfigError, match=sentence):
        scenario_loader.load_scenario(write(folder, data, "slip"))
