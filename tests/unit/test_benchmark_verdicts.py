"""The benchmark of verdicts without a model: prompts and answers, arrivals and places, and what a row says."""

from __future__ import annotations

import asyncio
import json
from typing import get_args

import pytest

from appliance.base.clock import SystemClock
from appliance.types import JudgeKind
from appliance.wire import Need
from benchmarks import stub_engines
from benchmarks.verdicts.__main__ import EVIDENCE, TimedAnswer, cases, flat_out, paced, row
from benchmarks.verdicts.qwen3_vl import SIZES, BadRequest, Special, cells, completion, prompt_ids, read, text_ids
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Judge, JudgeCase, Opinion
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.prompt import AnswerOrder, system_text
from cloud_worker.vlm_answer import Completion, read_answer


def request_of(name: str) -> bytes:
    """What the worker's own engine sends for the first question with that evidence."""
    evidence = EVIDENCE[name]
    settings = OpenAiEngine(
        kind="openai", url="http://127.0.0.1:1/v1", model="bench", images_max=evidence.count,
        image_side_max=evidence.side_max,
    )  # fmt: skip
    engine, sent = OpenAiVlm(settings, SystemClock()), []

    async def post(request: bytes, trace: str = "") -> tuple[int, bytes]:
        sent.append(request)
        return 200, json.dumps(completion(evidence.count, 10, 10)).encode()

    engine._endpoint.post = post  # type: ignore[method-assign]
    asyncio.run(engine.judge(cases(name)[0]))
    return sent[0]


def test_the_workers_own_request_is_read_as_text_images_and_facts() -> None:
    request = read(request_of("crops"))
    assert request.parts[0] == text_ids(system_text())
    assert [isinstance(part, bytes) for part in request.parts] == [False, False, True, True, False]
    assert request.pictures == 2


def test_a_body_that_is_no_request_is_refused() -> None:
    for body in (b"", b"[]", b'{"messages": [{"content": [{"type": "image_url"}]}]}'):
        with pytest.raises(BadRequest):
            read(body)


def test_images_become_as_many_tokens_as_the_architecture_has() -> None:
    assert cells(320, 320) == (10, 10)
    assert cells(768, 432) == (24, 14)
    across, down = cells(4000, 3000)
    assert across * down <= 1280
    special = Special(image=1000, begin=1002, end=1003)
    ids = prompt_ids(read(request_of("crops")), [(10, 10), (10, 10)], special)
    assert [ids.count(n) for n in (1000, 1002, 1003)] == [200, 2, 2]
    assert pytest.approx(7840, rel=0.02) == 16 * 22 * 22  # the clip's, against NVIDIA's
    assert {cells(*EVIDENCE["clip"].size)} == {(22, 22)}


def test_the_servers_text_is_an_answer_that_the_worker_accepts() -> None:
    completed = Completion.model_validate(completion(4, 812, 80))
    answer = read_answer(completed, 4)
    assert not isinstance(answer, str)
    assert answer.decision == "confirmed"
    assert completed.tokens() == {"tokens_in": 812, "tokens_out": 80, "tokens_cached": 0}


def test_every_size_is_whole() -> None:
    for size in SIZES.values():
        assert sum(size.text["rope_parameters"]["mrope_section"]) * 2 == size.text["head_dim"]
        assert size.vision["out_hidden_size"] == size.text["hidden_size"]
        assert size.special.image < size.text["vocab_size"]
        assert max(size.vision["deepstack_visual_indexes"]) < size.vision["depth"]


class OneAtATime:
    """An engine that holds every question until `wanted` of them are there."""

    name, model, prompt_version, answer_schema = "scripted", "none", "", ""
    kind: JudgeKind = "simulated"
    uses: frozenset[Need] = frozenset({"crop"})

    def __init__(self) -> None:
        self.here = self.most = 0

    async def judge(self, case: JudgeCase) -> Opinion:
        self.here += 1
        self.most = max(self.most, self.here)
        for _ in range(5):
            await asyncio.sleep(0)
        self.here -= 1
        return Opinion(decision="unsure", reason="Nothing to see.", tokens_in=5, tokens_out=3)

    async def check(self) -> str:
        return "scripted"

    async def close(self) -> None: ...


def test_no_more_escalations_are_judged_at_a_time_than_there_are_slots() -> None:
    engine = OneAtATime()
    judge = Judge(engine, "bench", SystemClock(), IN_PROCESS)
    took = asyncio.run(paced(judge, cases("crops"), per_minute=60_000, seconds=0.1, places=3))
    assert 1 < engine.most <= 3
    assert len(took) > 20
    assert {(each.valid, each.tokens_in) for each in took} == {(False, 5)}
    assert asyncio.run(flat_out(judge, cases("crops"), 0.05, places=2)) > 0


def test_a_row_has_latency_batches_and_how_busy_the_model_was() -> None:
    took = [TimedAnswer(seconds, seconds / 2, True, 800, 80, 0.01) for seconds in (1.0, 2.0, 3.0)]
    before = {"batches": 2, "answers": 2, "busy_s": 1.0, "seconds": 10.0, "tokens_in": 0}
    after = {"batches": 4, "answers": 5, "busy_s": 4.0, "seconds": 16.0, "tokens_in": 0}
    measured = row("crops", 95, took, before, after)
    assert (measured.p50_s, measured.batch, measured.busy, measured.valid) == (2.0, 1.5, 0.5, 3)
    assert "4.66 s" in measured.table_row


@pytest.mark.parametrize("order", get_args(AnswerOrder))
def test_the_scripted_engine_is_judged_by_and_a_decision_may_come_before_the_whole(order: AnswerOrder) -> None:
    with stub_engines.served(first_token_s=0.05, token_s=0.02) as port:
        settings = OpenAiEngine(kind="openai", url=f"http://127.0.0.1:{port}/v1", model="bench", answer_order=order)
        judge = Judge(OpenAiVlm(settings, SystemClock()), "bench", SystemClock(), IN_PROCESS)
        found = asyncio.run(paced(judge, cases("crops"), per_minute=6000, seconds=0.05, places=8))[0]
    assert found.valid
    floor_s = 0.05 + 0.02 * (found.tokens_out - 1)
    assert found.seconds >= floor_s, "the pace that was asked for"
    early_s = found.seconds - found.decision_s
    assert early_s < floor_s / 4 if order == "reason_first" else early_s > floor_s / 4
