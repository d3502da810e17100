"""Who is to be told is written with the alert or not at all, by the core as in an older file."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError, StoreUnavailable
from appliance.config import SiteConfig
from appliance.core.core_settings import CoreListener
from appliance.store import database
from appliance.store.alert_rows import AlertRow
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.decisions import DecisionStore
from appliance.store.notices import NewNotice, NoticeStore
from appliance.store.reviews import RecheckStore
from appliance.types import AlertChange
from tests.support.core_harness import CoreHarness, site
from tests.support.sample_rows import T0, opened, sample_escalation

PHONE = {"kind": "ntfy", "url": "http://127.0.0.1:9", "topic": "t", "hold_s": 20}


def telling(severity: str = "warning", **more: object) -> SiteConfig:
    return SiteConfig.model_validate({**site(severity).model_dump(), "notify": {"phone": PHONE | more}})


def test_the_core_writes_whom_to_notify_with_the_alert_and_its_escalation(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, telling(), ManualClock(T0))
    alert = box.walk()
    (item,) = NoticeStore(box.db).open("phone")
    assert (item.row.alert, item.row.state, item.standing, item.delivery) == (alert, "waiting", "unverified", "waiting")
    assert item.row.window.due_t - item.row.created_t == 20
    box.judge(alert, "rejected")
    assert NoticeStore(box.db).open("phone")[0].standing == "doubted", "it does not say how sure it is"
    box.db.close()


def test_an_alert_of_no_concern_leaves_no_row(tmp_path: Path) -> None:
    box = CoreHarness(tmp_path, telling(severities=["alert"]), ManualClock(T0))
    assert NoticeStore(box.db).of(box.walk()) == []
    box.db.close()


def test_an_escalation_that_cannot_be_written_takes_the_notices_with_it(tmp_path: Path) -> None:
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    new = NewNotice(id="n", alert="a1", target="phone", camera="yard", created_t=T0, due_t=T0, expire_t=T0 + 1)
    with pytest.raises(StoreError):
        AlertStore(db).apply(opened(), escalation=sample_escalation(of="another"), priority="high", notices=[new])
    assert NoticeStore(db).waiting() == {}
    AlertStore(db).apply(opened(), escalation=sample_escalation(), priority="high", notices=[new])
    AlertStore(db).apply(opened(), escalation=sample_escalation(), priority="high", notices=[new])
    assert NoticeStore(db).waiting() == {"phone": 1}
    db.close()


def test_what_is_told_of_and_looked_at_again_is_found_among_many_alerts(tmp_path: Path) -> None:
    """None of these reads every alert without a verdict, or every notice of a target."""
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    said: list[str] = []
    with db.read() as connection:
        connection.set_trace_callback(said.append)
    NoticeStore(db).delivered_of_incident("phone", "a1", "a2")
    RecheckStore(db).unverified_alerts(T0 - 600, 10)
    DecisionStore(db).rechecked(8)
    with db.read() as connection:
        connection.set_trace_callback(None)
        asked = [each for each in said if "FROM alert" in each or "FROM second_look" in each]
        assert len(asked) == 3
        for query in asked:
            plan = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert not any("INDEX alert_verdict" in step or "INDEX notice_told" in step for step in plan), plan
            assert not {"SCAN alert", "SCAN notice"} & set(plan), plan
    db.close()


def test_what_the_disk_refuses_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str, str]] = []

    class Listener(CoreListener):
        def alert_unstored(self, change: AlertChange, notices: object, reason: str) -> None:
            heard.append((change.alert.camera, type(notices).__name__, reason))

    box = CoreHarness(tmp_path, telling(), ManualClock(T0), Listener())
    write, full = box.alerts.apply, [True]

    def apply(*said: Any, **more: Any) -> AlertRow:
        if full:
            raise StoreUnavailable("the disk is full")
        return write(*said, **more)

    monkeypatch.setattr(box.alerts, "apply", apply)
    with pytest.raises(IndexError):
        box.walk()
    assert [(camera, kind) for camera, kind, _ in heard] == [("gate", "tuple")]
    assert "the disk is full" in heard[0][2]
    full.clear()
    box.second()
    box.second()
    assert NoticeStore(box.db).waiting() == {"phone": 1}
    box.db.close()


def test_a_file_of_before_gets_the_table_and_nothing_is_sent_of_old_alerts(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "vedette.db", isolation_level=None)
    database.migrate(raw, database.STEPS[:6])
    raw.execute(
        """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, created_t, rev)
           VALUES ('a', 'gate', 'r', 'alert', '[]', '[]', '[]', 0.5, 1.0, 1.0, 41)"""
    )
    raw.execute("UPDATE counter SET value = 41 WHERE name = 'rev'")
    raw.close()
    db = Database(tmp_path / "vedette.db", ManualClock(T0))
    assert NoticeStore(db).of("a") == []
    assert NoticeStore(db).changed() == ([], 41)
    db.close()
