"""Alerts in the store: born with their question, settled once, read in pages, ended after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alert_search import AlertQuery
from appliance.store.alerts import AlertCursor, AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.reviews import ReviewStore
from appliance.types import AlertChange
from tests.support.sample_rows import (
    BOX,
    T0,
    alert,
    best,
    ended,
    event,
    opened,
    sample_escalation,
    sample_frame,
    sample_verdict,
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = Database(tmp_path / "vedette.db", ManualClock(T0 + 1))
    yield db
    db.close()


def test_an_alert_is_born_with_its_event_its_evidence_and_its_escalation(db: Database) -> None:
    alerts = AlertStore(db)
    row = alerts.apply(opened(), escalation=sample_escalation(), priority="normal")
    assert (row.judged.delivery, row.evidence.still, row.evidence.clip, row.alert.t_end, row.created_t) == (
        "waiting",
        "waiting",
        "waiting",
        None,
        T0 + 1,
    )
    assert row.alert.best == best()
    detail = alerts.get("a1")
    assert detail is not None
    assert [each.id for each in detail.events] == ["e-a1"]
    assert detail.events[0].box == BOX
    assert {(each.kind, each.state) for each in detail.evidence} == {
        (kind, "waiting") for kind in ("still", "clip", "boxes")
    }
    assert detail.escalation is not None
    assert (detail.escalation.body, detail.escalation.priority) == (sample_escalation(), "normal")
    assert detail.verdict is None


def test_the_same_change_twice_is_one_change(db: Database) -> None:
    alerts = AlertStore(db)
    first = alerts.apply(opened(), escalation=sample_escalation(), priority="high")
    assert alerts.apply(opened(), escalation=sample_escalation(), priority="high") == first
    over = alerts.apply(ended(), escalation=None, priority="high")
    assert over.rev > first.rev
    assert alerts.apply(ended(), escalation=None, priority="high") == over
    assert alerts.counts().total == 1


def test_a_escalation_that_cannot_be_written_takes_the_alert_with_it(db: Database) -> None:
    alerts = AlertStore(db)
    with pytest.raises(StoreError):
        alerts.apply(opened(), escalation=sample_escalation(of="another"), priority="high")
    assert alerts.get("a1") is None
    assert alerts.changed_since(0) == []


def test_an_alert_grows_and_ends_and_stays_ended(db: Database) -> None:
    alerts = AlertStore(db)
    alerts.apply(opened(), escalation=None, priority="")
    grown = AlertChange("extended", alert(view=best(T0 + 1, score=0.9)), event(T0 + 1, name="e2", rule="loiterer"))
    assert alerts.apply(grown, escalation=None, priority="").alert.best == best(T0 + 1, score=0.9)
    assert alerts.apply(ended(), escalation=None, priority="").alert.t_end == T0 + 3
    late = AlertChange("extended", alert(), event(T0 + 9, name="e3"))
    after = alerts.apply(late, escalation=None, priority="").alert
    assert (after.t_end, after.end_reason) == (T0 + 3, "quiet")
    detail = alerts.get("a1")
    assert detail is not None
    assert [each.id for each in detail.events] == ["e-a1", "e2", "e3"]


def test_events_without_an_id_are_told_apart_by_what_they_say(db: Database) -> None:
    alerts = AlertStore(db)
    alerts.apply(AlertChange("opened", alert(), event(T0)), escalation=None, priority="")
    for t in (T0, T0 + 1, T0 + 1):
        alerts.apply(AlertChange("extended", alert(), event(t)), escalation=None, priority="")
    detail = alerts.get("a1")
    assert detail is not None
    assert [each.t for each in detail.events] == [T0, T0 + 1]


def test_held_back_events_belong_to_no_alert(db: Database) -> None:
    alerts = AlertStore(db)
    alerts.add_suppressed([event(T0), event(T0 + 1)], run="r1")
    alerts.apply(opened(), escalation=None, priority="", suppressed=[event(T0 + 2)])
    with db.read() as connection:
        assert connection.execute("SELECT count(*) FROM event WHERE alert IS NULL").fetchone()[0] == 3


def test_a_verdict_settles_its_alert_once(db: Database) -> None:
    alerts = AlertStore(db)
    before = alerts.apply(opened(), escalation=sample_escalation(), priority="high").rev
    assert alerts.apply_verdict(sample_verdict(), T0 + 5)
    assert not alerts.apply_verdict(sample_verdict(decision="rejected"), T0 + 6)
    [row] = alerts.changed_since(before)
    assert (row.judged.verdict, row.judged.delivery) == ("confirmed", "settled")
    detail = alerts.get("a1")
    assert detail is not None
    assert detail.verdict is not None
    assert (detail.verdict.body, detail.verdict.applied_t) == (sample_verdict(), T0 + 5)


@pytest.mark.parametrize("verdict", [sample_verdict("q9"), sample_verdict(of="a9"), sample_verdict(site="elsewhere")])
def test_a_verdict_on_what_was_not_escalated_is_refused_and_counted(
    db: Database, verdict: object, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = AlertStore(db)
    alerts.apply(opened(), escalation=sample_escalation(), priority="high")
    assert not alerts.apply_verdict(verdict, T0 + 5)  # type: ignore[arg-type]
    assert alerts.orphans == 1
    assert "not asked here" in caplog.text
    for _ in range(999):
        assert not alerts.apply_verdict(verdict, T0 + 5)  # type: ignore[arg-type]
    assert caplog.text.count("not asked here") == 10, "a flood of them is no flood of lines"
    assert alerts.apply_verdict(sample_verdict(), T0 + 6)


def test_a_person_reviews_and_takes_it_back(db: Database) -> None:
    alerts = AlertStore(db)
    alerts.apply(opened(), escalation=None, priority="")
    assert ReviewStore(db).review(["a1"], "false_alarm", T0 + 9)
    [row] = alerts.page(wanted=AlertQuery(review="false_alarm"))
    assert row.reviewed.review_t == T0 + 9
    assert alerts.page(wanted=AlertQuery(review="open")) == []
    assert ReviewStore(db).review(["a1"], None, T0 + 10)
    assert [each.reviewed.review_t for each in alerts.page(wanted=AlertQuery(review="open"))] == [None]
    assert not ReviewStore(db).review(["nobody"], "reviewed", T0)


def test_pages_go_back_in_time_without_repeating_or_missing(db: Database) -> None:
    alerts = AlertStore(db)
    names = [f"a{n:02}" for n in range(25)]
    for n, name in enumerate(names):
        camera = "yard" if n % 2 else "gate"
        alerts.apply(opened(name, t=T0 + n // 3, camera=camera), escalation=None, priority="")  # three share a time
    seen: list[str] = []
    cursor = None
    while rows := alerts.page(cursor, 4):
        seen += [row.alert.id for row in rows]
        cursor = AlertCursor.after(rows[-1].alert)
        if len(seen) == 8:  # one that arrives meanwhile does not move the pages
            alerts.apply(opened("new", t=T0 + 99), escalation=None, priority="")
    assert seen == sorted(names, reverse=True)
    assert {row.alert.camera for row in alerts.page(wanted=AlertQuery(camera="gate"))} == {"gate"}
    assert alerts.page(wanted=AlertQuery(severity="info")) == []


def test_a_reader_who_remembers_the_last_change_misses_none(db: Database) -> None:
    alerts = AlertStore(db)
    for name in ("a1", "a2", "a3"):
        alerts.apply(opened(name), escalation=None, priority="")
    first, second = alerts.changed_since(0, 2)
    assert (first.alert.id, second.alert.id) == ("a1", "a2")
    EvidenceStore(db).put(EvidenceRow(alert="a1", kind="still", state="missing", reason="dark"))
    rest = alerts.changed_since(second.rev)
    assert [(row.alert.id, row.evidence.still) for row in rest] == [("a3", "waiting"), ("a1", "missing")]
    assert alerts.changed_since(rest[-1].rev) == []


def test_alerts_that_a_dead_core_left_open_end_where_their_boxes_end(db: Database) -> None:
    alerts, boxes = AlertStore(db), BoxStore(db)
    alerts.apply(opened("seen"), escalation=None, priority="")
    boxes.append("yard", "r1", [sample_frame(T0 + n, seq=n) for n in range(4)])
    boxes.append("yard", "r2", [sample_frame(T0 + 500, seq=0)])
    alerts.apply(opened("unseen", t=T0 + 50, camera="gate"), escalation=None, priority="")
    alerts.apply(ended("over", t_end=T0 + 1), escalation=None, priority="")
    assert {row.alert.id for row in alerts.page() if row.alert.t_end is None} == {"seen", "unseen"}
    assert alerts.end_interrupted() == 2
    found = {row.alert.id: (row.alert.t_end, row.alert.end_reason) for row in alerts.page()}
    assert found == {"seen": (T0 + 3, "restart"), "unseen": (T0 + 50, "restart"), "over": (T0 + 1, "quiet")}
    assert alerts.end_interrupted() == 0


def test_counts(db: Database) -> None:
    alerts = AlertStore(db)
    for name in ("a1", "a2", "a3"):
        alerts.apply(opened(name), escalation=sample_escalation(f"q-{name}", of=name), priority="high")
    alerts.apply_verdict(sample_verdict("q-a1", of="a1"), T0)
    alerts.apply_verdict(sample_verdict("q-a2", of="a2", decision="unsure"), T0)
    ReviewStore(db).review(["a1"], "reviewed", T0)
    alerts.apply(ended("a3"), escalation=None, priority="")
    counts = alerts.counts()
    assert (counts.total, counts.open, counts.to_review) == (3, 2, 2)
    assert (counts.confirmed, counts.rejected, counts.unsure, counts.undelivered) == (1, 0, 1, 1)
