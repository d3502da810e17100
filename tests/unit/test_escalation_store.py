"""A question that takes several messages: asked for more, once a step, and ended once, on a real SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import wire_v1
from sample_rows import T0, opened, sample_escalation, sample_verdict

from appliance import wire
from appliance.clock import ManualClock
from appliance.store import migrations
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore, as_unsure
from appliance.store.evidence import EvidenceStore
from appliance.store.rows import EscalationRow, MediaRow
from appliance.uplink.outbox import Outbox
from tests.servers.site import ref_of

HOUR_S = 3600.0


class Desk:
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
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.db.close()


def need(kind: wire.Need = "frame", step: int = 0) -> wire.Verdict:
    return sample_verdict(decision="unsure").model_copy(update={"need": kind, "step": step})


def test_the_story_of_a_question_that_took_three_messages(desk: Desk) -> None:
    desk.make(b"one", b"two")
    desk.send(300)
    before = desk.db.rev()
    assert desk.alerts.take_verdict(need("frame"), T0 + 1) == "more"
    row = desk.row()
    assert (row.state, row.step, row.need, row.attempts) == ("waiting", 1, "frame", 0)
    assert [each.id for each in EscalationStore(desk.db).waiting_for_evidence(9)] == [row.id], "its evidence is made"
    assert desk.db.rev() > before, "a dashboard that asks for changes sees it"
    desk.make(b"whole", kind="frame")
    assert [ref.kind for ref in desk.row().body.media] == ["crop", "crop", "frame"], "each message holds all of it"
    desk.send(5000)
    assert desk.alerts.take_verdict(need("clip", step=1), T0 + 2) == "more"
    desk.make(b"moving", kind="clip")
    desk.send(9000)
    assert desk.alerts.take_verdict(sample_verdict().model_copy(update={"step": 2}), T0 + 3) == "settled"
    assert desk.steps() == [("crop", 700, "frame"), ("frame", 5100, "clip"), ("clip", 9100, None)]
    assert desk.row().bytes_sent == sum(size for _, size, _ in desk.steps())
    assert desk.last_word() == ("confirmed", 2, "A person stands there.")


def test_a_request_that_comes_twice_changes_nothing_the_second_time(desk: Desk) -> None:
    desk.make(b"one")
    desk.send()
    assert desk.alerts.take_verdict(need(), T0) == "more"
    assert desk.alerts.take_verdict(need(), T0) == "known", "while the evidence is made"
    desk.make(b"whole", kind="frame")
    assert desk.alerts.take_verdict(need(), T0) == "known", "while it waits for the link"
    desk.send()
    assert desk.alerts.take_verdict(need(), T0) == "known", "and once it was sent"
    assert (desk.row().state, desk.row().step) == ("sent", 1)


def test_a_kill_between_any_two_steps_loses_nothing(desk: Desk) -> None:
    for act in (
        lambda: desk.make(b"one"),
        desk.send,
        lambda: desk.alerts.take_verdict(need(), T0),
        lambda: desk.make(b"whole", kind="frame"),
        desk.send,
        lambda: desk.alerts.take_verdict(sample_verdict(), T0 + 9),
    ):
        act()
        desk.kill_and_start()
        assert act == desk.send or desk.alerts.take_verdict(need(), T0) == "known" or desk.row().step == 1
    assert desk.last_word()[:2] == ("confirmed", 1), "an older worker does not say which step: the one that was sent"


def test_a_last_word_about_an_earlier_step_counts_and_ends_it(desk: Desk) -> None:
    """Two workers judged the same step: one wants to see more, the other is sure."""
    desk.make(b"one")
    desk.send()
    desk.alerts.take_verdict(need(), T0)
    assert desk.alerts.take_verdict(sample_verdict().model_copy(update={"step": 0}), T0 + 1) == "settled"
    assert desk.last_word()[:2] == ("confirmed", 0)
    assert EscalationStore(desk.db).waiting_for_evidence(9) == []
    assert desk.alerts.take_verdict(need(), T0 + 2) == "known"
    assert desk.alerts.take_verdict(sample_verdict(decision="rejected"), T0 + 2) == "known"


def test_who_never_stops_asking_is_stopped(desk: Desk) -> None:
    for step, kind in enumerate(("crop", "frame", "clip")):
        desk.make(kind.encode(), kind=kind)
        desk.send()
        outcome = desk.alerts.take_verdict(need("clip", step=step), T0)
        assert outcome == ("more" if step + 1 < wire.STEPS_MAX else "settled")
    assert desk.last_word() == (
        "unsure",
        2,
        "A person stands there. It asked for the clip, but it has been asked 3 times.",
    )


def test_a_request_that_comes_too_late_ends_the_question_with_the_reason(desk: Desk) -> None:
    desk.make(b"one")
    desk.send()
    desk.clock.advance(73 * HOUR_S)
    assert desk.outbox.expire(desk.clock.now()) == 1
    assert desk.alerts.take_verdict(need(), desk.clock.now()) == "settled"
    assert desk.last_word()[0] == "unsure"
    assert desk.last_word()[2].endswith("It asked for the whole picture, but it asked too late.")


def test_what_was_asked_for_and_could_not_be_sent_in_time_leaves_what_was_said(desk: Desk) -> None:
    desk.make(b"one")
    desk.send()
    desk.alerts.take_verdict(need(), T0)
    desk.make(b"whole", kind="frame")
    desk.outbox.failed(desk.row(), "it does not answer", 70)
    desk.clock.advance(73 * HOUR_S)
    assert desk.outbox.expire(desk.clock.now()) == 1
    assert (desk.row().state, desk.last_word()[:2]) == ("settled", ("unsure", 0))
    assert desk.last_word()[2].endswith(
        "It asked for the whole picture, but that could not be sent within 72 h (it does not answer)."
    )
    assert desk.alerts.take_verdict(sample_verdict(), desk.clock.now()) == "known"


def test_evidence_that_cannot_be_had_ends_the_question_once(desk: Desk) -> None:
    desk.make(b"one")
    desk.send()
    assert not EscalationStore(desk.db).close_unsure(desk.row(), "for nobody asked"), "nothing was asked for yet"
    desk.alerts.take_verdict(need(), T0)
    asked = desk.row()
    assert EscalationStore(desk.db).close_unsure(asked, "the recording does not hold this moment")
    assert not EscalationStore(desk.db).close_unsure(asked, "again")
    assert desk.row().state == "settled"
    assert desk.last_word()[2].endswith("but the recording does not hold this moment.")
    detail = desk.alerts.get("a1")
    assert detail is not None
    assert detail.alert.verdict == "unsure"


def test_an_acknowledgement_of_the_step_before_does_not_pass_for_this_one(desk: Desk) -> None:
    desk.make(b"one")
    earlier = desk.row()
    assert desk.alerts.take_verdict(need(), T0) == "more", "the request overtook the news that the question was sent"
    desk.make(b"whole", kind="frame")
    desk.outbox.sent(earlier, T0, 400)
    desk.outbox.reopen(earlier, ())
    assert (desk.row().state, desk.row().attempts) == ("ready", 0)
    assert desk.steps()[0] == ("crop", 400, "frame"), "its bytes are still those of the step that sent them"


def test_pictures_are_withheld_from_a_question_that_was_made_before_they_had_to_be(desk: Desk) -> None:
    desk.make(b"one", b"two")
    desk.outbox.withhold(desk.row())
    assert desk.outbox.media_of("q1") == []
    assert (desk.row().body.media, desk.row().body.can, desk.row().body.image_free) == ((), (), True)


def test_a_question_that_was_under_way_when_the_box_was_updated_goes_on(tmp_path: Path) -> None:
    """A database of schema 1, with a question that was sent and has no answer."""
    old = sqlite3.connect(tmp_path / "vedette.db", isolation_level=None)
    migrations.migrate(old, migrations.STEPS[:1])
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
    desk = Desk(tmp_path)
    try:
        assert (desk.row().step, desk.row().need) == (0, "")
        assert desk.alerts.take_verdict(need(), T0) == "more", "an older question offers nothing, but it may be asked"
        desk.make(b"whole", kind="frame")
        desk.send()
        assert desk.alerts.take_verdict(sample_verdict(), T0) == "settled"
        assert desk.last_word()[:2] == ("confirmed", 1)
    finally:
        desk.db.close()


def test_a_long_reason_leaves_room_for_why_it_stands() -> None:
    verdict = need("clip").model_copy(update={"reason": "x" * 400})
    said = as_unsure(verdict, "the clip of 9000000 bytes is over the limit of 2097152")
    assert len(said.reason) <= 400
    assert said.reason.endswith("It asked for the clip, but the clip of 9000000 bytes is over the limit of 2097152.")
    assert wire.Verdict.from_json(said.to_json()) == said
