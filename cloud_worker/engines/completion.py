"""Reads a chat completion, and says why its answer cannot be believed."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from cloud_worker.prompt import Answer

FOREIGN_SHARE_MAX = 0.2


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
        """Read and written, as the server says."""
        usage = self.usage or _Usage()
        return max(0, usage.prompt_tokens), max(0, usage.completion_tokens)


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
