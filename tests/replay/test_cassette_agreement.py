"""Which order of the answer judges better, on cassettes of the same escalations and by what is true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from appliance.__main__ import main
from appliance.base.clock import ManualClock, SystemClock
from appliance.lab.cassette_command import ORDERS, cassette_from_store
from appliance.lab.replay_verdicts import CassetteRecorder
from appliance.store.reviews import ReviewStore
from appliance.wire import Verdict
from cloud_worker.prompt import ANSWER_SCHEMAS
from tests.replay.test_scenario_verdicts import TWO_VISITS
from tests.servers.site import Site
from tests.support.scripted_verdicts import ScriptedCloud, asking, play, visits
from tests.support.yard_scenarios import write


def record(folder: Path, name: str, *decisions: str) -> Path:
    """Two visits: the first is the postman, the second a fox."""
    cassette = folder / f"{name}.cassette.jsonl"
    cloud = ScriptedCloud(*decisions, answer_schema=ANSWER_SCHEMAS[name])  # type: ignore[index]
    recorder = CassetteRecorder(cassette, cloud, ManualClock())
    config = asking(rules=TWO_VISITS["cameras"]["gate"]["rules"])
    play(folder / "visits.mp4", config, recorder)
    recorder.close()
    return cassette


def test_the_orders_are_those_of_the_worker() -> None:
    assert {schema: order for order, schema in ANSWER_SCHEMAS.items()} == ORDERS


def test_orders_are_compared_on_the_same_escalations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visits(tmp_path / "visits.mp4")
    reason = record(tmp_path, "reason_first", "confirmed", "rejected")
    decision = record(tmp_path, "decision_first", "confirmed", "unsure")
    truth = write(tmp_path, {each: value for each, value in TWO_VISITS.items() if "verdicts" not in each}, "truth")
    command = ["cassette", "agree", str(reason), str(decision), "--truth", str(truth)]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = {(each["rule"], each["order"]): each for each in printed["agreement"]}
    assert {rule for rule, _ in rows} == {"all rules", "intruder"}
    first, second = rows["all rules", "reason_first"], rows["all rules", "decision_first"]
    assert (first["escalations"], first["unsure"], first["agrees"]["value"]) == (2, 0, 1.0)
    assert first["agrees"]["low"] < 0.5, "two of two prove little"
    assert (second["escalations"], second["unsure"], second["agrees"]["value"]) == (2, 1, 0.5)
    assert printed["lacking"] == ["one_token"]
    assert printed["second"]["outcome"] == "not enough", "two verdicts say nothing about a prompt"
    assert main(command) == 0
    assert "no cassette of one_token: record one" in capsys.readouterr().out
    assert main([*command[:-2]]) == 2
    assert "what is true?" in capsys.readouterr().err


def test_an_answer_that_only_asks_for_more_is_unsure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visits(tmp_path / "visits.mp4")
    reason = record(tmp_path, "reason_first", "confirmed", "rejected")
    decision = record(tmp_path, "decision_first", "confirmed", "need:clip")
    truth = write(tmp_path, {each: value for each, value in TWO_VISITS.items() if "verdicts" not in each}, "truth")
    assert main(["cassette", "agree", str(reason), str(decision), "--truth", str(truth), "--json"]) == 0
    rows = {each["order"]: each for each in json.loads(capsys.readouterr().out)["agreement"]}
    found = {order: (each["escalations"], each["unsure"], each["agrees"]["value"]) for order, each in rows.items()}
    assert found == {"reason_first": (2, 0, 1.0), "decision_first": (2, 1, 0.5)}


def test_people_say_what_is_true_of_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Site(tmp_path / "site", "nats://127.0.0.1:1")
    for n, decision in enumerate(("confirmed", "confirmed", "unsure", "confirmed")):
        escalation = here.ask(n)
        here.alerts.apply_verdict(
            Verdict(
                escalation=escalation, site=here.name, alert=f"alert-{n}", decision=decision, reason="It is.",  # type: ignore[arg-type]
                kind="vlm", engine="openai", model="m", answer_schema="1", seconds=1.0, judged_t=here.clock.now(),
            ),
            here.clock.now(),
        )  # fmt: skip
    ReviewStore(here.db).review(["alert-0"], "reviewed", here.clock.now())
    ReviewStore(here.db).review(["alert-1", "alert-3"], "false_alarm", here.clock.now())
    ReviewStore(here.db).delete(["alert-3"], "", here.clock.now())
    cassette = tmp_path / "week.cassette.jsonl"
    cassette_from_store(here.root, cassette, 0.0, 4e9, SystemClock())
    here.close()
    file = tmp_path / "site.yaml"
    file.write_text(yaml.safe_dump({"storage": {"dir": str(here.root)}, "cameras": {"gate": {"url": "rtsp://h/1"}}}))
    assert main(["cassette", "agree", str(cassette), "--config", str(file), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["agreement"][0]
    assert (row["order"], row["escalations"], row["agrees"]["value"]) == ("reason_first", 2, 0.5)
