"""Judges by a vision-language model (VLM) behind any server with OpenAI's chat completions, such as vLLM."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, redact
from appliance.types import JudgeKind
from appliance.wire import FrameSupport, Need
from cloud_worker.config import OpenAiEngine
from cloud_worker.images import ShownImage, encode_jpeg, select_images
from cloud_worker.judge import JudgeCase, Opinion
from cloud_worker.prompt import (
    ANSWER_SCHEMA,
    PROMPT_VERSION,
    SYSTEM,
    VlmAnswer,
    alert_facts,
    prompt_version,
    response_format,
    rule_prompt,
    wanted_language,
)

FOREIGN_SHARE_MAX = 0.2  # of the letters outside ASCII: names and accents may be, whole words of another script not
ANSWER_BYTES_MAX = 256 * 1024  # ours is under 2 kB; what is longer is a fault
CONNECT_S_MAX = 5.0  # lost SYNs are repeated after 1 and 3 s; the answer has a limit of its own
RETRY_AFTER_S_MAX = 300.0  # a server that names more is asked again all the same
_AWAY = frozenset({401, 403, 404, 408, 429, 502, 503, 504})

logger = logging.getLogger(__name__)


class OpenAiVlm:
    """Owner of an HTTP client; it never retries by itself, as redelivery is the retry.

    An escalation takes at most two calls, each of at most `timeout_s`.
    """

    name = "openai"
    kind: JudgeKind = "vlm"
    prompt_version = PROMPT_VERSION
    answer_schema = ANSWER_SCHEMA
    uses: frozenset[Need] = frozenset({"crop", "frame", "clip"})

    def __init__(self, settings: OpenAiEngine, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._clock = clock
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._http = httpx.AsyncClient(
            # An encoding would be undone before its length is known: a bomb of a kilobyte becomes gigabytes.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx.Timeout(settings.timeout_s, connect=min(CONNECT_S_MAX, settings.timeout_s)),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    @property
    def model(self) -> str:
        return self._settings.model

    async def judge(self, case: JudgeCase) -> Opinion:
        """Ask, and once more when the model is unsure and the evidence holds more than it was shown.

        Raise EngineUnavailable (away, overloaded, refuses us) or EngineError (failed at this one).
        """
        settings = self._settings
        first, views_left = await self._ask(case, settings.image_side_max, second=False)
        if not (first.more and views_left and settings.second_look):
            return first
        try:
            second, _ = await self._ask(case, settings.second_side_max, second=True)
        except EngineError as error:  # the first answer stands: a better one is not worth losing it
            logger.info("%s: no second look: %s", case.escalation.id, error)
            return replace(first, looks=2)
        return replace(
            second,
            tokens_in=first.tokens_in + second.tokens_in,
            tokens_out=first.tokens_out + second.tokens_out,
            preprocess_s=first.preprocess_s + second.preprocess_s,
            more=second.decision == "unsure",
            looks=2,
        )

    async def _ask(self, case: JudgeCase, side_max: int, *, second: bool) -> tuple[Opinion, bool]:
        """Return the answer to these images, and whether the evidence holds more than was shown."""
        started = self._clock.monotonic()
        found = await asyncio.to_thread(
            select_images, case.files, self._settings.images_max, side_max, second=second, decoder=case.decoder
        )
        preprocess_s = self._clock.monotonic() - started
        if not found.shown:
            reason = f"No picture could be shown to the model: {found.lost[0]}."
            return Opinion(decision="unsure", reason=reason, more=True, prompt=prompt_version(case.escalation)), False
        status, body = await self._post(self._request(case, found.shown))
        opinion = self._opinion(status, body, found.shown, preprocess_s, case.escalation.language)
        return replace(opinion, prompt=prompt_version(case.escalation)), found.more

    async def check(self) -> str:
        """Ask a trial escalation with as many images as are allowed, as a limit of the server would show only then."""
        blank = encode_jpeg(np.full((64, 64, 3), 128, np.uint8))
        content = [_image(blank) for _ in range(self._settings.images_max)]
        request = self._body([*content, {"type": "text", "text": "A trial: answer unsure."}])
        status, body = await self._post(request)
        if status != 200:
            raise EngineError(f"{self._where}: {_complaint(status, body)}")
        return f"the model {self.model} at {self._where} answers, with {self._settings.images_max} pictures"

    async def close(self) -> None:
        await self._http.aclose()

    @property
    def _where(self) -> str:
        return redact(self._settings.url)

    def _request(self, case: JudgeCase, shown: Sequence[ShownImage]) -> bytes:
        """Write the request: first the bytes that all escalations share, then the rule's, and the case itself last."""
        content = [_image(each.jpeg) for each in shown]
        times = [(each.t, each.source.ref) for each in shown]
        prompt = {"type": "text", "text": rule_prompt(case.escalation)}
        return self._body([prompt, *content, {"type": "text", "text": alert_facts(case.escalation, times)}])

    def _body(self, content: list[dict[str, Any]]) -> bytes:
        request = {
            "model": self._settings.model,
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": content}],
            "response_format": response_format(),
            "max_tokens": self._settings.tokens_max,
            "temperature": 0,
            "stream": False,
        }
        return json.dumps(request).encode()

    async def _post(self, request: bytes) -> tuple[int, bytes]:
        """Return (status, body) of an answer that is about the escalation."""
        try:
            response, body = await asyncio.wait_for(self._exchange(request), self._settings.timeout_s)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineUnavailable(f"{self._where}: the model server cannot be reached ({_cause(error)})") from None
        except (httpx.TimeoutException, asyncio.TimeoutError):
            raise EngineError(f"{self._where}: no answer within {self._settings.timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{self._where}: the connection broke ({_cause(error)})") from None
        if response.status_code in _AWAY:
            complaint = _complaint(response.status_code, body)
            raise EngineUnavailable(f"{self._where}: {complaint}", _retry_after(response))
        if response.status_code >= 500:
            raise EngineError(f"{self._where}: {_complaint(response.status_code, body)}")
        return response.status_code, body

    async def _exchange(self, request: bytes) -> tuple[httpx.Response, bytes]:
        url, headers = f"{self._settings.url}/chat/completions", {"Content-Type": "application/json"}
        async with self._http.stream("POST", url, content=request, headers=headers) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise EngineError(f"{self._where}: the answer is compressed, which was not asked for")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise EngineError(f"{self._where}: an answer of over {ANSWER_BYTES_MAX} bytes was cut off")
            return response, bytes(body)

    def _opinion(
        self, status: int, body: bytes, shown: Sequence[ShownImage], preprocess_s: float, language: str
    ) -> Opinion:
        tokens_in = tokens_out = 0

        def unsure(why: str) -> Opinion:
            return Opinion(
                decision="unsure",
                reason=f"The model gave no usable answer: {why}.",
                tokens_in=tokens_in,
                tokens_out=tokens_out,
                preprocess_s=preprocess_s,
            )

        if status != 200:
            return unsure(_complaint(status, body))
        try:
            completion = Completion.model_validate_json(body)
        except ValidationError:
            return unsure("its server's reply is not a chat completion")
        tokens_in, tokens_out = completion.tokens()
        answer = read_answer(completion, len(shown), language)
        if isinstance(answer, str):
            return unsure(answer)
        supports = {each.picture: each.supports for each in answer.pictures}
        return Opinion(
            decision=answer.decision,
            reason=answer.reason,
            confidence=answer.confidence,
            support=tuple(
                FrameSupport(media=each.source.ref.id, t=each.t, supports=supports[n])
                for n, each in enumerate(shown, 1)
                if n in supports
            ),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            preprocess_s=preprocess_s,
            more=answer.decision == "unsure",
        )


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Message(_Lenient):
    content: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None


