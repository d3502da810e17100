"""Reads the reply of a model about an escalation: chat completions, whole or streamed, become a checked opinion."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.wire import Escalation, FrameSupport
from cloud_worker.evidence import ShownImage
from cloud_worker.judge import Opinion
from cloud_worker.prompt import (
    ANSWER_SCHEMAS,
    WORDS,
    AnswerOrder,
    BoxesAnswer,
    ModelDecision,
    ObjectBox,
    ReasonAnswer,
    VlmAnswer,
    Word,
    parse_answer,
    parse_decision,
    prompt_version,
    wanted_language,
)

MASS_MIN = 0.5  # of the first word's chances that fall on WORDS; with less, the model was about to write something else
_DECISIONS: dict[Word, ModelDecision] = {"yes": "confirmed", "no": "rejected", "unsure": "unsure"}


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
        return Completion(choices=[Choice(message=message, finish_reason=finish)] if choices else [], usage=usage)

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


class _TokenChance(_Lenient):
    token: str
    logprob: float


class _Position(_TokenChance):
    """A written token, and what the model might have written in its place."""

    top_logprobs: list[_TokenChance] = []


class _Logprobs(_Lenient):
    content: list[_Position] | None = None


class Choice(_Lenient):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Cached(_Lenient):
    cached_tokens: int | None = None


class _Usage(_Lenient):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None


class Completion(_Lenient):
    """The part of a chat completion that is read; servers add much to it."""

    choices: list[Choice]
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


@dataclass(frozen=True, slots=True)
class FirstWord:
    """The chances of yes, no and unsure as the first word of an answer; their sum is 1."""

    chances: Mapping[Word, float]

    @property
    def word(self) -> Word:
        return max(self.chances, key=lambda each: self.chances[each])

    @property
    def decision(self) -> ModelDecision:
        return _DECISIONS[self.word]

    @property
    def confidence(self) -> float:
        """The chance of the decision: a number that a calibration can use, unlike one that a model writes down."""
        return round(self.chances[self.word], 4)

    def __str__(self) -> str:
        return ", ".join(f"{word} {chance:.2f}" for word, chance in self.chances.items())


def read_first_word(completion: Completion | None) -> FirstWord | str:
    """Return the chances of the first token, or why there are none.

    Tokens count by the word that they begin, however they are written: ` Yes`, `yes`, and `uns` of `unsure`.
    """
    if completion is None or not completion.choices:
        return "an empty reply"
    logprobs = completion.choices[0].logprobs
    if logprobs is None or not logprobs.content:
        return "its server gave no logprobs"
    first = logprobs.content[0]
    chances = dict.fromkeys(WORDS, 0.0)
    seen: set[str] = set()
    for each in (first, *first.top_logprobs):
        word = _word_of(each.token)
        if word is not None and each.token not in seen and not math.isnan(each.logprob):
            seen.add(each.token)
            chances[word] += math.exp(min(0.0, each.logprob))
    mass = sum(chances.values())
    if mass < MASS_MIN:
        return f"its first word was likely none of {', '.join(WORDS)}"
    return FirstWord({word: chance / mass for word, chance in chances.items()})


def _word_of(token: str) -> Word | None:
    bare = token.strip(" \n\t\"'.,▁Ġ").lower()
    return next((word for word in WORDS if len(bare) > 1 and word.startswith(bare)), None)


FOREIGN_SHARE_MAX = 0.2  # of the letters outside ASCII: names and accents may be, whole words of another script not


@dataclass(frozen=True, slots=True)
class AskedCase:
    """The images that the model is shown, what it took to make them, the escalation, its trace, the answer's order."""

    shown: Sequence[ShownImage]
    preprocess_s: float
    escalation: Escalation
    traceparent: str = ""
    order: AnswerOrder = "reason_first"

    def opinion(self, status: int, body: bytes) -> Opinion:
        """Return what the server's reply says of the case."""
        if status != 200:
            return self.unusable(complaint(status, body), {})
        completion = read_completion(body)
        if completion is None:
            return self.unusable("its server's reply is not a chat completion", {})
        counts = completion.tokens()
        answer = read_answer(completion, len(self.shown), self.escalation.language, order=self.order)
        if isinstance(answer, str):
            return self.unusable(answer, counts)
        return replace(self.believed(answer), **counts)

    def unusable(self, why: str, counts: dict[str, Any]) -> Opinion:
        """Return the opinion of a reply that cannot be used, and why."""
        reason = f"The model gave no usable answer: {why}."
        words: dict[str, Any] = {
            "prompt": prompt_version(self.escalation),
            "answer_schema": ANSWER_SCHEMAS[self.order],
        }
        return Opinion(decision="unsure", reason=reason, preprocess_s=self.preprocess_s, **words, **counts)

    def believed(self, answer: VlmAnswer) -> Opinion:
        """Return the opinion of an answer that can be believed."""
        supports = {each.picture: each.supports for each in answer.pictures}
        return Opinion(
            decision=answer.decision,
            reason=answer.reason,
            confidence=answer.confidence,
            support=tuple(
                FrameSupport(media=each.source.ref.id, t=each.t, supports=supports[n])
                for n, each in enumerate(self.shown, 1)
                if n in supports
            ),
            preprocess_s=self.preprocess_s,
            more=answer.decision == "unsure",
            prompt=prompt_version(self.escalation),
            answer_schema=ANSWER_SCHEMAS[self.order],
        )

    def early(self, text: str) -> VlmAnswer | None:
        """Return the decision of an answer that has begun, once it is known and sure."""
        answer = parse_decision(text)
        if answer is None or answer.decision == "unsure":
            return None
        return None if _contradiction(answer, len(self.shown), self.escalation.language) else answer


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


def read_reason(completion: Completion | None, images: int, language: str, early: VlmAnswer) -> VlmAnswer | str:
    """Return the reason that was asked for after a decision, or why it cannot be believed."""
    if completion is None or not completion.choices:
        return "an empty reply"
    choice = completion.choices[0]
    if choice.finish_reason != "stop":
        return _unfinished(choice)
    try:
        given = ReasonAnswer.model_validate_json(choice.message.content or "")
    except ValidationError as error:
        return _not_valid(choice.message.content or "", error)
    answer = given.of(early.decision, early.confidence)
    return _contradiction(answer, images, language) or answer


def read_boxes(completion: Completion | None, labels: Sequence[str]) -> list[ObjectBox]:
    """Return the boxes of an answer to `boxes_request` that have an area and a label that was asked for."""
    if completion is None or not completion.choices or completion.choices[0].finish_reason != "stop":
        return []
    try:
        given = BoxesAnswer.model_validate_json(completion.choices[0].message.content or "")
    except ValidationError:
        return []
    has_area = [each for each in given.objects if each.box[0] < each.box[2] and each.box[1] < each.box[3]]
    return [each for each in has_area if each.label in labels]


def _unfinished(choice: Choice) -> str:
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


def complaint(status: int, body: bytes) -> str:
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
