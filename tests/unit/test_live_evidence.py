"""Answers of two networks to live frames survive restarts and torn lines, and a blind network never agrees."""

from __future__ import annotations

import random
import resource
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.bundle.bundle_store import BundleStore
from appliance.canary.candidate_comparison import CandidateJudge, FoundObject, RunCosts, SurveyedFrame
from appliance.canary.proof_store import KEPT_MAX, STANDS_S, LiveEvidence, LiveFrame, ProofStore, apply_outcome, file_of
from appliance.config import SiteConfig
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.shadow_trial import ShadowSources, ShadowTrial
from appliance.detect.bundle_maker import describe_network, install_files
from appliance.health.load_shedding import NOTHING_SHED
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.sensors.linux_sensors import NOTHING, MemoryReading
from appliance.store.paths import PROOFS

NETWORKS = ("vedette-nano@1", "night@2")
COST = RunCosts(memory_mb=40.0, cpu_ms=20.0)


def frame(number: int, *, blind: bool = False, new_ms: float = 20.0, moves: bool = True) -> LiveFrame:
    rng = random.Random(number if moves else 0)
    x, y = rng.uniform(0, 0.8), rng.uniform(0, 0.5)
    person = FoundObject("person", 0.9, (x, y, x + 0.1, y + 0.3))
    light = "night" if number % 2 else "day"
    old = SurveyedFrame(1e9 + 5.0 * number, light, 20.0, (person,))
    return LiveFrame("gate", old, SurveyedFrame(old.t, light, new_ms, () if blind else (person,)))


def evidence(folder: Path, *frames: LiveFrame) -> LiveEvidence:
    found = LiveEvidence(file_of(folder, NETWORKS[1]), NETWORKS)
    for each in frames:
        found.add(each)
    return found


def test_one_that_finds_the_same_agrees_and_a_blind_one_is_worse_whatever_it_costs(tmp_path: Path) -> None:
    same = evidence(tmp_path / "same", *(frame(n) for n in range(60)))
    judged = same.verdict(COST, COST)
    assert judged.objects > 50, "but for those that happen to lie where one lay"
    assert (judged.kept, judged.outcome) == (True, "not enough")
    assert judged.shares["kind person"] == (0, judged.objects)
    blind = evidence(tmp_path / "blind", *(frame(n, blind=True, new_ms=5.0) for n in range(30)))
    judged = blind.verdict(COST, COST)
    assert (judged.kept, judged.outcome) == (False, "worse")


def test_a_blind_one_is_not_proven_where_nothing_comes_by(tmp_path: Path) -> None:
    store, proofs = BundleStore(tmp_path / "bundles"), ProofStore(tmp_path)
    manifest, files = describe_network("vedette-nano", "2")
    install_files(store, manifest, files)
    store.put_in_force(manifest.ref, state="probation")
    empty = SurveyedFrame(1.0, "day", 20.0, ())
    for source in ("recording", "live"):
        found = evidence(tmp_path / source, *(LiveFrame("gate", empty, empty) for _ in range(50)))
        report = found.report(str(manifest.ref), 1.0, COST, COST)
        object.__setattr__(report, "source", source)
        proofs.put(report)
        apply_outcome(store, manifest.ref, report)
    slot = store.in_force().everywhere
    assert slot is not None
    assert (slot.state, proofs.agrees(manifest.ref)) == ("probation", False)
    proofs.put(evidence(tmp_path / "x", *map(frame, range(60))).report(str(manifest.ref), 2.0, COST, COST))
    assert proofs.agrees(manifest.ref)


def test_it_goes_on_after_a_restart_and_a_torn_line_and_begins_anew_with_another_network(tmp_path: Path) -> None:
    evidence(tmp_path, *(frame(n) for n in range(10)))
    path = file_of(tmp_path, NETWORKS[1])
    whole = path.read_bytes()
    for cut in (1, 7, 200):
        path.write_bytes(whole[:-cut])
        again = evidence(tmp_path, frame(20))
        assert again.frames == 10 if cut < 200 else again.frames in (9, 10)
        assert path.read_bytes().endswith(b"\n")
        assert evidence(tmp_path).frames == again.frames, "what was torn does not spoil what came after it"
    damaged = whole.replace(b'"person"', b'"perso', 1)
    path.write_bytes(damaged)
    assert evidence(tmp_path).frames == 9
    assert LiveEvidence(path, ("night@1", NETWORKS[1])).frames == 0


