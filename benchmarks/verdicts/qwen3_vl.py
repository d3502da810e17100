"""Qwen3-VL (Apache-2.0) at its real sizes, as arguments of transformers, and the tokens that a request becomes in it.

Only the shape is taken: weights are random, which costs what trained ones cost. `tiny` is the same architecture, small
enough for a CPU; it proves the way and says nothing of speed. A chat completion request is read into tokens and images,
and answered with an answer of a given length.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATCH, MERGE, FRAMES_A_PATCH = 16, 2, 2
CELL = PATCH * MERGE
"""Pixels of a picture, across and down, that become one token."""
CHARS_A_TOKEN = 4
TEXT_IDS = 900  # numbers of text tokens are drawn from 1 to this: any will do, and every vocabulary has them
CELLS_MAX = 1280


@dataclass(frozen=True, slots=True)
class Special:
    """Numbers of the tokens that stand for pictures."""

    image: int = 151655
    video: int = 151656
    begin: int = 151652
    end: int = 151653


@dataclass(frozen=True, slots=True)
class Size:
    """kind: model_type of transformers; text, vision: its configuration."""

    kind: str
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    special: Special = field(default=Special())
    tied: bool = False


_VISION = {
    "in_channels": 3, "patch_size": PATCH, "spatial_merge_size": MERGE, "temporal_patch_size": FRAMES_A_PATCH,
    "num_heads": 16, "num_position_embeddings": 2304,
}  # fmt: skip
_SMALL_EYE = {**_VISION, "depth": 24, "hidden_size": 1024, "intermediate_size": 4096,
              "deepstack_visual_indexes": [5, 11, 17]}  # fmt: skip
_LARGE_EYE = {**_VISION, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304,
              "deepstack_visual_indexes": [8, 16, 24]}  # fmt: skip


def _text(hidden: int, inner: int, layers: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 151_936, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 128, "max_position_embeddings": 262_144,
        "rms_norm_eps": 1e-6, "rope_parameters": _turning(24, 20, 20), **more,
    }  # fmt: skip


def _turning(*sections: int) -> dict[str, Any]:
    """Positions: of half a head's numbers so many turn with time, height and width."""
    return {"rope_type": "default", "rope_theta": 5e6, "mrope_section": list(sections), "mrope_interleaved": True}


def _tiny() -> Size:
    text = _text(64, 128, 2, 4, 2, vocab_size=1024, head_dim=16, rope_parameters=_turning(4, 2, 2))
    eye = {**_VISION, "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
           "deepstack_visual_indexes": [0, 1], "out_hidden_size": 64}  # fmt: skip
    return Size("qwen3_vl", text, eye, Special(1000, 1001, 1002, 1003))


SIZES: Mapping[str, Size] = {
    "tiny": _tiny(),
    "2b": Size("qwen3_vl", _text(2048, 6144, 28, 16, 8), {**_SMALL_EYE, "out_hidden_size": 2048}, tied=True),
    "4b": Size("qwen3_vl", _text(2560, 9728, 36, 32, 8), {**_SMALL_EYE, "out_hidden_size": 2560}, tied=True),
    "8b": Size("qwen3_vl", _text(4096, 12288, 36, 32, 8), {**_LARGE_EYE, "out_hidden_size": 4096}),
    "32b": Size("qwen3_vl", _text(5120, 25600, 64, 64, 8), {**_LARGE_EYE, "out_hidden_size": 5120}),
    "30b-a3b": Size(
        "qwen3_vl_moe",
        _text(2048, 6144, 48, 32, 4, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
              decoder_sparse_step=1, norm_topk_prob=True, mlp_only_layers=[]),
        {**_LARGE_EYE, "out_hidden_size": 2048},
    ),
}  # fmt: skip


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
    """Read a chat request. Raise BadRequest."""
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
