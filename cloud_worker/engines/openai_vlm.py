"""Judges by a vision-language model (VLM) behind any server with OpenAI's chat completions, such as vLLM."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, redact
from appliance.types import JudgeKind
from appliance.wire import NO_REASON, TRACEPARENT, Escalation, FrameSupport, Need
from cloud_worker.config import OpenAiEngine
from cloud_worker.images import ShownImage, encode_jpeg, select_images
from cloud_worker.judge import JudgeCase, Opinion
from cloud_worker.prompt import (
    ANSWER_SCHEMAS,
    PROMPT_VERSION,
    AnswerOrder,
    VlmAnswer,
    alert_facts,
    parse_answer,
    parse_decision,
    prompt_version,
    response_format,
    rule_prompt,
    system_text,
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

    @property
    def answer_schema(self) -> str:
        return ANSWER_SCHEMAS[self._settings.answer_order]

    async def judge(self, case: JudgeCase) -> Opinion:
        """Ask, and once more when the model is unsure and the evidence holds more than it was shown.

        Raise EngineUnavailable (away, overloaded, refuses us) or EngineError (failed at this one).
        """
        settings = self._settings
        first, views_left = await self._ask(case, second=False)
        if not (first.more and views_left and settings.second_look):
            return first
        try:
            second, _ = await self._ask(case, second=True)
        except EngineError as error:  # the first answer stands: a better one is not worth losing it
            logger.info("%s: no second look: %s", case.escalation.id, error)
            return replace(first, looks=2)
        return replace(
            second,
            tokens_in=first.tokens_in + second.tokens_in,
            tokens_out=first.tokens_out + second.tokens_out,
            tokens_cached=first.tokens_cached + second.tokens_cached,
            preprocess_s=first.preprocess_s + second.preprocess_s,
            more=second.decision == "unsure",
            looks=2,
        )

    async def _ask(self, case: JudgeCase, *, second: bool) -> tuple[Opinion, bool]:
        """Return the answer to these images, and whether the evidence holds more than was shown."""
        started, settings = self._clock.monotonic(), self._settings
        side, crop = settings.image_side_max, settings.crop_side_max
        if second:
            side = crop = settings.second_side_max
        found = await asyncio.to_thread(
            select_images, case.files, settings.images_max, side, crop, second=second, decoder=case.decoder
        )
        preprocess_s = self._clock.monotonic() - started
        if not found.shown:
            reason = f"No picture could be shown to the model: {found.lost[0]}."
            return Opinion(decision="unsure", reason=reason, more=True, prompt=prompt_version(case.escalation)), False
        request = _AskedCase(found.shown, preprocess_s, case.escalation, case.traceparent)
        if self._settings.answer_order == "decision_first":
            return await self._ask_streamed(request), found.more
        status, body = await self._post(self._request(request), trace=request.traceparent)
        return self._opinion(status, body, request), found.more

    async def _ask_streamed(self, asked: _AskedCase) -> Opinion:
        """Return the opinion once its decision is known; `rest` then brings the reason. Raise as `judge`.

        An `unsure` is never early: more evidence, or a second look, may follow from the whole answer.
        """
        stream = ChatStream(lambda text: self._early(text, asked))
        whole = asyncio.create_task(
            self._post(self._request(asked), stream.feed, asked.traceparent), name="streamed answer"
        )
        decided = asyncio.create_task(stream.decided.wait())
        try:
            await asyncio.wait({whole, decided}, return_when=asyncio.FIRST_COMPLETED)
            if whole.done() or stream.decision is None:
                return self._opinion(*await whole, asked)
        except BaseException:
            whole.cancel()
            raise
        finally:
            decided.cancel()
        early = stream.decision
        rest = asyncio.create_task(self._rest(whole, early, asked), name="reason of an answer")
        rest.add_done_callback(lambda _: whole.cancel())  # also where it was cancelled before it began
        return replace(self._believed(early, asked), rest=rest)

    async def _rest(self, whole: asyncio.Task[tuple[int, bytes]], early: VlmAnswer, asked: _AskedCase) -> Opinion:
        """Return the whole opinion; what was decided stays, whatever comes after it."""
        try:
            opinion = self._opinion(*await whole, asked)
        except EngineError as error:
            logger.info("%s: the reason of a decision did not come: %s", asked.escalation.id, error)
            opinion = Opinion(decision="unsure", reason="")
        counts: dict[str, Any] = {name: getattr(opinion, name) for name in ("tokens_in", "tokens_out", "tokens_cached")}
        reason = opinion.reason if opinion.decision == early.decision else NO_REASON
        return replace(self._believed(early, asked), reason=reason, **counts)

    def _early(self, text: str, asked: _AskedCase) -> VlmAnswer | None:
        answer = parse_decision(text)
        if answer is None or answer.decision == "unsure":
            return None
        return None if _contradiction(answer, len(asked.shown), asked.escalation.language) else answer

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

    def _request(self, asked: _AskedCase) -> bytes:
        """Write the request: first the bytes that all escalations share, then the rule's, and the case itself last."""
        content = [_image(each.jpeg) for each in asked.shown]
        times = [(each.t, each.source.ref) for each in asked.shown]
        prompt = {"type": "text", "text": rule_prompt(asked.escalation)}
        return self._body([prompt, *content, {"type": "text", "text": alert_facts(asked.escalation, times)}])

    def _body(self, content: list[dict[str, Any]]) -> bytes:
        order = self._settings.answer_order
        request = {
            "model": self._settings.model,
            "messages": [{"role": "system", "content": system_text(order)}, {"role": "user", "content": content}],
            "response_format": response_format(order),
            "max_tokens": self._settings.tokens_max,
            "temperature": 0,
            "stream": order == "decision_first",
        }
        if request["stream"]:
            request["stream_options"] = {"include_usage": True}
        return json.dumps(request).encode()

    async def _post(
        self, request: bytes, feed: Callable[[bytes], None] = lambda part: None, trace: str = ""
    ) -> tuple[int, bytes]:
        """Return (status, body) of an answer that is about the escalation; `feed` gets its parts as they come."""
        try:
            response, body = await asyncio.wait_for(self._exchange(request, feed, trace), self._settings.timeout_s)
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

    async def _exchange(
        self, request: bytes, feed: Callable[[bytes], None], trace: str
    ) -> tuple[httpx.Response, bytes]:
        url, headers = f"{self._settings.url}/chat/completions", {"Content-Type": "application/json"}
        if trace:
            headers[TRACEPARENT] = trace
        async with self._http.stream("POST", url, content=request, headers=headers) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise EngineError(f"{self._where}: the answer is compressed, which was not asked for")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if response.status_code == 200:
                    feed(part)
                if len(body) > ANSWER_BYTES_MAX:
                    raise EngineError(f"{self._where}: an answer of over {ANSWER_BYTES_MAX} bytes was cut off")
            return response, bytes(body)

    def _opinion(self, status: int, body: bytes, asked: _AskedCase) -> Opinion:
        counts: dict[str, Any] = {}

        def unsure(why: str) -> Opinion:
            return Opinion(
                decision="unsure",
                reason=f"The model gave no usable answer: {why}.",
                preprocess_s=asked.preprocess_s,
                prompt=prompt_version(asked.escalation),
                **counts,
            )

        if status != 200:
            return unsure(_complaint(status, body))
        completion = read_completion(body)
        if completion is None:
            return unsure("its server's reply is not a chat completion")
        counts = completion.tokens()
        answer = read_answer(completion, len(asked.shown), asked.escalation.language, order=self._settings.answer_order)
        return unsure(answer) if isinstance(answer, str) else replace(self._believed(answer, asked), **counts)

    def _believed(self, answer: VlmAnswer, asked: _AskedCase) -> Opinion:
        supports = {each.picture: each.supports for each in answer.pictures}
        return Opinion(
            decision=answer.decision,
            reason=answer.reason,
            confidence=answer.confidence,
            support=tuple(
                FrameSupport(media=each.source.ref.id, t=each.t, supports=supports[n])
                for n, each in enumerate(asked.shown, 1)
                if n in supports
            ),
            preprocess_s=asked.preprocess_s,
            more=answer.decision == "unsure",
            prompt=prompt_version(asked.escalation),
        )


