"""Scenarios through the real pipeline: what is right passes, and a deliberate regression fails and shows its moment."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.__main__ import main
from appliance.base.errors import ConfigError
from appliance.lab.scenario import html_report
from appliance.lab.scenario.html_report import cut_stills
from appliance.lab.scenario.scenario_command import ReportTargets, as_json, scenario_command, total_figures
from appliance.scenario import scenario_loader
from appliance.scenario import scenario_runner as scenario_run
from appliance.scenario.scenario_result import ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache, DetectorLoader
from appliance.track.tracker import Tracker
from appliance.types import Detections
from tests.support.block_footage import BrightBlock, block_clip
from tests.support.yard_scenarios import VISIT, there_and_back, verdict_of, visit_clip, write

ROOT = Path(__file__).parents[2]
FEMTO = Path("models") / "deimv2_hgnetv2_femto_coco_416.onnx"
Change = Callable[[dict[str, Any]], None]


class Dim(BrightBlock):
    """A weaker network: it sees the same, and is less sure of it."""

    name = "scripted:dim"

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [
            Detections(each.boxes, each.scores * np.float32(0.3), each.class_ids) for each in super().detect(pictures)
        ]


class Blind(BrightBlock):
    """A network that finds nothing at all."""

    name = "scripted:blind"

    def detect(self, pictures: Sequence[NDArray[np.uint8]]) -> list[Detections]:
        return [Detections.empty() for _ in pictures]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("footage")
    visit_clip(folder)
    return folder


def run(folder: Path, change: Change | None = None, load: DetectorLoader = lambda _: BrightBlock()) -> ScenarioResult:
    """The visit, with the scenario changed."""
    data = copy.deepcopy(VISIT)
    if change:
        change(data)
    return verdict_of(write(folder, data), load)


def test_a_visit_that_is_reported_as_wanted_passes(folder: Path) -> None:
    verdict = run(folder)
    assert (verdict.status, verdict.text) == ("passed", "")
    assert [(hit.event.rule, hit.event.t, hit.delay_s) for hit in verdict.judgement.hits] == [
        ("intruder", 2.8, 0.0),
        ("in", 2.8, 0.8),
        ("loiterer", 4.8, 0.8),
    ]
    assert verdict.events is not None
    assert (verdict.events.recall.value, verdict.events.precision.value, verdict.events.alerts) == (1.0, 1.0, 1)
    assert verdict.events.alerts_per_hour == pytest.approx(3600 / 13.9)


def raise_the_threshold(data: dict[str, Any]) -> None:
    data["cameras"]["gate"]["rules"][0]["score_min"] = 0.97


def move_the_zone(data: dict[str, Any]) -> None:
    data["cameras"]["gate"]["zones"]["yard"] = [[0.85, 0], [1, 0], [1, 1], [0.85, 1]]


def test_a_raised_threshold_fails_and_names_the_score_that_was_too_low(folder: Path) -> None:
    verdict = run(folder, raise_the_threshold)
    (fault,) = verdict.failures
    assert fault.title == "missed at 0:02.8: rule intruder, person, 0:01.8 to 0:05.8"
    assert fault.detail.startswith("the best person scored 0.90 at 0:02.6, track 1; the rule wants 0.97")
    assert (fault.culprit, "culprit: score (track 1 came to 0.90 and the rule wants 0.97)" in fault.detail) == (
        "score",
        True,
    )
    assert (fault.note, fault.source) == ("the postman", f"expect 1 (line {line_of(verdict, '- rule: intruder')})")
    assert_shown(verdict, t=2.8, at_x=0.55)


def test_a_moved_zone_fails_and_shows_the_person_outside_it(folder: Path) -> None:
    verdict = run(folder, move_the_zone)
    intruder, loiterer = verdict.failures
    assert "never stood in the zone" in intruder.detail
    assert "never stood in the zone" in loiterer.detail
    assert (intruder.culprit, loiterer.culprit) == ("place", "place")
    assert (intruder.zone, loiterer.zone) == ("yard", "yard")
    page = html_report.html_report([verdict], [cut_stills(verdict)], total_figures([verdict]), 0.0)
    assert 'class="zone meant" points="272.0,0.0 320.0,0.0 320.0,240.0 272.0,240.0"' in page


def test_a_tracker_that_loses_everyone_fails_and_is_suspected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look gives a new number: nobody ever stays, so nobody enters, crosses or loiters."""
    whole = Tracker.update
    count = iter(range(1, 10_000))

    def forgetful(self: Tracker, found: Detections, t: float, planes: Any, parts: Any = ()) -> Any:
        from dataclasses import replace

        return tuple(replace(each, track=next(count)) for each in whole(self, found, t, planes, parts))

    monkeypatch.setattr(Tracker, "update", forgetful)
    verdict = run(folder)
    assert verdict.status == "failed"
    loiterer = next(fault for fault in verdict.failures if "loiterer" in fault.title)
    assert "for 0.0 s of the 2 s that the rule wants" in loiterer.detail
    assert "different tracks: does the tracker lose them?" in loiterer.detail
    assert {fault.culprit for fault in verdict.failures} == {"tracker"}
    assert all(fault.moments for fault in verdict.failures)


