"""The whole way of a question and back, over a real nats-server of every version found, with what can go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.msg import Msg
from pydantic import SecretStr

from appliance import wire
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import SystemClock
from appliance.base.errors import StoreUnavailable
from appliance.broker import nats_link
from appliance.broker.nats_link import NatsLink, end_tasks
from appliance.store.alerts import AlertStore
from appliance.store.escalations import MediaRow
from appliance.types import JudgeKind
from appliance.uplink.jetstream_publisher import JetStreamPublisher
from cloud_worker import stream_setup
from cloud_worker.config import OpenAiEngine, StreamsConfig
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.redetect import Redetect
from tests.servers.nats import NatsBinary, NatsServer, find_nats_servers
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub, openai_stub
from tests.servers.site import Site, evidence_image, ref_of, site
from tests.servers.worker import ScriptedDetector, WorkerProcess, worker
from tests.support.waiting import holds, until, until_async

BINARIES = find_nats_servers()


def second_look(*scores: float) -> tuple[Redetect, ScriptedDetector]:
    detector = ScriptedDetector(*scores)
    return Redetect(detector, 0.3, SystemClock()), detector


async def in_broker(url: str, work: object, inbox: str = "_INBOX") -> object:
    client = await nats.connect(url, allow_reconnect=False, inbox_prefix=inbox, error_cb=quiet)
    try:
        return await work(client.jetstream())  # type: ignore[operator]
    finally:
        await client.close()


async def quiet(_: Exception) -> None:
    """nats-py would log a traceback for what the test expects."""


def ask_broker(url: str, work: object, inbox: str = "_INBOX") -> object:
    return asyncio.run(in_broker(url, work, inbox))


def make_streams(url: str) -> None:
    ask_broker(url, lambda js: stream_setup.ensure_streams(js, StreamsConfig()))


def left_in_queue(url: str) -> int:
    info = ask_broker(url, lambda js: js.stream_info(wire.STREAM_ESCALATION))
    return info.state.messages  # type: ignore[attr-defined,no-any-return]


def queue_state(url: str) -> list[object]:
    """What is left in the queue, and how far the workers' consumers are, for a person to read."""

    async def ask(js: Any) -> list[object]:
        consumers = await js.consumers_info(wire.STREAM_ESCALATION)
        return [(await js.stream_info(wire.STREAM_ESCALATION)).state, *consumers]

    found: list[object] = ask_broker(url, ask)  # type: ignore[assignment]
    return found


def test_an_escalation_goes_up_and_its_verdict_comes_back_once(broker: NatsServer, tmp_path: Path) -> None:
    engine, detector = second_look(0.9)
    make_streams(broker.url)
    with site(tmp_path / "site", broker.url) as here, worker(broker.url, engine):
        asked = here.ask(1, (evidence_image(1), evidence_image(2, (1200, 900), noise=True)))
        until(lambda: here.settled(1))
        verdict = here.verdict(1)
        assert verdict is not None
        assert (verdict.decision, verdict.engine, verdict.model) == ("rechecked", "redetect", "scripted")
        assert verdict.reason == "A second look by scripted found the person again in 2 of 2 frames (best 0.90)."
        assert [each.supports for each in verdict.support] == ["yes", "yes"]
        assert set(verdict.timings) == {"link", "queue", "fetch", "preprocess", "model", "publish"}
        row = here.detail(1).escalation
        assert row is not None
        assert (row.id, row.state, row.attempts, row.error) == (asked, "settled", 1, "")
        assert len(detector.seen) == 4, "each picture whole and enlarged"
        until(lambda: left_in_queue(broker.url) == 0)
        assert here.service.verdicts.applied == 1


