"""A scenario file that is wrong says where, what, and what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.base.errors import ConfigError, UsageError
from appliance.base.yamlfile import loads
from appliance.scenario import expectations, scenario_loader
from appliance.scenario.scenario_loader import ScenarioPlan
from appliance.scenario.scenario_schema import Scenario

HEAD = """\
clip: clip.mp4
cameras:
  gate:
    zones: {yard: [[0, 0], [1, 0], [1, 1]]}
    lines: {door: [[0.5, 0], [0.5, 1]]}
    rules:
      - {name: intruder, kind: enter, zone: yard, labels: [person, dog]}
      - {name: passage, kind: line, line: door}
"""


def read(folder: Path, text: str) -> ScenarioPlan:
    (folder / "clip.mp4").touch()
    file = folder / "it.scenario.yaml"
    file.write_text(text)
    return scenario_loader.load_scenario(file)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return caught.value.problems


TIME = "is not a time: write seconds (75.5), m:ss (1:15.5) or h:mm:ss"
FAULTS = [
    ("expects: []", "line 9: expects: unknown key; did you mean `expect`?"),
    ("expect: [{rule: intruder, betwen: [1, 2]}]", "line 9: expect.0.betwen: unknown key; did you mean `between`?"),
    (
        "expect:\n  - {rule: intruder, between: [20, 10]}",
        "line 10: expect.0: between: it ends (10 s) before it begins (20 s)",
    ),
    ("expect:\n  - {rule: intruder, between: [soon, 10]}", f"line 10: expect.0.between.0: `soon` {TIME}"),
    ("expect: [{rule: intruder, at: '1:75'}]", f"line 9: expect.0.at: `1:75` {TIME}"),
    (
        "expect: [{rule: intruder, at: 5, between: [6, 9]}]",
        "line 9: expect.0: at: 5 s is not inside `between` (6 to 9 s)",
    ),
    ("expect: [{between: [6, 9]}]", "line 9: expect.0: say what must be reported: rule, zone, line or label"),
    (
        "expect: [{rule: intruder, count: {min: 3, max: 2}}]",
        "line 9: expect.0.count: count.max is 2, less than count.min (3)",
    ),
    (
        "expect: [{rule: intruder, count: twice}]",
        "line 9: expect.0.count: `twice` is no count: write a number, as in 2, or {min: 1, max: 3}",
    ),
    (
        "expect:\n  - {rule: intruder}\n  - {rule: intrudr}",
        "line 11: expect.1.rule: no rule can report the rule `intrudr` (its rules use: intruder, passage)",
    ),
    ("never: [{zone: office}]", "line 9: never.0.zone: no rule can report the zone `office` (its rules use: yard)"),
    (
        "expect: [{rule: intruder, label: car}]",
        "line 9: expect.0.label: no rule can report the label `car` (`intruder` watches: dog, person)",
    ),
    ("expect: [{rule: intruder, line: door}]", "line 9: expect.0.rule: no single rule reports all of this together"),
    ("never: [{camera: dock}]", "line 9: never.0.camera: no clip of a camera `dock` (there is: gate)"),
    ("camera: dock", "line 9: camera: there is no camera `dock` (there is: gate)"),
    ("require: {idf1: 0.8}", "line 9: require.idf1: needs `truth:` with the true boxes"),
    ("truth: {mot: a.txt, cvat: b.xml}", "line 9: truth: name exactly one file of truth: mot, coco or cvat"),
    ("at_most: {alerts: -1}", "line 9: at_most.alerts: must be greater than or equal to 0"),
    (
        "site: site.yaml",
        "file: say who watches: `site:` (a site file), or `cameras:` with zones and rules in this file",
    ),
    ("clips: {gate: clip.mp4}", "file: name the footage: `clip:` for one camera, or `clips:` with one clip per camera"),
]


@pytest.mark.parametrize(("tail", "problem"), FAULTS)
def test_a_fault_is_reported_with_its_line_and_remedy(tmp_path: Path, tail: str, problem: str) -> None:
    assert problems(tmp_path, HEAD + tail + "\n") == [problem]


def test_a_truth_file_that_is_not_there(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, HEAD + "truth: {mot: gt.txt}\n")
    assert problem == f"line 9: truth.mot: {tmp_path / 'gt.txt'} is not there"


def test_faults_of_the_site_file_are_reported_with_theirs(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("cameras:\n  gate: {url: ftp://x}\n")
    (problem,) = problems(tmp_path, "clip: clip.mp4\nsite: site.yaml\n")
    assert problem.startswith("line 2: site: ")
    assert "line 2: cameras.gate.url: must begin with rtsp://" in problem


def test_a_site_with_two_cameras_wants_to_know_which(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("cameras:\n  gate: {url: file:a}\n  dock: {url: file:b}\n")
    assert problems(tmp_path, "clip: clip.mp4\nsite: site.yaml\n") == [
        "line 1: clip: which camera filmed it? Add `camera:` with one of gate, dock"
    ]
    assert read(tmp_path, "clip: clip.mp4\nsite: site.yaml\ncamera: dock\n").parts[0].camera == "dock"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("75.5", 75.5), ("1:15", 75), ("0:15", 15), ("0:05.5", 5.5), ("1:15.5", 75.5), ("1:02:03", 3723), ("0", 0)],
)
def test_times_are_seconds_or_as_a_player_shows_them(written: str, seconds: float) -> None:
    """YAML reads some of these as numbers by itself, and the same ones."""
    text = f"{HEAD}expect: [{{rule: intruder, between: [0, {written}]}}]"
    assert loads(text, Scenario).expect[0].between == (0, seconds)


def test_an_entry_with_only_a_moment_has_a_window_around_it(tmp_path: Path) -> None:
    found = expectations.expectations_of(read(tmp_path, HEAD + "expect: [{rule: intruder, at: 10}, {rule: passage}]\n"))
    assert [(each.pattern.start, each.pattern.end, each.at) for each in found] == [
        (9.0, 13.0, 10.0),
        (0.0, float("inf"), None),
    ]
    assert [each.source for each in found] == ["expect 1 (line 9)", "expect 2 (line 9)"]


def test_a_count_may_be_a_number(tmp_path: Path) -> None:
    (entry,) = read(tmp_path, HEAD + "expect: [{rule: intruder, count: 2}]\n").scenario.expect
    assert (entry.count.min, entry.count.max) == (2, 2)


def test_a_count_with_least_only_has_no_most(tmp_path: Path) -> None:
    text = HEAD + "expect: [{rule: intruder}, {rule: intruder, count: {min: 2}}, {rule: intruder, count: {max: 3}}]\n"
    assert [(each.min, each.max) for each in expectations.expectations_of(read(tmp_path, text))] == [
        (1, 1),
        (2, None),
        (1, 3),
    ]


def test_a_model_beside_the_scenario_is_meant(tmp_path: Path) -> None:
    (tmp_path / "mine.onnx").touch()
    found = read(tmp_path, HEAD + "detector: {model: mine.onnx}\n")
    assert found.config.detector.model == str(tmp_path / "mine.onnx")


def test_scenarios_are_found_in_all_depth_by_name_and_each_once(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    for file in (tmp_path / "day.scenario.yaml", deep / "Night-1.scenario.yaml", deep / "site.yaml"):
        file.touch()
    everything = scenario_loader.find_scenarios([tmp_path, deep, tmp_path / "day.scenario.yaml"])
    assert sorted(map(scenario_loader.scenario_name, everything)) == ["Night-1", "day"]
    assert [scenario_loader.scenario_name(file) for file in scenario_loader.find_scenarios([tmp_path], "night")] == [
        "Night-1"
    ]
    assert [scenario_loader.scenario_name(file) for file in scenario_loader.find_scenarios([tmp_path], "d?y")] == [
        "day"
    ]
    with pytest.raises(UsageError, match="none of the 2 scenarios"):
        scenario_loader.find_scenarios([tmp_path], "dusk")
    with pytest.raises(UsageError, match="no such file or folder"):
        scenario_loader.find_scenarios([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \*\.scenario\.yaml"):
        scenario_loader.find_scenarios([tmp_path / "empty"])
