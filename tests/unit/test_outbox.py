"""The outbox: what goes next, how far it got, what left, and what is given up, on a real SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import config, wire
from appliance.clock import ManualClock
from appliance.errors import EvidenceError
from appliance.router.escalation_planner import build_escalation
from appliance.store.alerts import AlertStore
from appliance.store.clock_offset import ClockOffset
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore, OutboxStore
from appliance.store.evidence import EvidenceStore
from appliance.store.meter import Meter
from appliance.store.rows import EscalationRow, EvidenceRow, MediaRow
from appliance.types import Alert, AlertChange, Event, Severity
from appliance.uplink.nats_messages import chunk_message, read_chunk
from appliance.uplink.outbox import RESEND_FIRST_S, Outbox, OutboxQuota
from appliance.uplink.rate_limiter import ttl_s
from appliance.uplink.send_queue import TUNING, SendQueue
from tests.servers.site import ref_of

HOUR_S = 3600.0
RULE = config.EnterRule(name="intruder", kind="enter", zone="yard")


class Desk:
    """A database, its outbox and a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.open()

    def open(self) -> None:
        self.db = Database(self.folder / "vedette.db", self.clock)
        self.alerts = AlertStore(self.db)
        self.outbox = Outbox(self.db, 72 * HOUR_S)
        self.store = OutboxStore(self.db)

    def ask(self, name: str, severity: Severity = "alert", *pictures: bytes, ready: bool = True) -> str:
        now = self.clock.now()
        alert = Alert(
            camera="gate", id=name, rules=("intruder",), severity=severity, t_start=now, t_end=None, tracks=(1,)
        )
        event = Event(camera="gate", rule="intruder", kind="enter", track=1, label="person", t=now, zone="yard")
        question = build_escalation(alert, event, RULE, site="s", now=now)
        self.alerts.apply(AlertChange("opened", alert, event), escalation=question, priority=wire.PRIORITY_OF[severity])
        if ready:
            media = [
                MediaRow(escalation=question.id, n=n, path=f"{name}-{n}.jpg", ref=ref_of(data))
                for n, data in enumerate(pictures)
            ]
            EvidenceStore(self.db).make_ready(question, media)
        return question.id

    def order(self) -> list[str]:
        return [row.alert for row in self.next_ready(100)]

    def next_ready(self, limit: int) -> list[EscalationRow]:
        """What is to be sent, in the order of its going."""
        queue, found = SendQueue(self.store), dict[str, EscalationRow]()
        while len(found) < limit and (queued := queue.pick(self.clock.now(), busy=found)):
            found[queued.row.id] = queued.row
        return list(found.values())

    def row(self, name: str) -> EscalationRow:
        detail = self.alerts.get(name)
        assert detail is not None
        assert detail.escalation is not None
        return detail.escalation

    def audit(self) -> list[tuple[str, int, str]]:
        with self.db.read() as connection:
            return [tuple(row) for row in connection.execute("SELECT kind, bytes, why FROM audit ORDER BY id")]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.db.close()


def test_the_urgent_goes_first_and_among_equals_the_oldest(desk: Desk) -> None:
    for name, severity in [("a", "info"), ("b", "warning"), ("c", "alert"), ("d", "warning")]:
        desk.ask(name, severity)  # type: ignore[arg-type]
        desk.clock.advance(1)
    assert desk.order() == ["c", "b", "d", "a"]


def test_waiting_makes_up_for_priority_in_the_backlog(desk: Desk) -> None:
    desk.ask("old and low", "info")
    desk.clock.advance(2 * TUNING.ageing_s - 10)
    desk.ask("younger and high", "alert")
    desk.clock.advance(20)
    desk.ask("youngest and high", "alert")
    desk.clock.advance(TUNING.live_s)
    assert desk.order() == ["younger and high", "old and low", "youngest and high"]


def test_what_just_happened_overtakes_everything_that_waited(desk: Desk) -> None:
    for name in ("first of the night", "second of the night"):
        desk.ask(name, "alert")
        desk.clock.advance(6 * HOUR_S)
    desk.ask("now", "warning")
    desk.ask("now, and nothing much", "info")
    assert desk.order() == ["now", "first of the night", "second of the night", "now, and nothing much"]