class _Choice(_Lenient):
    message: _Message
    finish_reason: str | None = None


class _Usage(_Lenient):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(_Lenient):
    """The part of a chat completion that is read; servers add much to it."""

    choices: list[_Choice]
    usage: _Usage | None = None

    def tokens(self) -> tuple[int, int]:
        """Read and written, as the server counted."""
        usage = self.usage or _Usage()
        return max(0, usage.prompt_tokens), max(0, usage.completion_tokens)


def read_answer(completion: Completion, images: int, language: str = "en") -> VlmAnswer | str:
    """Return the answer, or the reason why it cannot be believed. `language`: in which the reason was wanted."""
    if not completion.choices:
        return "an empty reply"
    choice = completion.choices[0]
    if choice.message.tool_calls:
        return "it called a tool instead of answering"
    if choice.finish_reason != "stop":
        return _unfinished(choice)
    text = (choice.message.content or "").strip()
    if not text:
        return "an empty answer" + (" (a refusal)" if choice.message.refusal else "")
    try:
        answer = VlmAnswer.model_validate_json(text)
    except ValidationError as error:
        return _not_valid(text, error)
    return _contradiction(answer, images, language) or answer


def _unfinished(choice: _Choice) -> str:
    text = choice.message.content or ""
    if choice.finish_reason == "length":
        blanks = len(text) - len("".join(text.split()))
        return "it filled its answer with blanks" if blanks * 2 > len(text) > 0 else "it was cut off at the token limit"
    return f"it stopped early ({str(choice.finish_reason)[:40]})"


