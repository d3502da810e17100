"""A question that takes several messages: asked for more, once a step, and ended once, on a real SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import wire
from appliance.base.clock import ManualClock
from appliance.store import database
from appliance.store.alert_rows import EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationRow, EscalationStore, MediaRow, as_unsure
from appliance.store.outbox import Outbox
from appliance.types import Route
from tests.servers.site import ref_of
from tests.support import wire_v1
from tests.support.sample_rows import T0, opened, sample_escalation, sample_verdict

HOUR_S = 3600.0


class Escalated:
    """A store with one alert that was asked about, and the outbox that sends it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock(T0)
        self.open()
        self.alerts.apply(opened(), escalation=sample_escalation(), priority="normal")

    def open(self) -> None:
        self.db = Database(self.folder / "vedette.db", self.clock)
        self.alerts = AlertStore(self.db)
        self.evidence = EvidenceStore(self.db)
        self.outbox = Outbox(self.db, 72 * HOUR_S)

    def kill_and_start(self) -> None:
        self.db.close()
        self.open()

    def row(self) -> EscalationRow:
        detail = self.alerts.get("a1")
        assert detail is not None
        assert detail.escalation is not None
        return detail.escalation

    def make(self, *pictures: bytes, kind: str = "crop") -> None:
        row = self.row()
        known = len(row.body.media)
        media = [
            MediaRow(escalation=row.id, n=known + n, path=f"{n}.webp", ref=ref_of(data, kind=kind))
            for n, data in enumerate(pictures)
        ]
        assert self.evidence.make_ready(row.body.model_copy(update={"step": row.step}), media)

    def send(self, bytes_sent: int = 1000) -> None:
        row = self.row()
        for media in self.outbox.media_of(row.id):
            if media.chunks_acked < media.ref.chunks:
                self.outbox.chunk_acked(row, media, media.ref.chunks, bytes_sent)
        self.outbox.sent(row, self.clock.now(), 100)

    def steps(self) -> list[tuple[str, int, str | None]]:
        detail = self.alerts.get("a1")
        assert detail is not None
        return [(step.evidence, step.bytes_sent, step.answer and step.answer.need) for step in detail.steps]

    def last_word(self) -> tuple[str, int, str]:
        detail = self.alerts.get("a1")
        assert detail is not None
        assert detail.verdict is not None
        return detail.verdict.decision, detail.verdict.step, detail.verdict.body.reason


@pytest.fixture
def escalated(tmp_path: Path) -> Iterator[Escalated]:
    made = Escalated(tmp_path)
    yield made
    made.db.close()


def need(kind: wire.Need = "frame", step: int = 0) -> wire.Verdict:
    return sample_verdict(decision="unsure").model_copy(update={"need": kind, "step": step})


def test_the_story_of_an_escalation_that_took_three_messages(escalated: Escalated) -> None:
    escalated.make(b"one", b"two")
    escalated.send(300)
    before = escalated.db.rev()
    assert escalated.alerts.take_verdict(need("frame"), T0 + 1) == "more"
    row = escalated.row()
    assert (row.state, row.step, row.need, row.attempts) == ("waiting", 1, "frame", 0)
    assert [each.id for each in EscalationStore(escalated.db).waiting_for_evidence(9)] == [row.id], (
        "its evidence is made"
    )
    assert escalated.db.rev() > before, "a dashboard that asks for changes sees it"
    escalated.make(b"whole", kind="frame")
    assert [ref.kind for ref in escalated.row().body.media] == ["crop", "crop", "frame"], "each message holds all of it"
    escalated.send(5000)
    assert escalated.alerts.take_verdict(need("clip", step=1), T0 + 2) == "more"
    escalated.make(b"moving", kind="clip")
    escalated.send(9000)
    assert escalated.alerts.take_verdict(sample_verdict().model_copy(update={"step": 2}), T0 + 3) == "settled"
    assert escalated.steps() == [("crop", 700, "frame"), ("frame", 5100, "clip"), ("clip", 9100, None)]
    assert escalated.row().bytes_sent == sum(size for _, size, _ in escalated.steps())
    assert escalated.last_word() == ("confirmed", 2, "A person stands there.")


def test_a_request_that_comes_twice_changes_nothing_the_second_time(escalated: Escalated) -> None:
    escalated.make(b"one")
    escalated.send()
    assert escalated.alerts.take_verdict(need(), T0) == "more"
    assert escalated.alerts.take_verdict(need(), T0) == "known", "while the evidence is made"
    escalated.make(b"whole", kind="frame")
    assert escalated.alerts.take_verdict(need(), T0) == "known", "while it waits for the link"
    escalated.send()
    assert escalated.alerts.take_verdict(need(), T0) == "known", "and once it was sent"
    assert (escalated.row().state, escalated.row().step) == ("sent", 1)


