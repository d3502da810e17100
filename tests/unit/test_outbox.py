"""The outbox: what goes next, how far it got, what left, and what is given up, on a real SQLite file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance import config, wire
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import EvidenceError
from appliance.router.escalation_planner import build_escalation
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationRow, MediaRow
from appliance.store.meter import Meter
from appliance.store.outbox import ClockOffset, Outbox
from appliance.store.outbox_queue import AGEING_S, LIVE_S, RESEND_FIRST_S, SendQueue
from appliance.types import Alert, AlertChange, Event, Severity
from appliance.uplink.jetstream_publisher import chunk_message, read_chunk
from appliance.uplink.outbox_limits import OutboxQuota, OutboxUpkeep, ttl_s
from tests.servers.site import ref_of

HOUR_S = 3600.0
RULE = config.EnterRule(name="intruder", kind="enter", zone="yard")


class OutboxHarness:
    """A database, its outbox and a clock that is moved by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.open()

    def open(self) -> None:
        self.db = Database(self.folder / "vedette.db", self.clock)
        self.alerts = AlertStore(self.db)
        self.outbox = Outbox(self.db, 72 * HOUR_S)

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
        queue, found = SendQueue(self.outbox.queue), dict[str, EscalationRow]()
        while len(found) < limit and (queued := queue.pick(self.clock.now(), busy=found)):
            found[queued.row.id] = queued.row
        return list(found.values())

    def states(self) -> dict[str, int]:
        return dict(map(tuple, self.db.rows("SELECT state, count(*) FROM escalation GROUP BY state")))

    def row(self, name: str) -> EscalationRow:
        detail = self.alerts.get(name)
        assert detail is not None
        assert detail.escalation is not None
        return detail.escalation

    def audit(self) -> list[tuple[str, int, str]]:
        with self.db.read() as connection:
            return [tuple(row) for row in connection.execute("SELECT kind, bytes, why FROM audit ORDER BY id")]


def rejected(row: EscalationRow, t: float) -> wire.Verdict:
    """The answer to an escalation."""
    return wire.Verdict(
        escalation=row.id, site="s", alert=row.alert, decision="rejected", reason="Nobody.", kind="vlm", engine="e",
        model="m", seconds=0.1, judged_t=t,
    )  # fmt: skip


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[OutboxHarness]:
    made = OutboxHarness(tmp_path)
    yield made
    made.db.close()


def test_the_urgent_goes_first_and_among_equals_the_oldest(harness: OutboxHarness) -> None:
    for name, severity in [("a", "info"), ("b", "warning"), ("c", "alert"), ("d", "warning")]:
        harness.ask(name, severity)  # type: ignore[arg-type]
        harness.clock.advance(1)
    assert harness.order() == ["c", "b", "d", "a"]


def test_waiting_makes_up_for_priority_in_the_backlog(harness: OutboxHarness) -> None:
    harness.ask("old and low", "info")
    harness.clock.advance(2 * AGEING_S - 10)
    harness.ask("younger and high", "alert")
    harness.clock.advance(20)
    harness.ask("youngest and high", "alert")
    harness.clock.advance(LIVE_S)
    assert harness.order() == ["younger and high", "old and low", "youngest and high"]


def test_what_just_happened_overtakes_everything_that_waited(harness: OutboxHarness) -> None:
    for name in ("first of the night", "second of the night"):
        harness.ask(name, "alert")
        harness.clock.advance(6 * HOUR_S)
    harness.ask("now", "warning")
    harness.ask("now, and nothing much", "info")
    assert harness.order() == ["now", "first of the night", "second of the night", "now, and nothing much"]


def test_however_much_is_live_the_backlog_gets_its_share(harness: OutboxHarness) -> None:
    for n in range(20):
        harness.ask(f"old {n}")
    harness.clock.advance(HOUR_S)
    queue, sent = SendQueue(harness.outbox.queue), {True: 0, False: 0}
    for n in range(150):
        harness.ask(f"live {n}")
        queued = queue.pick(harness.clock.now())
        assert queued is not None
        queue.record_sent(queued, 4096)
        sent[queued.live] += 1
        harness.outbox.sent(queued.row, harness.clock.now(), 4096)
    assert 8 <= sent[False] <= 18, "a tenth of the bytes"


