"""The rendered fixture family through the default network: scenarios, golden logs, and what a regression looks like.

`pytest tests/replay/test_family.py --update` accepts what a replay finds now as the new golden logs.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from appliance.detect.detector import ObjectDetector
from appliance.lab.scenario.scenario_command import ReportTargets, scenario_command
from appliance.scenario import scenario_runner as scenario_run
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_result import Fault, ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache
from appliance.track import matching
from tests.support.render_family import (
    FAMILY,
    GOLDEN,
    NAMES,
    SCENARIOS,
    Less,
    Once,
    Truth,
    against,
    judged_and_logged,
    loaded,
    log_of,
    our_eye,
)

FILES = sorted(
    file.name.removesuffix(".scenario.yaml")
    for file in SCENARIOS.glob("*.scenario.yaml")
    if "../family/" in file.read_text()
)
# What the integers or a perfect detector change concerns the detector, not the scene: of each kind of scene one in the
# usual run, where `test_what_happens_is_reported_and_nothing_else` has them all; the others once a week.
USUAL = ("crowd", "ir_rain", "parked", "vehicles")
A_FEW = [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in FILES]
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def eye() -> Once:
    return our_eye()


@pytest.fixture(scope="module")
def integer_eye() -> Once:
    """The network as `precision: auto` takes it on most CPUs."""
    return our_eye("int8")


def verdict_of(scenario: ScenarioPlan, eye: ObjectDetector) -> ScenarioResult:
    return scenario_run.run_scenario(scenario, DetectorCache(load=lambda _: eye))


def test_every_scene_has_a_scenario_and_every_scenario_a_scene() -> None:
    assert {loaded(name).parts[0].clip.stem for name in FILES} == set(NAMES)
    assert {path.stem for path in FAMILY.glob("*.mp4")} == set(NAMES)


@pytest.fixture(scope="module")
def run_once(eye: Once) -> Callable[[str], tuple[ScenarioResult, bytes]]:
    """Return what runs a scenario the first time it is asked for: its result, and the log of the same replay."""
    return functools.cache(lambda name: judged_and_logged(loaded(name), eye))


@pytest.mark.parametrize("name", FILES)
def test_what_happens_is_reported_and_nothing_else(
    name: str, run_once: Callable[[str], tuple[ScenarioResult, bytes]]
) -> None:
    """Where the network is known to fall short it must: a mark that is no longer true is itself a failure."""
    verdict, _ = run_once(name)
    assert verdict.status == ("known failing" if loaded(name).scenario.known_failing else "passed"), verdict.text


@pytest.mark.parametrize("name", A_FEW)
def test_in_integers_the_same_scenarios_pass(name: str, integer_eye: Once) -> None:
    scenario = loaded(name)
    verdict = verdict_of(scenario, integer_eye)
    assert verdict.status == ("known failing" if scenario.scenario.known_failing else "passed"), verdict.text


@pytest.mark.parametrize("name", A_FEW)
def test_a_detector_that_sees_the_truth_passes(name: str) -> None:
    """So a scenario asks for nothing that a right detector cannot give; what the default network misses is its own."""
    scenario = loaded(name)
    unmarked = scenario.scenario.model_copy(update={"known_failing": ""})
    verdict = verdict_of(dataclasses.replace(scenario, scenario=unmarked), Truth(scenario.parts[0].clip.stem))
    assert verdict.status == "passed", verdict.text


@pytest.mark.parametrize("name", NAMES)
def test_a_replay_gives_the_accepted_log(
    name: str, run_once: Callable[[str], tuple[ScenarioResult, bytes]], update: bool, tmp_path: Path
) -> None:
    must_equal(GOLDEN / f"{name}.jsonl", run_once(name)[1], update, tmp_path)


def test_a_replay_in_integers_gives_the_accepted_log(integer_eye: Once, update: bool, tmp_path: Path) -> None:
    must_equal(GOLDEN / "vehicles.int8.jsonl", log_of(loaded("vehicles"), integer_eye), update, tmp_path)


def must_equal(golden: Path, found: bytes, update: bool, tmp_path: Path) -> None:
    if update:
        golden.write_bytes(found)
    words = against(golden, found, tmp_path)
    assert not words, f"{golden.name} says otherwise (--update accepts what is found now):\n{words}"


# Deliberate regressions: each makes the suite fail, with a report that shows the moment.


def changed(name: str, change: Change, folder: Path) -> Path:
    """The scenario with its settings changed, in another folder."""
    data = yaml.safe_load((SCENARIOS / f"{name}.scenario.yaml").read_text())
    data["clip"] = str((SCENARIOS / data["clip"]).resolve())
    if "truth" in data:
        data["truth"]["mot"] = str((SCENARIOS / data["truth"]["mot"]).resolve())
    change(data)
    file = folder / f"{name}.scenario.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


def as_it_is(data: dict[str, Any]) -> None:
    """Nothing is changed."""


def failed(name: str, eye: ObjectDetector, folder: Path, change: Change = as_it_is) -> tuple[tuple[Fault, ...], str]:
    """What fails, after `vedette scenario run` said so and wrote its report; and the report."""
    file = changed(name, change, folder)
    report = folder / "report.html"
    run, results = scenario_run.run_scenario, []

    def kept(*given: Any, **named: Any) -> ScenarioResult:
        results.append(run(*given, **named))
        return results[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(scenario_run, "run_scenario", kept)
        code = scenario_command([file], "", DetectorCache(load=lambda _: eye), ReportTargets(html=report))
    (verdict,) = results
    assert (code, verdict.status) == (1, "failed")
    return verdict.failures, report.read_text()


def assert_shown(report: str, clip: str, faults: tuple[Fault, ...]) -> None:
    """The report holds every fault's words, and as many pictures as moments, each the very frame of its moment."""
    moments = [moment for fault in faults for moment in fault.moments]
    assert moments
    shown = [decoded(base64.b64decode(each)) for each in re.findall(r'href="data:image/jpeg;base64,([^"]+)"', report)]
    assert len(shown) == len(moments)
    frames = frames_of(clip, {moment.frame for moment in moments})
    for moment, picture in zip(moments, shown, strict=True):
        apart = {frame: float(np.abs(picture - pixels).mean()) for frame, pixels in frames.items()}
        assert apart[moment.frame] == min(apart.values()) < 4
        assert f"frame {moment.frame}:" in report


