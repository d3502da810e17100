"""The model itself: a real architecture with random weights, through transformers. Needs torch, transformers, Pillow.

pip install 'vedette[verdicts]'
"""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image

from benchmarks.verdicts.chat_request import ChatRequest, cells, prompt_ids
from benchmarks.verdicts.model_sizes import CELL, FRAMES_A_PATCH, MERGE, PATCH, Size

SEED = 7
PAD = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A prompt that needs nothing but the model.

    - patches: float32 (cells * MERGE^2, 3 * FRAMES_A_PATCH * PATCH^2).
    - grid: (images, 3), patches in time, down and across.
    """

    ids: tuple[int, ...]
    patches: NDArray[np.float32]
    grid: NDArray[np.int64]
    pictures: int


def prepare(request: ChatRequest, size: Size) -> Ready:
    """Decode, scale and cut into patches; on the CPU, as a model server does. Raise OSError for what is no picture."""
    images = [Image.open(io.BytesIO(part)).convert("RGB") for part in request.parts if isinstance(part, bytes)]
    grids = [cells(*image.size) for image in images]
    width = 3 * FRAMES_A_PATCH * PATCH * PATCH
    cut = [_patches(image, *grid) for image, grid in zip(images, grids, strict=True)]
    return Ready(
        ids=tuple(prompt_ids(request, grids, size.special)),
        patches=np.concatenate(cut) if cut else np.zeros((0, width), np.float32),
        grid=np.array([(1, down * MERGE, across * MERGE) for across, down in grids], np.int64).reshape(-1, 3),
        pictures=len(images),
    )


def _patches(image: Image.Image, across: int, down: int) -> NDArray[np.float32]:
    """Those of a cell follow each other, cell by cell in rows; a still counts as two frames that are the same."""
    scaled = image.resize((across * CELL, down * CELL), Image.Resampling.BICUBIC)
    pixels = (np.asarray(scaled, np.float32) / 127.5 - 1).transpose(2, 0, 1)
    parts = np.broadcast_to(pixels, (FRAMES_A_PATCH, *pixels.shape))
    split = parts.reshape(1, FRAMES_A_PATCH, 3, down, MERGE, PATCH, across, MERGE, PATCH)
    return np.ascontiguousarray(split.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(down * across * MERGE**2, -1))


class Model:
    """Owner of the weights. Not to be called from two threads at a time."""

    def __init__(self, size: Size, device: str, dtype: str, *, static: bool) -> None:
        """Load the model. `static`: a cache of fixed size, with which transformers compiles the decoding on a GPU."""
        self.size = size
        self.device = torch.device(device)
        self._static = static
        torch.manual_seed(SEED)
        config = _config(size)
        with self.device:
            made = transformers.AutoModelForImageTextToText.from_config(config, dtype=getattr(torch, dtype))
        self._model: Any = made.eval()

    @property
    def about(self) -> dict[str, Any]:
        """The description of the run, to be written beside every figure."""
        gpu = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        held = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0
        return {
            "device": gpu, "parameters": sum(each.numel() for each in self._model.parameters()),
            "dtype": str(next(self._model.parameters()).dtype).removeprefix("torch."), "gpu_gb": round(held / 1e9, 1),
            "torch": torch.__version__, "transformers": transformers.__version__, "static": self._static,
        }  # fmt: skip

    def answer(self, batch: Sequence[Ready], tokens: int) -> float:
        """Write `tokens` tokens after each prompt, all together; returns the seconds it took."""
        began = time.perf_counter()
        longest = max(len(each.ids) for each in batch)
        ids = torch.full((len(batch), longest), PAD, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, each in enumerate(batch):
            ids[row, longest - len(each.ids) :] = torch.tensor(each.ids)
            mask[row, longest - len(each.ids) :] = 1
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        special = self.size.special
        given["mm_token_type_ids"] = (ids == special.image).long()
        if any(each.pictures for each in batch):
            given["pixel_values"] = torch.from_numpy(np.concatenate([each.patches for each in batch]))
            given["image_grid_thw"] = torch.from_numpy(np.concatenate([each.grid for each in batch]))
        given = {name: value.to(self.device) for name, value in given.items()}
        with torch.inference_mode():
            self._model.generate(**given, generation_config=self._generation(tokens))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began

    def _generation(self, tokens: int) -> Any:
        return transformers.GenerationConfig(
            min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False, pad_token_id=PAD, eos_token_id=None,
            cache_implementation="static" if self._static else None,
        )  # fmt: skip


def _config(size: Size) -> Any:
    special = {
        "image_token_id": size.special.image, "video_token_id": size.special.video,
        "vision_start_token_id": size.special.begin, "vision_end_token_id": size.special.end,
    }  # fmt: skip
    made = transformers.CONFIG_MAPPING[size.kind](
        text_config=dict(size.text), vision_config=dict(size.vision), tie_word_embeddings=size.tied, **special
    )
    made.attn_implementation = "sdpa"
    return made