def test_what_left_is_counted_and_written_down(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    large = evidence_image(5, (1200, 900), noise=True)
    assert ref_of(large).chunks > 4
    make_streams(one_broker.url)
    with site(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, engine):
        here.ask(1, (large,))
        until(lambda: here.settled(1))
        row = here.detail(1).escalation
        assert row is not None
        facts = len(row.body.to_json())
        totals = here.meter_totals()
        assert totals["uplink_bytes"] == row.bytes_sent == totals["uplink_bytes_frame"] + totals["uplink_bytes_facts"]
        assert len(large) + facts < row.bytes_sent < (len(large) + facts) * 1.01 + 1000, "headers are counted, too"
        with here.db.read() as connection:
            audit = connection.execute("SELECT kind, bytes, sha256, why FROM audit ORDER BY id").fetchall()
        assert [(kind, size) for kind, size, _, _ in audit] == [("frame", len(large)), ("facts", facts)]
        assert audit[0]["sha256"] == ref_of(large).sha256
        assert "intruder" in audit[0]["why"]
        until(lambda: here.service.link.sent > row.bytes_sent, what="the socket's own count")
        assert here.service.link.exact
        assert here.service.link.wire > here.service.link.sent, "with the headers of its packets"
        until(lambda: uplink_total(here) == here.service.link.wire, what="the account agrees with the socket")


def uplink_total(here: Site) -> int:
    return sum(each.amount for each in here.meter.totals("all") if each.kind == "uplink_bytes")


def test_a_broker_that_is_killed_loses_nothing_and_doubles_nothing(broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    numbers = range(12)
    with site(tmp_path / "site", broker.url) as here, worker(broker.url, engine) as judge:
        for n in numbers:
            here.ask(n, (evidence_image(n, (640, 480), noise=True),))
            if n in {3, 8}:
                broker.kill()
                broker.start()
        until(lambda: here.settled(*numbers), 60)
        until(lambda: here.service.verdicts.applied == len(numbers))  # counted after it was stored
        assert here.count("settled") == len(numbers)
        assert judge.worker is not None
        assert judge.worker.counts.given_up == 0
        until(lambda: left_in_queue(broker.url) == 0, what=lambda: queue_state(broker.url))


def test_without_a_broker_the_outbox_waits_and_says_so_once(
    one_broker: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one_broker.kill()
    caplog.set_level(logging.WARNING)
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", one_broker.url) as here:
        here.ask(1)
        until(lambda: "refused" in here.service.link.error)
        assert not here.service.link.up
        one_broker.start()
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1), 30)
        assert here.service.link.up
    lines = [record.message for record in caplog.records if "nothing answers there" in record.message]
    assert len(lines) == 1
    assert lines[0].endswith("trying again until it works")


def test_without_a_worker_the_escalations_wait(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", one_broker.url) as here:
        here.ask(1)
        until(lambda: "no worker" in here.service.waits_for)
        row = here.detail(1).escalation
        assert row is not None
        assert row.state == "ready"
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1), 60)
        until(lambda: here.service.waits_for == "")


def test_a_core_that_is_killed_goes_on_at_the_first_chunk_that_was_not_acknowledged(
    one_broker: NatsServer, tmp_path: Path
) -> None:
    make_streams(one_broker.url)
    large = evidence_image(7, (2000, 1500), noise=True)
    with site(tmp_path / "site", one_broker.url) as here:
        here.cut()
        asked = here.ask(1, (large,))
        row = here.next_ready()
        media = here.outbox.media_of(asked)[0]
        publish_chunk(one_broker.url, here.name, media.ref, 0, large[: wire.CHUNK_BYTES])
        here.outbox.chunk_acked(row, media, 1, 0)
        before = here.meter_totals().get("uplink_bytes_frame", 0)
        engine, _ = second_look(0.9)
        here.connect()
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1))
        sent = here.meter_totals()["uplink_bytes_frame"] - before
        assert len(large) - wire.CHUNK_BYTES <= sent < len(large), "the first chunk was not sent a second time"
        verdict = here.verdict(1)
        assert verdict is not None
        assert verdict.decision == "rechecked"


def publish_chunk(url: str, name: str, ref: wire.MediaRef, n: int, data: bytes) -> None:
    headers = {"Nats-Msg-Id": wire.message_id(name, ref.id, n)}
    ask_broker(url, lambda js: js.publish(wire.media_subject(name, ref.id, n), data, headers=headers))


def test_a_worker_that_is_killed_while_judging_leaves_the_escalation_to_another(
    broker: NatsServer, tmp_path: Path
) -> None:
    stuck, detector = second_look(0.9)
    detector.gate.clear()
    with site(tmp_path / "site", broker.url) as here:
        with worker(broker.url, stuck) as first:
            here.ask(1)
            until(lambda: first.worker is not None and first.worker.judging == 1)
            first.kill()
            detector.gate.set()
        healthy, _ = second_look(0.0)
        with worker(broker.url, healthy):
            until(lambda: here.settled(1), 30)
        verdict = here.verdict(1)
        assert verdict is not None
        assert verdict.decision == "rejected"
        assert here.service.verdicts.applied == 1