def test_a_weaker_model_fails_and_is_named(folder: Path) -> None:
    verdict = run(folder, load=lambda _: Dim())
    assert verdict.model == "scripted:dim"
    assert [fault.kind for fault in verdict.failures] == ["miss"] * 3
    assert verdict.failures[0].detail == (
        "no person was followed in any of the 21 looks of this time "
        "(a track begins from a score of 0.50 on, of who walks from 0.30 on); "
        "culprit: detector (nothing of the label was followed)"
    )
    (moment,) = verdict.failures[0].moments
    assert (moment.t, moment.objects) == (2.8, ())
    assert brightest_column(cut_stills(verdict)["gate", moment.frame].jpeg) == pytest.approx(0.55, abs=0.03)


def test_a_blind_model_fails_and_three_frames_show_what_it_missed(folder: Path) -> None:
    verdict = run(folder, load=lambda _: Blind())
    last = next(fault for fault in verdict.failures if "loiterer" in fault.title)
    assert last.detail.startswith("no person was followed in any of the 21 looks of this time")
    assert [moment.t for moment in last.moments] == [4.8, 6.0, 7.2]
    pictures = cut_stills(verdict)
    for moment in last.moments:
        assert brightest_column(pictures["gate", moment.frame].jpeg) == pytest.approx(0.7, abs=0.03)


def test_a_class_that_the_network_does_not_have_is_the_culprit_and_not_the_footage(folder: Path) -> None:
    def wants_a_dog(data: dict[str, Any]) -> None:
        for rule in data["cameras"]["gate"]["rules"]:
            rule["labels"] = ["dog"]
        del data["expect"][0]["label"]

    verdict = run(folder, wants_a_dog)
    assert verdict.status == "failed"
    assert "wants `dog`, and the network has no such class, so it never fires" in verdict.text
    assert {fault.culprit for fault in verdict.failures} == {"network"}


def test_an_event_that_must_not_be_is_a_false_alarm_with_its_still(folder: Path) -> None:
    def forbid(data: dict[str, Any]) -> None:
        data["expect"] = data["expect"][1:]
        data["never"] = [{"rule": "intruder", "zone": "yard", "note": "nobody is allowed in"}]

    verdict = run(folder, forbid)
    (fault,) = verdict.failures
    assert fault.title == "false alarm at 0:02.8: rule intruder, person, zone yard"
    never = line_of(verdict, "- rule: intruder")
    assert fault.detail == f"never 1 (line {never}) forbids it; track 1, score 0.90"
    assert fault.note == "nobody is allowed in"
    assert_shown(verdict, t=2.8)


def test_a_detector_that_does_not_answer_is_not_an_empty_yard(folder: Path) -> None:
    def nothing(data: dict[str, Any]) -> None:
        data["expect"], data["never"] = [], [{}]

    verdict = run(folder, nothing, lambda _: BrightBlock(fails=10_000))
    assert [fault.title for fault in verdict.failures] == [
        "the detector did not answer for 70 of 70 looks at visit.mp4"
    ]


