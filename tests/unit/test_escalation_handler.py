"""One escalation in a worker's hands while the broker fails, with a broker that answers as a test says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any, cast

import nats.errors
import nats.js.errors
import pytest

from appliance import wire
from appliance.base.clock import ManualClock
from appliance.base.errors import EngineError, EngineUnavailable, UplinkError
from appliance.types import JudgeKind
from cloud_worker.config import HandlingConfig
from cloud_worker.escalation_handler import EscalationHandler, NullArchive
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Judge, JudgeCase, Opinion
from cloud_worker.metrics import WorkerCounts, WorkerMetrics
from tests.servers.site import ref_of
from tests.support.waiting import until_async


class Eye:
    """An engine that answers when the test says."""

    name, model, prompt_version, answer_schema = "eye", "m", "", ""
    kind: JudgeKind = "vlm"
    uses: frozenset[wire.Need] = frozenset()

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def judge(self, case: JudgeCase) -> Opinion:
        self.asked += 1
        await self.may_answer.wait()
        return Opinion(decision="rejected", reason="Nobody.")

    async def check(self) -> str:
        return "eye"

    async def close(self) -> None: ...


class Broker:
    """Link, connection and JetStream in one: holds the evidence `held` by subject; `down`: what it refuses to store."""

    def __init__(self, held: dict[str, bytes]) -> None:
        self.held = held
        self.down = ""
        self.stored: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    async def client(self) -> Broker:
        return self

    async def while_up(self, work: Awaitable[Any]) -> Any:
        return await work

    def jetstream(self, timeout: float) -> Broker:
        return self

    async def publish(self, subject: str, payload: bytes, **given: Any) -> None:
        kind = subject.rsplit(".", 1)[-1]
        if kind == self.down:
            self.refused[kind] += 1
            raise nats.errors.TimeoutError
        if "Nats-Rollup" in given["headers"]:  # a question whether the id is known, which it never is
            raise nats.js.errors.ServerError(code=500, err_code=10111, description="rollup failed")
        self.stored[kind] += 1

    async def get_last_msg(self, stream: str, subject: str, *, direct: bool = False) -> object:
        if subject not in self.held:
            raise nats.js.errors.NotFoundError
        return SimpleNamespace(data=self.held[subject])


class ScriptedDelivery:
    """An escalation as the broker delivers it; `said`: what the worker told it."""

    priority, seq = "high", 7
    stored = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def __init__(self, escalation: wire.Escalation, count: int) -> None:
        self.data, self.count = escalation.to_json(), count
        self.subject, self.headers = wire.escalation_subject(escalation.site, "high"), {"Nats-Msg-Id": "m"}
        self.said: list[str] = []

    async def ack(self) -> None:
        self.said.append("ack")

    async def nak(self, delay_s: float = 0.0) -> None:
        self.said.append("nak")
        self.delay_s = delay_s

    async def in_progress(self) -> None:
        self.said.append("in progress")


PICTURE = ref_of(b"picture")


@pytest.fixture
def escalation() -> wire.Escalation:
    return wire.Escalation(
        id="esc-1", site="depot-7", camera="gate", alert="a", rule="r", kind="enter", label="person", severity="alert",
        t=0, created_t=ManualClock().now(), media=(PICTURE,),
    )  # fmt: skip


def held_by(escalation: wire.Escalation) -> dict[str, bytes]:
    return {wire.media_subject(escalation.site, PICTURE.id, 0): b"picture"}


def handler(broker: Broker, engine: Eye, clock: ManualClock | None = None) -> EscalationHandler:
    clock = clock or ManualClock()
    link, judge = cast(Any, broker), Judge(engine, "w1", clock, IN_PROCESS)
    return EscalationHandler(HandlingConfig(media_wait_s=0.0), judge, link, clock, WorkerMetrics(), NullArchive())


def test_an_escalation_that_no_engine_judged_counts_as_given_up_alone(escalation: wire.Escalation) -> None:
    """The service level divides those given up by both counts: all, and not half, are errors while engines are away."""
    clock = ManualClock()

    class Away(Eye):
        async def judge(self, case: JudgeCase) -> Opinion:
            clock.advance(100_000)
            raise EngineUnavailable("away")

    made = handler(Broker(held_by(escalation)), Away(), clock)
    asyncio.run(made.handle(cast(Any, ScriptedDelivery(escalation, 1))))
    counts = WorkerCounts.of(made._metrics)
    assert (counts.given_up, counts.judged) == (1, 0)


def test_an_escalation_whose_pictures_are_lost_counts_as_given_up_alone(escalation: wire.Escalation) -> None:
    """It counted as neither, so that the sum over all ends was less than the escalations."""
    made = handler(Broker({}), Eye())
    asyncio.run(made.handle(cast(Any, ScriptedDelivery(escalation, 1))))
    counts = WorkerCounts.of(made._metrics)
    assert (counts.given_up, counts.judged, counts.dead) == (1, 0, 1)


def test_deliveries_while_the_site_was_elsewhere_are_no_failed_attempts(escalation: wire.Escalation) -> None:
    """After half a minute elsewhere the first error of an engine gave the escalation up, without another attempt."""

    class Wanted(Broker):
        async def request(self, subject: str, payload: bytes, timeout: float) -> object:
            return SimpleNamespace(data=b"yes")

    class Returned(ScriptedDelivery):
        stored = datetime.fromtimestamp(ManualClock().now() - 60, tz=timezone.utc)

    class Broken(Eye):
        async def judge(self, case: JudgeCase) -> Opinion:
            raise EngineError("it failed at this one")

    async def main() -> None:
        broker = Wanted(held_by(escalation))
        made = handler(broker, Broken())
        asked = escalation.model_copy(update={"elsewhere_s": 15.0})
        deliveries = [Returned(asked, count) for count in range(9, 14)]
        for each in deliveries:
            await made.handle(cast(Any, each))
        assert [each.said for each in deliveries] == [["nak"]] * 4 + [["ack"]]
        assert [each.delay_s for each in deliveries[:4]] == [5, 10, 20, 40]
        counts = WorkerCounts.of(made._metrics)
        assert (counts.retried, counts.given_up, broker.stored["dead"]) == (4, 1, 1)

    asyncio.run(main())


def test_a_dead_letter_that_could_not_be_stored_is_stored_with_the_next_delivery(escalation: wire.Escalation) -> None:
    async def main() -> None:
        broker = Broker({})  # the picture is not there, so it becomes one
        made = handler(broker, Eye())
        broker.down = "dead"
        first, second, third = (ScriptedDelivery(escalation, count) for count in (1, 2, 3))
        await made.handle(cast(Any, first))
        assert (first.said, broker.stored["dead"]) == (["nak"], 0)
        broker.down = ""
        await made.handle(cast(Any, second))
        assert (second.said, broker.stored["dead"]) == (["ack"], 1)
        await made.handle(cast(Any, third))
        assert (third.said, broker.stored["dead"]) == (["ack"], 1), "its acknowledgement had got lost, say"

    asyncio.run(main())


def test_what_is_delivered_again_while_it_is_judged_here_is_no_attempt(escalation: wire.Escalation) -> None:
    """Given back, it would come again and again, and be given up after a few times though nobody failed at it."""

    async def main() -> None:
        engine = Eye()
        made = handler(Broker({wire.media_subject("depot-7", PICTURE.id, 0): b"picture"}), engine)
        first, again = ScriptedDelivery(escalation, 1), ScriptedDelivery(escalation, 2)
        judging = asyncio.create_task(made.handle(cast(Any, first)))
        await until_async(lambda: engine.asked)
        await made.handle(cast(Any, again))
        assert again.said == ["in progress"]
        engine.may_answer.set()
        await judging
        assert first.said == ["ack"]

    asyncio.run(main())


def test_an_acknowledgement_that_is_not_answered_gives_back_what_another_has_answered(
    escalation: wire.Escalation,
) -> None:
    """The error ended the task, and nobody saw it but asyncio, which logged a traceback."""

    class Settled(Broker):
        async def request(self, subject: str, payload: bytes, timeout: float) -> object:
            return SimpleNamespace(data=b"no")

    class Unanswered(ScriptedDelivery):
        stored = datetime.fromtimestamp(ManualClock().now() - 60, tz=timezone.utc)

        async def ack(self) -> None:
            raise UplinkError("an acknowledgement was not answered")

    async def main() -> None:
        elsewhere = Unanswered(escalation.model_copy(update={"elsewhere_s": 15.0}), 1)
        await handler(Settled({}), Eye()).handle(cast(Any, elsewhere))
        assert elsewhere.said == ["nak"]

    asyncio.run(main())


def test_a_message_whose_alert_is_no_text_is_a_dead_letter_and_not_delivered_for_ever(
    escalation: wire.Escalation,
) -> None:
    async def main() -> None:
        odd, broker = ScriptedDelivery(escalation, 1), Broker({})
        odd.data = b'{"id": "esc-1", "site": "depot-7", "alert": "\\ud800"}'
        await handler(broker, Eye()).handle(cast(Any, odd))
        assert (odd.said, broker.stored) == (["ack"], {"dead": 1})

    asyncio.run(main())


def test_an_answer_without_a_picture_does_not_call_the_judge_back(escalation: wire.Escalation) -> None:
    """It needs no judge: it waits for none, and a judge that asked for a minute of peace keeps it."""

    async def main() -> None:
        made = handler(Broker({}), Eye())

        async def overloaded() -> None:
            raise EngineUnavailable("overloaded", 60.0)

        with pytest.raises(EngineUnavailable):
            await made.breaker.call(overloaded)
        bare = ScriptedDelivery(escalation.model_copy(update={"media": (), "image_free": True}), 1)
        await asyncio.wait_for(made.handle(cast(Any, bare)), 20)
        assert (bare.said, made.breaker.why) == (["ack"], "overloaded")

    asyncio.run(main())


class SlowBroker(Broker):
    """Another worker's verdict is stored while this one fetches the evidence, which takes `takes_s`."""

    def __init__(self, held: dict[str, bytes], clock: ManualClock, takes_s: float) -> None:
        super().__init__(held)
        self._clock, self._takes_s, self.known = clock, takes_s, False

    async def publish(self, subject: str, payload: bytes, **given: Any) -> None:
        if not (self.known and "Nats-Rollup" in given["headers"]):
            await super().publish(subject, payload, **given)

    async def get_last_msg(self, stream: str, subject: str, *, direct: bool = False) -> object:
        self._clock.advance(self._takes_s)
        self.known = True
        return await super().get_last_msg(stream, subject, direct=direct)


