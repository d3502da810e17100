"""Proof before trust: what is broken is stopped before it decides, what is equal is not, and too little is no proof."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from appliance.__main__ import main
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, SourceError, UsageError
from appliance.base.json_lines import encode_ingest
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.canary.candidate_comparison import (
    ALPHA,
    LOST_MAX,
    CandidateJudge,
    Judgement,
    PairedObject,
    RunCosts,
    ShareTest,
    SurveyedFrame,
    judged_alerts,
    light_of,
)
from appliance.canary.candidate_trial import CameraFootage, CandidateTrial, TrialPlan
from appliance.canary.candidates import opponent
from appliance.canary.frame_survey import SURVEY, FootageFile, Survey
from appliance.canary.proof_store import ProofReport, ProofStore, apply_outcome
from appliance.config import SiteConfig
from appliance.core import ingest_supervisor
from appliance.core.ingest_supervisor import DEATHS_MAX, IngestSupervisor
from appliance.detect.bundle_maker import describe_network
from appliance.detect.model_files import accurate_precisions, bundle_store, find_model
from appliance.lab.prove_command import advise_command, prove_command
from appliance.sandbox.sandbox import SandboxDied, SandboxFailed, SandboxTimeout, SandboxUnavailable
from appliance.types import FrameBoxes
from benchmarks import canary
from tests.support.candidate_networks import Candidate, bad_candidates, equal_candidates
from tests.support.candidate_trials import CLIPS, SurveyChild, tried
from tests.support.dashboard_site import Site
from tests.support.waiting import until


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> SurveyChild:
    return SurveyChild(tmp_path_factory.getbasetemp())


def pairs(rng: random.Random, n: int, lost: float, **about: Any) -> Iterator[PairedObject]:
    for number in range(n):
        found = "old" if rng.random() < lost else "both"
        usual: dict[str, Any] = {
            "camera": "gate", "t": float(number), "kind": rng.choice(("person", "vehicle")), "place": rng.randrange(9),
            "light": rng.choice(("day", "night")), "shift": rng.gauss(0, 0.2) if found == "both" else None,
        }  # fmt: skip
        yield PairedObject(found=found, **{**usual, **about})


def judged(objects: Iterator[PairedObject], judge: CandidateJudge | None = None) -> Judgement:
    judge = judge or CandidateJudge()
    for each in objects:
        judge.add_object(each)
    return judge.verdict()


def test_a_share_at_its_bound_is_called_beyond_it_no_oftener_than_is_stated() -> None:
    rng, wrong = random.Random(1), 0
    for _ in range(400):
        test = ShareTest(LOST_MAX)
        for _ in range(200):
            test.add(rng.random() < LOST_MAX)
        wrong += test.is_beyond(0.05)
    assert wrong <= 400 * 0.05


def test_equal_ones_are_called_worse_no_oftener_than_is_stated_and_never_better() -> None:
    rng = random.Random(2)
    outcomes = [judged(pairs(rng, 400, lost=0.05)).outcome for _ in range(150)]
    assert outcomes.count("worse") <= 150 * ALPHA
    assert "better" not in outcomes


def test_a_corner_that_is_not_seen_any_more_is_enough() -> None:
    rng, judge = random.Random(3), CandidateJudge()
    for place in range(8):
        assert judged(pairs(rng, 30, lost=0.01, place=place), judge).outcome == "not enough"
    found = judged(pairs(rng, 6, lost=1.0, place=8), judge)
    assert (found.outcome, found.reasons) == ("worse", ("it loses 6 of 6 objects (place 8)",))


def test_better_takes_known_wins_and_proof_by_day_and_at_night() -> None:
    judge = CandidateJudge()
    for _ in range(14):
        judge.add_expectation(old_right=False, new_right=True)
    assert judge.verdict().outcome == "not enough"
    only_day = judged(pairs(random.Random(4), 60, lost=0.0, light="day"), judge)
    assert (only_day.outcome, only_day.lacking) == ("not enough", ("5 more objects by night",))
    assert judged(pairs(random.Random(5), 20, lost=0.0, light="night"), judge).outcome == "better"


def test_leaving_out_what_a_person_called_false_is_a_win_and_no_loss() -> None:
    false = [PairedObject(camera="gate", t=float(n), kind="person", place=0, light="day", found="old", truth=False)
             for n in range(20)]  # fmt: skip
    found = judged(iter(false))
    assert (found.wins, found.losses, found.lost) == (20, 0, 0)


def test_gates_of_memory_energy_and_load_stop_a_candidate() -> None:
    for costs, words in (
        (RunCosts(memory_mb=240), "memory"),
        (RunCosts(memory_mb=60, joules=20.0), "energy"),
        (RunCosts(memory_mb=60, load=0.9), "of the time"),
        (RunCosts(failure="the child died"), "the child died"),
    ):
        judge = CandidateJudge()
        judge.add_costs(RunCosts(memory_mb=60, joules=10.0, load=0.4), costs)
        found = judge.verdict()
        assert found.outcome == "worse"
        assert words in found.reasons[0]


def test_changed_settings_are_judged_by_the_alerts_that_people_answered() -> None:
    both, missed, left_out, new = (True, True), (True, False), (True, False), (False, True)
    assert judged_alerts([(*both, True)] * 40).lacking == (
        "nothing shows it to be better: neither known alerts nor a lower cost",
    )
    better = judged_alerts([(*both, True)] * 40 + [(*left_out, False)] * 12)
    assert (better.outcome, better.reasons) == ("better", ("of known alerts and scenarios it wins 12 and loses 0",))
    worse = judged_alerts([(*both, True)] * 20 + [(*missed, True)] * 20)
    assert worse.outcome == "worse"
    assert "it loses 20 of 40 alerts (all)" in worse.reasons
    unanswered = judged_alerts([(*missed, None)] * 50)
    assert (unanswered.outcome, unanswered.objects) == ("not enough", 0), "it may have been right to leave them out"
    assert judged_alerts([(*both, None)] * 10 + [(*new, None)] * 40).outcome == "worse", "a flood of new alerts"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (SandboxTimeout("it got no time"), "not enough"),
        (SandboxUnavailable("no process can be started"), "not enough"),
        (SourceError("the segment was deleted meanwhile"), "not enough"),
        (SandboxDied("it used more CPU time than it may"), "worse"),
    ],
)
def test_a_candidate_may_use_more_cpu_time_but_is_not_blamed_where_it_got_none(error: Exception, outcome: str) -> None:
    asked = []

    def call(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        asked.append(cpu_s)
        if len(asked) > 1:
            raise error
        frame = SurveyedFrame(0.0, "day", 9.0, ())
        return SURVEY.dump_python(Survey("now", "gate", (frame,), 60.0, 500.0, 40.0), mode="json")

    footage = CameraFootage("gate", (FootageFile(str(CLIPS[0])),))
    report = CandidateTrial(TrialPlan("night@1", DetectorConfig(), DetectorConfig(), (footage,)), call).run(0.0)
    assert (report.judgement.outcome, bool(report.unread)) == (outcome, outcome == "not enough")
    assert asked[1] == 100.0, "2.5 times the CPU time of the other, whatever the clock says; it dies at twice of it"


@pytest.mark.parametrize(
    ("error", "outcome"), [(SandboxTimeout("it got no time"), "not enough"), (SandboxDied("it crashed"), "worse")]
)
def test_a_candidate_that_got_no_time_for_a_scenario_is_not_blamed(
    tmp_path: Path, error: Exception, outcome: str
) -> None:
    (tmp_path / "kept.scenario.yaml").touch()
    results = iter(({"status": "passed"}, error))

    def call(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        if isinstance(result := next(results), Exception):
            raise result
        return result

    scenarios = (str(tmp_path / "kept.scenario.yaml"),)
    report = CandidateTrial(TrialPlan("night@1", DetectorConfig(), DetectorConfig(), (), scenarios), call).run(0.0)
    assert (report.judgement.outcome, bool(report.unread)) == (outcome, outcome == "not enough")


@pytest.mark.parametrize("answer", [SandboxFailed("run_scenario: ConfigError: it is not there"), {"status": "failed"}])
def test_a_candidate_is_not_blamed_for_a_scenario_that_was_deleted_between_the_runs(
    tmp_path: Path, answer: Exception | dict[str, str]
) -> None:
    file = tmp_path / "kept.scenario.yaml"
    file.touch()

    def call(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        if values["model"] == "now":
            return {"status": "passed"}
        file.unlink()
        if isinstance(answer, Exception):
            raise answer
        return answer

    plan = TrialPlan("night@1", DetectorConfig(model="now"), DetectorConfig(), (), scenarios=(str(file),))
    report = CandidateTrial(plan, call).run(0.0)
    assert (report.judgement.outcome, report.judgement.losses, len(report.unread)) == ("not enough", 0, 1)


@pytest.mark.parametrize(
    ("error", "outcome"), [(SandboxTimeout("it got no time"), "not enough"), (DetectorError("one device"), "worse")]
)
def test_cpu_times_of_surveys_apart_count_only_where_two_networks_cannot_stand_beside_each_other(
    error: Exception, outcome: str
) -> None:
    spent = iter((9.0, 90.0))

    def call(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        if function == "compare_costs":
            raise error
        cpu_ms = next(spent)
        frames = tuple(SurveyedFrame(float(t), "day", cpu_ms, ()) for t in range(60))
        return SURVEY.dump_python(Survey("now", "gate", frames, 60.0, 500.0, 40.0), mode="json")

    footage = CameraFootage("gate", (FootageFile(str(CLIPS[0])),))
    plan = TrialPlan("night@1", DetectorConfig(), DetectorConfig(), (footage,))
    assert CandidateTrial(plan, call).run(0.0).judgement.outcome == outcome


@pytest.mark.thorough
@pytest.mark.parametrize("candidate", list(bad_candidates(8)), ids=lambda each: each.kind)
def test_each_kind_of_broken_network_is_stopped(candidate: Candidate, child: SurveyChild, tmp_path: Path) -> None:
    assert tried(candidate, tmp_path, child).outcome == "worse"


@pytest.mark.thorough
@pytest.mark.parametrize("candidate", list(equal_candidates(3)), ids=lambda each: each.name)
def test_equal_networks_are_not_stopped(candidate: Candidate, child: SurveyChild, tmp_path: Path) -> None:
    found = tried(candidate, tmp_path, child)
    assert found.outcome != "worse", found.reasons
    assert found.objects > 150


@pytest.mark.slow
@pytest.mark.timeout(7200)  # a hundred of them, each some seconds of CPU time, some a minute
def test_fifty_broken_ones_are_stopped_and_at_most_two_of_fifty_equal_ones(tmp_path: Path) -> None:
    assert canary.main(["--out", str(tmp_path / "canary.jsonl")]) == 0


def test_frames_are_told_apart_by_their_light() -> None:
    import numpy as np

    dark, grey = np.full((64, 64, 3), 30, np.uint8), np.full((64, 64, 3), 120, np.uint8)
    assert (light_of(dark), light_of(grey)) == ("night", "night")
    assert light_of(grey + np.array([0, 20, 40], np.uint8)) == "day"


def installed(store: BundleStore, version: str) -> BundleRef:
    manifest, files = describe_network("vedette-nano", version)

    def fill(folder: Path) -> None:
        for name, data in files.items():
            (folder / name).write_bytes(data)

    store.add(manifest, manifest.to_bytes(), fill)
    return manifest.ref


def report_of(ref: BundleRef, outcome: Any, t: float = 1.0, *, kept: bool = False) -> ProofReport:
    judgement = Judgement(outcome, ("it loses 9 of 9 objects",), kept=kept)
    return ProofReport(str(ref), t, judgement, ("a", "b"), 9, 60.0, 6.0, ())


def test_a_better_one_stays_and_a_worse_one_leaves_in_round_after_round(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles")
    first, second, third = (installed(store, version) for version in ("101", "102", "103"))
    assert apply_outcome(store, first, report_of(first, "not enough")) == ""
    assert store.in_force().everywhere is None
    for ref in (first, second):  # the second round as the first
        assert "probation" in apply_outcome(store, ref, report_of(ref, "better"))
        assert "stays on probation" in apply_outcome(store, ref, report_of(ref, "not enough"))
        assert "proven" in apply_outcome(store, ref, report_of(ref, "not enough", kept=True))
    assert "probation" in apply_outcome(store, third, report_of(third, "better"))
    assert "quarantine" in apply_outcome(store, third, report_of(third, "worse"))
    slot = store.in_force().everywhere
    assert slot is not None
    assert (slot.bundle, slot.state) == (second, "proven")
    assert third in store.in_force().quarantined


def test_a_candidate_in_force_is_compared_with_what_was_before_it(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles")
    first, second, third = (installed(store, version) for version in ("101", "102", "103"))
    cameras = {name: {"url": "rtsp://127.0.0.1/x"} for name in ("gate", "yard")} | {
        "door": {"url": "rtsp://127.0.0.1/x", "model": "picodet-s"}
    }
    site = SiteConfig.model_validate({"cameras": cameras}).for_ingest()
    assert opponent(site, store.in_force(), "gate", str(first)) == "auto"
    store.put_in_force(first)
    store.put_in_force(second, state="probation")
    store.put_in_force(third, "yard", state="probation")
    table = store.in_force()
    assert [opponent(site, table, name, str(second)) for name in ("", "gate", "yard", "door")] == [
        str(first), str(first), str(third), "picodet-s",
    ]  # fmt: skip
    assert opponent(site, table, "yard", str(third)) == str(first), "what was proven before"


@pytest.mark.parametrize("named", ["auto", "vedette-nano"])
def test_a_candidate_that_replaced_nothing_is_compared_with_what_comes_with_vedette(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name alone means the bundle in force, which is the candidate itself."""
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path))
    store = bundle_store()
    ref = installed(store, "101")
    store.put_in_force(ref, state="probation")
    cameras = {"gate": {"url": "rtsp://127.0.0.1/x"}}
    site = SiteConfig.model_validate({"cameras": cameras, "detector": {"model": named}}).for_ingest()
    for camera in ("", "gate"):
        other = opponent(site, store.in_force(), camera, str(ref))
        assert find_model(other).path != find_model(str(ref)).path
        assert accurate_precisions(other) == accurate_precisions(str(ref)), "both run in the same precision"
        assert find_model(other, precision="int8").path.parent == find_model(other).path.parent


