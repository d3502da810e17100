"""Reads a chat completion request into tokens and images, and writes an answer of a given length."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.verdicts.model_sizes import CELL, Special

CHARS_A_TOKEN = 4
TEXT_IDS = 900  # numbers of text tokens are drawn from 1 to this: any will do, and every vocabulary has them
CELLS_MAX = 1280


class BadRequest(Exception):
    """The request is not a chat completion with images as data."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """parts: tokens of text as numbers, or an image's JPEG, in the order of the prompt."""

    parts: tuple[tuple[int, ...] | bytes, ...]

    @property
    def pictures(self) -> int:
        return sum(isinstance(part, bytes) for part in self.parts)


def read(body: bytes) -> ChatRequest:
    """Read a chat request. Raise NotUnderstood."""
    try:
        parts = [part for message in json.loads(body)["messages"] for part in _parts(message)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRequest(f"not a chat completion: {error!r}") from None
    return ChatRequest(tuple(parts))


def _parts(message: Mapping[str, Any]) -> list[tuple[int, ...] | bytes]:
    content = message["content"]
    if isinstance(content, str):
        return [text_ids(content)]
    return [
        text_ids(part["text"])
        if part["type"] == "text"
        else base64.b64decode(part["image_url"]["url"].split(",", 1)[1], validate=True)
        for part in content
    ]


def text_ids(text: str) -> tuple[int, ...]:
    """Numbers in place of a tokenizer, which cannot be shipped: one for four characters, the same for the same ones."""
    cut = (text[n : n + CHARS_A_TOKEN] for n in range(0, len(text), CHARS_A_TOKEN))
    return tuple(1 + zlib.crc32(each.encode()) % TEXT_IDS for each in cut)


def cells(width: int, height: int) -> tuple[int, int]:
    """Return (across, down): how many tokens an image becomes, near its own size and at most CELLS_MAX together."""
    across, down = max(1, round(width / CELL)), max(1, round(height / CELL))
    if across * down > CELLS_MAX:
        scale = (CELLS_MAX / (across * down)) ** 0.5
        across, down = max(1, int(across * scale)), max(1, int(down * scale))
    return across, down


def prompt_ids(request: ChatRequest, grids: list[tuple[int, int]], special: Special) -> list[int]:
    """Return the whole prompt. `grids` has an entry for each image, as `cells` has it."""
    ids: list[int] = []
    waiting = iter(grids)
    for part in request.parts:
        if isinstance(part, bytes):
            across, down = next(waiting)
            ids += [special.begin, *([special.image] * (across * down)), special.end]
        else:
            ids += part
    return ids


def completion(pictures: int, tokens_in: int, tokens_out: int) -> dict[str, Any]:
    """Return the server's answer: random weights write nothing readable, so the text is always the same."""
    answer = {
        "pictures": [{"picture": n + 1, "supports": "yes"} for n in range(pictures)],
        "reason": "A person in dark clothes stands inside the yard, beside the loading door.",
        "decision": "confirmed",
        "confidence": 0.9,
    }
    message = {"role": "assistant", "content": json.dumps(answer, separators=(",", ":"))}
    usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
    return {
        "id": "bench", "object": "chat.completion", "created": 0, "model": "bench", "usage": usage,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }  # fmt: skip
