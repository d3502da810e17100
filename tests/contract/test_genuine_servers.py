"""What the worker believes of vLLM and of llama.cpp's server, and what our stand-in for them does, held against them.

Skipped where a server is not installed; `make test-slow` brings them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from appliance import wire
from appliance.base.clock import SystemClock
from appliance.base.errors import EngineError, EngineUnavailable, UsageError
from appliance.demo.demo_vlm import VlmServer, probe_vlm
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import IN_PROCESS, EvidenceFile
from cloud_worker.judge import Judge, JudgeCase
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.prompt import VlmAnswer, response_format
from cloud_worker.vlm_answer import Completion
from tests.servers import openai_stub as stub
from tests.servers.llamacpp import genuine as llamacpp
from tests.servers.site import evidence_image, ref_of
from tests.servers.vllm import genuine

pytestmark = pytest.mark.timeout(1800)
SETTINGS: dict[str, Any] = {
    "kind": "openai", "model": genuine.MODEL, "api_key": SecretStr(genuine.KEY), "images_max": genuine.IMAGES_MAX,
    "timeout_s": 120.0,
}  # fmt: skip
assert (llamacpp.MODEL, llamacpp.KEY) == (genuine.MODEL, genuine.KEY)
VLLM, LLAMA_CPP = "vllm", "llama.cpp"


@pytest.fixture(scope="module", params=[pytest.param(VLLM, marks=pytest.mark.slow), LLAMA_CPP])
def server(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def url(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if server == LLAMA_CPP:
        found = llamacpp.find_llama_server()
        if found is None:
            pytest.skip("no llama-server here: make test-slow brings one")
        with llamacpp.genuine_llama_server(tmp_path_factory.mktemp("llamacpp"), found) as address:
            yield address
        return
    python = genuine.python_with_vllm()
    if not python:
        pytest.skip("no vllm here: make test-slow brings it, where its PyTorch is to be had")
    with genuine.genuine_vllm(tmp_path_factory.mktemp("vllm"), python) as address:
        yield address


def engine(url: str, **changes: Any) -> OpenAiVlm:
    return OpenAiVlm(OpenAiEngine(**{**SETTINGS, "url": url, **changes}), SystemClock())


async def checked(url: str, **changes: Any) -> str:
    asked = engine(url, **changes)
    try:
        return await asked.check()
    finally:
        await asked.close()


async def judged(url: str, pictures: int, **changes: Any) -> wire.Verdict:
    shown = [evidence_image(n, (640, 360)) for n in range(pictures)]
    question = JudgeCase(
        escalation=wire.Escalation(
            id="esc-1", site="s", camera="gate", alert="a", rule="intruder", kind="enter", label="person",
            severity="alert", question="Is there really a person?", t=0, created_t=0, zone="yard",
        ),
        files=tuple(EvidenceFile(ref_of(data, float(n)), data) for n, data in enumerate(shown)),
        decoder=IN_PROCESS,
    )  # fmt: skip
    asked = engine(url, **changes)
    try:
        return await Judge(asked, "w", SystemClock(), IN_PROCESS).verdict(question)
    finally:
        await asked.close()


def post(url: str, body: Any, key: str) -> tuple[int, dict[str, Any]]:
    answer = httpx.post(
        f"{url}/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=120, trust_env=False
    )
    found: dict[str, Any] = answer.json()
    return answer.status_code, found


def asking(model: str, pictures: int = 1, words: str = "What is there?", **more: Any) -> dict[str, Any]:
    """A request that vLLM and the stand-in both take, without the worker's own care."""
    image = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + _blank()}}
    content = [{"type": "text", "text": "Look."}, *[image] * pictures, {"type": "text", "text": words}]
    messages = [{"role": "system", "content": "Answer as JSON."}, {"role": "user", "content": content}]
    return {
        "model": model, "messages": messages, "max_tokens": 300, "temperature": 0, "stream": False,
        "response_format": response_format(), **more,
    }  # fmt: skip


def _blank() -> str:
    return base64.b64encode(evidence_image(1, (64, 64))).decode()


def test_the_worker_finds_it_ready(url: str) -> None:
    assert asyncio.run(checked(url)) == (
        f"the model {genuine.MODEL} at {url} answers, with {genuine.IMAGES_MAX} pictures"
    )


def test_the_demo_finds_its_model_and_sees_that_it_takes_pictures(url: str) -> None:
    assert probe_vlm(url.removesuffix("/v1"), None, genuine.KEY) == VlmServer(url, genuine.MODEL)
    with pytest.raises(UsageError, match="VLM_API_KEY"):
        probe_vlm(url, None, "wrong")