def test_a_trial_on_some_cameras_proves_a_network_on_no_other(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "bundles")
    ref = installed(store, "101")
    for camera in ("", "gate", "yard"):
        store.put_in_force(ref, camera, state="probation")
    report = report_of(ref, "not enough", kept=True)
    assert "it was tried on door alone" in apply_outcome(store, ref, report, ["door"])
    assert apply_outcome(store, ref, report, ["gate"]) == f"{ref} is proven on gate"
    assert {name: slot.state for name, slot in store.in_force().pointers.items()} == {
        "": "probation", "gate": "proven", "yard": "probation",
    }  # fmt: skip
    assert apply_outcome(store, ref, report) == f"{ref} is proven on all cameras, yard"


def test_ingest_that_dies_with_a_network_on_probation_gets_the_one_before_back(tmp_path: Path) -> None:
    """A child that dies as long as the second bundle is in force, as a network that crashes when it is loaded."""
    store = BundleStore(tmp_path / "bundles")
    first, second = installed(store, "101"), installed(store, "102")
    store.put_in_force(first)
    store.put_in_force(second, state="probation")
    script = tmp_path / "child.py"
    script.write_text(
        "import os, pathlib, sys\nsys.stdin.readline()\n"
        f"if '{second}' in pathlib.Path(r'{store.root}/in_force.json').read_text().split('quarantined')[0]:\n"
        "    os.abort()\nsys.stdin.read()\n"
    )
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    supervisor = IngestSupervisor(
        config, SystemClock(), (sys.executable, str(script)),
        replace_network=lambda reason: bool(store.end_probation(reason)),
    )  # fmt: skip
    thread = threading.Thread(target=supervisor.run, args=(Deaths(),))
    thread.start()
    try:
        until(lambda: second in store.in_force().quarantined, 60.0)
        slot = store.in_force().everywhere
        assert slot is not None
        assert (slot.bundle, slot.state) == (first, "proven")
        until(lambda: supervisor.status.starts == 3 and supervisor.status.pid != 0, 60.0)
    finally:
        supervisor.stop()
        thread.join(60)
    assert store.end_probation("of no reason") == ()