def test_what_still_waits_for_evidence_is_not_sent(harness: OutboxHarness) -> None:
    harness.ask("early", ready=False)
    assert harness.order() == []
    assert harness.states() == {"waiting": 1}


def test_an_escalation_that_fails_again_and_again_lets_the_others_go_first(harness: OutboxHarness) -> None:
    harness.ask("bad")
    harness.clock.advance(30)
    harness.ask("good")
    harness.outbox.failed(harness.row("bad"), "too large", 700)
    assert harness.order() == ["good", "bad"]
    for _ in range(1000):
        harness.outbox.failed(harness.row("bad"), "too large", 700)
    harness.clock.advance(3 * AGEING_S)
    harness.ask("much later")
    harness.clock.advance(LIVE_S)
    assert harness.order() == ["good", "bad", "much later"], "the penalty is bounded"
    assert (harness.row("bad").error, harness.row("bad").bytes_sent) == ("too large", 1001 * 700)


def test_after_a_restart_the_first_chunk_that_was_not_acknowledged_is_next(harness: OutboxHarness) -> None:
    large = bytes(3 * wire.CHUNK_BYTES)
    asked = harness.ask("a", "alert", large)
    media = harness.outbox.media_of(asked)[0]
    harness.outbox.chunk_acked(harness.row("a"), media, 1, 131_500)
    harness.outbox.chunk_acked(harness.row("a"), media, 2, 131_500)
    harness.db.close()
    harness.open()
    assert harness.outbox.media_of(asked)[0].chunks_acked == 2
    assert harness.row("a").bytes_sent == 263_000
    assert harness.audit() == [], "the picture has not left yet, as a whole"
    harness.outbox.chunk_acked(harness.row("a"), media, 3, 131_500)
    assert harness.audit()[0][:2] == ("frame", len(large))


def test_sent_is_sent_once_and_shown(harness: OutboxHarness) -> None:
    harness.ask("a")
    before = harness.db.rev()
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 900)
    row = harness.row("a")
    assert (row.state, row.times.sent_t, row.attempts, row.bytes_sent) == ("sent", harness.clock.now(), 1, 900)
    assert harness.db.rev() > before, "a dashboard that asks for changes sees it"
    assert harness.order() == []
    assert harness.audit() == [("facts", len(row.body.to_json()), f"rule intruder: {row.body.question}")]


def test_an_answer_that_does_not_come_is_asked_for_again_more_and_more_rarely(harness: OutboxHarness) -> None:
    harness.ask("a")
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 0)
    waits = []
    for _ in range(8):
        waited = 0.0
        while not harness.outbox.queue.next_resend(harness.clock.now(), 10):
            harness.clock.advance(60)
            waited += 60
        waits.append(waited)
        harness.outbox.sent(harness.outbox.queue.next_resend(harness.clock.now(), 10)[0], harness.clock.now(), 0)
    assert waits == [RESEND_FIRST_S * 2**n for n in range(5)] + [6 * HOUR_S] * 3
    assert harness.audit()[1][2].startswith("sent again, as no verdict came; ")


def test_failed_sends_do_not_put_off_the_first_resend(harness: OutboxHarness) -> None:
    harness.ask("a")
    for _ in range(12):
        harness.outbox.failed(harness.row("a"), "no answer")
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 0)
    harness.clock.advance(RESEND_FIRST_S)
    (due,) = harness.outbox.queue.next_resend(harness.clock.now(), 10)
    harness.outbox.reopen(due, ())  # the broker lost its images: that is a resend, too
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 0)
    harness.clock.advance(RESEND_FIRST_S)
    assert not harness.outbox.queue.next_resend(harness.clock.now(), 10)
    harness.clock.advance(RESEND_FIRST_S)
    assert harness.outbox.queue.next_resend(harness.clock.now(), 10)


