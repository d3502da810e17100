"""Footage replayed under conditions: the same bytes at any speed, the truth still valid, and reports name them."""

from __future__ import annotations

import copy
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml
from test_replay_resume import Killed, Mortal

from appliance.__main__ import main
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import ConfigError, SourceError, UsageError
from appliance.lab.scenario import html_report
from appliance.lab.scenario.html_report import cut_stills
from appliance.lab.scenario.scenario_command import ReportTargets, scenario_command, total_figures
from appliance.media.decoder import DecodedFrame
from appliance.replay.footage import ClipSource, SourceItem
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet, describe_conditions
from appliance.replay.frame_transform import frame_transform_of
from appliance.replay.replay_log_writer import LogHeader
from appliance.replay.replay_plan import ReplayOptions, ReplayPlan, clip_input, with_conditions
from appliance.replay.replay_result import RecordedLog, ReplayResult, read_log
from appliance.replay.replay_resume import open_log
from appliance.replay.replay_runner import play
from appliance.replay.stream_faults import FaultySource, with_stream_faults
from appliance.scenario import scenario_loader
from appliance.scenario import scenario_runner as scenario_run
from appliance.scenario.scenario_loader import plans_by_conditions
from appliance.scenario.scenario_runner import DetectorCache
from appliance.types import Gap
from tests.support.block_footage import FPS, BrightBlock, block_clip, site
from tests.support.clip_replay import replay
from tests.support.tiny_networks import Thing, yolo
from tests.support.yard_scenarios import VISIT, verdict_of, visit_clip, write