def test_a_limit_of_the_server_shows_when_the_worker_tries_it(url: str, server: str) -> None:
    if server == LLAMA_CPP:
        assert "with 3 pictures" in asyncio.run(checked(url, images_max=3)), "it has no limit but its context"
        return
    with pytest.raises(EngineError, match=f"At most {genuine.IMAGES_MAX} image"):
        asyncio.run(checked(url, images_max=genuine.IMAGES_MAX + 1))


def test_a_wrong_key_and_a_wrong_model_are_no_answers_but_reasons_to_wait(url: str, server: str) -> None:
    with pytest.raises(EngineUnavailable, match="refuses the key"):
        asyncio.run(judged(url, 1, api_key=SecretStr("wrong")))
    if server == LLAMA_CPP:
        assert asyncio.run(judged(url, 1, model="another")).tokens_out > 0, "it serves its one model under any name"
        return
    with pytest.raises(EngineUnavailable, match="does not know the model"):
        asyncio.run(judged(url, 1, model="another"))


@pytest.mark.parametrize("pictures", [1, 2])
def test_whatever_the_model_writes_there_is_a_valid_verdict(url: str, server: str, pictures: int) -> None:
    """Weights that were made up confirm nothing on purpose; the grammar may still bring about an answer.

    llama.cpp may refuse with a 500 what its own model was cut off in: an error that is told, and no verdict.
    """
    try:
        verdict = asyncio.run(judged(url, pictures))
    except EngineError as error:
        if server == LLAMA_CPP and "answered 500: The model produced output that does not match" in str(error):
            return
        raise
    assert wire.Verdict.from_json(verdict.to_json()) == verdict
    assert verdict.tokens_in > 300
    assert 0 < verdict.tokens_out <= 2 * 400
    assert verdict.decision in ("confirmed", "rejected", "unsure")


def test_the_schema_holds_every_token_that_is_written(url: str, server: str) -> None:
    """Asked for enough tokens, what comes is an `Answer`, or the beginning of one that was cut off: never prose."""
    status, body = post(url, asking(genuine.MODEL, max_tokens=1500), genuine.KEY)
    assert status == 200, body
    choice = Completion.model_validate(body).choices[0]
    assert choice.message.content is not None
    assert "".join(choice.message.content[:40].split()).startswith('{"pictures":['), choice.message.content[:80]
    if choice.finish_reason == "stop":
        found = json.loads(choice.message.content)
        if server == LLAMA_CPP:  # its grammar bounds whole numbers only: the worker's own check has to do the rest
            found["confidence"] = 0.5
        VlmAnswer.model_validate(found)
    else:
        assert choice.finish_reason == "length"


@pytest.mark.parametrize("case", ["good", "wrong key", "wrong model", "too many pictures", "too long"])
def test_our_stand_in_answers_as_they_do(url: str, server: str, case: str) -> None:
    """The same status, and the same members where the worker reads them; words may differ."""
    if server == LLAMA_CPP and case in ("wrong model", "too many pictures"):
        pytest.skip("it has one model and no limit, and answers")
    pictures = {"too many pictures": 9}.get(case, 1)
    found = []
    with stub.openai_stub() as stand_in_server:
        stand_in_server.mode = "too long" if case == "too long" else "good"
        for address, model, key in ((url, genuine.MODEL, genuine.KEY), (stand_in_server.url, stub.MODEL, stub.KEY)):
            words = "many words " * 4000 if case == "too long" else "What is there?"
            name = "another" if case == "wrong model" else model
            found.append(post(address, asking(name, pictures, words), "wrong" if case == "wrong key" else key))
    (status, body), (stand_in_status, stand_in) = found
    assert status == stand_in_status, (body, stand_in)
    if case == "good":
        for one in (body, stand_in):
            Completion.model_validate(one)
        assert body["usage"].keys() >= {"prompt_tokens", "completion_tokens"}
        if server == VLLM:
            assert set(stand_in["choices"][0]) <= set(body["choices"][0])
            assert set(stand_in) <= set(body)
    elif server == VLLM:
        assert type(body["error"]) is type(stand_in["error"]), (body, stand_in)
        if isinstance(body["error"], dict):
            assert set(stand_in["error"]) <= set(body["error"])
            assert body["error"]["type"] == stand_in["error"]["type"]