def test_an_escalation_with_a_verdict_is_not_asked_again(harness: OutboxHarness) -> None:
    asked = harness.ask("a")
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 0)
    verdict = wire.Verdict(
        escalation=asked, site="s", alert="a", decision="confirmed", reason="r", kind="vlm", engine="e", model="m",
        seconds=1, judged_t=0,
    )  # fmt: skip
    assert harness.alerts.apply_verdict(verdict, harness.clock.now())
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 10)  # an acknowledgement that came after the verdict
    assert harness.row("a").state == "settled"
    harness.clock.advance(HOUR_S)
    assert harness.outbox.queue.next_resend(harness.clock.now(), 10) == []


def test_what_cannot_be_sent_for_days_is_given_up_visibly(harness: OutboxHarness) -> None:
    asked = harness.ask("a", "alert", bytes(3 * wire.CHUNK_BYTES))
    harness.outbox.chunk_acked(harness.row("a"), harness.outbox.media_of(asked)[0], 1, 131_500)
    harness.outbox.failed(harness.row("a"), "it does not answer")
    harness.ask("b")
    harness.outbox.sent(harness.row("b"), harness.clock.now(), 0)
    harness.clock.advance(72 * HOUR_S - 1)
    assert harness.outbox.expire(harness.clock.now()).total() == 0
    harness.clock.advance(2)
    harness.ask("young")
    before = harness.db.rev()
    meter = Meter(harness.db, "run")
    quota = OutboxQuota(harness.outbox, harness.folder, 1.0, meter)
    OutboxUpkeep(harness.outbox, quota, meter, harness.clock).run_once()
    assert [(each.camera, each.kind, each.amount) for each in meter.totals("all")] == [("gate", "outbox_expired", 2)]
    assert harness.row("a").error == "given up after 72 h: could not be sent (it does not answer)"
    assert harness.row("b").error == "given up after 72 h: no verdict came"
    assert harness.db.rev() > before
    assert harness.order() == ["young"]
    kind, size, why = harness.audit()[-1]
    assert (kind, size) == ("frame", wire.CHUNK_BYTES), "what left in part has left"
    assert why.startswith("in part, then given up; ")
    assert harness.states() == {"expired": 2, "ready": 1}


def test_a_backlog_of_days_is_given_up_in_few_transactions(harness: OutboxHarness) -> None:
    """As after a weekend without power: each transaction of its own would flush the disk, and the link would wait."""
    with harness.db.transaction():
        for n in range(200):
            harness.ask(f"q{n}")
    log = harness.folder / "vedette.db-wal"
    before, page = log.stat().st_size, 4096
    harness.clock.advance(73 * HOUR_S)
    assert harness.outbox.expire(harness.clock.now()).total() == 200
    assert harness.states() == {"expired": 200}
    assert log.stat().st_size - before < 200 * page, "a transaction writes some pages"


def test_a_late_verdict_on_what_was_given_up_still_counts(harness: OutboxHarness) -> None:
    asked = harness.ask("a")
    harness.clock.advance(100 * HOUR_S)
    harness.outbox.expire(harness.clock.now())
    verdict = wire.Verdict(
        escalation=asked, site="s", alert="a", decision="rejected", reason="r", kind="vlm", engine="e", model="m",
        seconds=1, judged_t=0,
    )  # fmt: skip
    assert harness.alerts.apply_verdict(verdict, harness.clock.now())
    assert not harness.alerts.apply_verdict(verdict, harness.clock.now())
    assert harness.row("a").state == "settled"


def test_a_lost_image_leaves_the_escalation_and_the_reason(harness: OutboxHarness) -> None:
    asked = harness.ask("a", "alert", b"one", b"two")
    first, second = harness.outbox.media_of(asked)
    harness.outbox.media_lost(harness.row("a"), first, "a-0.jpg: cannot be read (No such file or directory)")
    row = harness.row("a")
    assert [ref.id for ref in row.body.media] == [second.ref.id]
    assert harness.outbox.media_of(asked) == [second]
    assert "cannot be read" in row.error