def test_a_kill_between_any_two_steps_loses_nothing(escalated: Escalated) -> None:
    for act in (
        lambda: escalated.make(b"one"),
        escalated.send,
        lambda: escalated.alerts.take_verdict(need(), T0),
        lambda: escalated.make(b"whole", kind="frame"),
        escalated.send,
        lambda: escalated.alerts.take_verdict(sample_verdict(), T0 + 9),
    ):
        act()
        escalated.kill_and_start()
        assert (
            act == escalated.send or escalated.alerts.take_verdict(need(), T0) == "known" or escalated.row().step == 1
        )
    assert escalated.last_word()[:2] == ("confirmed", 1), (
        "an older worker does not say which step: the one that was sent"
    )


def test_a_last_word_about_an_earlier_step_counts_and_ends_it(escalated: Escalated) -> None:
    """Two workers judged the same step: one wants to see more, the other is sure."""
    escalated.make(b"one")
    escalated.send()
    escalated.alerts.take_verdict(need(), T0)
    assert escalated.alerts.take_verdict(sample_verdict().model_copy(update={"step": 0}), T0 + 1) == "settled"
    assert escalated.last_word()[:2] == ("confirmed", 0)
    assert EscalationStore(escalated.db).waiting_for_evidence(9) == []
    assert escalated.alerts.take_verdict(need(), T0 + 2) == "known"
    assert escalated.alerts.take_verdict(sample_verdict(decision="rejected"), T0 + 2) == "known"


def test_who_never_stops_asking_is_stopped(escalated: Escalated) -> None:
    for step, kind in enumerate(("crop", "frame", "clip")):
        escalated.make(kind.encode(), kind=kind)
        escalated.send()
        outcome = escalated.alerts.take_verdict(need("clip", step=step), T0)
        assert outcome == ("more" if step + 1 < wire.STEPS_MAX else "settled")
    assert escalated.last_word() == (
        "unsure",
        2,
        "A person stands there. It asked for the clip, but it has been asked 3 times.",
    )


def test_a_request_that_comes_too_late_ends_the_escalation_with_the_reason(escalated: Escalated) -> None:
    escalated.make(b"one")
    escalated.send()
    escalated.clock.advance(73 * HOUR_S)
    assert escalated.outbox.expire(escalated.clock.now()).total() == 1
    assert escalated.alerts.take_verdict(need(), escalated.clock.now()) == "settled"
    assert escalated.last_word()[0] == "unsure"
    assert escalated.last_word()[2].endswith("It asked for the whole picture, but it asked too late.")


def test_what_was_requested_and_could_not_be_sent_in_time_leaves_the_first_verdict(escalated: Escalated) -> None:
    escalated.make(b"one")
    escalated.send()
    escalated.alerts.take_verdict(need(), T0)
    escalated.make(b"whole", kind="frame")
    escalated.outbox.failed(escalated.row(), "it does not answer", 70)
    escalated.clock.advance(73 * HOUR_S)
    assert escalated.outbox.expire(escalated.clock.now()).total() == 1
    assert (escalated.row().state, escalated.last_word()[:2]) == ("settled", ("unsure", 0))
    assert escalated.last_word()[2].endswith(
        "It asked for the whole picture, but that could not be sent within 72 h (it does not answer)."
    )
    assert escalated.alerts.take_verdict(sample_verdict(), escalated.clock.now()) == "known"


def test_evidence_that_cannot_be_had_ends_the_escalation_once(escalated: Escalated) -> None:
    escalated.make(b"one")
    escalated.send()
    assert not EscalationStore(escalated.db).close_unsure(escalated.row(), "for nobody asked"), (
        "nothing was asked for yet"
    )
    escalated.alerts.take_verdict(need(), T0)
    asked = escalated.row()
    assert EscalationStore(escalated.db).close_unsure(asked, "the recording does not hold this moment")
    assert not EscalationStore(escalated.db).close_unsure(asked, "again")
    assert escalated.row().state == "settled"
    assert escalated.last_word()[2].endswith("but the recording does not hold this moment.")
    detail = escalated.alerts.get("a1")
    assert detail is not None
    assert detail.row.judged.verdict == "unsure"


def test_an_acknowledgement_of_the_step_before_does_not_pass_for_this_one(escalated: Escalated) -> None:
    escalated.make(b"one")
    earlier = escalated.row()
    assert escalated.alerts.take_verdict(need(), T0) == "more", (
        "the request overtook the news that the question was sent"
    )
    escalated.make(b"whole", kind="frame")
    escalated.outbox.sent(earlier, T0, 400)
    escalated.outbox.reopen(earlier, ())
    assert (escalated.row().state, escalated.row().attempts) == ("ready", 0)
    assert escalated.steps()[0] == ("crop", 400, "frame"), "its bytes are still those of the step that sent them"


def test_images_are_withheld_from_an_escalation_that_was_made_before_they_had_to_be(escalated: Escalated) -> None:
    escalated.make(b"one", b"two")
    escalated.outbox.withhold(escalated.row())
    assert escalated.outbox.media_of("q1") == []
    assert (escalated.row().body.media, escalated.row().body.can, escalated.row().body.image_free) == ((), (), True)


