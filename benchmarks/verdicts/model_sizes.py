"""Architectures of vision-language models at their real sizes (Qwen3-VL, Apache-2.0), as arguments of transformers.

Only the shape is taken: weights are random, which costs what trained ones cost. `tiny` is the same architecture, small
enough for a CPU; it proves the way and says nothing of speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PATCH, MERGE, FRAMES_A_PATCH = 16, 2, 2
CELL = PATCH * MERGE
"""Pixels of a picture, across and down, that become one token."""


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
