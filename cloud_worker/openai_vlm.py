"""Judges by a vision-language model (VLM) behind any server with OpenAI's chat completions, such as vLLM.

`ChatEndpoint` sends the requests within limits, and explains failures; `OpenAiVlm` makes them and believes the answers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import numpy as np

from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, redact
from appliance.types import JudgeKind
from appliance.wire import AUDIT, NO_REASON, REASON_FOLLOWS, TRACEPARENT, FoundBox, Need
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import encode_jpeg, select_images
from cloud_worker.judge import JudgeCase, Opinion
from cloud_worker.prompt import (
    ANSWER_SCHEMAS,
    ONE_WORD,
    PROMPT_VERSION,
    AnswerOrder,
    VlmAnswer,
    alert_facts,
    asked_labels,
    boxes_format,
    boxes_request,
    prompt_version,
    reason_request,
    response_format,
    rule_prompt,
    system_text,
)
from cloud_worker.vlm_answer import (
    AskedCase,
    ChatStream,
    complaint,
    read_boxes,
    read_completion,
    read_first_word,
    read_reason,
)

TOP_LOGPROBS = 20  # as many as vLLM and llama.cpp give; the three words and their spellings are among the first
logger = logging.getLogger(__name__)
ANSWER_BYTES_MAX = 256 * 1024  # ours is under 2 kB; what is longer is a fault
CONNECT_S_MAX = 5.0  # lost SYNs are repeated after 1 and 3 s; the answer has a limit of its own
RETRY_AFTER_S_MAX = 300.0  # a server that names more is asked again all the same
_AWAY = frozenset({401, 403, 404, 408, 429, 502, 503, 504})


class ChatEndpoint:
    """Owner of an HTTP client to one server. It never retries by itself, as redelivery is the retry."""

    def __init__(self, settings: OpenAiEngine, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.where = redact(settings.url)
        self._url, self._timeout_s = settings.url, settings.timeout_s
        key = settings.api_key.get_secret_value() if settings.api_key else ""
        self._http = httpx.AsyncClient(
            # An encoding would be undone before its length is known: a bomb of a kilobyte becomes gigabytes.
            headers={"Accept-Encoding": "identity", **({"Authorization": f"Bearer {key}"} if key else {})},
            timeout=httpx.Timeout(settings.timeout_s, connect=min(CONNECT_S_MAX, settings.timeout_s)),
            follow_redirects=False,
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the client."""
        await self._http.aclose()

    async def post(
        self, request: bytes, feed: Callable[[bytes], None] = lambda part: None, trace: str = ""
    ) -> tuple[int, bytes]:
        """Return (status, body) of an answer that is about the request; `feed` gets its parts as they come.

        Raise EngineUnavailable (away, overloaded, refuses us) or EngineError (failed at this request).
        """
        try:
            response, body = await asyncio.wait_for(self._exchange(request, feed, trace), self._timeout_s)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise EngineUnavailable(f"{self.where}: the model server cannot be reached ({_cause(error)})") from None
        except (httpx.TimeoutException, asyncio.TimeoutError):
            raise EngineError(f"{self.where}: no answer within {self._timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{self.where}: the connection broke ({_cause(error)})") from None
        if response.status_code in _AWAY:
            why = complaint(response.status_code, body)
            raise EngineUnavailable(f"{self.where}: {why}", _retry_after(response))
        if response.status_code >= 500:
            raise EngineError(f"{self.where}: {complaint(response.status_code, body)}")
        return response.status_code, body

    async def _exchange(
        self, request: bytes, feed: Callable[[bytes], None], trace: str
    ) -> tuple[httpx.Response, bytes]:
        url, headers = f"{self._url}/chat/completions", {"Content-Type": "application/json"}
        if trace:
            headers[TRACEPARENT] = trace
        async with self._http.stream("POST", url, content=request, headers=headers) as response:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise EngineError(f"{self.where}: the answer is compressed, which was not asked for")
            body = bytearray()
            async for part in response.aiter_raw():
                body += part
                if response.status_code == 200:
                    feed(part)
                if len(body) > ANSWER_BYTES_MAX:
                    raise EngineError(f"{self.where}: an answer of over {ANSWER_BYTES_MAX} bytes was cut off")
            return response, bytes(body)


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of a Retry-After header; its other form, a date, is not used by model servers."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(seconds, RETRY_AFTER_S_MAX) if seconds >= 0 else None


def _cause(error: Exception) -> str:
    return str(error)[:120] or type(error).__name__