def test_limits_on_alerts_and_bytes(folder: Path) -> None:
    def tighten(data: dict[str, Any]) -> None:
        data["at_most"] = {"alerts": 0, "bytes": 100}

    verdict = run(folder, tighten)
    assert verdict.bytes > 100
    alerts, sent = verdict.failures
    assert (alerts.title, alerts.detail) == ("1 alerts; at most 0 are allowed", "they begin at 0:02.8")
    assert sent.title == f"{verdict.bytes:,} bytes would go to the cloud; at most 100 are allowed"


def test_where_a_share_is_required_it_decides_and_single_misses_are_only_listed(folder: Path) -> None:
    def allow(data: dict[str, Any]) -> None:
        raise_the_threshold(data)
        data["require"] = {"recall": 0.6}

    verdict = run(folder, allow)
    assert verdict.status == "passed"
    assert "(counted, does not fail by itself)" in verdict.text

    def demand(data: dict[str, Any]) -> None:
        raise_the_threshold(data)
        data["require"] = {"recall": 0.7, "delay_s": 0.5}

    titles = [fault.title for fault in run(folder, demand).failures]
    assert titles[0].startswith("recall is 0.67 (")
    assert titles[1].startswith("delay_s is 0.80 (")


def test_true_boxes_give_figures_and_what_must_be_reported(folder: Path) -> None:
    rows = []
    for frame in range(140):
        left = there_and_back(frame / 10)
        if left is not None:
            rows.append(f"{frame + 1},7,{round(left * 320)},100,24,60,1,1,1")
    (folder / "gt.txt").write_text("\n".join(rows))

    def true(data: dict[str, Any]) -> None:
        del data["expect"]
        data["truth"] = {"mot": "gt.txt", "events": {"after_s": 2}}
        data["require"] = {"idf1": 0.9, "hota": 0.8, "mota": 0.9, "ap50": 0.9}

    verdict = run(folder, true)
    assert verdict.status == "passed", verdict.text
    assert [(hit.wanted.source, hit.event.rule) for hit in verdict.judgement.hits] == [
        ("truth, object 7", "intruder"),
        ("truth, object 7", "in"),
        ("truth, object 7", "loiterer"),
    ]
    worse = run(folder, true, lambda _: Blind())
    assert "idf1 is 0.00; at least 0.9 is required" in worse.text


def test_what_a_cooldown_held_back_was_not_reported(tmp_path: Path) -> None:
    block_clip(tmp_path / "visit.mp4", 11, lambda t: 0.7 if 1 <= t < 3 or t >= 9 else None)
    data = copy.deepcopy(VISIT)
    data |= {"expect": [{"rule": "intruder", "count": {"min": 2}}], "others": "allowed", "alerts": {"merge_s": 1}}
    data["cameras"]["gate"]["rules"][0]["at_start"] = "report"
    assert verdict_of(write(tmp_path, data), lambda _: BrightBlock()).judgement.required_outcomes == (True, True)
    data["cameras"]["gate"]["rules"][0]["cooldown_s"] = 60
    verdict = verdict_of(write(tmp_path, data), lambda _: BrightBlock())
    assert verdict.judgement.required_outcomes == (True, False)
    assert verdict.failures[0].title.endswith("rule intruder, at any time (1 of 2 came)")


def test_two_cameras_of_a_site_file_in_one_scenario(tmp_path: Path) -> None:
    visit_clip(tmp_path)
    block_clip(tmp_path / "dock.mp4", 5, lambda t: 0.7)
    rules = json.loads(json.dumps(VISIT["cameras"]["gate"]))
    rules["rules"][0]["at_start"] = "report"
    cameras = {name: {"url": "rtsp://192.0.2.1/x", **rules} for name in ("gate", "dock")}
    (tmp_path / "site.yaml").write_text(json.dumps({"cameras": cameras}))
    data = {
        "site": "site.yaml",
        "clips": {"gate": "visit.mp4", "dock": "dock.mp4"},
        "expect": [
            {"camera": "gate", "rule": "intruder", "at": 2.8},
            {"camera": "dock", "rule": "intruder", "between": [0, 2]},
            {"rule": "loiterer", "count": {"min": 2, "max": 2}},
        ],
        "at_most": {"alerts": 2},
    }
    verdict = verdict_of(write(tmp_path, data), lambda _: BrightBlock())
    assert verdict.status == "passed", verdict.text
    assert [(part.camera, len(part.alerts)) for part in verdict.watched] == [("gate", 1), ("dock", 1)]
    assert [event.rule for event in verdict.judgement.unjudged] == ["in"]