def _not_valid(text: str, error: ValidationError) -> str:
    if text.startswith("```"):
        return "the answer is wrapped in Markdown"
    if not text.startswith("{"):
        return "prose instead of JSON"
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return "the JSON is broken or cut off"
    return f"`{'.'.join(map(str, first['loc'])) or 'answer'}` is wrong: {first['msg'][:120]}"


def _contradiction(answer: VlmAnswer, images: int, language: str) -> str:
    """Return why a well-formed answer is still not believed; an empty text when it is believed.

    A text that a person holds into the camera gets further than this check only when it also turns the answer to every
    single image.
    """
    numbers = [each.picture for each in answer.pictures]
    if len(set(numbers)) != len(numbers) or any(number > images for number in numbers):
        return f"it speaks of pictures it was not shown ({images} were)"
    if answer.decision == "confirmed" and not any(each.supports == "yes" for each in answer.pictures):
        return "it confirms, and says of no picture that it supports the claim"
    if answer.decision == "rejected":
        support = {each.supports for each in answer.pictures}
        if "yes" in support:
            return "it rejects, and says of a picture that it supports the claim"
        if "no" not in support:
            return "it rejects, and says of no picture that it speaks against the claim"
    if wanted_language(language) != "English":
        return ""
    letters = [char for char in answer.reason if char.isalpha()]
    if sum(not char.isascii() for char in letters) > FOREIGN_SHARE_MAX * len(letters):
        return "the reason is not in English"
    return ""


def _image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(data).decode()}}


def _complaint(status: int, body: bytes) -> str:
    """Return the server's answer in one sentence, with the remedy for the statuses that need a person."""
    try:
        found = json.loads(body)
        message = found["error"]["message"] if "error" in found else found.get("message", found.get("detail", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message = ""
    detail = f": {' '.join(str(message).split())[:160]}" if message else ""
    remedy = {
        401: "the model server refuses the key (engine.api_key)",
        403: "the model server refuses the key (engine.api_key)",
        404: "the model server does not know the model or the path (engine.model, engine.url)",
        429: "the model server is overloaded",
    }.get(status, f"the model server answered {status}")
    return remedy + detail


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of a Retry-After header; its other form, a date, is not used by model servers."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(seconds, RETRY_AFTER_S_MAX) if seconds >= 0 else None


def _cause(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__
