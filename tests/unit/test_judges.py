"""Who judged decides what a verdict may do: confirm, teach, withhold, change a severity, stand above our re-check."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.config import SiteConfig
from appliance.config.verdict_severity import VerdictSeverityConfig
from appliance.notify.notice_policy import NoticeInput, decide_notice
from appliance.store.alert_rows import AlertRow, Standing
from appliance.store.alert_search import AlertQuery
from appliance.store.alerts import AlertStore
from appliance.store.database import STEPS, Database, migrate, to_json
from appliance.store.decisions import DecisionStore
from appliance.store.escalations import is_firm
from appliance.store.reviews import RecheckStore, ReviewStore
from appliance.types import AlertChange, Decision, EdgeVerdict, JudgeKind, Severity
from appliance.wire import Verdict
from tests.support.core_harness import CoreHarness, site
from tests.support.sample_rows import T0, alert, ended, opened, sample_escalation, sample_verdict

UNSURE_HERE = EdgeVerdict(
    decision="unsure", confidence=0.2, reason="A second look did not find it again.", model="m", why="late", looks=4,
    seen=0, score=0.1, ms=90.0,
)  # fmt: skip


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    db = Database(tmp_path / "vedette.db", ManualClock(T0 + 1))
    yield db
    db.close()


def said(
    decision: Decision, kind: JudgeKind = "vlm", confidence: float | None = 0.9, *, to: str = "q1", of: str = "a1"
) -> Verdict:
    verdict = sample_verdict(to, of=of)
    return Verdict.model_validate(
        {**verdict.model_dump(), "decision": decision, "kind": kind, "engine": "e", "confidence": confidence}
    )


def row(db: Database, alert_id: str = "a1") -> AlertRow:
    detail = AlertStore(db).get(alert_id)
    assert detail is not None
    return detail.row


def born(db: Database, severity_after: Callable[..., Severity] | None = None) -> AlertStore:
    alerts = AlertStore(db)
    if severity_after is not None:
        alerts.escalations.severity_after = severity_after
    alerts.apply(opened(), escalation=sample_escalation(), priority="normal")
    return alerts


class TestWhatIsLearnt:
    """Only a review, a person and a language model say whether an alert was real."""

    @pytest.mark.parametrize(
        ("kind", "decision", "real"),
        [
            ("vlm", "confirmed", [True]),
            ("vlm", "rejected", [False]),
            ("person", "confirmed", [True]),
            ("vlm", "unsure", []),
            ("detector", "rejected", []),
            ("detector", "rechecked", []),
            ("unknown", "rejected", []),
            ("simulated", "confirmed", []),
        ],
    )
    def test_a_detector_teaches_nothing(
        self, kind: JudgeKind, decision: Decision, real: list[bool], tmp_path: Path
    ) -> None:
        box = CoreHarness(tmp_path, site("alert"), ManualClock(T0))
        name = box.walk()
        asked = box.escalated(name)
        assert asked is not None
        verdict = said(decision, kind, to=asked.id, of=name)
        assert box.alerts.apply_verdict(verdict.model_copy(update={"site": asked.site}), T0 + 5)
        decisions = DecisionStore(box.db)
        assert [each.real for each in decisions.outcomes()] == real
        ReviewStore(box.db).review([name], "false_alarm", T0 + 9)
        assert [each.real for each in decisions.outcomes()] == [False], "a person's review always teaches"
        box.db.close()

    def test_hundreds_of_dogs_that_a_detector_found_again_leave_no_outcome(self, tmp_path: Path) -> None:
        """160 of them were once enough for "recall >= 0.98"."""
        box = CoreHarness(tmp_path, site("alert"), ManualClock(T0))
        for _ in range(20):
            name = box.walk()
            asked = box.escalated(name)
            assert asked is not None
            old = {
                **sample_verdict(asked.id, of=name, site=asked.site).model_dump(exclude={"kind"}),
                "engine": "redetect",
            }
            assert box.alerts.apply_verdict(Verdict.model_validate(old), T0 + 5)
            assert row(box.db, name).judged.verdict == "rechecked"
        assert DecisionStore(box.db).outcomes() == []
        box.db.close()


class TestWhoStandsAbove:
    def test_a_detector_does_not_stand_above_our_own_stricter_look(self, db: Database) -> None:
        born(db).apply_verdict(said("confirmed", "detector"), T0 + 2)
        judged = row(db).judged
        assert (judged.verdict, judged.judge, judged.standing) == ("rechecked", "detector", "rechecked")
        looks = RecheckStore(db)
        looks.begin("a1", "the cloud cannot be reached")
        assert looks.record_verdict("a1", UNSURE_HERE), "a detector's verdict does not keep ours out"
        assert row(db).judged.standing == "unsure"

    def test_a_language_model_does(self, db: Database) -> None:
        alerts = born(db)
        looks = RecheckStore(db)
        looks.begin("a1", "the cloud cannot be reached")
        assert looks.record_verdict("a1", UNSURE_HERE)
        alerts.apply_verdict(said("confirmed"), T0 + 2)
        assert row(db).judged.standing == "confirmed"
        assert not looks.record_verdict("a1", UNSURE_HERE)

    @pytest.mark.parametrize("order", [("vlm", "detector"), ("detector", "vlm")])
    def test_whichever_comes_last(self, order: tuple[JudgeKind, JudgeKind], db: Database) -> None:
        alerts = born(db)
        alerts.apply(opened(), escalation=sample_escalation("q2", t=T0 + 1), priority="normal")
        for escalation, kind in zip(("q1", "q2"), order, strict=True):
            assert alerts.apply_verdict(said("confirmed" if kind == "vlm" else "rejected", kind, to=escalation), T0 + 2)
        assert (row(db).judged.verdict, row(db).judged.judge) == ("confirmed", "vlm")
        detail = alerts.get("a1")
        assert detail is not None
        assert detail.verdict is not None
        assert detail.verdict.body.kind == "vlm"


class TestWhatIsToBeReviewed:
    def test_a_rejected_alert_leaves_the_list_and_is_found(self, db: Database) -> None:
        alerts = born(db)
        alerts.apply(opened("a2"), escalation=sample_escalation("q2", of="a2"), priority="normal")
        alerts.apply_verdict(said("rejected"), T0 + 2)

        def shown(**wanted: object) -> list[str]:
            return [each.alert.id for each in alerts.page(wanted=AlertQuery(**wanted))]  # type: ignore[arg-type]

        assert shown(review="open") == ["a2"]
        assert shown(set_aside=False) == ["a2"]
        assert shown(verdict="rejected") == shown(verdict="rejected", review="open") == ["a1"]
        assert (alerts.counts().to_review, alerts.counts().set_aside) == (1, 1)
        ReviewStore(db).review(["a1"], "reviewed", T0 + 3)
        assert shown(set_aside=False) == ["a2", "a1"], "a person's word is above it"
        assert (alerts.counts().to_review, alerts.counts().set_aside) == (1, 0)


class TestSeverity:
    POLICY = (
        SiteConfig.model_validate(
            {
                **site("alert").model_dump(),
                "escalation": {"severity_on_verdict": {"confirmed": "alert", "rechecked": "info"}},
            }
        )
        .for_decisions()
        .severity_after
    )

    @pytest.mark.parametrize(
        ("verdict", "severity", "by_rules"),
        [
            (said("confirmed"), "alert", "warning"),
            (said("rejected"), "info", "warning"),
            (said("rejected", confidence=0.5), "warning", None),
            (said("rejected", "detector"), "warning", None),
            (said("confirmed", "detector"), "info", "warning"),
            (said("unsure"), "warning", None),
        ],
        ids=["confirmed", "rejected", "not surely", "by a detector", "rechecked", "unsure"],
    )
    def test_a_verdict_changes_it(
        self, verdict: Verdict, severity: Severity, by_rules: Severity | None, db: Database
    ) -> None:
        alerts = born(db, self.POLICY)
        alerts.apply_verdict(verdict, T0 + 2)
        assert (row(db).alert.severity, row(db).judged.rules_severity) == (severity, by_rules)

    def test_it_stays_while_the_rules_say_nothing_new_and_goes_when_they_do(self, db: Database) -> None:
        alerts = born(db, self.POLICY)
        alerts.apply_verdict(said("rejected"), T0 + 2)
        alerts.apply(AlertChange("extended", replace(alert(), score=0.95)), escalation=None, priority="normal")
        assert (row(db).alert.severity, row(db).judged.rules_severity, row(db).alert.score) == ("info", "warning", 0.95)
        alerts.apply(AlertChange("extended", replace(alert(), severity="alert")), escalation=None, priority="normal")
        assert (row(db).alert.severity, row(db).judged.rules_severity) == ("alert", None), "a graver rule has fired"
        alerts.apply(ended(), escalation=None, priority="normal")

    def test_only_a_confirmation_makes_it_graver(self) -> None:
        graver = VerdictSeverityConfig(confirmed="alert", rechecked="alert", rejected="alert")
        assert [graver.after("warning", each) for each in ("confirmed", "rechecked", "rejected", "unsure")] == [
            "alert", "warning", "warning", "warning",
        ]  # fmt: skip

    def test_a_rule_has_its_own(self) -> None:
        plain = site("alert").model_dump()
        (camera,) = plain["cameras"]
        plain["cameras"][camera]["rules"][0]["severity_on_verdict"] = {"rejected": None, "confirmed": "info"}
        config = SiteConfig.model_validate(plain).for_decisions()
        rule = plain["cameras"][camera]["rules"][0]["name"]
        assert config.severity_after(camera, rule, "alert", "rejected") == "alert"
        assert config.severity_after(camera, rule, "alert", "confirmed") == "info"
        assert config.severity_after(camera, "another", "alert", "rejected") == "info", "the site's default"


class TestHeldAlerts:
    HELD = NoticeInput(
        now=T0, due_t=T0 + 10, held_s=2, hold_s=12, standing="unverified", severity="warning", delivery="sent",
        cloud_answers=True,
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("verdict", "standing", "told"),
        [
            (said("confirmed"), "confirmed", "send"),
            (said("rejected"), "withdrawn", "drop"),
            (said("rejected", "person", None), "withdrawn", "drop"),
            (said("rejected", confidence=0.69), "doubted", "send"),
            (said("rejected", confidence=None), "doubted", "send"),
            (said("rejected", "detector", 0.99), "doubted", "send"),
            (said("rejected", "unknown", 0.99), "doubted", "send"),
            (said("confirmed", "detector"), "rechecked", "send"),
        ],
    )
    def test_only_a_firm_rejection_silences_one(
        self, verdict: Verdict, standing: Standing, told: str, db: Database
    ) -> None:
        born(db).apply_verdict(verdict, T0 + 2)
        assert row(db).judged.standing == standing
        known = NoticeInput(**{**asdict(self.HELD), "standing": standing, "delivery": "settled"})
        assert decide_notice(known).kind == told

    def test_the_bound(self) -> None:
        assert [is_firm("vlm", each) for each in (None, 0.0, 0.699, 0.7, 1.0)] == [False, False, False, True, True]
        assert [is_firm(each, 1.0) for each in ("person", "detector", "unknown", None)] == [True, False, False, False]

    def test_what_was_told_is_withdrawn_by_a_firm_rejection_only(self) -> None:
        def again(standing: Standing) -> str:
            return decide_notice(
                NoticeInput(**{**asdict(self.HELD), "standing": standing, "sent_standing": "unverified"})
            ).kind

        assert [again(each) for each in ("withdrawn", "confirmed", "doubted", "rechecked")] == [
            "send", "send", "keep", "keep",
        ]  # fmt: skip


def test_a_database_of_before_says_rechecked_where_a_detector_had_confirmed(tmp_path: Path) -> None:
    path = tmp_path / "vedette.db"
    connection = sqlite3.connect(path, isolation_level=None)
    assert migrate(connection, STEPS[:8]) == 8
    for name, engine in (("a1", "redetect"), ("a2", "openai"), ("a3", "home-made")):
        connection.execute(
            """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, verdict, edge,
                   created_t, rev)
               VALUES (?, 'yard', 'r', 'warning', '[]', '[]', '[]', 0.9, ?, 'confirmed', 'confirmed', ?, 1)""",
            (name, T0, T0),
        )
        asked = sample_escalation(f"q-{name}", of=name)
        connection.execute(
            """INSERT INTO escalation (id, alert, site, camera, priority, state, body, created_t)
               VALUES (?, ?, 'depot', 'yard', 'high', 'settled', ?, ?)""",
            (asked.id, name, asked.to_json().decode(), T0),
        )
        body = {**sample_verdict(asked.id, of=name).model_dump(exclude={"kind"}), "engine": engine, "confidence": 0.8}
        connection.execute(
            "INSERT INTO verdict (escalation, alert, decision, body, applied_t) VALUES (?, ?, 'confirmed', ?, ?)",
            (asked.id, name, to_json(body), T0 + 1),
        )
    edge = {**asdict(UNSURE_HERE), "decision": "confirmed"}
    connection.execute(
        """INSERT INTO second_look (alert, state, why, asked_t, attempts, body, made_t)
           VALUES ('a1', 'judged', '', 0, 1, ?, 1)""",
        (to_json(edge),),
    )
    connection.close()
    db = Database(path, ManualClock(T0 + 9))
    found = {name: row(db, name).judged for name in ("a1", "a2", "a3")}
    assert {name: (each.verdict, each.judge) for name, each in found.items()} == {
        "a1": ("rechecked", "detector"), "a2": ("confirmed", "vlm"), "a3": ("rechecked", "unknown"),
    }  # fmt: skip
    assert {each.edge for each in found.values()} == {"rechecked"}
    assert found["a2"].verdict_confidence == 0.8
    detail = AlertStore(db).get("a1")
    assert detail is not None
    assert detail.verdict is not None
    assert detail.recheck is not None
    assert detail.verdict.decision == detail.verdict.body.decision == "rechecked"
    assert detail.recheck.verdict is not None
    assert detail.recheck.verdict.decision == "rechecked"
    db.close()


class TestTheRunningCore:
    """What of the site file reaches a verdict, at the start and when the settings change."""

    def test_the_severity_and_the_language_are_those_of_the_site_file(self, tmp_path: Path) -> None:
        plain = site("alert").model_dump()
        box = CoreHarness(tmp_path, SiteConfig.model_validate(plain | {"site": {"language": "de"}}), ManualClock(T0))
        name = box.walk()
        asked = box.escalated(name)
        assert asked is not None
        assert asked.body.language == "de"
        verdict = said("rejected", to=asked.id, of=name).model_copy(update={"site": asked.site})
        assert box.alerts.apply_verdict(verdict, T0 + 5)
        assert (row(box.db, name).alert.severity, row(box.db, name).judged.rules_severity) == ("info", "alert")
        box.db.close()

    def test_a_language_that_nobody_knows_is_refused(self) -> None:
        with pytest.raises(ValueError, match="must be one of cs, da, de, en"):
            SiteConfig.model_validate(site("alert").model_dump() | {"site": {"language": "klingon"}})
