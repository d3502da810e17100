"""A decision before its reason: what the engine makes of answers that come piece by piece, or do not come to an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr

from appliance import wire
from appliance.base.clock import SystemClock
from appliance.base.errors import EngineError
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import IN_PROCESS, EvidenceFile
from cloud_worker.judge import Judge, JudgeCase, Opinion
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.prompt import parse_decision
from cloud_worker.vlm_answer import ChatStream
from tests.servers.openai_stub import GOOD, KEY, MODEL, OpenAiStub, event, openai_stub, short
from tests.servers.site import evidence_image, ref_of


@pytest.fixture
def stub() -> Iterator[OpenAiStub]:
    with openai_stub() as stub:
        yield stub
        assert stub.complaints == []


def engine(stub: OpenAiStub, **changes: Any) -> OpenAiVlm:
    settings = {"kind": "openai", "url": stub.url, "model": MODEL, "api_key": SecretStr(KEY), "timeout_s": 60.0}
    return OpenAiVlm(OpenAiEngine(**{**settings, "answer_order": "decision_first", **changes}), SystemClock())


def case(**changes: Any) -> JudgeCase:
    facts = {
        "id": "esc-1", "site": "s", "camera": "gate", "alert": "a", "rule": "intruder", "kind": "enter",
        "label": "person", "severity": "alert", "question": "Is there really a person?", "t": 0, "created_t": 0,
    }  # fmt: skip
    picture = evidence_image(1)
    return JudgeCase(
        escalation=wire.Escalation(**{**facts, **changes}),
        files=(EvidenceFile(ref_of(picture), picture),),
        decoder=IN_PROCESS,
    )


def test_a_rule_may_have_an_order_of_its_own_and_its_verdicts_say_so(stub: OpenAiStub) -> None:
    made = engine(stub, answer_order="reason_first", answer_order_by_rule={"intruder": "decision_first"})
    judge = Judge(made, "w", SystemClock(), IN_PROCESS)

    async def main() -> tuple[wire.Verdict, wire.Verdict]:
        try:
            own = await judge.verdict(case())
            return own, await judge.verdict(case(rule="loiterer"))
        finally:
            await made.close()

    own, other = asyncio.run(main())
    assert [each["stream"] for each in stub.requests] == [True, False]
    assert (own.decision, own.answer_schema) == ("confirmed", "2")
    assert (other.decision, other.answer_schema) == ("confirmed", "1")


def both(made: OpenAiVlm, asked: JudgeCase) -> tuple[Opinion, Opinion | None]:
    """The opinion as soon as its decision is known, and the whole one if it came later."""

    async def main() -> tuple[Opinion, Opinion | None]:
        try:
            first = await made.judge(asked)
            return first, None if first.rest is None else await first.rest
        finally:
            await made.close()

    return asyncio.run(main())


def test_the_decision_is_there_while_the_reason_is_still_being_written(stub: OpenAiStub) -> None:
    stub.mode = "held"

    async def main() -> None:
        made = engine(stub)
        judge = Judge(made, "w", SystemClock(), IN_PROCESS)
        first, rest = await judge.begin(case())
        assert (first.decision, first.confidence, first.reason) == ("confirmed", 0.9, wire.REASON_FOLLOWS)
        assert [each.supports for each in first.support] == ["yes"]
        assert first.provisional
        assert wire.Verdict.from_json(first.to_json()) == first
        assert rest is not None
        assert not rest.done()
        stub.release()
        whole = await rest
        assert (whole.decision, whole.confidence, whole.support) == (first.decision, first.confidence, first.support)
        assert (whole.reason, whole.provisional) == (GOOD["reason"], False)
        assert (whole.tokens_in, whole.tokens_out, whole.tokens_cached) == (812, 38, 640)
        assert whole.timings["decision"] <= whole.timings["model"]
        assert whole.answer_schema == "2"
        await made.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "mode", ["cut after", "cut at the limit", "broken after", "endless reason", "chinese", "changed"]
)
def test_a_decision_stands_whatever_becomes_of_its_reason(mode: str, stub: OpenAiStub) -> None:
    stub.mode = mode
    first, whole = both(engine(stub), case())
    assert (first.decision, first.reason) == ("confirmed", wire.REASON_FOLLOWS)
    assert whole is not None
    assert (whole.decision, whole.confidence, whole.reason) == ("confirmed", 0.9, wire.NO_REASON)
    assert whole.rest is None


def test_a_reason_in_another_language_that_was_asked_for_is_kept(stub: OpenAiStub) -> None:
    stub.mode = "chinese"
    first, whole = both(engine(stub), case(language="zh"))
    assert first.decision == "confirmed"
    assert whole is not None
    assert whole.reason.startswith("一个人")


def test_a_stream_that_is_cut_before_the_decision_is_asked_again_later(stub: OpenAiStub) -> None:
    stub.mode = "cut before"
    with pytest.raises(EngineError, match="the connection broke"):
        both(engine(stub), case())


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("unsupported", "it confirms, and says of no picture that it supports the claim"),
        ("broken before", "the JSON is broken or cut off"),
    ],
)
def test_what_is_not_believed_is_never_early(mode: str, says: str, stub: OpenAiStub) -> None:
    stub.mode = mode
    first, whole = both(engine(stub), case())
    assert whole is None
    assert (first.decision, first.reason) == ("unsure", f"The model gave no usable answer: {says}.")


def test_an_unsure_answer_waits_for_its_end_and_may_be_asked_again(stub: OpenAiStub) -> None:
    stub.mode = "unsure"
    first, whole = both(engine(stub), case())
    assert whole is None
    assert (first.decision, first.more) == ("unsure", True)


def test_a_server_without_streams_is_understood_all_the_same(stub: OpenAiStub) -> None:
    stub.mode = "unstreamed"
    first, whole = both(engine(stub), case())
    assert whole is None
    assert (first.decision, first.reason) == ("confirmed", GOOD["reason"])


def test_the_reason_that_nobody_waits_for_is_dropped(stub: OpenAiStub) -> None:
    stub.mode = "held"

    async def main() -> None:
        made = engine(stub)
        _, rest = await Judge(made, "w", SystemClock(), IN_PROCESS).begin(case())
        assert rest is not None
        rest.cancel()
        await asyncio.gather(rest, return_exceptions=True)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        _, left = await asyncio.wait(others, timeout=60) if others else (set(), set())
        assert not left, "no request goes on in the background"
        await made.close()

    asyncio.run(main())


def test_no_piece_of_a_number_is_taken_for_the_confidence() -> None:
    text = short(confidence=0.95)
    known = [n for n in range(len(text) + 1) if parse_decision(text[:n]) is not None]
    assert text[: known[0]].endswith("0.95,")
    decided = [parse_decision(text[:n]) for n in known]
    assert {(each.decision, each.confidence) for each in decided if each is not None} == {("confirmed", 0.95)}


@pytest.mark.parametrize("size", [1, 3, 64, 4096])
def test_a_stream_reads_the_same_however_it_is_cut_into_pieces(size: int) -> None:
    data = b": a comment\r\n" + b"".join(
        event({"index": 0, "delta": {"content": part}, "finish_reason": None}).replace(b"\n", b"\r\n")
        for part in (short()[:20], short()[20:59], short()[59:])
    )
    stream = ChatStream(parse_decision)
    for at in range(0, len(data), size):
        stream.feed(data[at : at + size])
    assert stream.decision is not None
    assert (stream.decision.decision, stream.decision.confidence) == ("confirmed", 0.9)