def test_a_long_judgement_is_not_given_to_a_second_worker(broker: NatsServer, tmp_path: Path) -> None:
    slow, detector = second_look(0.9)
    detector.gate.clear()
    other, idle = second_look(0.0)
    with site(tmp_path / "site", broker.url) as here, worker(broker.url, slow) as first:
        here.ask(1)
        until(lambda: first.worker is not None and first.worker.judging == 1)
        with worker(broker.url, other):
            holds(lambda: idle.seen == [], 5.0)  # twice the time after which it would be given away
            detector.gate.set()
            until(lambda: here.settled(1))


def test_a_worker_keeps_to_the_time_that_the_broker_gives(one_broker: NatsServer, tmp_path: Path) -> None:
    """The consumer is of a worker with another file."""
    slow, detector = second_look(0.9)
    detector.gate.clear()
    make_streams(one_broker.url)
    ask_broker(one_broker.url, lambda js: stream_setup.ensure_consumer(js, "depot-7", "high", 1.0))

    def redelivered() -> int:
        name = stream_setup.consumer_name("depot-7", "high")
        info = ask_broker(one_broker.url, lambda js: js.consumer_info(wire.STREAM_ESCALATION, name))
        return info.num_redelivered  # type: ignore[attr-defined,no-any-return]

    with site(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, slow, ack_wait_s=60.0) as only:
        here.ask(1)
        until(lambda: only.worker is not None and only.worker.judging == 1)
        holds(lambda: redelivered() == 0, 3.0)
        detector.gate.set()
        until(lambda: here.settled(1))


def test_the_real_worker_process_survives_kill_9_and_ends_cleanly(one_broker: NatsServer, tmp_path: Path) -> None:
    config = tmp_path / "worker.yaml"
    config.write_text(
        f"nats: {{url: '{one_broker.url}'}}\nengine: {{kind: redetect}}\nworker: {{ack_wait_s: 1, retry_s: 0.1}}\n"
    )
    with site(tmp_path / "site", one_broker.url) as here:
        first = WorkerProcess(config)
        until(lambda: "waiting for questions" in first.log(), 30, "the worker's start")
        here.ask(1)
        first.end(signal.SIGKILL)
        second = WorkerProcess(config)
        try:
            here.ask(2)
            until(lambda: here.settled(1, 2), 40)
        finally:
            code = second.end(signal.SIGTERM)
        assert code == 0
        verdict = here.verdict(2)
        assert verdict is not None
        assert verdict.model.startswith("vedette-nano@")
        assert "Traceback" not in second.log()


def test_an_escalation_published_twice_gets_one_verdict(broker: NatsServer, tmp_path: Path) -> None:
    engine, detector = second_look(0.9)
    with site(tmp_path / "site", broker.url) as here:
        with worker(broker.url, engine) as judge:
            here.ask(1)
            until(lambda: here.settled(1))
            body = here.detail(1).escalation
            assert body is not None
            looked = len(detector.seen)
            publish(broker.url, here.name, body.body.to_json())  # without an id: the window does not catch it
            assert judge.worker is not None
            until(lambda: judge.worker is not None and judge.worker.counts.repeated == 1)
            assert len(detector.seen) == looked, "it was not judged a second time"
        again, _ = second_look(0.0)
        with worker(broker.url, again) as other:  # which remembers nothing of it
            publish(broker.url, here.name, body.body.to_json())
            until(lambda: other.worker is not None and other.worker.counts.judged == 1)
            until(lambda: left_in_queue(broker.url) == 0)
        verdict = here.verdict(1)
        assert verdict is not None
        assert verdict.decision == "rechecked"
        assert here.service.verdicts.applied == 1


def publish(url: str, name: str, data: bytes, headers: dict[str, str] | None = None, priority: str = "high") -> None:
    ask_broker(url, lambda js: js.publish(wire.escalation_subject(name, priority), data, headers=headers))