def test_absent_footage_is_skipped_only_where_the_scenario_allows_it(tmp_path: Path) -> None:
    file = write(tmp_path, VISIT)
    with pytest.raises(ConfigError, match=r"line 1: clip: .*visit\.mp4 is not there"):
        scenario_loader.load_scenario(file)
    file = write(tmp_path, {**VISIT, "if_absent": "skip"})
    verdict = verdict_of(file, lambda _: BrightBlock())
    assert (verdict.status, verdict.reason) == ("skipped", "the footage is not there: visit.mp4")


def test_what_is_no_video_fails_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "visit.mp4").write_text("not a video")
    verdict = verdict_of(write(tmp_path, VISIT), lambda _: BrightBlock())
    assert verdict.status == "failed"
    assert "visit.mp4" in verdict.text


def test_the_command_writes_all_its_reports(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, VISIT, "good")
    broken = copy.deepcopy(VISIT)
    raise_the_threshold(broken)
    write(tmp_path, broken, "bad")
    write(tmp_path, {**VISIT, "clip": "absent.mp4", "if_absent": "skip"}, "far")
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    reports = ReportTargets(junit=tmp_path / "out.xml", html=tmp_path / "out.html")
    models = DetectorCache("any", load=lambda _: BrightBlock())
    assert scenario_command([tmp_path], "", models, reports) == 1
    said = capsys.readouterr().out
    assert "1 passed, 1 failed, 1 skipped" in said
    assert "missed at 0:02.8: rule intruder, person, 0:01.8 to 0:05.8" in said
    assert "recall 0.83" in said

    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["3", "1", "0", "1"]
    assert [case.get("name") for case in suite] == ["bad", "far", "good"]
    failure, skipped = suite[0].find("failure"), suite[1].find("skipped")
    assert failure is not None
    assert skipped is not None
    assert failure.get("message") == "missed at 0:02.8: rule intruder, person, 0:01.8 to 0:05.8"
    assert "the postman" in (failure.text or "")
    assert len(list(suite[2])) == 0

    page = (tmp_path / "out.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 1
    assert "http" not in page.replace("http-equiv", "")
    assert scenario_command([tmp_path], "goo*", models, ReportTargets()) == 0


def test_the_json_is_json_and_holds_everything(folder: Path) -> None:
    told = json.loads(json.dumps(as_json([run(folder, raise_the_threshold)]), allow_nan=False))
    assert told["passed"] is False
    assert told["total"]["recall"]["value"] == pytest.approx(2 / 3)
    assert told["scenarios"][0]["faults"][0]["kind"] == "miss"


def test_one_wrong_file_stops_everything_before_anything_is_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    write(tmp_path, VISIT, "good")
    write(tmp_path, {**VISIT, "expects": []}, "slip")
    assert main(["scenario", "run", str(tmp_path)]) == 2
    told = capsys.readouterr()
    assert "unknown key; did you mean `expect`?" in told.err
    assert told.out == ""
    assert main(["scenario", "run", str(tmp_path / "nowhere")]) == 2
    assert main(["scenario", "run", str(tmp_path), "-k", "zebra"]) == 2


# The plugin, as another project's pytest sees it.

CONFTEST = """
from tests.support.block_footage import BrightBlock

from appliance.detect import detector_loader

detector_loader.load = lambda settings: BrightBlock()
"""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own with our plugin and no other."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "appliance.lab.scenario.pytest_plugin", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_pytest_collects_scenarios_and_reports_the_same_text(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    write(tmp_path, VISIT, "good")
    broken = copy.deepcopy(VISIT)
    raise_the_threshold(broken)
    bad = write(tmp_path, broken, "bad")
    write(tmp_path, {**VISIT, "clip": "absent.mp4", "if_absent": "skip"}, "far")
    write(tmp_path, {**VISIT, "nevr": []}, "slip")
    done = pytest_in(tmp_path, "-rs", "--vedette-html", "out.html", "--junit-xml", "out.xml")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 1 passed, 1 skipped" in done.stdout
    for line in verdict_of(bad, lambda _: BrightBlock()).text.splitlines():
        assert line in done.stdout
    assert "nevr: unknown key; did you mean `never`?" in done.stdout
    assert "the footage is not there: absent.mp4" in done.stdout
    assert "Traceback" not in done.stdout
    assert "report: out.html" in done.stdout
    assert "data:image/jpeg" in (tmp_path / "out.html").read_text()


def test_the_plugin_costs_a_pytest_run_without_scenarios_nothing_of_vedette(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n\n\ndef test_light():\n"
        "    mine = sorted(name for name in sys.modules if name.startswith('appliance.'))\n"
        "    assert mine == ['appliance.lab', 'appliance.lab.scenario', 'appliance.lab.scenario.pytest_plugin']\n"
        "    assert not {'av', 'cv2', 'numpy', 'pydantic'} & set(sys.modules)\n"
    )
    done = pytest_in(tmp_path)
    assert done.returncode == 0, done.stdout


def test_the_plugin_is_installed_with_the_package_and_can_be_switched_off(tmp_path: Path) -> None:
    """As an installer writes the entry point of pyproject.toml, found by name in a folder of the path."""
    (line,) = re.findall(r"\[project.entry-points.pytest11\]\n(.+)\n", (ROOT / "pyproject.toml").read_text())
    installed = tmp_path / "site" / "vedette_here-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vedette-here\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[pytest11]\n" + line.replace('"', "") + "\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{installed.parent}"}
    for switch, listed in (([], True), (["-p", "no:vedette"], False)):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *switch, "--help"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("--vedette-model" in done.stdout) is listed