def test_however_much_is_live_the_backlog_gets_its_share(desk: Desk) -> None:
    for n in range(20):
        desk.ask(f"old {n}")
    desk.clock.advance(HOUR_S)
    queue, sent = SendQueue(desk.store), {True: 0, False: 0}
    for n in range(150):
        desk.ask(f"live {n}")
        queued = queue.pick(desk.clock.now())
        assert queued is not None
        queue.record_sent(queued, 4096)
        sent[queued.live] += 1
        desk.outbox.sent(queued.row, desk.clock.now(), 4096)
    assert 8 <= sent[False] <= 18, "a tenth of the bytes"


def test_what_still_waits_for_evidence_is_not_sent(desk: Desk) -> None:
    desk.ask("early", ready=False)
    assert desk.order() == []
    assert EscalationStore(desk.db).count_by_state() == {"waiting": 1}


def test_a_question_that_fails_again_and_again_lets_the_others_go_first(desk: Desk) -> None:
    desk.ask("bad")
    desk.clock.advance(30)
    desk.ask("good")
    desk.outbox.failed(desk.row("bad"), "too large", 700)
    assert desk.order() == ["good", "bad"]
    for _ in range(1000):
        desk.outbox.failed(desk.row("bad"), "too large", 700)
    desk.clock.advance(3 * TUNING.ageing_s)
    desk.ask("much later")
    desk.clock.advance(TUNING.live_s)
    assert desk.order() == ["good", "bad", "much later"], "the penalty is bounded"
    assert (desk.row("bad").error, desk.row("bad").bytes_sent) == ("too large", 1001 * 700)


def test_after_a_restart_the_first_chunk_that_was_not_acknowledged_is_next(desk: Desk) -> None:
    large = bytes(3 * wire.CHUNK_BYTES)
    asked = desk.ask("a", "alert", large)
    media = desk.outbox.media_of(asked)[0]
    desk.outbox.chunk_acked(desk.row("a"), media, 1, 131_500)
    desk.outbox.chunk_acked(desk.row("a"), media, 2, 131_500)
    desk.db.close()
    desk.open()
    assert desk.outbox.media_of(asked)[0].chunks_acked == 2
    assert desk.row("a").bytes_sent == 263_000
    assert desk.audit() == [], "the picture has not left yet, as a whole"
    desk.outbox.chunk_acked(desk.row("a"), media, 3, 131_500)
    assert desk.audit()[0][:2] == ("frame", len(large))


def test_sent_is_sent_once_and_shown(desk: Desk) -> None:
    desk.ask("a")
    before = desk.db.rev()
    desk.outbox.sent(desk.row("a"), desk.clock.now(), 900)
    row = desk.row("a")
    assert (row.state, row.sent_t, row.attempts, row.bytes_sent) == ("sent", desk.clock.now(), 1, 900)
    assert desk.db.rev() > before, "a dashboard that asks for changes sees it"
    assert desk.order() == []
    assert desk.audit() == [("facts", len(row.body.to_json()), f"rule intruder: {row.body.question}")]


def test_an_answer_that_does_not_come_is_asked_for_again_more_and_more_rarely(desk: Desk) -> None:
    desk.ask("a")
    desk.outbox.sent(desk.row("a"), desk.clock.now(), 0)
    waits = []
    for _ in range(8):
        waited = 0.0
        while not desk.outbox.next_resend(desk.clock.now(), 10):
            desk.clock.advance(60)
            waited += 60
        waits.append(waited)
        desk.outbox.sent(desk.outbox.next_resend(desk.clock.now(), 10)[0], desk.clock.now(), 0)
    assert waits == [RESEND_FIRST_S * 2**n for n in range(5)] + [6 * HOUR_S] * 3
    assert desk.audit()[1][2].startswith("sent again, as no verdict came; ")


