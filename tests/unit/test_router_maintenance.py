"""The router in the core, on a real database: what it writes, what waits and is let go, and what it learns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from appliance.__main__ import main
from appliance.base.clock import ManualClock, local_day
from appliance.base.errors import StoreUnavailable
from appliance.config import SiteConfig
from appliance.router.calibration_fit import outcomes_of
from appliance.router.router_maintenance import LEARN_EVERY_S
from appliance.store.decisions import DecisionStore, OutcomeRow, prune_decisions
from appliance.store.meter import Metric, MetricName
from appliance.store.outbox import Outbox
from appliance.store.reviews import ReviewStore
from appliance.types import Alert, AlertChange, Route, SystemLoad
from tests.support.core_harness import CoreHarness, site
from tests.support.router_inputs import route_inputs

NOON = datetime(2026, 11, 20, 12, 0).timestamp()  # noqa: DTZ001 (the box's own noon)
REAL = 40
REPEAT_S = 601.0  # by then nobody remembers where something was asked about
Made = Callable[..., CoreHarness]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    boxes: list[CoreHarness] = []

    def make(config: SiteConfig, clock: ManualClock | None = None) -> CoreHarness:
        boxes.append(CoreHarness(tmp_path, config, clock or ManualClock(NOON)))
        return boxes[-1]

    yield make
    for box in boxes:
        box.db.close()


def test_each_decision_is_a_row_with_its_inputs_reason_and_cost(made: Made) -> None:
    box = made(site())
    alert = box.walk()
    with box.db.read() as connection:
        (row,) = connection.execute("SELECT * FROM decision WHERE alert = ?", (alert,)).fetchall()
    assert (row["moment"], row["evidence"], row["priority"], row["wait"]) == ("now", "crops", "normal", "")
    assert row["reason"] == "severity warning is asked about with normal priority"
    assert row["bytes"] > 1000
    assert row["value"] > 0
    inputs = route_inputs(**json.loads(row["inputs"]))
    assert (inputs.label, inputs.severity, inputs.stability.score) == ("person", "warning", 0.85)
    assert inputs.stability.looks >= 2
    asked = box.escalated(alert)
    assert asked is not None
    assert (asked.state, asked.evidence, asked.wait) == ("waiting", "crops", "")


def test_an_alert_that_is_not_asked_about_has_its_row_too(made: Made) -> None:
    box = made(site("info"))
    alert = box.walk()
    assert box.decided(alert) == [("never", "alerts of severity info are not escalated")]
    assert box.escalated(alert) is None


def test_the_less_urgent_waits_for_off_peak_hours_with_its_evidence_at_hand(made: Made) -> None:
    box = made(site(off_peak={"hours": ["22:00-06:00"]}))
    alert = box.walk()
    asked = box.escalated(alert)
    assert asked is not None
    assert asked.wait == "off-peak"
    assert asked.until_t == pytest.approx(NOON + 10 * 3600, abs=61)
    assert box.delivery == "waiting"
    box.evidence_made(alert)
    assert box.delivery == "deferred"
    assert box.alerts.counts().undelivered == 1
    box.clock.advance(9 * 3600)
    box.second()
    assert box.delivery == "deferred"
    box.clock.advance(3600)
    box.second()
    assert box.delivery == "ready"


def test_an_escalation_let_go_before_its_evidence_is_there_goes_once_it_is(made: Made) -> None:
    box = made(site(off_peak={"hours": ["22:00-06:00"]}))
    alert = box.walk()
    box.clock.advance(11 * 3600)
    box.second()
    box.evidence_made(alert)
    assert box.delivery == "ready"


def test_alerts_of_the_gravest_severity_do_not_wait_for_off_peak_hours(made: Made) -> None:
    box = made(site("alert", off_peak={"hours": ["22:00-06:00"]}))
    assert box.decided(box.walk())[0][0] == "now"


def test_a_long_queue_holds_back_the_less_urgent_until_it_is_half_as_long(made: Made) -> None:
    box = made(site())
    box.system_load = SystemLoad(link_up=False, queue_age_s=700.0)
    box.second()
    alert = box.walk()
    asked = box.escalated(alert)
    assert asked is not None
    assert asked.wait == "queue"
    for age, wait in ((400.0, "queue"), (200.0, "")):
        box.system_load = SystemLoad(link_up=True, queue_age_s=age)
        box.second()
        asked = box.escalated(alert)
        assert asked is not None
        assert asked.wait == wait


def test_an_escalation_whose_moment_never_comes_is_given_up_visibly(made: Made) -> None:
    box = made(site(router={"load_max": 1.0}, expire_hours=2))
    box.system_load = SystemLoad(load=3.0)
    box.second()
    alert = box.walk()
    box.clock.advance(2 * 3600 + 1)
    box.second()
    asked = box.escalated(alert)
    assert asked is not None
    assert (asked.state, asked.error) == (
        "expired",
        "given up after 2 h: it waited for the appliance to be less loaded",
    )
    assert ("gate", "outbox_expired", 1) in [(each.camera, each.kind, each.amount) for each in box.meter.totals("all")]


def test_what_is_put_off_is_no_older_for_a_clock_that_was_set(made: Made) -> None:
    box = made(site(router={"load_max": 1.0}, expire_hours=2))
    box.system_load = SystemLoad(load=3.0)
    box.second()
    alert = box.walk()
    box.evidence_made(alert)
    box.clock.advance(3600)
    box.clock.jump(100 * 3600)
    box.second()
    assert box.delivery == "deferred", "the core may look before the uplink has seen the step"
    box.clock.advance(118)
    box.second()
    assert box.delivery == "deferred", "for two minutes"
    Outbox(box.db, 2 * 3600).clock_stepped(100 * 3600)
    box.clock.advance(1)
    box.second()
    assert box.delivery == "deferred"
    box.clock.advance(3600)
    box.second()
    assert box.delivery == "expired"


def test_two_minutes_after_a_step_ages_are_believed_again(made: Made) -> None:
    box = made(site(router={"load_max": 1.0}, expire_hours=2))
    box.system_load = SystemLoad(load=3.0)
    box.second()
    box.evidence_made(box.walk())
    box.clock.jump(100 * 3600)
    box.second()
    box.clock.advance(118)
    box.second()
    assert box.delivery == "deferred"
    box.second()
    assert box.delivery == "expired", "nobody has put its time right: so old it is"


def test_a_clock_that_was_set_back_stops_neither_learning_nor_counting(made: Made) -> None:
    box = made(site("alert", budget={"mb_day": 1.0}))
    box.second()
    box.clock.jump(-100 * 3600)
    box.meter.add("gate", Metric(MetricName.UPLINK_BYTES), 999_900)
    box.meter.flush(local_day(box.clock.now()))
    box.clock.advance(10)
    box.second()
    assert box.decided(box.walk())[0][0] == "later", "the megabyte is gone"


def test_what_could_not_be_read_at_the_start_is_learnt_with_the_next_try(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, tries = made(site("alert")), []
    outcomes = DecisionStore.outcomes

    def refused_once(store: DecisionStore) -> list[OutcomeRow]:
        tries.append(1)
        if len(tries) == 1:
            raise StoreUnavailable("the disk is full")
        return outcomes(store)

    box.second()
    box.clock.advance(LEARN_EVERY_S)
    monkeypatch.setattr(DecisionStore, "outcomes", refused_once)
    for _ in range(3):
        box.second()
    assert len(tries) == 2, "and then not again for an hour"


def test_a_budget_used_up_puts_off_and_a_new_day_lets_go(made: Made) -> None:
    box = made(site(first="crops", budget={"mb_day": 0.05, "alert_reserve": 0}, expire_hours=48))
    first, second, third = (box.walk() for _ in range(3))
    assert [box.decided(each)[0][0] for each in (first, second, third)] == ["now"] * 3
    rows = [box.escalated(each) for each in (first, second, third)]
    assert [row.evidence for row in rows if row] == ["crops", "crops", "facts"]
    more = [box.walk() for _ in range(8)]
    later = more[-1]
    asked = box.escalated(later)
    assert asked is not None
    assert asked.wait == "budget"
    for each in (first, second, third, *more):
        row = box.escalated(each)
        if row is not None and not row.wait:
            box.judge(each, "confirmed")
    box.clock.advance(12 * 3600)
    box.second()
    freed = [row for row in map(box.escalated, more) if row is not None and row.state == "waiting" and not row.wait]
    assert [row.evidence for row in freed] == ["crops", "crops"]  # as many as the new day pays for


def test_what_was_really_sent_counts_against_the_budget(made: Made) -> None:
    box = made(site("alert", budget={"mb_day": 1.0}))
    assert box.decided(box.walk())[0][0] == "now"
    box.meter.add("gate", Metric(MetricName.UPLINK_BYTES), 999_900)
    box.meter.flush(local_day(box.clock.now()))
    box.clock.advance(10)
    box.second()
    assert box.decided(box.walk())[0][0] == "later"


def test_gpu_seconds_of_verdicts_count_against_the_budget(made: Made) -> None:
    box = made(site("alert", budget={"gpu_s_day": 60}))
    alert = box.walk()
    box.judge(alert, "confirmed", seconds=59.5)
    box.clock.advance(10)
    box.second()
    moment, reason = box.decided(box.walk())[0]
    assert moment == "never" or reason.endswith("waits until the budget is renewed")


def test_what_people_say_changes_what_is_asked(made: Made) -> None:
    """Walks are real and flickers are not; verdicts say the opposite of the flickers, and people outrank them."""
    box = made(site(router={"recall_min": 0.9}))
    for _ in range(REAL):
        walk, flicker = box.walk(), box.flicker()
        assert box.decided(flicker)[-1][0] == "now"
        box.judge(flicker, "confirmed")
        assert ReviewStore(box.db).review([walk], "reviewed", box.clock.now())
        assert ReviewStore(box.db).review([flicker], "false_alarm", box.clock.now())
    assert box.decided(box.flicker())[-1][0] == "now"  # nothing is learnt until the hour is over
    box.clock.advance(LEARN_EVERY_S)
    box.second()
    assert box.decided(box.flicker())[-1] == ("never", "such alerts are hardly ever real")
    assert box.decided(box.walk())[-1][0] == "now"


def test_a_box_that_starts_anew_has_learnt_it_too(made: Made, tmp_path: Path) -> None:
    config = site(router={"recall_min": 0.9})
    box = made(config)
    for _ in range(REAL):
        ReviewStore(box.db).review([box.walk()], "reviewed", box.clock.now())
        ReviewStore(box.db).review([box.flicker()], "false_alarm", box.clock.now())
    box.core.close()
    box.db.close()
    box.clock.advance(REPEAT_S)
    again = made(config, box.clock)
    assert again.decided(again.flicker())[-1] == ("never", "such alerts are hardly ever real")


def test_a_few_answers_leave_nothing_out(made: Made) -> None:
    box = made(site(router={"recall_min": 0.9}))
    for _ in range(10):
        ReviewStore(box.db).review([box.walk()], "reviewed", box.clock.now())
        ReviewStore(box.db).review([box.flicker()], "false_alarm", box.clock.now())
    box.clock.advance(LEARN_EVERY_S)
    box.second()
    assert box.decided(box.flicker())[-1][0] == "now"


def test_an_unsure_verdict_teaches_nothing_and_a_review_taken_back_leaves_the_verdict(made: Made) -> None:
    box = made(site())
    unsure, judged = box.walk(), box.walk()
    box.judge(unsure, "unsure")
    box.judge(judged, "rejected")
    ReviewStore(box.db).review([judged], "reviewed", box.clock.now())
    assert [(row.alert, row.real, row.reviewed) for row in box.decisions.outcomes()] == [(judged, True, True)]
    ReviewStore(box.db).review([judged], None, box.clock.now())
    assert [(row.alert, row.real, row.reviewed) for row in box.decisions.outcomes()] == [(judged, False, False)]


def test_decisions_that_taught_nothing_are_thinned(made: Made) -> None:
    box = made(site())
    old, known = box.walk(), box.walk()
    box.judge(known, "confirmed")
    box.clock.advance(31 * 86400)
    new = box.walk()
    prune_decisions(box.db, 30 * 86400)
    assert [len(box.decided(each)) for each in (old, known, new)] == [0, 1, 1]


def test_the_command_tells_what_was_learnt_beside_a_running_box(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = made(site(router={"recall_min": 0.9}))
    for _ in range(REAL):
        ReviewStore(box.db).review([box.walk()], "reviewed", box.clock.now())
        box.judge(box.flicker(), "rejected")
    file, out = tmp_path / "site.yaml", tmp_path / "learnt.json"
    file.write_text(
        yaml.safe_dump({"storage": {"dir": str(tmp_path)}, "cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}})
    )
    command = ["calibrate", "--config", str(file), "--recall", "0.9"]
    assert main([*command, "--json", "--out", str(out)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(each["camera"], each["label"], each["n"], each["real"]) for each in told["groups"]] == [
        ("", "", 2 * REAL, REAL),
        ("gate", "person", 2 * REAL, REAL),
    ]
    assert told["groups"][0]["brier_after"]["value"] < told["groups"][0]["brier_before"]["value"]
    assert told["groups"][1]["claim"]["recall_low"] >= 0.9
    assert json.loads(out.read_bytes())["cameras"]["gate/person"]["n"] == 2 * REAL
    assert main(command) == 0
    text = capsys.readouterr().out
    assert f"{2 * REAL} alerts are known to be real or not: {REAL} by reviews" in text
    assert "keeps 100.0%, surely 92" in text


def test_the_same_decision_written_twice_is_one_row(made: Made) -> None:
    box = made(site())
    alert = box.walk()
    again = Alert(camera="gate", id=alert, rules=(), severity="warning", t_start=0, t_end=None, tracks=())
    route = Route(camera="gate", alert=alert, event="e", t=1.0, ask=False, reason="x")
    for _ in range(2):
        box.alerts.apply(AlertChange("extended", again), escalation=None, priority="", route=route)
    assert len(box.decided(alert)) == 2


def test_what_is_left_out_is_audited_and_an_audited_one_stands_for_many(made: Made) -> None:
    """With a sample of a half, some flickers are asked about still, late and as one of several."""
    box = made(site(router={"recall_min": 0.9}))
    for _ in range(REAL):
        ReviewStore(box.db).review([box.walk()], "reviewed", box.clock.now())
        ReviewStore(box.db).review([box.flicker()], "false_alarm", box.clock.now())
    box.core.close()
    box.db.close()
    again = made(site(router={"recall_min": 0.9, "audit_share": 0.5, "repeat_s": 0}), box.clock)
    flickers = [again.flicker() for _ in range(16)]
    asked = [each for each in flickers if again.escalated(each)]
    assert 2 <= len(asked) <= 14
    assert {again.decided(each)[-1][1] for each in asked} == {"audit sample: such alerts are hardly ever real"}
    row = again.escalated(asked[0])
    assert row is not None
    assert row.priority == "low"
    again.judge(asked[0], "rejected")
    weights = {each.id: each.weight for each in outcomes_of(again.decisions.outcomes())}
    assert weights[asked[0]] == 2.0
    assert set(weights.values()) == {1.0, 2.0}