@pytest.mark.parametrize(("takes_s", "asked"), [(0.1, 1), (5.0, 0)])
def test_a_worker_that_stood_still_asks_no_model_for_what_another_answered(
    escalation: wire.Escalation, takes_s: float, asked: int
) -> None:
    async def main() -> None:
        clock, engine = ManualClock(), Eye()
        engine.may_answer.set()
        made = handler(SlowBroker(held_by(escalation), clock, takes_s), engine, clock)
        delivery = ScriptedDelivery(escalation, 1)
        await made.handle(cast(Any, delivery))
        assert (engine.asked, delivery.said) == (asked, ["ack"])

    asyncio.run(main())


class EarlyEye(Eye):
    """Decides at once; its reason comes when the test says."""

    async def judge(self, case: JudgeCase) -> Opinion:
        return Opinion(
            decision="confirmed", reason=wire.REASON_FOLLOWS, confidence=0.9, rest=asyncio.create_task(self._rest())
        )

    async def _rest(self) -> Opinion:
        await self.may_answer.wait()
        return Opinion(decision="confirmed", reason="Somebody.", confidence=0.9)


class RecordingBroker(Broker):
    """Keeps the verdicts that were stored, with their message ids."""

    def __init__(self, held: dict[str, bytes]) -> None:
        super().__init__(held)
        self.verdicts: list[tuple[str, wire.Verdict]] = []
        self.traces: list[str] = []

    async def publish(self, subject: str, payload: bytes, **given: Any) -> None:
        await super().publish(subject, payload, **given)
        if subject.endswith(".verdict"):
            self.verdicts.append((given["headers"]["Nats-Msg-Id"], wire.Verdict.from_json(payload)))
            self.traces.append(given["headers"][wire.TRACEPARENT])