def test_a_question_with_a_verdict_is_not_asked_again(desk: Desk) -> None:
    asked = desk.ask("a")
    desk.outbox.sent(desk.row("a"), desk.clock.now(), 0)
    verdict = wire.Verdict(
        escalation=asked, site="s", alert="a", decision="confirmed", reason="r", engine="e", model="m", seconds=1,
        judged_t=0,
    )  # fmt: skip
    assert desk.alerts.apply_verdict(verdict, desk.clock.now())
    desk.outbox.sent(desk.row("a"), desk.clock.now(), 10)  # an acknowledgement that came after the verdict
    assert desk.row("a").state == "settled"
    desk.clock.advance(HOUR_S)
    assert desk.outbox.next_resend(desk.clock.now(), 10) == []


def test_what_cannot_be_sent_for_days_is_given_up_visibly(desk: Desk) -> None:
    asked = desk.ask("a", "alert", bytes(3 * wire.CHUNK_BYTES))
    desk.outbox.chunk_acked(desk.row("a"), desk.outbox.media_of(asked)[0], 1, 131_500)
    desk.outbox.failed(desk.row("a"), "it does not answer")
    desk.ask("b")
    desk.outbox.sent(desk.row("b"), desk.clock.now(), 0)
    desk.clock.advance(72 * HOUR_S - 1)
    assert desk.outbox.expire(desk.clock.now()) == 0
    desk.clock.advance(2)
    desk.ask("young")
    before = desk.db.rev()
    assert desk.outbox.expire(desk.clock.now()) == 2
    assert desk.row("a").error == "given up after 72 h: could not be sent (it does not answer)"
    assert desk.row("b").error == "given up after 72 h: no verdict came"
    assert desk.db.rev() > before
    assert desk.order() == ["young"]
    kind, size, why = desk.audit()[-1]
    assert (kind, size) == ("frame", wire.CHUNK_BYTES), "what left in part has left"
    assert why.startswith("in part, then given up; ")
    assert EscalationStore(desk.db).count_by_state() == {"expired": 2, "ready": 1}
    assert desk.store.oldest_unsent_t() == desk.clock.now()


def test_a_late_verdict_on_what_was_given_up_still_counts(desk: Desk) -> None:
    asked = desk.ask("a")
    desk.clock.advance(100 * HOUR_S)
    desk.outbox.expire(desk.clock.now())
    verdict = wire.Verdict(
        escalation=asked, site="s", alert="a", decision="rejected", reason="r", engine="e", model="m", seconds=1,
        judged_t=0,
    )  # fmt: skip
    assert desk.alerts.apply_verdict(verdict, desk.clock.now())
    assert not desk.alerts.apply_verdict(verdict, desk.clock.now())
    assert desk.row("a").state == "settled"


def test_a_lost_picture_leaves_the_question_and_the_reason(desk: Desk) -> None:
    asked = desk.ask("a", "alert", b"one", b"two")
    first, second = desk.outbox.media_of(asked)
    desk.outbox.media_lost(desk.row("a"), first, "a-0.jpg: cannot be read (No such file or directory)")
    row = desk.row("a")
    assert [ref.id for ref in row.body.media] == [second.ref.id]
    assert desk.outbox.media_of(asked) == [second]
    assert "cannot be read" in row.error


def test_pictures_that_the_broker_lost_are_sent_again(desk: Desk) -> None:
    asked = desk.ask("a", "alert", b"one", b"two")
    for media in desk.outbox.media_of(asked):
        desk.outbox.chunk_acked(desk.row("a"), media, 1, 100)
    desk.outbox.sent(desk.row("a"), desk.clock.now(), 100)
    desk.outbox.reopen(desk.row("a"), desk.outbox.media_of(asked)[:1])
    assert desk.order() == ["a"]
    assert [media.chunks_acked for media in desk.outbox.media_of(asked)] == [0, 1]