def test_hostile_messages_are_refused_and_counted_and_disturb_nobody(broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", broker.url) as here, worker(broker.url, engine) as judge:
        here.ask(1)
        until(lambda: here.settled(1))
        good = here.detail(1).escalation
        assert good is not None
        publish(broker.url, here.name, b"\xff not json")
        publish(broker.url, here.name, b"[" * 100_000)
        publish(broker.url, here.name, b'{"id": 7}')
        publish(broker.url, "intruders-site", good.body.to_json())
        with pytest.raises(nats.js.errors.BadRequestError, match="maximum"):
            publish(broker.url, here.name, b"x" * 600_000)
        assert judge.worker is not None
        until(lambda: judge.worker is not None and judge.worker.counts.refused == 4)
        publish_verdicts = [b"garbage", good.body.to_json(), other_sites_verdict(here.name)]
        for data in publish_verdicts:
            ask_broker(broker.url, lambda js, data=data: js.publish(wire.verdict_subject(here.name), data))
        until(lambda: here.service.verdicts.refused == 3)
        until(lambda: verdicts_unacknowledged(broker.url, here.name) == 0, what="refused verdicts do not come back")
        here.ask(2)
        until(lambda: here.settled(2))
        until(lambda: left_in_queue(broker.url) == 0, what="refused messages do not stay")
        assert here.service.verdicts.applied == 2


def verdicts_unacknowledged(url: str, name: str) -> int:
    info = ask_broker(url, lambda js: js.consumer_info(wire.STREAM_VERDICT, f"site-{name}"))
    return info.num_ack_pending  # type: ignore[attr-defined,no-any-return]


def other_sites_verdict(name: str) -> bytes:
    verdict = wire.Verdict(
        escalation="esc-1", site="not-" + name, alert="a", decision="rejected", reason="r", engine="e", model="m",
        seconds=0, judged_t=0,
    )  # fmt: skip
    return verdict.to_json()


def test_an_escalation_that_is_not_understood_still_gets_its_verdict(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", one_broker.url) as here:
        make_streams(one_broker.url)
        here.cut()
        asked = here.ask(1)
        body = here.next_ready().body.to_json().replace(b'"severity":"alert"', b'"severity":"apocalyptic"')
        publish(one_broker.url, here.name, body, {"Nats-Msg-Id": wire.message_id(here.name, asked)})
        here.connect()
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1))
        verdict = here.verdict(1)
        assert verdict is not None
        assert verdict.decision == "unsure"
        assert "does not understand the question: severity" in verdict.reason


def test_images_that_are_not_what_was_announced_are_not_looked_at(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, detector = second_look(0.9)
    right, wrong, absent = evidence_image(1), evidence_image(2), evidence_image(3)
    with site(tmp_path / "site", one_broker.url) as here:
        make_streams(one_broker.url)
        here.cut()
        asked = here.ask(1, (right,))
        refs = (ref_of(right, 1.0), ref_of(wrong, 2.0), ref_of(absent, 3.0))
        publish_chunk(one_broker.url, here.name, refs[0], 0, right)
        publish_chunk(one_broker.url, here.name, refs[1], 0, wrong[:-1] + b"!")
        body = here.next_ready().body.model_copy(update={"media": refs})
        publish(one_broker.url, here.name, body.to_json(), {"Nats-Msg-Id": wire.message_id(here.name, asked)})
        here.connect()
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1))
        verdict = here.verdict(1)
        assert verdict is not None
        assert verdict.decision == "rechecked"
        assert verdict.reason.endswith("2 more could not be used.")
        assert len(detector.seen) == 2


def test_an_image_that_vanished_from_the_disk_is_left_out(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", one_broker.url) as here:
        here.cut()
        here.ask(1, (evidence_image(1), evidence_image(2)))
        (here.root / "evidence/alert-1/0.jpg").unlink()
        here.connect()
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1))
        verdict = here.verdict(1)
        assert verdict is not None
        assert len(verdict.support) == 1


def test_a_wrong_token_is_one_clear_sentence_without_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not BINARIES:
        pytest.skip("no nats-server")
    binary: NatsBinary = BINARIES[-1]
    server = NatsServer(binary, tmp_path / "nats", token="right-and-secret").start()
    caplog.set_level(logging.DEBUG)
    engine, _ = second_look(0.9)
    try:
        with site(tmp_path / "site", server.url, token="wrong-but-secret") as here:
            here.ask(1)
            until(lambda: "refused us (wrong token" in here.service.link.error)
        with (
            site(tmp_path / "site", server.url, token="right-and-secret") as here,
            worker(server.url, engine, token="right-and-secret"),
        ):
            until(lambda: here.settled(1))
    finally:
        server.stop()
    assert not [record for record in caplog.records if "secret" in record.getMessage()]


