"""Writes a folder that vLLM takes for a Qwen2.5-VL: the real architecture, tiny, its weights made up when it is loaded.

    PYTHON tests/servers/vllm/tiny.py FOLDER

Run by a Python that has transformers and tokenizers. Nothing is fetched: the tokenizer is trained on a few sentences
here, so it is good for nothing but counting.
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path

VOCABULARY = 1000
SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
WORDS = (
    "You check alerts of a video surveillance system. A detector on the camera flagged something; you are shown "
    "pictures of it, numbered from 1 in the order of time, and facts about it as JSON. Decide whether they show "
    'what the alert claims. {"pictures":[{"picture":1,"supports":"yes"}],"reason":"A person stands inside the yard.",'
    '"decision":"confirmed","confidence":0.9} rejected unsure ' + string.printable
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part['type'] in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IMAGES = {
    "do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True, "rescale_factor": 1 / 255,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 3, "patch_size": 14,
    "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 401408,
    "size": {"shortest_edge": 3136, "longest_edge": 401408},
}  # fmt: skip


def write(folder: Path) -> None:
    """The whole folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = _tokenizer(folder)
    _json(folder / "config.json", _config(numbers))
    _json(folder / "generation_config.json", {"eos_token_id": numbers["<|im_end|>"], "pad_token_id": 0})
    kinds = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    _json(folder / "preprocessor_config.json", {**IMAGES, **kinds})
    kinds = {"video_processor_type": "Qwen2VLVideoProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    _json(folder / "video_preprocessor_config.json", {**IMAGES, **kinds})
    _json(folder / "chat_template.json", {"chat_template": TEMPLATE})


def _tokenizer(folder: Path) -> dict[str, int]:
    """Train and write it; the numbers of the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [WORDS] * 4, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
    )
    made.save(str(folder / "tokenizer.json"))
    state = json.loads((folder / "tokenizer.json").read_text())["model"]
    _json(folder / "vocab.json", state["vocab"])
    pairs = (each if isinstance(each, str) else " ".join(each) for each in state["merges"])
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(pairs) + "\n")
    settings = {
        "tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen2_5_VLProcessor", "model_max_length": 8192,
        "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None,
        "additional_special_tokens": list(SPECIAL[1:]), "chat_template": TEMPLATE, "add_prefix_space": False,
        "clean_up_tokenization_spaces": False, "errors": "replace", "split_special_tokens": False,
        "added_tokens_decoder": {
            str(made.token_to_id(word)): {
                "content": word, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False,
                "special": True,
            }
            for word in SPECIAL
        },
    }  # fmt: skip
    _json(folder / "tokenizer_config.json", settings)
    return {word: made.token_to_id(word) for word in SPECIAL}


def _config(numbers: dict[str, int]) -> dict[str, object]:
    """A head has 32 numbers: vLLM's attention on a CPU has no smaller ones."""
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "torch_dtype": "float32",
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "use_cache": True,
        "vocab_size": VOCABULARY + 24, "tie_word_embeddings": False, "initializer_range": 0.02,
        "bos_token_id": numbers["<|endoftext|>"], "eos_token_id": numbers["<|im_end|>"],
        "image_token_id": numbers["<|image_pad|>"], "video_token_id": numbers["<|video_pad|>"],
        "vision_start_token_id": numbers["<|vision_start|>"], "vision_end_token_id": numbers["<|vision_end|>"],
        "vision_token_id": numbers["<|vision_pad|>"],
        "vision_config": {
            "model_type": "qwen2_5_vl", "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
            "in_channels": 3, "in_chans": 3, "out_hidden_size": 128, "patch_size": 14, "spatial_patch_size": 14,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112, "fullatt_block_indexes": [1],
            "tokens_per_second": 2, "hidden_act": "silu",
        },
    }  # fmt: skip


def _json(path: Path, what: object) -> None:
    path.write_text(json.dumps(what, indent=1))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
