"""Writes two files that llama.cpp takes for a LLaVA: the real architecture, tiny, its weights made up.

    PYTHON tests/servers/llamacpp/tiny.py FOLDER          # model.gguf, mmproj.gguf

Run by a Python that has gguf. Nothing is fetched: the vocabulary is the 256 bytes, so it is good for nothing but
counting.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SEED = 7
CONTEXT = 8192
WIDTH, FEED, HEADS, LAYERS = 64, 128, 4, 2
SIGHT_WIDTH, SIGHT_FEED, SIGHT_HEADS, SIGHT_LAYERS, IMAGE, PATCH = 32, 64, 2, 3, 112, 14
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write(folder: Path) -> None:
    """Both files; the folder is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(SEED)
    _text_model(folder / "model.gguf", random)
    _vision_model(folder / "mmproj.gguf", random)


def _text_model(path: Path, random: np.random.Generator) -> None:
    import gguf

    tokens, kinds = _vocabulary()
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(WIDTH)
    file.add_block_count(LAYERS)
    file.add_feed_forward_length(FEED)
    file.add_head_count(HEADS)
    file.add_head_count_kv(HEADS)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_rope_dimension_count(WIDTH // HEADS)
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list(tokens)
    file.add_token_types(kinds)
    file.add_token_merges(["t h"])
    file.add_bos_token_id(tokens.index(SPECIAL[0]))
    file.add_eos_token_id(tokens.index(SPECIAL[2]))
    file.add_add_bos_token(False)
    file.add_chat_template(TEMPLATE)

    def put(name: str, *shape: int) -> None:
        file.add_tensor(f"{name}.weight", _made_up(random, shape))

    put("token_embd", len(tokens), WIDTH)
    put("output", len(tokens), WIDTH)
    file.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for n in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            file.add_tensor(f"blk.{n}.{norm}.weight", np.ones(WIDTH, np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            put(f"blk.{n}.{part}", WIDTH, WIDTH)
        put(f"blk.{n}.ffn_gate", FEED, WIDTH)
        put(f"blk.{n}.ffn_up", FEED, WIDTH)
        put(f"blk.{n}.ffn_down", WIDTH, FEED)
    _close(file)


def _vision_model(path: Path, random: np.random.Generator) -> None:
    import gguf

    file = gguf.GGUFWriter(path, "clip")
    file.add_bool("clip.has_vision_encoder", True)
    file.add_string("clip.projector_type", "mlp")
    file.add_bool("clip.use_gelu", False)
    for key, value in (
        ("image_size", IMAGE), ("patch_size", PATCH), ("embedding_length", SIGHT_WIDTH), ("projection_dim", WIDTH),
        ("feed_forward_length", SIGHT_FEED), ("block_count", SIGHT_LAYERS), ("attention.head_count", SIGHT_HEADS),
    ):  # fmt: skip
        file.add_uint32(f"clip.vision.{key}", value)
    file.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    file.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    file.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    def put(name: str, *shape: int) -> None:
        file.add_tensor(f"{name}.weight", _made_up(random, shape))

    def norm(name: str) -> None:
        file.add_tensor(f"{name}.weight", np.ones(SIGHT_WIDTH, np.float32))
        file.add_tensor(f"{name}.bias", np.zeros(SIGHT_WIDTH, np.float32))

    file.add_tensor("v.class_embd", _made_up(random, (SIGHT_WIDTH,)))
    put("v.patch_embd", SIGHT_WIDTH, 3, PATCH, PATCH)
    put("v.position_embd", (IMAGE // PATCH) ** 2 + 1, SIGHT_WIDTH)
    norm("v.pre_ln")
    norm("v.post_ln")
    for n in range(SIGHT_LAYERS):
        norm(f"v.blk.{n}.ln1")
        norm(f"v.blk.{n}.ln2")
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            put(f"v.blk.{n}.{part}", SIGHT_WIDTH, SIGHT_WIDTH)
            file.add_tensor(f"v.blk.{n}.{part}.bias", np.zeros(SIGHT_WIDTH, np.float32))
        put(f"v.blk.{n}.ffn_up", SIGHT_FEED, SIGHT_WIDTH)
        file.add_tensor(f"v.blk.{n}.ffn_up.bias", np.zeros(SIGHT_FEED, np.float32))
        put(f"v.blk.{n}.ffn_down", SIGHT_WIDTH, SIGHT_FEED)
        file.add_tensor(f"v.blk.{n}.ffn_down.bias", np.zeros(SIGHT_WIDTH, np.float32))
    put("mm.0", WIDTH, SIGHT_WIDTH)
    file.add_tensor("mm.0.bias", np.zeros(WIDTH, np.float32))
    put("mm.2", WIDTH, WIDTH)
    file.add_tensor("mm.2.bias", np.zeros(WIDTH, np.float32))
    _close(file)


def _vocabulary() -> tuple[list[str], list[int]]:
    """The bytes as GPT-2 writes them, one merge, the special tokens; and what kind each is (1: normal, 3: control)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    bytes_ = [chr(number) for number in shown] + [chr(256 + n) for n in range(256 - len(shown))]
    return [*bytes_, "th", *SPECIAL], [1] * 257 + [3] * len(SPECIAL)


def _made_up(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return (random.standard_normal(shape) * 0.1).astype(np.float32)


def _close(file: object) -> None:
    file.write_header_to_file()  # type: ignore[attr-defined]
    file.write_kv_data_to_file()  # type: ignore[attr-defined]
    file.write_tensors_to_file()  # type: ignore[attr-defined]
    file.close()  # type: ignore[attr-defined]


if __name__ == "__main__":
    write(Path(sys.argv[1]))