def test_an_engine_that_breaks_is_asked_again_and_then_given_up(one_broker: NatsServer, tmp_path: Path) -> None:
    class Broken:
        name, model, prompt_version, answer_schema = "broken", "m", "", ""
        kind: JudgeKind = "vlm"
        uses: frozenset[str] = frozenset()

        def __init__(self) -> None:
            self.asked = 0

        async def judge(self, case: object) -> object:
            self.asked += 1
            raise ZeroDivisionError

        async def check(self) -> str:
            return ""

        async def close(self) -> None: ...

    engine = Broken()
    with site(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, engine, deliveries_max=3) as judge:  # type: ignore[arg-type]
        here.ask(1)
        until(lambda: here.settled(1))
        verdict = here.verdict(1)
        assert verdict is not None
        assert (verdict.decision, engine.asked) == ("unsure", 3)
        assert verdict.reason == "Given up after 3 attempts: a fault in the worker"
        assert judge.worker is not None
        assert (judge.worker.counts.retried, judge.worker.counts.given_up) == (2, 1)


def test_urgent_escalations_overtake(one_broker: NatsServer, tmp_path: Path) -> None:
    engine, detector = second_look(0.9)
    order: list[str] = []
    with site(tmp_path / "site", one_broker.url) as here:
        make_streams(one_broker.url)
        for n in range(6):
            here.ask(n, severity="warning")
        here.ask(6, severity="alert")
        until(lambda: here.count("sent") == 7)
        with worker(one_broker.url, engine, concurrency=1):
            until(lambda: here.settled(*range(7)))
        with here.db.read() as connection:
            order = [row[0] for row in connection.execute("SELECT alert FROM verdict ORDER BY applied_t")]
    assert "alert-6" in order[:2], order
    assert detector.seen


def test_the_servers_own_settings_are_compared(broker: NatsServer) -> None:
    async def twice(js: object) -> tuple[list[str], list[str]]:
        first = await stream_setup.ensure_streams(js, StreamsConfig())  # type: ignore[arg-type]
        second = await stream_setup.ensure_streams(js, StreamsConfig(media_days=1.0))  # type: ignore[arg-type]
        for found, ack_wait_s in ((first, 2.0), (second, 5.0)):
            consumer = await stream_setup.ensure_consumer(js, "depot-7", "high", ack_wait_s)  # type: ignore[arg-type]
            assert consumer.ack_wait_s == 2.0, "that of the broker counts"
            found.extend(consumer.differences)
        return first, second

    first, second = ask_broker(broker.url, twice)  # type: ignore[misc]
    assert first == [], "this server makes what was asked for"
    assert len(second) == 2
    assert second[0].startswith("VEDETTE_MEDIA: max_age is 259200")
    assert second[1].startswith("VEDETTE_ESCALATION/worker-high-depot-7: ack_wait is 2")


def test_a_broker_that_lost_its_disk_is_given_everything_again(broker: NatsServer, tmp_path: Path) -> None:
    large = evidence_image(4, (1600, 1200), noise=True)
    with site(tmp_path / "site", broker.url) as here:
        make_streams(broker.url)
        here.ask(1, (large, evidence_image(5)))
        until(lambda: here.count("sent") == 1)
        broker.kill()
        shutil.rmtree(tmp_path / "nats" / "store")
        broker.start()
        engine, _ = second_look(0.9)
        with worker(broker.url, engine):
            with here.db.transaction() as connection:
                connection.execute("UPDATE escalation SET sent_t = sent_t - 1000")
            until(lambda: here.settled(1), 30)
        verdict = here.verdict(1)
        assert verdict is not None
        assert (verdict.decision, len(verdict.support)) == ("rechecked", 2)


def test_a_broker_that_lost_its_disk_between_two_chunks_is_given_the_first_again(
    one_broker: NatsServer, tmp_path: Path
) -> None:
    large = evidence_image(4, (1600, 1200), noise=True)
    with site(tmp_path / "site", one_broker.url) as here:
        here.cut()
        asked = here.ask(1, (large, evidence_image(5)))
        row = here.next_ready()
        here.outbox.chunk_acked(row, here.outbox.media_of(asked)[0], 2, 0)  # by a broker that has forgotten it since
        engine, _ = second_look(0.9)
        make_streams(one_broker.url)
        here.connect()
        with worker(one_broker.url, engine):
            until(lambda: here.settled(1), 30)
        verdict = here.verdict(1)
        assert verdict is not None
        assert (verdict.decision, len(verdict.support)) == ("rechecked", 2)


