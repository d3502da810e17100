"""Settings, thresholds, prompts and models of verdicts as candidates: kept, tried at night, and never decided alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.__main__ import main
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import UsageError
from appliance.bundle.bundle_store import BundleStore
from appliance.canary.candidate_comparison import Judgement, Outcome
from appliance.canary.candidate_trial import known_objects
from appliance.canary.candidates import BEGIN_HOUR, WAITING_MAX, CandidateStore, NightlyProof, SettingsCandidate
from appliance.canary.proof_store import ProofReport, ProofStore
from appliance.config import load
from appliance.health.load_shedding import LoadShedding
from appliance.lab import candidate_command
from appliance.lab.cassette_command import cassette_from_store
from appliance.store.reviews import ReviewStore
from appliance.store.storage_reader import StorageArchive
from appliance.wire import Verdict
from tests.servers import site as servers_site
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0
CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"
FILE = """\
site: {{name: depot-7}}
storage: {{dir: {data}}}
cameras:
  gate:
    url: rtsp://viewer:hunter2@192.168.1.20/main
    zones: {{yard: [[0, 0], [1, 0], [1, 1], [0, 1]]}}
    rules: [{{name: intruder, kind: enter, zone: yard, at_start: report}}]
"""
RULE = "cameras.gate.rules.intruder"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    (tmp_path / "site.yaml").write_text(FILE.format(data=tmp_path / "data"))
    made = Site(tmp_path / "data", ManualClock(T0 + 5000), load(tmp_path / "site.yaml"))
    yield made
    made.close()


def vedette(folder: Path, *words: str) -> int:
    return main([*words, "--config", str(folder / "site.yaml")])


def report(name: str, outcome: Outcome) -> ProofReport:
    return ProofReport(f"settings {name}", 1.0, Judgement(outcome), ("a", "b"), 9, 60.0, 6.0, ())


def test_a_change_is_checked_kept_tried_until_it_is_known_and_used_by_a_person(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vedette(tmp_path, "candidate", "strict", "--set", f"{RULE}.score_min=0.7") == 0
    assert "score_min: 0.7" in capsys.readouterr().out, "it says what is changed"
    assert vedette(tmp_path, "candidate", "wrong", "--set", "detector.score_min=7") == 2
    assert vedette(tmp_path, "candidate", "none", "--set", "site.name=depot-7") == 2
    assert vedette(tmp_path, "candidate", "Strict", "--set", "detector.score_min=0.7") == 2
    assert vedette(tmp_path, "candidate", "strict", "--now", "--off") == 2
    store, proofs = CandidateStore(site.root), ProofStore(site.root)
    assert [each.name for each in store.waiting()] == ["strict"]
    for outcome, waits in (("not enough", True), ("better", False), ("worse", False)):
        proofs.put(report("strict", outcome))  # type: ignore[arg-type]
        assert bool(store.waiting()) is waits, outcome
    capsys.readouterr()
    assert vedette(tmp_path, "candidate", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "strict", "outcome": "worse"}]
    assert vedette(tmp_path, "candidate", "strict", "--set", f"{RULE}.score_min=0.6") == 0
    assert [each.name for each in store.waiting()] == ["strict"], "another change is to be tried anew"
    assert load(tmp_path / "site.yaml").cameras["gate"].rules[0].score_min == 0.5, "nothing is in force by itself"
    assert vedette(tmp_path, "candidate", "strict", "--use") == 0
    assert load(tmp_path / "site.yaml").cameras["gate"].rules[0].score_min == 0.6
    assert store.all() == []
    assert vedette(tmp_path, "candidate", "strict", "--now") == 2, "it is none any more"


def test_what_is_asked_for_as_json_is_json(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change = f"{RULE}.score_min=0.7"
    for words, told in (
        (["--set", change], {"waits": True, "cassettes": []}),
        (["--off"], {"waits": False}),
        (["--set", change], {"waits": True}),
        (["--use"], {"waits": False, "file": str(tmp_path / "site.yaml")}),
    ):
        assert vedette(tmp_path, "candidate", "strict", *words, "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer.items() >= {"name": "strict", **told}.items()
        assert ("score_min: 0.7" in answer.get("diff", "")) is (words[0] == "--set")


@pytest.mark.parametrize("value", ["2001-02-30", "[" * 3000])
def test_a_value_that_yaml_cannot_hold_is_wrong_use(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert vedette(tmp_path, "candidate", "strict", "--set", f"{RULE}.score_min={value}") == 2
    assert "the value is not YAML" in capsys.readouterr().err


def test_so_many_wait_and_no_more(tmp_path: Path) -> None:
    store = CandidateStore(tmp_path)
    for number in range(WAITING_MAX):
        store.put(SettingsCandidate(name=f"c{number}"))
    with pytest.raises(UsageError, match="take one out"):
        store.put(SettingsCandidate(name="more"))
    with pytest.raises(UsageError, match="no name of a candidate"):
        store.get("c1\n")
    (tmp_path / "candidates" / "c0.json").write_text("{")
    assert len(store.all()) == WAITING_MAX - 1, "one that cannot be read keeps no other from it"


def test_candidates_are_tried_in_the_night(tmp_path: Path) -> None:
    CandidateStore(tmp_path).put(SettingsCandidate(name="strict"))
    said = tmp_path / "said"
    (tmp_path / "vedette").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    clock = ManualClock(datetime(2026, 3, 3, BEGIN_HOUR, 1).astimezone().timestamp())
    store = BundleStore(tmp_path / "bundles")
    night = NightlyProof(
        tmp_path, Path("site.yaml"), store, LoadShedding, clock, ("/bin/sh", str(tmp_path / "vedette"))
    )
    night.run_once()
    assert night._child is not None
    assert night._child.wait(30) == 0
    assert said.read_text() == "candidate strict --now --config site.yaml\n"


def alert(t: float) -> dict[str, Any]:
    return {"t_start": t, "t_end": t + 3, "labels": ["person"], "best_t": t + 1}


@pytest.mark.parametrize(
    ("false_kept", "right_lost", "outcome"), [(0, 0, "better"), (0, 20, "worse"), (12, 0, "not enough")]
)
def test_the_alerts_that_people_reviewed_decide(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, false_kept: int, right_lost: int, outcome: str
) -> None:
    """40 right and 12 false ones; how many of them the changed settings raise."""
    site.record("gate", T0, 8.0)
    pairs = []
    for number in range(52):
        t, is_right = T0 + 60 * number, number < 40
        site.raise_alert(f"a{number}", t, ask=False)
        ReviewStore(site.db).review([f"a{number}"], "reviewed" if is_right else "false_alarm", t + 9)
        kept = number >= right_lost if is_right else number - 40 < false_kept
        pairs.append({"before": alert(t), "after": alert(t) if kept else None})

    def call(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        assert function == "try_settings"
        assert "hunter2" not in json.dumps(values)
        assert values["every_alert"], "a share of a part of them would prove something else"
        totals = {"looks": 40}
        return {"models": ["a", "a"], "totals": [totals, totals], "unread": [], "alerts": pairs}

    monkeypatch.setattr(candidate_command, "job_call", lambda *_: call)
    vedette(tmp_path, "candidate", "strict", "--set", f"{RULE}.score_min=0.7")
    assert vedette(tmp_path, "candidate", "strict", "--now") == (0 if outcome == "better" else 1)
    found = ProofStore(site.root).of("settings strict")
    assert found is not None
    assert found.judgement.outcome == outcome
    assert (found.judgement.objects, found.judgement.lost, found.judgement.wins) == (40, right_lost, 12 - false_kept)
    with site.client() as client:
        (item,) = client.get("/api/v1/proofs").json()
        page = client.get("/proofs").text
    assert (item["candidate"], item["outcome"]) == ("settings strict", outcome)
    assert "settings strict" in page
    assert ("each night: strict" in page) is (outcome == "not enough")


def test_a_deleted_alert_says_nothing_of_a_candidate(site: Site) -> None:
    for name, t in (("kept", T0), ("gone", T0 + 60)):
        site.raise_alert(name, t, ask=False)
        ReviewStore(site.db).review([name], "reviewed", t + 9)
    ReviewStore(site.db).delete(["gone"], "", T0 + 99)
    archive = StorageArchive(site.root)
    assert [each.alert.id for each in archive.reviewed_alerts("gate")] == ["kept"]
    events = archive.events("gate", T0 - 60, T0 + 120)
    assert {each.alert for each in events} == {"kept", "gone"}
    assert len(known_objects(events)) == sum(each.alert == "kept" for each in events)


@pytest.mark.thorough
def test_a_threshold_is_tried_on_a_real_recording(site: Site, tmp_path: Path) -> None:
    site.record_clip("gate", CLIP, T0, 9)
    site.raise_alert("seen", T0 + 5.5, ask=False)
    ReviewStore(site.db).review(["seen"], "false_alarm", T0 + 60)
    vedette(tmp_path, "candidate", "strict", "--set", f"{RULE}.score_min=0.99")
    assert vedette(tmp_path, "candidate", "strict", "--now") == 1
    found = ProofStore(site.root).of("settings strict")
    assert found is not None
    assert (found.judgement.outcome, found.judgement.wins, found.judgement.losses) == ("not enough", 1, 0)
    assert [each.found for each in found.differing] == ["old"], "the page shows the alert that is left out"
    assert found.unread == ()


def judged_site(folder: Path, decision: str = "rejected") -> servers_site.Site:
    """Three alerts that are right, each with a verdict."""
    here = servers_site.Site(folder / "data", "nats://127.0.0.1:1")
    for n in range(3):
        verdict = Verdict(
            escalation=here.ask(n), site=here.name, alert=f"alert-{n}", decision=decision, reason="It is.",  # type: ignore[arg-type]
            kind="vlm", engine="openai", model="m", answer_schema="1", seconds=1.0, judged_t=here.clock.now(),
        )  # fmt: skip
        here.alerts.apply_verdict(verdict, here.clock.now())
        ReviewStore(here.db).review([f"alert-{n}"], "reviewed", here.clock.now())
    judge = {"local_judge": {"url": "http://127.0.0.1:1/v1", "api_key": KEY, "model": "other"}}
    text = {"storage": {"dir": str(here.root)}, "escalation": judge, "cameras": {"gate": {"url": "rtsp://h/1"}}}
    (folder / "site.yaml").write_text(yaml.safe_dump(text))
    return here


def test_another_model_of_verdicts_is_asked_about_reviewed_alerts(tmp_path: Path) -> None:
    here, stub = judged_site(tmp_path), OpenAiStub().start()
    try:
        judge = "escalation.local_judge"
        vedette(tmp_path, "candidate", "judge2", "--set", f"{judge}.url={stub.url}", "--set", f"{judge}.model={MODEL}")
        assert vedette(tmp_path, "candidate", "judge2", "--now") == 1
    finally:
        stub.stop()
    found = ProofStore(here.root).of("settings judge2")
    here.close()
    assert found is not None
    assert (found.judgement.outcome, found.judgement.wins, found.judgement.losses) == ("not enough", 3, 0)
    assert len(stub.requests) == 3


def test_other_words_of_a_rule_are_asked_of_the_same_model(tmp_path: Path) -> None:
    here, stub = judged_site(tmp_path), OpenAiStub().start()
    site = yaml.safe_load((tmp_path / "site.yaml").read_text())
    site["escalation"]["local_judge"] |= {"url": stub.url, "model": MODEL}
    rules = [{"name": name, "kind": "enter", "zone": "yard"} for name in ("intruder", "other")]
    site["cameras"]["gate"] |= {"rules": rules, "zones": {"yard": [[0, 0], [1, 0], [1, 1]]}}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    try:
        vedette(tmp_path, "candidate", "other", "--set", "cameras.gate.rules.other.ask=Is it a fox?")
        assert vedette(tmp_path, "candidate", "other", "--now") == 1
        assert stub.requests == [], "nothing was escalated by that rule"
        vedette(tmp_path, "candidate", "words", "--set", f"{RULE}.ask=Is it the postman?")
        assert vedette(tmp_path, "candidate", "words", "--now") == 1
    finally:
        stub.stop()
    found = ProofStore(here.root).of("settings words")
    here.close()
    assert found is not None
    assert (found.judgement.wins, found.judgement.losses, found.unread) == (3, 0, ())
    assert len(stub.requests) == 3
    assert all("Is it the postman?" in json.dumps(each) for each in stub.requests)


def test_a_model_server_that_is_away_proves_nothing(tmp_path: Path) -> None:
    here = judged_site(tmp_path)
    vedette(tmp_path, "candidate", "judge2", "--set", "escalation.local_judge.model=third")
    assert vedette(tmp_path, "candidate", "judge2", "--now") == 1
    found = ProofStore(here.root).of("settings judge2")
    here.close()
    assert found is not None
    assert (found.judgement.outcome, found.judgement.wins, found.judgement.losses) == ("not enough", 0, 0)
    assert found.unread


def test_what_privacy_rules_hold_back_is_not_shown_to_a_candidate(tmp_path: Path) -> None:
    here, stub = judged_site(tmp_path), OpenAiStub().start()
    site = yaml.safe_load((tmp_path / "site.yaml").read_text())
    site["cameras"]["gate"]["image_free"] = True
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    try:
        vedette(tmp_path, "candidate", "judge2", "--set", f"escalation.local_judge.url={stub.url}")
        vedette(tmp_path, "candidate", "judge2", "--now")
    finally:
        stub.stop()
        here.close()
    assert stub.requests == []


def test_a_prompt_is_judged_by_two_cassettes_as_reviews_come_in(tmp_path: Path) -> None:
    here = judged_site(tmp_path)
    now = tmp_path / "now.cassette.jsonl"
    cassette_from_store(here.root, now, 0.0, 4e9, SystemClock())
    new = tmp_path / "new.cassette.jsonl"
    new.write_text(now.read_text().replace('"decision":"rejected"', '"decision":"confirmed"'))
    assert vedette(tmp_path, "candidate", "words", "--cassettes", str(now), str(tmp_path / "none")) == 2
    assert vedette(tmp_path, "candidate", "words", "--cassettes", str(now), str(new)) == 0
    assert vedette(tmp_path, "candidate", "words", "--now") == 1
    found = ProofStore(here.root).of("settings words")
    here.close()
    assert found is not None
    assert (found.judgement.outcome, found.judgement.wins, found.judgement.losses) == ("not enough", 3, 0)