@dataclass(frozen=True, slots=True)
class _AskedCase:
    """The images that the model is shown, what it took to make them, the escalation and its trace."""

    shown: Sequence[ShownImage]
    preprocess_s: float
    escalation: Escalation
    traceparent: str = ""


class ChatStream:
    """Reads a streamed completion as it comes (server-sent events, one chunk a line), also one that is whole.

    State: the chunks so far, and a line that is not whole yet. `decided` is set once the text so far holds a decision.
    """

    def __init__(self, decide: Callable[[str], VlmAnswer | None] = lambda text: None) -> None:
        self._decide = decide
        self._line = bytearray()
        self._text = ""
        self._chunks: list[_Chunk] = []
        self.decision: VlmAnswer | None = None
        self.decided = asyncio.Event()

    def feed(self, part: bytes) -> None:
        """Take the next bytes of the body."""
        *lines, rest = (bytes(self._line) + part).split(b"\n")
        self._line = bytearray(rest)
        for line in lines:
            self._take(line)
        if self.decision is None:
            self.decision = self._decide(self._text)
            if self.decision is not None:
                self.decided.set()

    def completion(self) -> Completion:
        """Return the answer, at its end. One without a finish reason was cut off."""
        self._take(bytes(self._line))
        self._line.clear()
        choices = [each.choices[0] for each in self._chunks if each.choices]
        message = _Message(
            content=self._text,
            tool_calls=next((each.delta.tool_calls for each in choices if each.delta.tool_calls), None),
            refusal=next((each.delta.refusal for each in choices if each.delta.refusal), None),
        )
        finish = next((each.finish_reason for each in reversed(choices) if each.finish_reason), "cut")
        usage = next((each.usage for each in reversed(self._chunks) if each.usage), None)
        return Completion(choices=[_Choice(message=message, finish_reason=finish)] if choices else [], usage=usage)

    def _take(self, line: bytes) -> None:
        chunk = _chunk(line)
        if chunk is not None:
            self._chunks.append(chunk)
            self._text += (chunk.choices[0].delta.content or "") if chunk.choices else ""


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Message(_Lenient):
    content: str | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None


