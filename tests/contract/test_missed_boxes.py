"""Where the model says something was missed in an audited frame, it is asked where; nothing else depends on that."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import SecretStr

from appliance import wire
from appliance.base.clock import SystemClock
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Judge
from cloud_worker.openai_vlm import OpenAiVlm
from tests.contract.test_streamed_answers import case
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub, openai_stub

AUDITED = case(kind=wire.AUDIT, rule="silent-audit", label="person or car", severity="info")


def judged(stub: OpenAiStub, *modes: str, asked: object = AUDITED, order: str = "one_token") -> wire.Verdict:
    stub.modes = list(modes)

    async def main() -> wire.Verdict:
        settings = {"kind": "openai", "url": stub.url, "model": MODEL, "api_key": SecretStr(KEY), "timeout_s": 60.0}
        made = OpenAiVlm(OpenAiEngine(**{**settings, "answer_order": order}), SystemClock())
        try:
            return await Judge(made, "w", SystemClock(), IN_PROCESS).verdict(asked)  # type: ignore[arg-type]
        finally:
            await made.close()

    verdict = asyncio.run(main())
    assert stub.complaints == []
    return verdict


def test_what_was_missed_comes_with_its_place_and_nothing_that_was_not_asked_for() -> None:
    with openai_stub() as stub:
        verdict = judged(stub, "good", "boxes")
        decided, located = stub.requests
    assert (verdict.decision, verdict.provisional, verdict.answer_schema) == ("confirmed", False, "1")
    (seen,) = verdict.support
    assert seen.boxes == (wire.FoundBox(label="person", box=(0.412, 0.3, 0.47, 0.58)),)
    assert (verdict.tokens_in, verdict.tokens_out) == (2 * 812, 2 * 48), "of both requests"
    form = located["response_format"]["json_schema"]["schema"]["properties"]["objects"]["items"]["properties"]
    assert form["label"]["enum"] == ["person", "car"]
    assert decided["messages"][1]["content"][0] == located["messages"][1]["content"][0]
    assert wire.Verdict.from_json(verdict.to_json()) == verdict


@pytest.mark.parametrize("mode", ["prose", "truncated", "empty", "500", "503", "no choices"])
def test_a_verdict_stands_where_nobody_says_where_it_is(mode: str) -> None:
    with openai_stub() as stub:
        verdict = judged(stub, "good", mode)
    assert (verdict.decision, [each.boxes for each in verdict.support]) == ("confirmed", [()])


def test_nothing_more_is_asked_of_an_alert_or_where_nothing_was_missed() -> None:
    with openai_stub() as stub:
        assert judged(stub, "rejected").decision == "rejected"
        assert judged(stub, "good", asked=case(), order="reason_first").support[0].boxes == ()
        assert len(stub.requests) == 2