def test_a_network_on_probation_with_which_ingest_dies_again_and_again_leaves_although_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that leaks: each life is long, frames are examined, and then the kernel kills it."""
    monkeypatch.setattr(ingest_supervisor, "HEALTHY_AFTER_S", 0.05)
    store = BundleStore(tmp_path / "bundles")
    first, second = installed(store, "101"), installed(store, "102")
    store.put_in_force(first)
    store.put_in_force(second, state="probation")
    script = tmp_path / "child.py"
    looked = encode_ingest(FrameBoxes(camera="gate", seq=1, frame=1, t=1.0, looked=True))
    script.write_text(
        "import os, pathlib, sys, time\nsys.stdin.readline()\n"
        f"if '{second}' in pathlib.Path(r'{store.root}/in_force.json').read_text().split('quarantined')[0]:\n"
        f"    os.write(int(sys.argv[2]), {looked!r})\n    time.sleep(0.1)\n    os.abort()\nsys.stdin.read()\n"
    )
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    supervisor = IngestSupervisor(
        config, SystemClock(), (sys.executable, str(script)),
        replace_network=lambda reason: bool(store.end_probation(reason)),
    )  # fmt: skip
    thread = threading.Thread(target=supervisor.run, args=(Deaths(),))
    thread.start()
    try:
        until(lambda: second in store.in_force().quarantined, 30.0)
        until(lambda: supervisor.status.starts == DEATHS_MAX + 1 and supervisor.status.pid != 0, 30.0)
    finally:
        supervisor.stop()
        thread.join(60)


class Deaths:
    """A listener that takes nothing."""

    def take(self, message: Any) -> None: ...

    def lost(self, reason: str, *, intended: bool = False) -> None: ...


def test_with_nothing_recorded_there_is_nothing_to_try_a_network_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Site(tmp_path, ManualClock(1_700_000_000.0)).close()
    file = tmp_path / "site.yaml"
    file.write_text(f"storage: {{dir: {tmp_path}}}\ncameras: {{gate: {{url: 'rtsp://192.168.1.20/main'}}}}\n")
    for words in (["advise", "--network", "vedette-nano"], ["models", "prove", "vedette-nano"]):
        assert main([*words, "--config", str(file)]) == 2, "1 is for a network that is not better"
        assert "nothing is recorded" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_site_tries_a_network_on_its_recording_and_shows_what_differs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path / "site", ManualClock(1_700_000_000.0))
    site.record_clip("gate", CLIPS[0], 1_700_000_000.0, 8.0)
    file = tmp_path / "site.yaml"
    file.write_text(
        f"site: {{name: yard}}\nstorage: {{dir: {tmp_path / 'site'}}}\n"
        "cameras: {gate: {url: 'rtsp://192.168.1.20/main'}}\n"
    )
    code = prove_command("vedette-nano-int8", file, hours=3.0, cameras=[], decide=False, as_json=False)
    said = capfd.readouterr().out
    assert code == 1
    assert said.startswith("vedette-nano-int8: not enough")
    report = ProofStore(tmp_path / "site").of("vedette-nano-int8")
    assert report is not None
    assert report.frames > 2
    with site.client() as client:
        (item,) = client.get("/api/v1/proofs").json()
        page = client.get("/proofs").text
    assert (item["outcome"], item["frames"]) == ("not enough", report.frames)
    assert "vedette-nano-int8" in page
    assert advise_command(file, hours=3.0, cameras=["gate"], models=["vedette-nano-int8"], as_json=True) == 0
    (advice,) = json.loads(capfd.readouterr().out)
    assert (advice["network"], advice["cameras"]["gate"]["outcome"]) == ("vedette-nano-int8", "not enough")
    assert advice["cameras"]["gate"]["objects"] >= advice["cameras"]["gate"]["lost"]
    assert advice["cameras"]["gate"]["cpu_ms"] > 0
    with pytest.raises(UsageError, match="attic"):
        advise_command(file, hours=3.0, cameras=["attic"], models=["vedette-nano-int8"], as_json=True)
    site.close()