def decoded(jpeg: bytes) -> NDArray[np.float32]:
    with av.open(io.BytesIO(jpeg)) as picture:
        return next(picture.decode(video=0)).to_ndarray(format="rgb24").astype(np.float32)


def frames_of(clip: str, wanted: set[int]) -> dict[int, NDArray[np.float32]]:
    with av.open(str(FAMILY / f"{clip}.mp4")) as container:
        return {
            number: frame.to_ndarray(format="rgb24").astype(np.float32)
            for number, frame in enumerate(container.decode(video=0))
            if number in wanted
        }


def test_a_raised_threshold_is_noticed(eye: Once, tmp_path: Path) -> None:
    def raise_it(data: dict[str, Any]) -> None:
        data["cameras"]["day"]["rules"][0]["score_min"] = 0.98

    faults, report = failed("day", eye, tmp_path, raise_it)
    assert [fault.title.split(":")[2] for fault in faults] == [" rule intruder, person, 0"] * 2
    assert all(re.match(r"the best person scored 0\.\d\d at .*the rule wants 0\.98", fault.detail) for fault in faults)
    assert_shown(report, "day", faults)


def test_a_moved_zone_is_noticed(eye: Once, tmp_path: Path) -> None:
    def move_it(data: dict[str, Any]) -> None:
        for rule in data["cameras"]["dusk"]["rules"]:
            rule["at_start"] = "report"
        data["cameras"]["dusk"]["zones"]["yard"] = [[0.62, 0.92], [0.99, 0.86], [0.99, 1.0], [0.62, 1.0]]

    faults, report = failed("dusk", eye, tmp_path, move_it)
    alarm, miss = faults
    assert re.fullmatch(r"false alarm at 0:00\.\d: rule vehicle, car, zone yard", alarm.title), "on the parked car now"
    assert "never stood in the zone" in miss.detail
    assert (miss.zone, miss.note) == ("yard", "person 1 comes in by the gate")
    assert_shown(report, "dusk", faults)


@pytest.mark.parametrize(
    ("name", "share", "missed"),
    [
        ("crowd", 0.5, "missed at 0:07.2: rule westward, person"),
        # One who walks alone is seen so often that scores of 0.55 of these still add up: here it takes a worse network.
        ("rain", 0.4, "missed at 0:09.8: rule intruder, person"),
    ],
)
def test_a_weaker_model_is_noticed(eye: Once, name: str, share: float, missed: str, tmp_path: Path) -> None:
    faults, report = failed(name, Less(eye, share), tmp_path)
    (miss,) = [fault for fault in faults if fault.kind == "miss"]
    assert miss.title.startswith(missed)
    assert_shown(report, name, faults)


def test_a_tracker_that_confuses_people_is_noticed(eye: Once, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two who could be taken for each other, each is."""
    right = matching.assign

    def wrong(*arguments: Any, **more: Any) -> list[tuple[int, int]]:
        pairs = right(*arguments, **more)
        columns = [column for _, column in pairs]
        return [(row, column) for (row, _), column in zip(pairs, columns[1:] + columns[:1], strict=True)]

    monkeypatch.setattr(matching, "assign", wrong)
    faults, report = failed("crowd", eye, tmp_path)
    assert {fault.kind for fault in faults} >= {"false alarm", "figure"}
    assert any(fault.title.startswith("idf1 is ") for fault in faults)
    assert_shown(report, "crowd", faults)


def test_a_golden_log_explains_what_changed(eye: Once, tmp_path: Path) -> None:
    """The words of `vedette replay diff`, not two heaps of JSON."""
    weaker = log_of(loaded("day"), Less(eye, 0.7))
    words = against(GOLDEN / "day.jsonl", weaker, tmp_path)
    assert re.search(r"track 1 \(person\) found \d\.\d s later", words)
    assert "looks in both logs found something else" in words
    assert "settings: model vedette-nano" in words


def test_a_golden_log_bears_another_cpu_and_no_more(eye: Once, tmp_path: Path) -> None:
    """The last places may differ; a look here and there, at the edge of a threshold, may too; an event may not."""
    golden = GOLDEN / "day.jsonl"
    lines = golden.read_text().splitlines(keepends=True)
    seen = [number for number, line in enumerate(lines) if '"objects":[{' in line]
    shaken = [re.sub(r'"score":0\.(\d\d)\d', r'"score":0.\g<1>4', line) for line in lines]
    assert shaken != lines
    assert against(golden, "".join(shaken).encode(), tmp_path) == ""
    blind = re.compile(r'"objects":\[.*\]')
    for count, same in ((2, True), (12, False)):
        gone = {seen[10 + k] for k in range(count)}
        less = [blind.sub('"objects":[]', line) if number in gone else line for number, line in enumerate(lines)]
        assert (against(golden, "".join(less).encode(), tmp_path) == "") is same
    told = [line for line in lines if '"rule":"intruder"' not in line or '"type":"event"' not in line]
    assert "event" in against(golden, "".join(told).encode(), tmp_path)