def test_images_that_the_broker_lost_are_sent_again(harness: OutboxHarness) -> None:
    asked = harness.ask("a", "alert", b"one", b"two")
    for media in harness.outbox.media_of(asked):
        harness.outbox.chunk_acked(harness.row("a"), media, 1, 100)
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 100)
    harness.outbox.reopen(harness.row("a"), harness.outbox.media_of(asked)[:1])
    assert harness.order() == ["a"]
    assert [media.chunks_acked for media in harness.outbox.media_of(asked)] == [0, 1]


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


def test_an_escalation_is_no_older_for_a_clock_that_was_set(harness: OutboxHarness) -> None:
    harness.ask("before")
    harness.clock.advance(HOUR_S)
    harness.clock.jump(100 * HOUR_S)
    harness.ask("after")
    harness.outbox.clock_stepped(100 * HOUR_S)
    assert harness.outbox.expire(harness.clock.now()).total() == 0
    assert harness.row("before").times.created_t == harness.clock.now() - HOUR_S
    assert harness.row("after").times.created_t == harness.clock.now()
    harness.clock.advance(71.5 * HOUR_S)
    assert harness.outbox.expire(harness.clock.now()).total() == 1
    assert (harness.row("before").state, harness.row("after").state) == ("expired", "ready")


def test_a_clock_that_was_set_back_does_not_put_off_the_second_asking(harness: OutboxHarness) -> None:
    harness.ask("a")
    harness.outbox.sent(harness.row("a"), harness.clock.now(), 10)
    harness.clock.jump(-HOUR_S)
    harness.outbox.clock_stepped(-HOUR_S)
    harness.clock.advance(RESEND_FIRST_S)
    assert [row.alert for row in harness.outbox.queue.next_resend(harness.clock.now(), 9)] == ["a"]


def test_what_was_asked_after_the_clock_was_set_back_is_not_moved_with_it(harness: OutboxHarness) -> None:
    harness.ask("before")
    harness.clock.jump(-HOUR_S)
    harness.ask("after")
    harness.clock.advance(5)
    harness.outbox.clock_stepped(-HOUR_S)
    assert harness.row("before").times.created_t == harness.row("after").times.created_t == harness.clock.now() - 5


def test_what_was_asked_while_the_clock_was_wrong_for_a_moment_is_not_given_up(harness: OutboxHarness) -> None:
    """Set back and forth between two looks at it, the clock shows no step, and what was written meanwhile seems old."""
    harness.ask("old")
    harness.clock.advance(71 * HOUR_S)
    harness.ask("before")
    harness.clock.jump(-100 * HOUR_S)
    harness.ask("meanwhile")
    harness.clock.jump(100 * HOUR_S)
    assert harness.outbox.expire(harness.clock.now()).total() == 0
    harness.clock.advance(2 * HOUR_S)
    assert harness.outbox.expire(harness.clock.now()).total() == 1
    assert [harness.row(each).state for each in ("old", "before", "meanwhile")] == ["expired", "ready", "ready"]
    harness.clock.advance(72 * HOUR_S)
    assert harness.outbox.expire(harness.clock.now()).total() == 2, "in the end it is given up like the one before it"


def test_a_clock_that_is_set_while_no_core_runs_is_seen_at_the_next_start(harness: OutboxHarness) -> None:
    clock = harness.clock
    clock.boot_id = "0b5ee3ba-7d3f-4ee1-9c6c-1f2f0a9b7c11"
    mark = ClockOffset(harness.db)
    assert mark.stepped_s() == 0.0, "it was never set"
    mark.save()
    clock.advance(100 * HOUR_S)
    assert ClockOffset(harness.db).stepped_s() == 0.0
    clock.jump(2 * HOUR_S)
    assert ClockOffset(harness.db).stepped_s() == 2 * HOUR_S
    clock.boot_id = "1c5ee3ba-7d3f-4ee1-9c6c-1f2f0a9b7c11"
    assert ClockOffset(harness.db).stepped_s() == 0.0, "the machine was started anew: nobody knows"


def test_a_clock_that_is_set_is_seen_by_the_machines_own_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db = Database(tmp_path / "vedette.db", SystemClock())
    ClockOffset(db).save()
    ahead = time.time() + 2 * HOUR_S
    monkeypatch.setattr(time, "time", lambda: ahead)
    assert ClockOffset(db).stepped_s() == pytest.approx(2 * HOUR_S, abs=30)
    db.close()