class _Choice(_Lenient):
    message: _Message
    finish_reason: str | None = None


class _Cached(_Lenient):
    cached_tokens: int | None = None


class _Usage(_Lenient):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class Completion(_Lenient):
    """The part of a chat completion that is read; servers add much to it."""

    choices: list[_Choice]
    usage: _Usage | None = None

    def tokens(self) -> dict[str, Any]:
        """Tokens read, of these cached, and written, as the server counted."""
        usage = self.usage or _Usage()
        cached = (usage.prompt_tokens_details or _Cached()).cached_tokens or 0
        counted = {"tokens_in": usage.prompt_tokens, "tokens_out": usage.completion_tokens, "tokens_cached": cached}
        return {name: max(0, count) for name, count in counted.items()}


class _ChunkChoice(_Lenient):
    delta: _Message = _Message()
    finish_reason: str | None = None


class _Chunk(_Lenient):
    """One event of a streamed completion; the last one has no choice, and the usage."""

    choices: list[_ChunkChoice] = []
    usage: _Usage | None = None


def _chunk(line: bytes) -> _Chunk | None:
    """Parse a line of a stream; None: it is none of an answer (a comment, the end, or broken)."""
    name, _, data = line.strip().partition(b":")
    try:
        return _Chunk.model_validate_json(data) if name == b"data" else None
    except ValidationError:
        return None


def read_completion(body: bytes) -> Completion | None:
    """Read a reply that is whole, streamed or not; None: it is no chat completion."""
    if not body.lstrip().startswith(b"data:"):
        try:
            return Completion.model_validate_json(body)
        except ValidationError:
            return None
    stream = ChatStream()
    stream.feed(body)
    return stream.completion()


def read_answer(
    completion: Completion, images: int, language: str = "en", *, order: AnswerOrder = "reason_first"
) -> VlmAnswer | str:
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
        answer = parse_answer(text, order)
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