def test_only_the_plugin_imports_pytest() -> None:
    code = "import sys, appliance.lab.scenario.scenario_command; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# Real footage.


@pytest.mark.shared
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["yard", pytest.param("gate", marks=pytest.mark.slow)])
def test_the_bundled_clips_pass_with_the_reference_network(name: str, shared_data: Path) -> None:
    file = ROOT / "fixtures" / "scenarios" / f"{name}.scenario.yaml"
    verdict = scenario_run.run_scenario(scenario_loader.load_scenario(file), DetectorCache(str(shared_data / FEMTO)))
    assert verdict.status == "passed", verdict.text


@pytest.mark.shared
@pytest.mark.timeout(600)
def test_pets_is_reported_as_well_as_it_was(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEDETTE_SHARED", str(shared_data.parent))
    verdict = scenario_run.run_scenario(
        scenario_loader.load_scenario(Path(__file__).parent / "pets.scenario.yaml"), DetectorCache()
    )
    assert verdict.status == "passed", verdict.text


def line_of(verdict: ScenarioResult, text: str) -> int:
    """Where `text` stands in the scenario's file, the first time."""
    return verdict.file.read_text().split(text)[0].count("\n") + 1


def assert_shown(verdict: ScenarioResult, *, t: float, at_x: float | None = None) -> None:
    """The first fault has a picture of the moment, and the block is really in it."""
    moment = verdict.faults[0].moments[0]
    assert moment.t == t
    assert moment.focus is not None
    still = cut_stills(verdict)["gate", moment.frame]
    found = next(each for each in moment.objects if each.track == moment.focus)
    assert still.size == (320, 240)
    assert brightest_column(still.jpeg) == pytest.approx(found.box[0], abs=0.03)
    if at_x is not None:
        assert found.box[0] == pytest.approx(at_x, abs=0.03)


def brightest_column(jpeg: bytes) -> float:
    """The left edge of the block, as a share of the width."""
    import io

    with av.open(io.BytesIO(jpeg)) as picture:
        pixels = next(picture.decode(video=0)).to_ndarray(format="gray")
    return float(np.flatnonzero((pixels > 150).any(axis=0))[0]) / pixels.shape[1]