def test_a_verdict_may_overtake_the_news_that_its_escalation_was_sent(harness: OutboxHarness) -> None:
    harness.ask("a")
    row = harness.row("a")
    assert harness.alerts.apply_verdict(rejected(row, harness.clock.now()), harness.clock.now())
    harness.outbox.failed(row, "not acknowledged: TimeoutError", 100)
    harness.outbox.sent(row, harness.clock.now(), 100)
    assert (harness.row("a").state, harness.row("a").error) == ("settled", "")
    assert [kind for kind, _, _ in harness.audit()] == ["facts"], "that it left is written down all the same"


def test_each_class_has_its_own_time_to_live(harness: OutboxHarness) -> None:
    outbox = Outbox(harness.db, 72 * HOUR_S, {"low": 24 * HOUR_S})
    for name, severity in (("grave", "alert"), ("light", "info")):
        harness.ask(name, severity)  # type: ignore[arg-type]
    harness.clock.advance(25 * HOUR_S)
    assert outbox.expire(harness.clock.now()).total() == 1
    assert harness.row("light").error == "given up after 24 h: could not be sent (no connection)"
    assert harness.row("grave").state == "ready"


def test_the_site_file_names_the_times_by_severity() -> None:
    site = config.SiteConfig(
        cameras={"gate": config.CameraConfig(url="file:/clip.mp4")},
        uplink=config.UplinkConfig(url="nats://hub:4222", ttl_hours=config.TtlHoursConfig(warning=1.5, info=100)),
    )
    assert ttl_s(site.escalation, site.uplink) == {"high": 72 * HOUR_S, "normal": 1.5 * HOUR_S, "low": 72 * HOUR_S}


def test_48_hours_without_a_link_fit_in_the_room_there_is(harness: OutboxHarness) -> None:
    meter = Meter(harness.db, "run")
    quota = OutboxQuota(harness.outbox, harness.folder, 0.25, meter)
    severities: tuple[Severity, ...] = ("alert", "warning", "info", "info")
    for n in range(192):  # every 15 minutes; 3 kB each would be 0.77 MB
        harness.ask(f"q{n}", severities[n % 4], b"%d" % n * 1000)
        (harness.folder / f"q{n}-0.jpg").write_bytes(b"%d" % n * 1000)
        harness.clock.advance(900)
        if n % 8 == 7:
            harness.outbox.expire(harness.clock.now())
            quota.run_once()
            assert harness.outbox.queue.unsent_bytes() <= 250_000
    lost = [harness.row(f"q{n}") for n in range(192) if harness.row(f"q{n}").state == "expired"]
    totals = {(each.camera, each.kind): each.amount for each in meter.totals("all")}
    assert len(lost) == totals["gate", "outbox_dropped"] > 50
    assert {row.priority for row in lost} <= {"low", "normal"}, "nothing grave while there is anything less so"
    assert lost[0].error.startswith("given up: the outbox is over 0.25 MB (uplink.outbox_mb_max)")
    assert not (harness.folder / f"{lost[0].alert}-0.jpg").exists(), "its pictures make the room"
    kept = [row.times.created_t for row in harness.next_ready(200) if row.priority == "normal"]
    gone = [row.times.created_t for row in lost if row.priority == "normal"]
    assert min(kept) > max(gone), "of these the oldest"
    harness.ask("now", "warning")
    assert harness.order()[0] == "now"
    assert harness.next_ready(3)[1].alert == "q0", "then the gravest, the oldest first"


def test_room_is_made_in_one_transaction(harness: OutboxHarness) -> None:
    with harness.db.transaction():
        for n in range(150):
            harness.ask(f"q{n}", "info", b"%d" % n * 1000)
            (harness.folder / f"q{n}-0.jpg").write_bytes(b"x")
    log = harness.folder / "vedette.db-wal"
    before, page = log.stat().st_size, 4096
    assert OutboxQuota(harness.outbox, harness.folder, 0.001, Meter(harness.db, "run")).run_once() == 150
    assert log.stat().st_size - before < 150 * page
    assert list(harness.folder.glob("*.jpg")) == []


