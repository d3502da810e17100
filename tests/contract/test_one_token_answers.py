"""A decision by the chances of one token, and its reason by a second request: what the engine makes of both."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from pydantic import SecretStr

from appliance import wire
from appliance.base.clock import SystemClock
from appliance.base.errors import EngineError
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Judge
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.prompt import ONE_WORD
from cloud_worker.vlm_answer import Completion, FirstWord, read_first_word
from tests.contract.test_streamed_answers import both, case
from tests.servers.openai_stub import GOOD, KEY, MODEL, OpenAiStub, first_word, openai_stub

REQUEST = {"max_tokens": 1, "stream": False, "top_logprobs": 20}


def engine(stub: OpenAiStub, **changes: Any) -> OpenAiVlm:
    settings = {"kind": "openai", "url": stub.url, "model": MODEL, "api_key": SecretStr(KEY), "timeout_s": 60.0}
    return OpenAiVlm(OpenAiEngine(**{**settings, "answer_order": "one_token", **changes}), SystemClock())


def chances(**logprobs: float) -> FirstWord | str:
    named = {name.replace("_", " "): value for name, value in logprobs.items()}
    return read_first_word(Completion.model_validate(first_word(named, REQUEST)))


def test_the_chances_of_the_first_token_are_the_decision_and_a_number() -> None:
    found = chances(Yes=math.log(0.5), _yes=math.log(0.2), no=math.log(0.1), uns=math.log(0.1), The=math.log(0.1))
    assert isinstance(found, FirstWord)
    assert found.chances == pytest.approx({"yes": 0.7 / 0.9, "no": 0.1 / 0.9, "unsure": 0.1 / 0.9})
    assert (found.decision, found.confidence) == ("confirmed", round(0.7 / 0.9, 4))
    no = chances(No=-0.01)
    assert isinstance(no, FirstWord)
    assert (no.decision, no.confidence) == ("rejected", 1.0)
    assert chances(The=-0.2, yes=-3.0) == "its first word was likely none of yes, no, unsure"
    assert chances(n=-0.1) == "its first word was likely none of yes, no, unsure", "a letter begins many words"


def test_the_decision_is_there_at_once_and_the_reason_is_asked_for_with_the_same_prefix() -> None:
    with openai_stub() as stub:
        stub.mode, stub.first_word = "reason", {"Yes": math.log(0.8), "No": math.log(0.15), "unsure": math.log(0.05)}
        first, whole = both(engine(stub, reason_priority=5), case())
        assert stub.complaints == []
        decided, asked = stub.requests
    assert whole is not None
    assert (first.decision, first.confidence, first.reason) == ("confirmed", 0.8, wire.REASON_FOLLOWS)
    assert (whole.decision, whole.confidence, whole.reason) == ("confirmed", 0.8, GOOD["reason"])
    assert [each.supports for each in whole.support] == ["yes"]
    assert (whole.tokens_in, whole.tokens_out) == (2 * 812, 1 + 48), "of both requests"
    assert (decided["max_tokens"], decided.get("priority"), asked["priority"]) == (1, None, 5)
    before, after = decided["messages"], asked["messages"]
    assert before[0] == after[0], "one system text"
    assert before[1]["content"][:-1] == after[1]["content"][:-1]
    shared = before[1]["content"][-1]["text"].removesuffix(ONE_WORD)
    assert after[1]["content"][-1]["text"].startswith(shared), "all but the last line is in the server's cache"


@pytest.mark.parametrize("mode", ["other reason", "prose", "truncated", "500", "empty"])
def test_a_decision_stands_whatever_becomes_of_its_reason(mode: str) -> None:
    with openai_stub() as stub:
        stub.mode = mode
        first, whole = both(engine(stub), case())
    assert whole is not None
    assert (whole.decision, whole.confidence, whole.reason) == (first.decision, first.confidence, wire.NO_REASON)


def test_an_unsure_is_told_with_its_chances_and_asks_for_more() -> None:
    with openai_stub() as stub:
        stub.first_word = {"unsure": math.log(0.6), "yes": math.log(0.4)}
        first, whole = both(engine(stub), case())
    assert whole is None
    assert first.more
    assert (first.decision, first.confidence) == ("unsure", 0.6)
    assert first.reason == "The model was not sure: yes 0.40, no 0.00, unsure 0.60."


def test_a_verdict_is_provisional_until_its_reason_is_there() -> None:
    async def main(stub: OpenAiStub) -> None:
        made = engine(stub)
        first, rest = await Judge(made, "w", SystemClock(), IN_PROCESS).begin(case())
        assert first.provisional
        assert first.answer_schema == "3"
        assert rest is not None
        whole = await rest
        assert (whole.provisional, whole.decision, whole.reason) == (False, first.decision, GOOD["reason"])
        await made.close()

    with openai_stub() as stub:
        stub.mode = "reason"
        asyncio.run(main(stub))


def test_a_server_without_logprobs_is_refused_before_work_begins() -> None:
    async def check(stub: OpenAiStub) -> str:
        made = engine(stub)
        try:
            return await made.check()
        finally:
            await made.close()

    with openai_stub() as stub:
        assert "answers, with 4 pictures" in asyncio.run(check(stub))
        stub.first_word = None
        with pytest.raises(EngineError, match="gives no logprobs"):
            asyncio.run(check(stub))
        stub.logprobs_error = "top_logprobs must be at most 5."  # it does give logprobs, but fewer
        with pytest.raises(EngineError, match=r"answered 400: top_logprobs must be at most 5\."):
            asyncio.run(check(stub))