@pytest.mark.parametrize(("schema", "early"), [(wire.PROVISIONAL_SCHEMA, True), (wire.PROVISIONAL_SCHEMA - 1, False)])
def test_a_site_that_knows_of_it_has_the_decision_before_the_reason(
    schema: int, early: bool, escalation: wire.Escalation
) -> None:
    async def main() -> None:
        broker, engine = RecordingBroker(held_by(escalation)), EarlyEye()
        made = handler(broker, engine)
        delivery = ScriptedDelivery(escalation.model_copy(update={"schema_version": schema}), 1)
        judging = asyncio.create_task(made.handle(cast(Any, delivery)))
        await until_async(lambda: broker.verdicts or not early)
        assert delivery.said == [], "acknowledged once the whole is stored"
        engine.may_answer.set()
        await judging
        stored = [(id_.rsplit(".", 1)[-1], each.reason, each.provisional) for id_, each in broker.verdicts]
        whole = ("verdict", "Somebody.", False)
        assert stored == ([("decision", wire.REASON_FOLLOWS, True), whole] if early else [whole])
        trace = wire.traceparent_of(escalation).split("-")[1]
        assert {each.split("-")[1] for each in broker.traces} == {trace}, (
            "a message without a header has one all the same"
        )
        assert delivery.said == ["ack"]

    asyncio.run(main())


def test_a_broker_that_does_not_take_the_early_decision_gets_the_whole(escalation: wire.Escalation) -> None:
    async def main() -> None:
        broker, engine = RecordingBroker(held_by(escalation)), EarlyEye()
        broker.down = "verdict"
        judging = asyncio.create_task(
            handler(broker, engine).handle(cast(Any, delivery := ScriptedDelivery(escalation, 1)))
        )
        await until_async(lambda: broker.refused["verdict"])
        broker.down = ""
        engine.may_answer.set()
        await judging
        assert [each.reason for _, each in broker.verdicts] == ["Somebody."]
        assert delivery.said == ["ack"]

    asyncio.run(main())
