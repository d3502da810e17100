"""Reads chat completions: whole ones, streamed ones as they come, and the chances of an answer's first word."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from cloud_worker.prompt import WORDS, ModelDecision, VlmAnswer, Word

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
