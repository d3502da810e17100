"""Judges by a vision-language model behind any server that speaks OpenAI's chat completions, such as vLLM."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.clock import Clock
from appliance.errors import EngineError, EngineUnavailable, redact
from appliance.wire import FrameSupport, Need
from cloud_worker.clips import frames_of
from cloud_worker.config import OpenAiEngine
from cloud_worker.judge import Case, Opinion
from cloud_worker.media import MediaRefused, Picture
from cloud_worker.pictures import Pixels, decode, jpeg, shrink
from cloud_worker.prompt import PROMPT_VERSION, SYSTEM, Answer, facts, response_format

ANSWER_BYTES_MAX = 256 * 1024
CONNECT_S_MAX = 5.0
RETRY_AFTER_S_MAX = 300.0
FOREIGN_SHARE_MAX = 0.2
_AWAY = frozenset({401, 403, 404, 408, 429, 502, 503, 504})


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


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture as the model gets it. t: its own time, which in a clip is not that of the clip."""

    picture: Picture
    jpeg: bytes
    t: float


class OpenAi:
    """Owner of an HTTP client; asks one question per call and never retries by itself: redelivery is the retry."""

    name = "openai"
    prompt_version = PROMPT_VERSION
    uses: frozenset[Need] = frozenset({"crop", "frame", "clip"})

    def __init__(self, settings: OpenAiEngine, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._clock = clock
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.timeout_s, connect=min(CONNECT_S_MAX, settings.timeout_s)),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    @property
    def model(self) -> str:
        return self._settings.model

    async def judge(self, case: Case) -> Opinion:
        """Ask once. Raises EngineUnavailable (away, overloaded, refuses us) or EngineError (failed at this one)."""
        started = self._clock.monotonic()
        shown, lost = await asyncio.to_thread(self._prepare, case.pictures)
        preprocess_s = self._clock.monotonic() - started
        if not shown:
            return Opinion(decision="unsure", reason=f"No picture could be shown to the model: {lost[0]}.", more=True)
        status, body = await self._post(self._request(case, shown))
        return self._opinion(status, body, shown, preprocess_s)

    async def check(self) -> str:
        """Ask a trial question with as many pictures as are allowed, as a limit of the server would show only then."""
        blank = jpeg(np.full((64, 64, 3), 128, np.uint8))
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

    def _prepare(self, pictures: Sequence[Picture]) -> tuple[list[Shown], list[str]]:
        """Decode, sample and shrink, so that what a question costs does not depend on the camera."""
        shown: list[Shown] = []
        lost: list[str] = []
        stills, clips = choose(pictures, self._settings.images_max)
        for picture in [*stills, *clips]:
            try:
                shown += [Shown(picture, self._jpeg(pixels), t) for t, pixels in self._unpacked(picture, len(stills))]
            except MediaRefused as error:
                lost.append(str(error))
        return sorted(shown, key=lambda each: each.t), lost

    def _unpacked(self, picture: Picture, stills: int) -> list[tuple[float, Pixels]]:
        if picture.ref.kind == "clip":
            return frames_of(picture, self._settings.images_max - stills)
        return [(picture.ref.t, decode(picture))]

    def _jpeg(self, pixels: Pixels) -> bytes:
        return jpeg(shrink(pixels, self._settings.image_side_max))

    def _request(self, case: Case, shown: list[Shown]) -> bytes:
        content = [_image(each.jpeg) for each in shown]
        views = [(each.t, each.picture.ref) for each in shown]
        return self._body([*content, {"type": "text", "text": facts(case.escalation, views)}])

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
        """(status, body) of an answer that says something about the question."""
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
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise EngineError(f"{self._where}: an answer of over {ANSWER_BYTES_MAX} bytes was cut off")
            return response, bytes(body)

    def _opinion(self, status: int, body: bytes, shown: list[Shown], preprocess_s: float) -> Opinion:
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
        usage = completion.usage or _Usage()
        tokens_in, tokens_out = max(0, usage.prompt_tokens), max(0, usage.completion_tokens)
        answer = read_answer(completion, len(shown))
        if isinstance(answer, str):
            return unsure(answer)
        said = {each.picture: each.supports for each in answer.pictures}
        return Opinion(
            decision=answer.decision,
            reason=answer.reason,
            confidence=answer.confidence,
            support=tuple(
                FrameSupport(media=each.picture.ref.id, t=each.t, supports=said[n])
                for n, each in enumerate(shown, 1)
                if n in said
            ),
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            preprocess_s=preprocess_s,
            more=answer.decision == "unsure",
        )


def choose(pictures: Sequence[Picture], count: int) -> tuple[list[Picture], list[Picture]]:
    """Which stills to show, and which clip (at most one) fills the rest of the `count` pictures.

    What was asked for last tells most: of a clip comes all but one picture, and whole pictures go before cut-outs.
    """
    clips = [each for each in pictures if each.ref.kind == "clip"][-1:]
    whole = [each for each in pictures if each.ref.kind == "frame"]
    parts = [each for each in pictures if each.ref.kind == "crop"]
    room = count if not clips else min(1, count - 1)
    stills = sample(whole, room) if room else []
    stills += sample(parts, room - len(stills)) if room > len(stills) else []
    return stills, clips


def sample(pictures: Sequence[Picture], count: int) -> list[Picture]:
    """At most `count` of them: spread evenly over the time, first and last included; one: the middle."""
    if len(pictures) <= count:
        return list(pictures)
    if count == 1:
        return [pictures[len(pictures) // 2]]
    step = (len(pictures) - 1) / (count - 1)
    return [pictures[round(n * step)] for n in range(count)]


def read_answer(completion: Completion, pictures: int) -> Answer | str:
    """The answer, or why it cannot be believed."""
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
        answer = Answer.model_validate_json(text)
    except ValidationError as error:
        return _not_valid(text, error)
    return _contradiction(answer, pictures) or answer


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


def _contradiction(answer: Answer, pictures: int) -> str:
    """Why a well-formed answer is still not believed; empty when it is."""
    numbers = [each.picture for each in answer.pictures]
    if len(set(numbers)) != len(numbers) or any(number > pictures for number in numbers):
        return f"it speaks of pictures it was not shown ({pictures} were)"
    if answer.decision == "confirmed" and not any(each.supports == "yes" for each in answer.pictures):
        return "it confirms, and says of no picture that it supports the claim"
    letters = [char for char in answer.reason if char.isalpha()]
    if sum(not char.isascii() for char in letters) > FOREIGN_SHARE_MAX * len(letters):
        return "the reason is not in English"
    return ""


def _image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(data).decode()}}


def _complaint(status: int, body: bytes) -> str:
    """What the server said, in one sentence with the remedy for the statuses that need a person."""
    try:
        found = json.loads(body)
        message = found["error"]["message"] if "error" in found else found.get("message", found.get("detail", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        message = ""
    said = f": {' '.join(str(message).split())[:160]}" if message else ""
    remedy = {
        401: "the model server refuses the key (engine.api_key)",
        403: "the model server refuses the key (engine.api_key)",
        404: "the model server does not know the model or the path (engine.model, engine.url)",
        429: "the model server is overloaded",
    }.get(status, f"the model server answered {status}")
    return remedy + said


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds of a Retry-After header; its other form, a date, is not used by model servers."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(seconds, RETRY_AFTER_S_MAX) if seconds >= 0 else None


def _cause(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__