class OpenAiVlm:
    """Owner of an HTTP client; it never retries by itself, as redelivery is the retry.

    An escalation takes at most two calls, each of at most `timeout_s`; an audited frame in which something was missed
    takes another one, which asks where it is.
    """

    name = "openai"
    kind: JudgeKind = "vlm"
    prompt_version = PROMPT_VERSION
    uses: frozenset[Need] = frozenset({"crop", "frame", "clip"})

    def __init__(self, settings: OpenAiEngine, clock: Clock, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._settings = settings
        self._clock = clock
        self._endpoint = ChatEndpoint(settings, transport)

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
        opinion = await self._decide(case)
        is_missed = case.escalation.kind == AUDIT and opinion.decision == "confirmed"
        return await self._located(case, opinion) if is_missed else opinion

    async def _decide(self, case: JudgeCase) -> Opinion:
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
        order = settings.answer_order_by_rule.get(case.escalation.rule, settings.answer_order)
        if case.escalation.kind == AUDIT:  # nobody waits for it, and boxes may follow
            order = "reason_first"
        request = AskedCase(found.shown, preprocess_s, case.escalation, case.traceparent, order)
        if order == "one_token":
            return await self._ask_one_token(request), found.more
        if order == "decision_first":
            return await self._ask_streamed(request), found.more
        status, body = await self._endpoint.post(self._request(request), trace=request.traceparent)
        return request.opinion(status, body), found.more

    async def _located(self, case: JudgeCase, opinion: Opinion) -> Opinion:
        """Return the opinion with the boxes of what was missed; without any where the model does not say."""
        side, labels = self._settings.second_side_max, asked_labels(case.escalation)
        found = await asyncio.to_thread(select_images, case.files, 1, side, side, decoder=case.decoder)
        asked = AskedCase(found.shown, 0.0, case.escalation, case.traceparent, "one_token")
        try:
            request = self._request(asked, boxes_request(labels), boxes_format(labels))
            status, body = await self._endpoint.post(request, trace=asked.traceparent)
        except EngineError as error:
            logger.info("%s: nobody said where it is: %s", case.escalation.id, error)
            return opinion
        completion = read_completion(body) if status == 200 else None
        counts = {} if completion is None else completion.tokens()
        shown = {each.source.ref.id for each in found.shown}
        boxes = tuple(FoundBox(label=each.label, box=each.shares()) for each in read_boxes(completion, labels))
        support = tuple(
            each.model_copy(update={"boxes": boxes}) if each.media in shown else each for each in opinion.support
        )
        sums = {name: getattr(opinion, name) + count for name, count in counts.items()}
        return replace(opinion, support=support, **sums)

    async def _ask_one_token(self, asked: AskedCase) -> Opinion:
        """Return the opinion by the chances of one token; `rest` then brings the reason, asked for by itself.

        Raise as `judge`. An `unsure` has no rest: more evidence, or a second look, follows.
        """
        status, body = await self._endpoint.post(self._request(asked, ONE_WORD), trace=asked.traceparent)
        if status != 200:
            return asked.opinion(status, body)
        completion = read_completion(body)
        counts = completion.tokens() if completion is not None else {}
        found = read_first_word(completion)
        if isinstance(found, str):
            return asked.unusable(found, counts)
        reason = REASON_FOLLOWS if found.decision != "unsure" else f"The model was not sure: {found}."
        answer = VlmAnswer(pictures=[], reason=reason, decision=found.decision, confidence=found.confidence)
        opinion = replace(asked.believed(answer), **counts)
        if opinion.decision == "unsure":
            return opinion
        rest = asyncio.create_task(self._reason(answer, opinion, asked), name="reason of a decision")
        return replace(opinion, rest=rest)

    async def _reason(self, early: VlmAnswer, first: Opinion, asked: AskedCase) -> Opinion:
        """Return the opinion with its reason, by a second request that shares all before its last line."""
        counts = {"tokens_in": 0, "tokens_out": 0, "tokens_cached": 0}
        given: VlmAnswer | str
        try:
            request = self._request(asked, reason_request(early.decision))
            status, body = await self._endpoint.post(request, trace=asked.traceparent)
            completion = read_completion(body) if status == 200 else None
            counts = counts if completion is None else completion.tokens()
            given = read_reason(completion, len(asked.shown), asked.escalation.language, early)
        except EngineError as error:
            given = str(error)
        if isinstance(given, str):
            logger.info("%s: the reason of a decision did not come: %s", asked.escalation.id, given)
            given = early.model_copy(update={"reason": NO_REASON})
        sums = {name: getattr(first, name) + count for name, count in counts.items()}
        return replace(asked.believed(given), **sums)

    async def _ask_streamed(self, asked: AskedCase) -> Opinion:
        """Return the opinion once its decision is known; `rest` then brings the reason. Raise as `judge`.

        An `unsure` is never early: more evidence, or a second look, may follow from the whole answer.
        """
        stream = ChatStream(asked.early)
        whole = asyncio.create_task(
            self._endpoint.post(self._request(asked), stream.feed, asked.traceparent), name="streamed answer"
        )
        decided = asyncio.create_task(stream.decided.wait())
        try:
            await asyncio.wait({whole, decided}, return_when=asyncio.FIRST_COMPLETED)
            if whole.done() or stream.decision is None:
                return asked.opinion(*await whole)
        except BaseException:
            whole.cancel()
            raise
        finally:
            decided.cancel()
        early = stream.decision
        rest = asyncio.create_task(self._rest(whole, early, asked), name="reason of an answer")
        rest.add_done_callback(lambda _: whole.cancel())  # also where it was cancelled before it began
        return replace(asked.believed(early), rest=rest)

    async def _rest(self, whole: asyncio.Task[tuple[int, bytes]], early: VlmAnswer, asked: AskedCase) -> Opinion:
        """Return the whole opinion; what was decided stays, whatever comes after it."""
        try:
            opinion = asked.opinion(*await whole)
        except EngineError as error:
            logger.info("%s: the reason of a decision did not come: %s", asked.escalation.id, error)
            opinion = Opinion(decision="unsure", reason="")
        counts: dict[str, Any] = {name: getattr(opinion, name) for name in ("tokens_in", "tokens_out", "tokens_cached")}
        reason = opinion.reason if opinion.decision == early.decision else NO_REASON
        return replace(asked.believed(early), reason=reason, **counts)

    async def check(self) -> str:
        """Ask a trial escalation with as many images as are allowed, as a limit of the server would show only then."""
        blank = encode_jpeg(np.full((64, 64, 3), 128, np.uint8))
        content = [_image(blank) for _ in range(self._settings.images_max)]
        order = self._settings.answer_order
        request = self._body([*content, {"type": "text", "text": "A trial: answer unsure."}], order)
        where = self._endpoint.where
        status, body = await self._endpoint.post(request)
        if status != 200:
            raise EngineError(f"{where}: {complaint(status, body)}")
        if "one_token" in {order, *self._settings.answer_order_by_rule.values()}:
            trial = [{"type": "text", "text": f"A trial.{ONE_WORD}"}]
            status, body = await self._endpoint.post(self._body(trial, "one_token", one_word=True))
            if status != 200:
                raise EngineError(f"{where}: asked for logprobs, {complaint(status, body)}")
            found = read_completion(body)
            if found is None or not found.choices or found.choices[0].logprobs is None:
                raise EngineError(f"{where}: it gives no logprobs, which answer_order one_token is made of")
        return f"the model {self.model} at {where} answers, with {self._settings.images_max} pictures"

    async def close(self) -> None:
        await self._endpoint.close()

    def _request(self, asked: AskedCase, last: str = "", form: dict[str, Any] | None = None) -> bytes:
        """Write the request: first the bytes that all escalations share, then the rule's, and the case itself last.

        last: what is asked for after the case, where that is not always the same; form: of the answer, likewise.
        """
        content = [_image(each.jpeg) for each in asked.shown]
        times = [(each.t, each.source.ref) for each in asked.shown]
        prompt = {"type": "text", "text": rule_prompt(asked.escalation)}
        facts = alert_facts(asked.escalation, times)
        content = [prompt, *content, {"type": "text", "text": facts + last}]
        return self._body(content, asked.order, one_word=last == ONE_WORD, form=form)

    def _body(
        self, content: list[dict[str, Any]], order: AnswerOrder, *, one_word: bool = False,
        form: dict[str, Any] | None = None,
    ) -> bytes:  # fmt: skip
        request = {
            "model": self._settings.model,
            "messages": [{"role": "system", "content": system_text(order)}, {"role": "user", "content": content}],
            "response_format": form or response_format(order),
            "max_tokens": self._settings.tokens_max,
            "temperature": 0,
            "stream": order == "decision_first",
        }
        if request["stream"]:
            request["stream_options"] = {"include_usage": True}
        if one_word:
            del request["response_format"]  # a grammar would hide what the model was about to write
            request |= {"max_tokens": 1, "logprobs": True, "top_logprobs": TOP_LOGPROBS}
        elif order == "one_token" and self._settings.reason_priority:
            request["priority"] = self._settings.reason_priority
        return json.dumps(request).encode()


def _image(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64," + base64.b64encode(data).decode()}}
