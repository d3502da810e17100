"""The arithmetic of benchmarks/ingest: whose CPU time counts, what counts as found, and the footage's truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from appliance.base import machine
from appliance.types import Detections, iou
from benchmarks.ingest import __main__ as ingest
from benchmarks.ingest import process_tree, report, yolo11n_like
from benchmarks.ingest.cameras import FrameClock, Setting
from benchmarks.ingest.contender import ContenderPlan, vedette_with
from benchmarks.ingest.decode_everything import DifferenceGate, GreedyTracker
from benchmarks.ingest.footage import CUTS, FPS, VIEWS, FootageSpec, Sight, Truth, Visit, truth_of
from benchmarks.ingest.measurement import Measured, ReportedFrame, Score, score
from models import shapes
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
BURN = """
import time
def burn(seconds):
    while time.process_time() < seconds: pass
"""
# A parent that burns little, a child that burns much and is reaped, and a child that goes on living.
FAMILY = (
    BURN
    + """
import subprocess, sys
subprocess.run([sys.executable, "-c", sys.argv[1] + "burn(0.6)"])
living = subprocess.Popen([sys.executable, "-c", sys.argv[1] + "burn(0.4)\\nprint('burnt', flush=True)\\ninput()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
living.stdout.readline()
burn(0.3)
print("ready", flush=True)
sys.stdin.read()
"""
)
PERSON = (0.4, 0.4, 0.5, 0.8)


def test_a_tree_has_used_what_its_living_and_its_ended_children_have_used() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY, BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as family:
        assert family.stdout is not None
        assert family.stdout.readline() == b"ready\n"
        used = machine.family_cpu_s(family.pid)
        assert len(machine.process_family(family.pid)) == 2
        assert 1.3 - 0.05 <= used <= 1.3 + 0.6 * PATIENCE  # 0.6 + 0.4 + 0.3, and the starts of three Pythons
        assert process_tree.pss_bytes(family.pid) > 2_000_000
        family.communicate(b"")


KINDS = """
import mmap, sys
private = bytearray(40_000_000)
shared = mmap.mmap(-1, 20_000_000)
shared.write(bytes(20_000_000))
with open(sys.argv[1], "rb") as file:
    library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
sum(library[::4096])
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_is_told_by_process_and_kind_whoever_else_maps_the_same_libraries() -> None:
    """Other Pythons come and go beside this test and share libraries with it; the network's 3.9 MB nobody else maps."""
    command = [sys.executable, "-c", KINDS, str(ROOT / "models/vedette-nano.onnx")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        one.stdout.readline()
        alone, share = process_tree.memory_kinds(one.pid)["core"], process_tree.pss_bytes(one.pid)
        assert 40e6 < alone["heap"] + alone["anonymous"] < 60e6
        assert 19e6 < alone["shared memory"] < 21e6
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()
            beside = process_tree.memory_kinds(one.pid)["core"]
            assert beside["files"] == pytest.approx(alone["files"], abs=200_000)
            assert process_tree.pss_bytes(one.pid) < share - 500_000
            other.communicate(b"")
        one.communicate(b"")
    assert process_tree.memory_kinds(one.pid) == {}


def test_a_process_that_is_gone_has_no_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert machine.usages(machine.process_family(gone.pid)) == []
    assert process_tree.pss_bytes(gone.pid) == 0


def test_a_named_thread_is_counted_apart(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import threading, time\n"
        "def burn():\n    while time.thread_time() < 0.5: pass\n    print('burnt', flush=True)\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=burn, name='looks', daemon=True).start()\ninput()\n"
    )
    command = [sys.executable, "-m", "benchmarks.ingest.process_tree", "worker"]
    paths = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    with subprocess.Popen(command, cwd=ROOT, env=paths, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"
        assert process_tree.threads_cpu_s(child.pid, ("looks",)) == pytest.approx(0.5, abs=0.3)
        assert process_tree.threads_cpu_s(child.pid, ("gone",)) == 0
        child.communicate(b"\n")


def test_cpu_time_rises_while_a_process_works() -> None:
    before = machine.family_cpu_s(os.getpid())
    spent = time.process_time() + 0.2
    while time.process_time() < spent:
        pass
    assert machine.family_cpu_s(os.getpid()) - before >= 0.15


def person(begin: int, end: int, visible: float = 1.0, box: tuple[float, float, float, float] = PERSON) -> Visit:
    return Visit("person", {n: Sight(box, visible) for n in range(begin, end)})


def taken(at: float = 1000.0) -> FrameClock:
    found = FrameClock(15)
    found.note(0, at)
    return found


def report_of(
    frame: int, box: tuple[float, float, float, float] | None = PERSON, label: str = "person"
) -> ReportedFrame:
    return ReportedFrame(frame, 1000.0 + frame / 15 + 0.2, () if box is None else ((label, box),))


def test_a_second_is_found_by_one_good_box_in_it() -> None:
    truth = Truth(15, 300, (person(30, 90),))
    found = score(truth, [report_of(33), report_of(36, None), report_of(48), report_of(66, None)], 0, 150, taken())
    assert (found.seconds, found.seconds_found) == (4, 2)
    assert (found.visits, found.visits_found) == (1, 1)
    assert found.wrong == 0


def test_a_box_elsewhere_or_of_another_kind_finds_nothing() -> None:
    truth = Truth(15, 300, (person(30, 90),))
    elsewhere = report_of(33, (0.1, 0.1, 0.2, 0.2))
    found = score(truth, [elsewhere, report_of(48, label="car"), report_of(50, label="boat")], 0, 150, taken())
    assert (found.seconds_found, found.visits_found, found.wrong) == (0, 0, 1)


def test_a_hardly_visible_object_need_not_be_found_and_is_not_wrong_either() -> None:
    truth = Truth(15, 300, (person(30, 90, visible=0.3),))
    found = score(truth, [report_of(33)], 0, 150, taken())
    assert (found.seconds, found.visits, found.wrong) == (0, 0, 0)


def test_the_first_box_is_timed_from_the_first_good_sight() -> None:
    emerging = {**person(20, 30, visible=0.1).sights, **person(30, 90).sights}
    truth = Truth(15, 300, (Visit("person", emerging),))
    found = score(truth, [report_of(36), report_of(39)], 0, 150, taken())
    assert found.first_seen_s == pytest.approx((6 / 15,))
    assert found.first_reported_s == pytest.approx((6 / 15 + 0.2,))


def test_an_object_present_before_counting_began_is_not_timed() -> None:
    truth = Truth(15, 300, (person(0, 90),))
    assert score(truth, [report_of(36)], 30, 150, taken()).first_reported_s == ()


def test_a_loop_shows_its_visits_again_and_a_phase_shifts_them() -> None:
    truth = Truth(15, 300, (person(30, 60),), phase=45)
    spans = [(min(each.sights), max(each.sights)) for each in truth.shown(0, 400)]
    assert spans == [(0, 14), (285, 314)]


def test_a_camera_that_fell_behind_keeps_frames_and_times_together() -> None:
    when = taken()
    when.note(150, 1012.0)  # two seconds late from there on
    assert [when.t(n) for n in (15, 165)] == pytest.approx([1001.0, 1013.0])
    assert [when.frame(t) for t in (1001.01, 1013.0)] == [15, 165]


def test_overlap_is_intersection_over_union() -> None:
    assert iou((0, 0, 2, 2), (1, 0, 3, 2)) == pytest.approx(1 / 3)
    assert iou((0, 0, 1, 1), (1, 1, 2, 2)) == 0


@pytest.mark.parametrize("view", VIEWS)
def test_loops_begin_and_end_empty_and_visits_are_whole(view: str) -> None:
    for scene in ("mixed", "busy"):
        truth = truth_of(FootageSpec(view, scene, 720))
        frames = [n for visit in truth.visits for n in visit.sights]
        assert truth.visits
        assert min(frames) > FPS / 2
        assert max(frames) < truth.frames - FPS
        assert sum(len(cut.objects) for cut in CUTS[view, scene]) == len(truth.visits)
    assert truth_of(FootageSpec(view, "quiet", 720)).visits == ()


def test_cameras_begin_at_different_phases_of_their_loops() -> None:
    films = Setting("mixed", cameras=16, gop_s=4).films()
    assert len({(film.view, film.phase_s) for film in films}) >= 14
    assert all(film.phase_s % 4 == 0 for film in films)


def test_figures_are_per_camera_minute_and_medians_of_the_rounds() -> None:
    rounds = [
        Measured(2.0, 2.0, cpu, cpu / 2, 100, 1800, 4, 100_000_000, Score(10, 9, 2, 2, 1, (0.5,), (0.1,)), (0.1, 0.2))
        for cpu in (4.0, 6.0, 20.0)
    ]
    row = report.row(Setting("mixed"), "vedette", rounds)
    assert (row.cpu_s, row.detector_s, row.rest_s, row.looks) == (3.0, 1.5, 1.5, 50.0)
    assert (row.found, row.visits, row.first_told_ms, row.taken) == (90.0, 6, 500.0, 100.0)
    assert row.age_p95_ms == 200.0


def test_a_ratio_is_held_against_its_bar() -> None:
    def row(who: str, cpu_s: float) -> report.Row:
        measured = Measured(1.0, 1.0, cpu_s, 0.0, 0, 900, 0, 1, Score())
        return report.row(Setting("quiet"), who, [measured])

    message = report.ratios([row("ours", 1.0), row("theirs", 2.0)], "ours", "theirs")
    assert "0.50 x theirs (bar 0.28: MISSED)" in message
    assert "met" in report.ratios([row("ours", 0.5), row("theirs", 2.0)], "ours", "theirs")


@pytest.mark.parametrize(("cpu_s", "status"), [(1.0, 0), (9.0, 1)])
def test_a_missed_bar_is_the_exit_status(
    cpu_s: float, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(setting: Setting, factory: object, *_: object) -> Measured:
        return Measured(1.0, 1.0, cpu_s if factory is ingest.vedette else 10.0, 0.0, 0, 900, 0, 1, Score())

    monkeypatch.setattr(ingest, "prepare", lambda *_: None)
    monkeypatch.setattr(ingest, "measure", measure)
    assert ingest.main(["--scenes", "mixed"]) == status
    assert (": MISSED)" in capsys.readouterr().out) == bool(status)


@pytest.mark.parametrize(("with_s", "status"), [(3.0, 0), (9.0, 1)])
def test_alerts_that_cost_too_much_are_the_exit_status(
    with_s: float, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = ingest.AlertCost(10, 100.0, {"core": with_s}, {"core": 0.0})
    monkeypatch.setattr(ingest, "prepare", lambda *_: None)
    monkeypatch.setattr(ingest, "measure_alerts", lambda *_: cost)
    assert ingest.main(["--scenes", "alerts"]) == status


def test_each_latency_is_held_against_its_own_bar() -> None:
    def row(who: str, told_s: float, live_age_ms: tuple[float, ...] = ()) -> report.Row:
        found = Score(first_reported_s=(told_s,))
        return report.row(Setting("mixed"), who, [Measured(1.0, 1.0, 2.0, 0.0, 0, 900, 0, 1, found, (), live_age_ms)])

    ours = [row(f"ours {latency}", 1.5, (200.0, 400.0, 250.0)) for latency in ("lowest", "normal", "thrifty")]
    message = report.ratios([*ours, row("theirs", 0.5)], "ours", "theirs").splitlines()
    first = [line for line in message if "first box" in line]
    assert first[0].endswith("lowest: first box +1000 ms (bar 100: MISSED)")
    assert first[1].strip().endswith("normal: first box +1000 ms")
    assert first[2].endswith("thrifty: first box +1000 ms (bar 2000: met)")
    assert sum("250 ms (bar 300: met)" in line for line in message) == 3


def test_a_busy_machine_makes_no_contender_cheap_and_one_that_fell_behind_is_not_compared() -> None:
    def row(who: str, minutes: float, looks: int, dropped: int) -> report.Row:
        cpu_s = 2.0 + looks * 0.02
        measured = Measured(minutes, 1.0, cpu_s, looks * 0.02, looks, 900, dropped, 1, Score())
        return report.row(Setting("busy"), who, [measured])

    theirs = row("theirs", 1.0, 300, 0)
    assert "1.00 x theirs" in report.ratios([row("ours", 1.0, 100, 200), theirs], "ours", "theirs")
    assert "NOT COMPARABLE" in report.ratios([row("ours", 0.9, 300, 0), theirs], "ours", "theirs")


def test_the_floor_s_gate_opens_for_a_change_and_not_for_noise() -> None:
    rng, gate = np.random.default_rng(1), DifferenceGate()
    plane = np.full((90, 160), 100, np.uint8)

    def noisy() -> NDArray[np.uint8]:
        return (plane + rng.normal(0, 2, plane.shape)).clip(0, 255).astype(np.uint8)

    assert gate.moves(noisy())
    assert not any(gate.moves(noisy()) for _ in range(20))
    plane[40:50, 60:64] = 160
    assert gate.moves(noisy())


def test_the_floor_s_tracker_keeps_a_number_and_begins_only_with_a_sure_box() -> None:
    def seen(score: float, x: float) -> Detections:
        box = np.array([[x, 0.4, x + 0.1, 0.8]], np.float32)
        return Detections(box, np.array([score], np.float32), np.zeros(1, np.int32))

    tracker = GreedyTracker()
    assert tracker.update(seen(0.4, 0.1), 0.0) == []
    assert [n for n, _, _ in tracker.update(seen(0.8, 0.1), 0.2)] == [1]
    assert [n for n, _, _ in tracker.update(seen(0.3, 0.12), 0.4)] == [1]
    assert [n for n, _, _ in tracker.update(seen(0.8, 0.5), 3.0)] == [2]


def test_a_network_that_runs_twice_finds_the_same_and_costs_double() -> None:
    own = shapes.fix(onnx.load(str(ROOT / "models" / "vedette-nano.onnx")), 64, 64)
    double = yolo11n_like.twice(own)
    kinds = [[node.op_type for node in model.graph.node].count("Conv") for model in (own, double)]
    assert kinds[1] == 2 * kinds[0] > 0
    frame = {"images": np.random.default_rng(0).random((1, 3, 64, 64), np.float32)}
    once, both = (
        ort.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, frame)[0]
        for each in (own, double)
    )
    np.testing.assert_allclose(both, once, rtol=1e-5, atol=1e-5)


def test_each_way_to_run_the_network_is_a_contender_of_its_own() -> None:
    plan = ContenderPlan({}, {"model": "m.onnx", "threads": 1}, 5.0, Path("/nowhere"), record=False)
    sites = [json.loads(vedette_with(way)(plan).plan_line)["detector"] for way in ("openvino-bf16", "onnx")]
    assert [(each["backend"], each["precision"], each["model"]) for each in sites] == [
        ("openvino", "bf16", "m.onnx"),
        ("onnx", "auto", "m.onnx"),
    ]