def test_an_escalation_that_was_under_way_when_the_appliance_was_updated_goes_on(tmp_path: Path) -> None:
    """A database of schema 1, with a question that was sent and has no answer."""
    old = sqlite3.connect(tmp_path / "vedette.db", isolation_level=None)
    database.migrate(old, database.STEPS[:1])
    old.execute(
        """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, created_t, rev)
           VALUES ('a1', 'yard', 'r1', 'warning', '[]', '[]', '[]', 0.8, 1, 1, 1)"""
    )
    body = wire_v1.Escalation.from_json(sample_escalation().to_json()).to_json().decode()
    old.execute(
        """INSERT INTO escalation
           (id, alert, site, camera, priority, state, body, created_t, sent_t, attempts, bytes_sent)
           VALUES ('q1', 'a1', 'depot', 'yard', 'normal', 'sent', ?, ?, ?, 1, 900)""",
        (body, T0, T0),
    )  # fmt: skip
    old.close()
    escalated = Escalated(tmp_path)
    try:
        assert (escalated.row().step, escalated.row().need) == (0, "")
        assert escalated.alerts.take_verdict(need(), T0) == "more", (
            "an older question offers nothing, but it may be asked"
        )
        escalated.make(b"whole", kind="frame")
        escalated.send()
        assert escalated.alerts.take_verdict(sample_verdict(), T0) == "settled"
        assert escalated.last_word()[:2] == ("confirmed", 1)
    finally:
        escalated.db.close()


def test_a_long_reason_leaves_room_for_why_it_stands() -> None:
    verdict = need("clip").model_copy(update={"reason": "x" * 400})
    said = as_unsure(verdict, "the clip of 9000000 bytes is over the limit of 2097152")
    assert len(said.reason) <= 400
    assert said.reason.endswith("It asked for the clip, but the clip of 9000000 bytes is over the limit of 2097152.")
    assert wire.Verdict.from_json(said.to_json()) == said


def whole(**changes: object) -> wire.Verdict:
    return sample_verdict().model_copy(update=changes)


def early(**changes: object) -> wire.Verdict:
    return whole(provisional=True, reason=wire.REASON_FOLLOWS, **changes)


def stored(escalated: Escalated) -> wire.Verdict:
    detail = escalated.alerts.get("a1")
    assert detail is not None
    assert detail.verdict is not None
    return detail.verdict.body


def test_a_decision_settles_and_its_reason_follows_once(escalated: Escalated) -> None:
    take = escalated.alerts.take_verdict
    assert take(early(), T0 + 1) == "settled"
    before = escalated.db.rev()
    assert (escalated.row().state, stored(escalated).reason) == ("settled", wire.REASON_FOLLOWS)
    assert take(early(), T0 + 2) == "known"
    assert take(whole(), T0 + 3) == "reason"
    assert stored(escalated) == whole()
    assert escalated.db.rev() > before, "pages show it"
    assert take(whole(reason="Another one."), T0 + 4) == "known"
    assert take(early(), T0 + 5) == "known", "one that was overtaken changes nothing"
    assert stored(escalated) == whole()


def test_what_was_decided_stays_when_a_second_worker_says_something_else(escalated: Escalated) -> None:
    take = escalated.alerts.take_verdict
    first = early(decision="rejected", confidence=0.8)
    assert take(first, T0 + 1) == "settled"
    assert take(whole(decision="confirmed", confidence=0.9), T0 + 2) == "reason"
    assert (stored(escalated).decision, stored(escalated).confidence) == ("rejected", 0.8)
    assert (stored(escalated).reason, stored(escalated).provisional) == (wire.NO_REASON, False)


def test_a_reason_for_another_alert_is_not_taken(escalated: Escalated) -> None:
    assert escalated.alerts.take_verdict(early(), T0 + 1) == "settled"
    assert escalated.alerts.take_verdict(whole(alert="a2"), T0 + 2) == "known"
    assert stored(escalated).reason == wire.REASON_FOLLOWS


@pytest.mark.parametrize("by_core", [True, False])
def test_the_wait_that_the_router_chose_is_no_time_of_the_broker(tmp_path: Path, by_core: bool) -> None:
    clock = ManualClock(T0)
    db = Database(tmp_path / "vedette.db", clock)
    escalations, asked = EscalationStore(db), sample_escalation()
    later = Route(camera="yard", alert="a1", event="e", t=T0, ask=True, when="later", wait="off_peak")
    AlertStore(db).apply(opened(), escalation=asked, priority="normal", route=later)
    assert EvidenceStore(db).make_ready(asked, [])
    (row,) = escalations.postponed(9)
    clock.advance(HOUR_S)
    if by_core:
        assert escalations.add(asked, "high")
    else:
        escalations.release(row)
    clock.advance(2)
    Outbox(db, 72 * HOUR_S).sent(row, clock.now(), 100)
    assert db.latencies.read()["broker"][1] == pytest.approx(2)
    db.close()