def test_asking_what_the_broker_has_leaves_nothing_there(broker: NatsServer) -> None:
    """A kill, or a cut at the next file, after the question and before its answer is noted: it is asked again."""
    here, gone = (MediaRow(escalation="e", n=n, path="", ref=ref_of(b"%d" % n), chunks_acked=1) for n in range(2))
    make_streams(broker.url)
    publish_chunk(broker.url, "depot-7", here.ref, 0, b"0")

    async def ask_twice() -> list[list[MediaRow]]:
        link = NatsLink(BrokerConfig(url=broker.url), "test", SystemClock())
        running = asyncio.create_task(link.run())
        try:
            return [await JetStreamPublisher(link).find_lost("depot-7", [here, gone]) for _ in range(2)]
        finally:
            await end_tasks(running)

    assert asyncio.run(ask_twice()) == [[gone], [gone]]


def test_while_the_disk_is_full_nothing_is_sent_in_vain_and_no_verdict_is_lost(
    one_broker: NatsServer, tmp_path: Path
) -> None:
    engine, _ = second_look(0.9)
    with site(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, engine):
        here.ask(1)
        until(lambda: here.settled(1))
        here.cut()
        here.ask(2)
        busy = sqlite3.connect(tmp_path / "site" / "vedette.db", isolation_level=None)
        busy.execute("BEGIN IMMEDIATE")  # "locked", which is as little a reason to give up as "full"
        here.connect()
        until(lambda: "another program holds the file" in here.service.waits_for, 30)
        sent = here.meter_totals()["uplink_bytes_frame"]
        holds(lambda: here.meter_totals()["uplink_bytes_frame"] == sent, 8.0)
        busy.execute("ROLLBACK")
        busy.close()
        until(lambda: here.settled(1, 2), 40)
        assert here.service.waits_for == ""
        assert here.failures == []


def disk_full(monkeypatch: pytest.MonkeyPatch, method: str, times: int) -> list[StoreUnavailable]:
    """Have a method of the store that takes a verdict refuse so many times; return the refusals that are left."""
    refusals, take = [StoreUnavailable("the disk is full")] * times, getattr(AlertStore, method)

    def take_later(alerts: AlertStore, verdict: wire.Verdict, t: float) -> object:
        if refusals:
            raise refusals.pop()
        return take(alerts, verdict, t)

    monkeypatch.setattr(AlertStore, method, take_later)
    return refusals