def test_a_file_that_cannot_be_deleted_does_not_keep_the_others(harness: OutboxHarness) -> None:
    for n in range(3):
        harness.ask(f"q{n}", "info", b"%d" % n * 1000)
    (harness.folder / "q0-0.jpg").mkdir()
    (harness.folder / "q2-0.jpg").write_bytes(b"x")
    meter = Meter(harness.db, "run")
    assert OutboxQuota(harness.outbox, harness.folder, 0.0001, meter).run_once() == 3
    assert not (harness.folder / "q2-0.jpg").exists()
    assert ("outbox_dropped", 3) in [(each.kind, each.amount) for each in meter.totals("all")]


def test_where_nothing_can_be_given_up_nobody_is_warned_of_it(
    harness: OutboxHarness, caplog: pytest.LogCaptureFixture
) -> None:
    harness.ask("a", "info", b"picture")
    harness.db.execute("UPDATE escalation SET state = 'waiting'")
    assert OutboxQuota(harness.outbox, harness.folder, 0.0001, Meter(harness.db, "run")).run_once() == 0
    assert "given up" not in caplog.text


def test_a_file_that_the_page_shows_stays_when_its_escalation_is_given_up(harness: OutboxHarness) -> None:
    harness.ask("a", "info", b"still")
    (harness.folder / "a-0.jpg").write_bytes(b"still")
    EvidenceStore(harness.db).put(EvidenceRow(alert="a", kind="still", state="ready", path="a-0.jpg"))
    assert OutboxQuota(harness.outbox, harness.folder, 0.0001, Meter(harness.db, "run")).run_once() == 1
    assert (harness.folder / "a-0.jpg").exists()


def test_what_was_answered_while_room_was_made_keeps_its_answer_and_its_pictures(harness: OutboxHarness) -> None:
    harness.ask("a", "info", b"picture")
    (harness.folder / "a-0.jpg").write_bytes(b"picture")
    (listed,) = harness.outbox.queue.least_urgent(10)
    assert harness.alerts.apply_verdict(rejected(listed[0], harness.clock.now()), harness.clock.now())
    assert harness.outbox.drop(listed[:1], "there is no room") == [None]
    assert (harness.row("a").state, harness.row("a").error) == ("settled", "")
    assert [each.path for each in harness.outbox.media_of(listed[0].id)] == ["a-0.jpg"]


def test_what_is_asked_again_and_again_reads_no_settled_escalation(harness: OutboxHarness) -> None:
    """The settled ones stay for ever, so a scan of the table would cost more every month."""
    said: list[str] = []
    escalations, queue = harness.alerts.escalations, harness.outbox.queue
    with harness.db.read() as connection:
        connection.set_trace_callback(said.append)
    escalations.waiting_for_evidence(10)
    escalations.queue_age_s(0.0)
    escalations.count_unsettled()
    queue.next_resend(0.0, 10)
    queue.least_urgent(10)
    queue.most_urgent(("ready", "deferred"), [])
    queue.unsent_bytes()
    harness.alerts.counts()
    with harness.db.read() as connection:
        connection.set_trace_callback(None)
        asked = [each for each in said if "FROM escalation" in each]
        assert len(asked) == 8
        for query in asked:
            plan = [row["detail"] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}")]
            assert "SCAN escalation" not in plan, (query, plan)


def test_the_next_is_found_by_an_index_however_many_wait(harness: OutboxHarness) -> None:
    said: list[str] = []
    with harness.db.read() as connection:
        connection.set_trace_callback(said.append)
    harness.ask("a")
    harness.order()
    with harness.db.read() as connection:
        connection.set_trace_callback(None)
        picks = [each for each in said if "ORDER BY created_t LIMIT" in each]
        assert picks
        for pick in picks:
            (plan,) = connection.execute(f"EXPLAIN QUERY PLAN {pick}").fetchall()
            assert "USING INDEX escalation_open (state=? AND priority=? AND created_t" in plan["detail"]