ROOT = Path(__file__).parents[2]
EVERYTHING = (
    "rain,snow,fog:400m,night:20lux@0s-2s,ir:60m@2s,dirt,insects,blur:0.5,shake,noise:3,scale:0.8,jpeg:60,"
    "exposure:0.3ev@1s-2s,flash:1ev@1.2s,black:0.2s@3.4s,freeze:0.5s@1.5s,gap:0.5s@3s,drop:10%,jitter,late"
)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return block_clip(tmp_path_factory.mktemp("films") / "walk.mp4", 5, lambda t: 0.1 + 0.25 * min(t, 2.4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("footage")
    visit_clip(folder)
    return folder


def run(
    clip: Path, conditions: str, *, seed: int = 1, speed: float | None = None, workers: int = 1
) -> tuple[ReplayResult, bytes]:
    log, made = io.BytesIO(), ConditionSet.parse([conditions], seed)
    clock = ManualClock()
    result = replay(
        clip,
        site().for_decisions(),
        "gate",
        BrightBlock(),
        log,
        clock=clock,
        speed=speed,
        workers=workers,
        conditions=made,
    )
    return result, log.getvalue()


def boxes_of(log: bytes) -> list[dict[str, Any]]:
    return [row for row in map(json.loads, log.splitlines()) if row["type"] == "boxes"]


# The same bytes.


def test_everything_at_once_leaves_the_same_bytes_at_every_speed_five_times_over(clip: Path) -> None:
    options = [(1.0, 1), (10.0, 1), (None, 1), (None, 3), (3.7, 2)]
    logs = {run(clip, EVERYTHING, speed=speed, workers=workers)[1] for speed, workers in options}
    assert len(logs) == 1
    assert len(boxes_of(logs.pop())) > 10


def test_on_the_machine_s_own_clock_too(clip: Path) -> None:
    logs, made = set(), ConditionSet.parse(["rain,shake,drop:20%,jitter"], 9)
    for speed in (40.0, None, 40.0, None, None):
        log = io.BytesIO()
        replay(
            clip,
            site().for_decisions(),
            "gate",
            BrightBlock(),
            log,
            clock=SystemClock(),
            speed=speed,
            workers=2,
            conditions=made,
        )
        logs.add(log.getvalue())
    assert len(logs) == 1


def test_a_killed_replay_continues_in_the_same_conditions(clip: Path, tmp_path: Path) -> None:
    def go(log: Path, detector: Mortal, conditions: str, *, resume: bool = False) -> None:
        plan = ReplayPlan(
            (clip_input(clip, site().for_decisions(), "gate", detector),), site().for_decisions(), detector
        )
        plan = with_conditions(plan, ConditionSet.parse([conditions], 4))
        with open_log(log, plan.header(), resume=resume) as file:
            play(plan, file.sink, ReplayOptions(ManualClock(), detections=file.detections))
            file.complete()

    go(tmp_path / "whole.jsonl", Mortal(fails=0), EVERYTHING)
    with pytest.raises(Killed):
        go(tmp_path / "x.jsonl", Mortal(9, fails=0), EVERYTHING)
    with pytest.raises(UsageError, match=r"weather .*late:300ms \(seed 4\) → rain:10mm \(seed 4\)"):
        go(tmp_path / "x.jsonl", Mortal(fails=0), "rain", resume=True)
    go(tmp_path / "x.jsonl", again := Mortal(fails=0), EVERYTHING, resume=True)
    assert (tmp_path / "x.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert again.looks == len(boxes_of((tmp_path / "whole.jsonl").read_bytes())) - 9


def test_another_seed_loses_other_frames(clip: Path) -> None:
    lost = [[row["frame"] for row in boxes_of(run(clip, "drop:30%", seed=seed)[1])] for seed in (1, 2)]
    assert lost[0] != lost[1]


# What the log says.


def test_the_log_s_header_names_the_conditions_and_without_any_nothing(clip: Path, tmp_path: Path) -> None:
    def log_of(conditions: str) -> RecordedLog:
        path = tmp_path / "x.jsonl"
        path.write_bytes(run(clip, conditions, seed=3)[1])
        return read_log(path)

    clear, wet = log_of("none"), log_of("drop:5%,rain")
    assert wet.header.settings.weather == ("rain:10mm", "drop:5%")
    assert wet.header.settings.seed == 3
    assert wet.header.digest != clear.header.digest
    assert wet.header.run != clear.header.run
    assert wet.results()[0].weather == "rain:10mm, drop:5% (seed 3)"
    assert isinstance(clear.header, LogHeader)
    assert b"weather" not in run(clip, "none")[1]
    assert clear.results()[0].weather == ""


def test_the_report_names_the_conditions(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, network = tmp_path / "site.yaml", yolo(tmp_path / "n.onnx", [Thing((16, 16, 80, 112), 0.9, 0)], ["person"])
    file.write_text(yaml.safe_dump({"detector": {"model": str(network)}, "cameras": {"gate": {"url": "file:x"}}}))
    command = ["replay", str(clip), "--config", str(file), "--with", "fog:60m", "--with", "drop", "--seed", "2"]
    assert main(command) == 0
    assert "under fog:60m, drop:5% (seed 2)" in " ".join(capsys.readouterr().out.split())


# Faults of the stream.


def played(clip: Path, conditions: str, seed: int = 1) -> list[SourceItem]:
    return list(with_stream_faults(ClipSource(clip, "gate"), "gate", ConditionSet.parse([conditions], seed)).play())


def frames(scenes: list[SourceItem]) -> list[DecodedFrame]:
    return [scene for scene in scenes if isinstance(scene, DecodedFrame)]


def test_dropped_frames_are_about_so_many_and_the_others_keep_their_numbers(clip: Path) -> None:
    whole = frames(played(clip, "none"))
    kept = frames(played(clip, "drop:40%"))
    assert 0.4 * len(whole) <= len(kept) <= 0.8 * len(whole)
    assert [(frame.index, frame.t) for frame in kept] == [
        (frame.index, frame.t) for frame in whole if frame.index in {each.index for each in kept}
    ]


def test_a_gap_is_reported_and_the_clock_continues(clip: Path) -> None:
    scenes = played(clip, "gap:1s@2s")
    (gap,) = [scene for scene in scenes if isinstance(scene, Gap)]
    assert (gap.t_start, gap.t_end, gap.reason) == (1.9, 3.0, "gap:1s@2s")
    assert [frame.index for frame in frames(scenes)] == [*range(20), *range(30, 50)]
    result, log = run(clip, "gap:1s@2s")
    assert len(result.gaps) == 1
    assert b'"type":"gap"' in log


def test_a_gap_at_the_end_is_reported_too(clip: Path) -> None:
    (gap,) = [scene for scene in played(clip, "gap:9s@4s") if isinstance(scene, Gap)]
    assert (gap.t_start, gap.t_end) == (3.9, 4.9)


def test_a_frozen_frame_stays_while_numbers_and_time_go_on(clip: Path) -> None:
    seen = frames(played(clip, "freeze:1s@1s"))
    assert [frame.t for frame in seen] == [n / FPS for n in range(50)]
    assert all(frame.av_frame is seen[9].av_frame for frame in seen[10:20])
    assert seen[20].av_frame is not seen[9].av_frame
    transform = frame_transform_of(ConditionSet.parse(["freeze:1s@1s,rain,noise,shake"]))
    assert transform is not None
    shown = [transform(frame.index, frame.t, frame.av_frame).to_ndarray().tobytes() for frame in seen[9:21]]
    assert len(set(shown[1:11])) == 1, "what falls and what trembles is frozen with the picture"
    assert len(set(shown)) == 3


def test_jitter_moves_time_stamps_within_its_limit_and_they_still_rise(clip: Path) -> None:
    times = [frame.t for frame in frames(played(clip, "jitter:80ms"))]
    wrong = [abs(t - n / FPS) for n, t in enumerate(times)]
    assert 0.04 < max(wrong) <= 0.08 + 1e-6
    assert all(b > a for a, b in itertools.pairwise(times))


def test_a_link_that_stands_still_brings_what_waited_at_once(tmp_path: Path) -> None:
    long = block_clip(tmp_path / "long.mp4", 40, lambda t: None)
    times = [frame.t for frame in frames(played(long, "late:500ms"))]
    behind = [t - n / FPS for n, t in enumerate(times)]
    assert len(times) == 400
    assert max(behind) == pytest.approx(0.5, abs=0.01)
    assert min(behind) >= -1e-6
    stalls = [n for n in range(1, 400) if behind[n] > 0.4 and behind[n - 1] < 0.1]
    assert 1 <= len(stalls) <= 10
    assert times[stalls[0] + 1] - times[stalls[0]] < 0.01
    assert all(b > a for a, b in itertools.pairwise(times))


def test_conditions_that_leave_no_frame_are_no_clean_footage(clip: Path) -> None:
    with pytest.raises(SourceError, match=r"no frame of .* is left under gap:3600s@0s"):
        run(clip, "gap:3600s@0s")


def test_without_stream_faults_the_source_is_unchanged(clip: Path) -> None:
    plain = ClipSource(clip, "gate")
    assert with_stream_faults(plain, "gate", ConditionSet.parse(["rain"])) is plain
    assert isinstance(with_stream_faults(plain, "gate", ConditionSet.parse(["drop"])), FaultySource)


# Scenarios.


def wet(data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**copy.deepcopy(data), **more}


def test_a_scenario_names_its_own_conditions_and_still_passes(folder: Path) -> None:
    file = write(folder, wet(VISIT, **{"with": ["fog:300m", "drop:5%"], "seed": 2}), "foggy")
    verdict = verdict_of(file, lambda _: BrightBlock())
    assert verdict.status == "passed", verdict.text
    assert describe_conditions(verdict.weather, verdict.seed) == "fog:300m, drop:5% (seed 2)"
    page = html_report.html_report([verdict], [{}], total_figures([verdict]), 0.0)
    assert "fog:300m, drop:5% (seed 2)" in page


def test_a_scenario_in_several_condition_sets_runs_once_in_each(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    write(tmp_path, wet(VISIT, **{"with": [[], ["drop:5%"], ["night:0.05lux"]]}))
    reports = ReportTargets(as_json=True, html=tmp_path / "out.html", junit=tmp_path / "out.xml")
    assert scenario_command([tmp_path], "", DetectorCache(load=lambda _: BrightBlock()), reports) == 1
    reported = json.loads(capsys.readouterr().out)["scenarios"]
    outcomes = {each["name"]: each["status"] for each in reported}
    assert outcomes == {"visit": "passed", "visit [drop:5%]": "passed", "visit [night:0.05lux]": "failed"}
    assert [each["weather"] for each in reported] == [[], ["drop:5%"], ["night:0.05lux"]]
    assert "night:0.05lux" in (tmp_path / "out.html").read_text()
    assert 'name="visit [night:0.05lux]"' in (tmp_path / "out.xml").read_text()


def test_conditions_of_the_command_line_replace_those_of_the_file(folder: Path) -> None:
    read = scenario_loader.load_scenario(write(folder, wet(VISIT, **{"with": "night"}), "dark"))
    assert [each.conditions for each in plans_by_conditions(read)] == [ConditionSet.parse(["night"])]
    instead = [NO_CONDITIONS, ConditionSet.parse(["rain,shake"], 7)]
    assert [(each.name, each.conditions) for each in plans_by_conditions(read, instead)] == [
        ("dark", NO_CONDITIONS),
        ("dark [rain:10mm, shake:3px (seed 7)]", instead[1]),
    ]


@pytest.mark.parametrize(
    ("weather", "said"),
    [
        (["snwo"], r"line \d+: with: there is no weather `snwo`, did you mean `snow`\?"),
        ([["rain"], ["freeze"]], "say when, as in `freeze:2s@10s`"),
        ([3], "each weather is a text"),
        (3, "write a list"),
    ],
)
def test_a_slip_in_the_file_is_reported_with_its_line(tmp_path: Path, weather: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        scenario_loader.load_scenario(write(tmp_path, wet(VISIT, **{"with": weather})))


def test_a_misspelt_key_is_reported_by_the_name_that_stands_in_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean `with`"):
        scenario_loader.load_scenario(write(tmp_path, wet(VISIT, wiht=["rain"])))


def test_true_boxes_tremble_with_the_frame(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 pixels at a block of 24: without moving the truth, half of it would be somewhere else.

    Far from the frame's border: there the trembling looks like one who goes out and another who comes in.
    """
    visit = [0.3 + 0.25 * min(n / FPS, 1.6, 10 - n / FPS) for n in range(100)]
    block_clip(folder / "middle.mp4", 14, lambda t: visit[round(t * FPS) - 10] if 1 <= t < 11 else None)
    rows = [f"{n},1,{round(left * 320)},100,24,60,1,1,1" for n, left in enumerate(visit, start=11)]
    (folder / "gt.txt").write_text("\n".join(rows))
    truth = {"truth": {"mot": "gt.txt"}, "require": {"ap50": 0.95}, "with": ["shake:20px"], "expect": [], "never": []}
    file = write(folder, wet(VISIT, clip="middle.mp4", **truth, others="allowed", at_most={}), "shaken")
    verdict = verdict_of(file, lambda _: BrightBlock())
    assert verdict.tracks is not None
    assert verdict.status == "passed", verdict.text
    monkeypatch.setattr(scenario_run, "shaken_truth", lambda frames, *_: frames)
    still = verdict_of(file, lambda _: BrightBlock()).tracks
    assert still is not None
    assert still.ap50 < 0.9 < verdict.tracks.ap50


def test_the_report_s_stills_show_the_conditions_that_were_examined(folder: Path) -> None:
    data = wet(VISIT, **{"with": ["black:9s@2s"]})
    verdict = verdict_of(write(folder, data, "blackout"), lambda _: BrightBlock())
    assert verdict.status == "failed"
    found = cut_stills(verdict)
    assert found
    dark = [key for key in found if 2.2 <= key[1] / FPS < 11]
    assert dark
    for key in dark:
        image = cv2.imdecode(np.frombuffer(found[key].jpeg, np.uint8), cv2.IMREAD_GRAYSCALE)
        assert image is not None
        assert image.max() < 30


def test_pytest_runs_scenarios_in_the_given_conditions(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    data = wet(VISIT, detector={"model": "builtin:hog"}, expect=[], at_most={})
    write(tmp_path, {**data, "with": [[], ["rain"]]})

    def pytest_run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "appliance.lab.scenario.pytest_plugin",
            "-p",
            "no:vedette",
        ]
        return subprocess.run(
            [*command, *arguments, "--collect-only", str(tmp_path)], cwd=tmp_path, capture_output=True, text=True,
            check=False, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        )  # fmt: skip

    own = pytest_run().stdout
    assert "::visit\n" in own
    assert "::visit [rain:10mm]" in own
    asked = pytest_run("--vedette-with", "night,drop", "--vedette-with", "fog:50m", "--vedette-seed", "4").stdout
    assert "::visit [night:1lux, drop:5% (seed 4)]" in asked
    assert "::visit [fog:50m (seed 4)]" in asked
    assert "2 tests collected" in asked
    slip = pytest_run("--vedette-with", "nihgt")
    assert slip.returncode == 4
    assert "did you mean `night`?" in slip.stderr
    slip = pytest_run("--vedette-with", "night", "--vedette-seed=-1")
    assert slip.returncode == 4
    assert "`-1` is no seed" in slip.stderr


def test_the_boxes_of_a_log_hold_for_the_clip_s_own_size(clip: Path) -> None:
    """A quarter of the pixels: the boxes are shares, and the header still says the clip's size, as the truth has it."""
    result, log = run(clip, "scale:0.5")
    assert result.size == (320, 240)
    clear = {row["frame"]: row["objects"][0]["box"] for row in boxes_of(run(clip, "none")[1]) if row["objects"]}
    small = {row["frame"]: row["objects"][0]["box"] for row in boxes_of(log) if row["objects"]}
    assert set(small) == set(clear)
    assert all(abs(a - b) < 0.02 for n in clear for a, b in zip(clear[n], small[n], strict=True))