def test_a_file_is_read_chunk_by_chunk_and_must_be_the_one_announced(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1300
    ref = ref_of(data)
    (tmp_path / "a.jpg").write_bytes(data)
    assert b"".join(read_chunk(tmp_path, "a.jpg", ref, n) for n in range(ref.chunks)) == data
    (tmp_path / "a.jpg").write_bytes(data + b"!")
    with pytest.raises(EvidenceError, match="has 332801 bytes, 332800 were announced"):
        read_chunk(tmp_path, "a.jpg", ref, 0)
    with pytest.raises(EvidenceError, match=r"b\.jpg: cannot be read"):
        read_chunk(tmp_path, "b.jpg", ref, 0)


def test_a_chunk_names_its_site_its_place_and_its_hash() -> None:
    ref = ref_of(bytes(300_000))
    message = chunk_message("depot-7", ref, 2, b"abc")
    assert message.subject == f"vedette.depot-7.media.{ref.id}.2"
    assert message.headers == {
        "Nats-Msg-Id": f"depot-7.{ref.id}.2",
        "Vedette-Sha256": ref.sha256,
        "Vedette-Chunk": "3/3",
    }
    on_the_wire = "NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in message.headers.items()) + "\r\n"
    assert message.size == len(message.subject) + len(on_the_wire) + 3


def test_a_question_is_no_older_for_a_clock_that_was_set(desk: Desk) -> None:
    desk.ask("before")
    desk.clock.advance(HOUR_S)
    desk.clock.jump(100 * HOUR_S)
    desk.ask("after")
    desk.outbox.clock_stepped(100 * HOUR_S)
    assert desk.outbox.expire(desk.clock.now()) == 0
    assert desk.row("before").created_t == desk.clock.now() - HOUR_S
    assert desk.row("after").created_t == desk.clock.now()
    desk.clock.advance(71.5 * HOUR_S)
    assert desk.outbox.expire(desk.clock.now()) == 1
    assert (desk.row("before").state, desk.row("after").state) == ("expired", "ready")


def test_a_clock_that_was_set_back_does_not_put_off_the_second_asking(desk: Desk) -> None:
    desk.ask("a")
    desk.outbox.sent(desk.row("a"), desk.clock.now(), 10)
    desk.clock.jump(-HOUR_S)
    desk.outbox.clock_stepped(-HOUR_S)
    desk.clock.advance(RESEND_FIRST_S)
    assert [row.alert for row in desk.outbox.next_resend(desk.clock.now(), 9)] == ["a"]


def test_what_was_asked_after_the_clock_was_set_back_is_not_moved_with_it(desk: Desk) -> None:
    desk.ask("before")
    desk.clock.jump(-HOUR_S)
    desk.ask("after")
    desk.clock.advance(5)
    desk.outbox.clock_stepped(-HOUR_S)
    assert desk.row("before").created_t == desk.row("after").created_t == desk.clock.now() - 5


def test_a_clock_that_is_set_while_no_core_runs_is_seen_at_the_next_start(desk: Desk) -> None:
    clock = desk.clock
    clock.boot = "0b5ee3ba-7d3f-4ee1-9c6c-1f2f0a9b7c11"  # type: ignore[attr-defined]
    mark = ClockOffset(desk.db)
    assert mark.stepped_s() == 0.0, "it was never set"
    mark.save()
    clock.advance(100 * HOUR_S)
    assert ClockOffset(desk.db).stepped_s() == 0.0
    clock.jump(2 * HOUR_S)
    assert ClockOffset(desk.db).stepped_s() == 2 * HOUR_S
    clock.boot = "1c5ee3ba-7d3f-4ee1-9c6c-1f2f0a9b7c11"  # type: ignore[attr-defined]
    assert ClockOffset(desk.db).stepped_s() == 0.0, "the machine was started anew: nobody knows"


def test_a_verdict_may_overtake_the_news_that_its_question_was_sent(desk: Desk) -> None:
    desk.ask("a")
    row = desk.row("a")
    verdict = wire.Verdict(
        escalation=row.id, site="s", alert="a", decision="rejected", reason="Nobody.", engine="e", model="m",
        seconds=0.1, judged_t=desk.clock.now(),
    )  # fmt: skip
    assert desk.alerts.apply_verdict(verdict, desk.clock.now())
    desk.outbox.failed(row, "not acknowledged: TimeoutError", 100)
    desk.outbox.sent(row, desk.clock.now(), 100)
    assert (desk.row("a").state, desk.row("a").error) == ("settled", "")
    assert [kind for kind, _, _ in desk.audit()] == ["facts"], "that it left is written down all the same"


def test_each_class_has_its_own_time_to_live(desk: Desk) -> None:
    outbox = Outbox(desk.db, 72 * HOUR_S, {"low": 24 * HOUR_S})
    for name, severity in (("grave", "alert"), ("light", "info")):
        desk.ask(name, severity)  # type: ignore[arg-type]
    desk.clock.advance(25 * HOUR_S)
    assert outbox.expire(desk.clock.now()) == 1
    assert desk.row("light").error == "given up after 24 h: could not be sent (no connection)"
    assert desk.row("grave").state == "ready"


def test_the_site_file_names_the_times_by_severity() -> None:
    site = config.SiteConfig(
        cameras={"gate": config.CameraConfig(url="file:/clip.mp4")},
        uplink=config.UplinkConfig(url="nats://hub:4222", ttl_hours=config.TtlHoursConfig(warning=1.5, info=100)),
    )
    assert ttl_s(site.escalation, site.uplink) == {"high": 72 * HOUR_S, "normal": 1.5 * HOUR_S, "low": 72 * HOUR_S}


def test_48_hours_without_a_link_fit_in_the_room_there_is(desk: Desk) -> None:
    meter = Meter(desk.db, "run")
    quota = OutboxQuota(desk.outbox, desk.folder, 0.25, meter)
    severities: tuple[Severity, ...] = ("alert", "warning", "info", "info")
    for n in range(192):  # every 15 minutes; 3 kB each would be 0.77 MB
        desk.ask(f"q{n}", severities[n % 4], b"%d" % n * 1000)
        (desk.folder / f"q{n}-0.jpg").write_bytes(b"%d" % n * 1000)
        desk.clock.advance(900)
        if n % 8 == 7:
            desk.outbox.expire(desk.clock.now())
            quota.run_once()
            assert desk.outbox.held_bytes() <= 250_000
    lost = [desk.row(f"q{n}") for n in range(192) if desk.row(f"q{n}").state == "expired"]
    totals = {(each.camera, each.kind): each.amount for each in meter.totals("all")}
    assert quota.dropped == len(lost) == totals["gate", "outbox_dropped"] > 50
    assert {row.priority for row in lost} <= {"low", "normal"}, "nothing grave while there is anything less so"
    assert lost[0].error.startswith("given up: the outbox is over 0.25 MB (uplink.outbox_mb_max)")
    assert not (desk.folder / f"{lost[0].alert}-0.jpg").exists(), "its pictures make the room"
    kept = [row.created_t for row in desk.next_ready(200) if row.priority == "normal"]
    gone = [row.created_t for row in lost if row.priority == "normal"]
    assert min(kept) > max(gone), "of these the oldest"
    desk.ask("now", "warning")
    assert desk.order()[0] == "now"
    assert desk.next_ready(3)[1].alert == "q0", "then the gravest, the oldest first"


def test_a_file_that_the_page_shows_stays_when_its_question_is_given_up(desk: Desk) -> None:
    desk.ask("a", "info", b"still")
    (desk.folder / "a-0.jpg").write_bytes(b"still")
    EvidenceStore(desk.db).put(EvidenceRow(alert="a", kind="still", state="ready", path="a-0.jpg"))
    assert OutboxQuota(desk.outbox, desk.folder, 0.0001, Meter(desk.db, "run")).run_once() == 1
    assert (desk.folder / "a-0.jpg").exists()


def test_the_next_is_found_by_an_index_however_many_wait(desk: Desk) -> None:
    said: list[str] = []
    with desk.db.read() as connection:
        connection.set_trace_callback(said.append)
    desk.ask("a")
    desk.order()
    with desk.db.read() as connection:
        connection.set_trace_callback(None)
        picks = [each for each in said if "ORDER BY created_t LIMIT" in each]
        assert picks
        for pick in picks:
            (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {pick}").fetchall()
            assert "USING INDEX escalation_open (state=? AND priority=? AND created_t" in plan["detail"]