def test_a_verdict_that_cannot_be_written_comes_again(
    one_broker: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = second_look(0.9)
    refusals = disk_full(monkeypatch, "apply_verdict", 2)
    with site(tmp_path / "site", one_broker.url) as here, worker(one_broker.url, engine) as judge:
        here.ask(1)
        until(lambda: here.settled(1), 40)
        assert refusals == []
        assert judge.worker is not None
        assert judge.worker.counts.judged == 1


def test_verdicts_that_came_with_one_that_cannot_be_written_are_not_late(
    one_broker: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in this process already: given up, they would come again when the broker's ack_wait of 30 s is over."""
    engine, _ = second_look(0.9)
    monkeypatch.setattr(nats_link, "ACK_WAIT_S", 30.0)
    disk_full(monkeypatch, "take_verdict", 1)
    make_streams(one_broker.url)
    with site(tmp_path / "site", one_broker.url) as here:
        for n in range(1, 41):
            here.ask(n)
        until(lambda: here.count("sent") == 40, 30)
        here.cut()
        with worker(one_broker.url, engine):
            until(lambda: left_in_queue(one_broker.url) == 0, 30)
        began = time.monotonic()
        here.connect()
        until(lambda: here.settled(*range(1, 41)), 60)
    assert time.monotonic() - began < 25


def test_a_verdict_that_got_lost_is_asked_for_again_without_the_images(one_broker: NatsServer, tmp_path: Path) -> None:
    large = evidence_image(4, (1600, 1200), noise=True)
    engine, detector = second_look(0.9)
    with site(tmp_path / "site", one_broker.url) as here:
        here.cut()
        here.ask(1, (large,))
        make_streams(one_broker.url)
        here.connect()
        until(lambda: here.count("sent") == 1)
        here.cut()
        with worker(one_broker.url, engine) as judge:
            until(lambda: judge.worker is not None and judge.worker.counts.judged == 1)
            until(lambda: left_in_queue(one_broker.url) == 0)
            ask_broker(one_broker.url, lambda js: js.purge_stream(wire.STREAM_VERDICT))
            sent = here.meter_totals()["uplink_bytes"]
            with here.db.transaction() as connection:
                connection.execute("UPDATE escalation SET sent_t = sent_t - 1000")
            looked = len(detector.seen)
            ask_broker(one_broker.url, lambda js: js.delete_stream(wire.STREAM_VERDICT))
            make_streams(one_broker.url)  # its memory of doubles went, too, as it does after duplicate_minutes
            ask_broker(one_broker.url, forget_doubles)
            here.connect()
            until(lambda: here.settled(1), 30)
            assert len(detector.seen) == looked, "the worker remembered its verdict"
        assert here.meter_totals()["uplink_bytes"] - sent < 2000


async def forget_doubles(js: object) -> None:
    """The question's id was seen less than an hour ago; a new stream has seen nothing."""
    await js.delete_stream(wire.STREAM_ESCALATION)  # type: ignore[attr-defined]
    await stream_setup.ensure_streams(js, StreamsConfig())  # type: ignore[arg-type]


def language_model(stub: OpenAiStub, timeout_s: float = 5.0) -> OpenAiVlm:
    settings = {"kind": "openai", "url": stub.url, "model": MODEL, "api_key": SecretStr(KEY), "timeout_s": timeout_s}
    return OpenAiVlm(OpenAiEngine(**settings), SystemClock())  # type: ignore[arg-type]


def test_a_language_model_judges_and_while_it_is_away_the_escalations_wait(
    one_broker: NatsServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with (
        openai_stub() as stub,
        site(tmp_path / "site", one_broker.url) as here,
        worker(one_broker.url, language_model(stub), deliveries_max=1, ack_wait_s=1.0) as judge,
    ):
        until(lambda: judge.worker is not None and judge.worker.unready() == "")
        stub.mode = "503"
        here.ask(1)
        here.ask(2)
        until(lambda: any("questions wait" in record.message for record in caplog.records))
        until(lambda: len(stub.requests) >= 4, what="each was tried twice")
        assert not here.settled(1)
        stub.mode = "good"
        until(lambda: here.settled(1, 2), 30)
        verdict = here.verdict(1)
        assert verdict is not None
        assert (verdict.decision, verdict.engine, verdict.tokens_in) == ("confirmed", "openai", 812)
        row = here.detail(1).escalation
        assert row is not None
        trace = wire.traceparent_of(row.body).split("-")[1]
        assert any(trace in each for each in stub.traces), "the model server is told the trace"
        came = f"verdict on alert {row.alert}"
        until(
            lambda: any(each.message.startswith(came) and trace in each.message for each in caplog.records),
            what="and the verdict comes back with it",
        )
        for begins in (f"escalation {row.id} is with the broker", f"escalation {row.id}: confirmed"):
            assert any(each.message.startswith(begins) and trace in each.message for each in caplog.records), begins
        stub.mode = "prose"
        here.ask(3)
        until(lambda: here.settled(3))
        assert judge.worker is not None
        assert (judge.worker.counts.retried, judge.worker.counts.given_up) == (0, 0), "waiting is no attempt"
        stub.mode = "500"
        here.ask(4)
        until(lambda: here.settled(4))
        given_up = here.verdict(4)
        assert given_up is not None
        assert given_up.decision == "unsure"
        assert "answered 500" in given_up.reason
    assert stub.complaints == []


def test_a_worker_that_is_asked_to_stop_finishes_what_it_judges_and_gives_back_the_rest(
    broker: NatsServer, tmp_path: Path
) -> None:
    engine, detector = second_look(0.9)
    detector.gate.clear()
    with site(tmp_path / "site", broker.url) as here:
        with worker(broker.url, engine, concurrency=1, ack_wait_s=60.0) as first:
            for n, severity in enumerate(("alert", "warning", "warning")):
                here.ask(n, severity=severity)
            until(lambda: first.worker is not None and first.worker.judging == 1)
            until(lambda: here.count("sent") == 3)
            first.stop(meanwhile=detector.gate.set)
            assert first.worker is not None
            assert first.worker.counts.judged == 1
        until(lambda: here.count("settled") == 1)
        other, _ = second_look(0.0)
        with worker(broker.url, other, ack_wait_s=60.0):
            until(lambda: here.settled(0, 1, 2), 15, "given back, not left to run out of 60 s")
        assert here.service.verdicts.applied == 3


HUB = Path(__file__).parents[2] / "deploy" / "nats" / "hub.conf"


def users_of_the_example() -> str:
    """The commented block of the example hub that gives every site an account of its own, with passwords put in."""
    lines = [line.removeprefix("# ") for line in HUB.read_text().splitlines()]
    start = max(n for n, line in enumerate(lines) if line.startswith("accounts {"))
    block = "\n".join(lines[start:])
    for name in ("WORKER", "DEPOT_7"):
        block = block.replace(f"$VEDETTE_{name}_PASSWORD", f'"secret-{name}"')
    return block


async def asked_whether_wanted(mine: str, workers: str) -> bytes:
    """Return what the site answers a worker in another account, and assert that it may answer once alone."""
    refused: list[str] = []

    async def note(error: Exception) -> None:
        refused.append(str(error))

    here = await nats.connect(mine, inbox_prefix="_INBOX.depot-7", error_cb=note)
    there = await nats.connect(workers)
    try:

        async def answer(message: Msg) -> None:
            await message.respond(b"no")
            await message.respond(b"yes")

        await here.subscribe(wire.wanted_subject("depot-7"), cb=answer)
        await here.flush()

        async def ask() -> bytes:
            with contextlib.suppress(nats.errors.NoRespondersError):  # the other account hears of it a moment later
                return bytes((await there.request(wire.wanted_subject("depot-7"), b"esc-1", timeout=20)).data)
            return b""

        told = await until_async(ask)
        await until_async(lambda: refused)
        assert "permissions violation for publish" in refused[0].lower()
        return told
    finally:
        await here.close()
        await there.close()


@pytest.mark.parametrize("binary", BINARIES, ids=str)
def test_the_example_hub_lets_a_site_do_what_it_must_and_no_more(binary: NatsBinary, tmp_path: Path) -> None:
    server = NatsServer(binary, tmp_path / "nats", extra=users_of_the_example()).start()
    engine, _ = second_look(0.9)
    mine, workers = server.url_of("depot-7", "secret-DEPOT_7"), server.url_of("worker", "secret-WORKER")
    try:
        with site(tmp_path / "site", mine) as here, worker(workers, engine):
            here.ask(1)
            until(lambda: here.settled(1), 30)
            until(lambda: left_in_queue(workers) == 0)
        for subject in ("vedette.depot-8.escalation.high", "vedette.depot-8.verdict", "vedette.depot-7.verdict"):
            with pytest.raises(nats.errors.TimeoutError):
                ask_broker(mine, lambda js, subject=subject: js.publish(subject, b"{}", timeout=0.3), "_INBOX.depot-7")
        own = wire.escalation_subject("depot-7", "low")
        ask_broker(mine, lambda js: js.publish(own, b"{}", timeout=60), "_INBOX.depot-7")
        assert asyncio.run(asked_whether_wanted(mine, workers)) == b"no"
    finally:
        server.stop()


@pytest.mark.parametrize("binary", BINARIES, ids=str)
def test_the_example_hub_is_a_valid_configuration(binary: NatsBinary, tmp_path: Path) -> None:
    text = HUB.read_text().replace("/var/lib/nats", str(tmp_path))
    (tmp_path / "hub.conf").write_text(text)
    checked = subprocess.run(
        [binary.path, "-c", tmp_path / "hub.conf", "-t"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_a_decision_reaches_the_site_while_its_reason_is_being_written(broker: NatsServer, tmp_path: Path) -> None:
    make_streams(broker.url)
    with openai_stub() as stub, site(tmp_path / "site", broker.url) as here:
        stub.mode = "held"
        settings = OpenAiEngine(
            kind="openai", url=stub.url, model=MODEL, api_key=SecretStr(KEY), answer_order="decision_first"
        )
        with worker(broker.url, OpenAiVlm(settings, SystemClock())):
            here.ask(1, (evidence_image(1),))
            until(lambda: here.settled(1), what="the decision")
            first = here.verdict(1)
            assert first is not None
            assert (first.decision, first.reason, first.provisional) == ("confirmed", wire.REASON_FOLLOWS, True)
            assert left_in_queue(broker.url) == 1, "acknowledged once the reason is stored"
            stub.release()
            until(lambda: (found := here.verdict(1)) is not None and not found.provisional, what="the reason")
            last = here.verdict(1)
            assert last is not None
            assert (last.decision, last.tokens_cached) == ("confirmed", 640)
            assert last.reason == "A person in dark clothes stands inside the yard."
            until(lambda: left_in_queue(broker.url) == 0)
            counts = here.service.verdicts
            assert (counts.applied, counts.reasons, counts.known) == (1, 1, 0)
        assert stub.complaints == []