def test_of_a_frame_that_a_full_disk_cut_off_nothing_joins_the_next(tmp_path: Path) -> None:
    found = evidence(tmp_path, *(frame(n) for n in range(10)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_of(tmp_path, NETWORKS[1]).stat().st_size + 50, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            found.add(frame(10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    found.add(frame(11))
    assert evidence(tmp_path).frames == found.frames == 11


def test_a_car_that_stands_there_is_not_new_evidence_each_time(tmp_path: Path) -> None:
    found = evidence(tmp_path, *(frame(n, moves=False) for n in range(200)))
    assert found.verdict(COST, COST).objects == 1
    assert not found.verdict(COST, COST).kept
    later = frame(round(STANDS_S / 5.0) + 1, moves=False)
    found.add(later)
    assert found.verdict(COST, COST).objects == 2


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (COST, RunCosts(memory_mb=160.0, cpu_ms=20.0), "more memory"),
        (RunCosts(joules=0.5), RunCosts(joules=0.9), "times the energy"),
        (RunCosts(load=0.5), RunCosts(load=0.9), "heats and overloads"),
        (RunCosts(cpu_ms=20.0, is_hot=True), RunCosts(cpu_ms=30.0), "too hot as it is"),
        (COST, RunCosts(failure="it hangs"), "it hangs"),
    ],
)
def test_each_gate_stops_it(old: RunCosts, new: RunCosts, why: str) -> None:
    judge = CandidateJudge()
    judge.add_costs(old, new)
    judged = judge.verdict()
    assert judged.outcome == "worse"
    assert why in judged.reasons[0]
    judge.add_costs(old, old)
    assert judge.verdict().outcome == "not enough"


def test_one_that_is_twice_as_slow_is_stopped_and_a_slow_frame_now_and_then_is_not(tmp_path: Path) -> None:
    slow = evidence(tmp_path / "slow", *(frame(n, new_ms=41.0) for n in range(60)))
    assert "1.5 times the CPU time" in slow.verdict(COST, COST).reasons[0]
    busy = evidence(tmp_path / "busy", *(frame(n, new_ms=41.0 if n % 3 == 0 else 21.0) for n in range(200)))
    assert busy.verdict(COST, COST).outcome == "not enough"


def test_what_was_compared_with_another_network_proves_nothing_about_the_one_before(tmp_path: Path) -> None:
    store, proofs = BundleStore(tmp_path / "bundles"), ProofStore(tmp_path)
    refs = []
    for version in "12":
        manifest, files = describe_network("vedette-nano", version)
        install_files(store, manifest, files)
        refs.append(manifest.ref)
    pair = (str(refs[0]), str(refs[1]))
    proofs.put(
        replace(evidence(tmp_path / "x", *map(frame, range(60))).report(pair[1], 2.0, COST, COST), networks=pair)
    )
    store.put_in_force(refs[0])
    store.put_in_force(refs[1], state="probation")
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    clock = ManualClock()
    supervisor = IngestSupervisor(config, clock)  # it runs nothing, so nothing is compared
    sources = ShadowSources(
        lambda: NOTHING_SHED, lambda: SensorStatus(NOTHING, MemoryReading(), None), lambda: False
    )  # fmt: skip
    ShadowTrial(tmp_path, lambda: config, store, supervisor, sources, clock).run_once()
    assert proofs.agrees(refs[1])
    store.withdraw()
    store.put_in_force(refs[1], state="probation")
    ShadowTrial(tmp_path, lambda: config, store, supervisor, sources, clock).run_once()
    assert not proofs.agrees(refs[1])


def test_frames_of_a_candidate_leave_with_its_report(tmp_path: Path) -> None:
    proofs = ProofStore(tmp_path)
    for n in range(KEPT_MAX + 2):
        path = file_of(tmp_path / PROOFS, f"night@{n}")
        found = LiveEvidence(path, ("vedette-nano@1", f"night@{n}"))
        proofs.put(found.report(f"night@{n}", float(n), COST, COST))
    assert len(list((tmp_path / PROOFS).glob("*.frames"))) == KEPT_MAX
    assert not file_of(tmp_path / PROOFS, "night@0").exists()
    proofs.put(evidence(tmp_path / "x").report("night@x", -1.0, COST, COST))
    assert proofs.of("night@x", "live") is not None, "the clock was set back"


@pytest.mark.parametrize("walkers", [0, 20])
def test_many_parked_cars_on_many_cameras_count_once_an_hour(tmp_path: Path, walkers: int) -> None:
    """Beside those who walk by, too: a car park must not decide a comparison."""
    chance = random.Random(1)
    parked = tuple(FoundObject("vehicle", 0.9, (0.1 * n, 0.7, 0.1 * n + 0.08, 0.9)) for n in range(10))
    found = LiveEvidence(file_of(tmp_path, NETWORKS[1]), NETWORKS)
    for number in range(64):
        places = [(chance.uniform(0, 0.9), chance.uniform(0, 0.3)) for _ in range(walkers)]
        people = tuple(FoundObject("person", 0.9, (x, y, x + 0.05, y + 0.2)) for x, y in places)
        old = SurveyedFrame(1e9 + 5.0 * number, "day", 20.0, parked + people)
        found.add(LiveFrame(f"cam{number % 8}", old, replace(old, objects=people)))
    lost, seen = found.verdict(COST, COST).shares["kind vehicle"]
    assert lost == seen == 80, "ten on each of eight cameras"
