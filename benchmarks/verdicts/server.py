"""A model server with OpenAI's chat completions: many threads prepare images, one runs the model.

The model is a real architecture with random weights, through transformers (pip install 'vedette[verdicts]').

    PYTHON -m benchmarks.verdicts.server --size 8b --device cuda --dtype bfloat16

Started by the benchmark with a Python that has torch and transformers; needs nothing else but this folder. Prints one
JSON line when it is warm, {"port": N, ...what is run}, and ends when its input does. What waits while the model runs
goes together in the next batch; `GET /stats` tells of batches.
"""

from __future__ import annotations

import argparse
import io
import json
import queue
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image

from benchmarks.verdicts.qwen3_vl import (
    CELL,
    FRAMES_A_PATCH,
    MERGE,
    PATCH,
    SIZES,
    BadRequest,
    ChatRequest,
    Size,
    cells,
    completion,
    prompt_ids,
    read,
    text_ids,
)

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


WAITING_MAX = 4096
ANSWER_S_MAX = 600.0
BODY_BYTES_MAX = 64 * 1024 * 1024


@dataclass(slots=True)
class Stats:
    """Since the start; the model's thread writes it. busy_s: the model ran."""

    batches: int = 0
    answers: int = 0
    busy_s: float = 0.0
    tokens_in: int = 0
    since: float = field(default_factory=time.monotonic)

    def as_json(self) -> dict[str, float]:
        """busy_share: of the time since the start."""
        seconds = time.monotonic() - self.since
        return {
            "batches": self.batches, "answers": self.answers, "busy_s": round(self.busy_s, 3),
            "tokens_in": self.tokens_in, "seconds": round(seconds, 3),
        }  # fmt: skip


class Batcher:
    """Owner of the model and of the one thread that runs it."""

    def __init__(self, model: Model, tokens: int, batch_max: int, tokens_max: int) -> None:
        """tokens: of each answer; tokens_max: of the prompts of a batch together."""
        self._model, self.tokens, self._batch_max, self._tokens_max = model, tokens, batch_max, tokens_max
        self._waiting: queue.Queue[tuple[Ready, Future[None]]] = queue.Queue(WAITING_MAX)
        self._left: tuple[Ready, Future[None]] | None = None
        self.stats = Stats()
        threading.Thread(target=self._run, name="model", daemon=True).start()

    def answer(self, request: ChatRequest) -> int:
        """Prepare in the caller's thread, wait for the model; returns the prompt's tokens."""
        ready = prepare(request, self._model.size)
        done: Future[None] = Future()
        self._waiting.put((ready, done), timeout=ANSWER_S_MAX)
        done.result(ANSWER_S_MAX)
        return len(ready.ids)

    def _run(self) -> None:
        while True:
            batch = self._gather()
            try:
                took_s = self._model.answer([ready for ready, _ in batch], self.tokens)
            except Exception as error:  # noqa: BLE001 - the waiting requests get it, and the next batch is tried
                for _, done in batch:
                    done.set_exception(error)
                continue
            self.stats.batches += 1
            self.stats.answers += len(batch)
            self.stats.busy_s += took_s
            self.stats.tokens_in += sum(len(ready.ids) for ready, _ in batch)
            for _, done in batch:
                done.set_result(None)

    def _gather(self) -> list[tuple[Ready, Future[None]]]:
        """Whatever waits, the oldest first; at least one. A batch is padded to its longest prompt."""
        first = self._left or self._waiting.get()
        self._left = None
        batch, longest = [first], len(first[0].ids)
        while len(batch) < self._batch_max:
            try:
                each = self._waiting.get_nowait()
            except queue.Empty:
                break
            longest = max(longest, len(each[0].ids))
            if longest * (len(batch) + 1) > self._tokens_max:
                self._left = each
                break
            batch.append(each)
        return batch


class Handler(BaseHTTPRequestHandler):
    """One request. The server it belongs to has `batcher`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._respond(200, self.server.batcher.stats.as_json())  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = self.rfile.read(min(int(self.headers.get("Content-Length", 0)), BODY_BYTES_MAX))
        batcher: Batcher = self.server.batcher  # type: ignore[attr-defined]
        try:
            request = read(body)
            tokens_in = batcher.answer(request)
        except (BadRequest, OSError) as error:
            self._respond(400, {"error": {"message": str(error), "type": "BadRequestError", "code": 400}})
        except Exception as error:  # noqa: BLE001 - the top of a request; the benchmark counts it as no answer
            self._respond(500, {"error": {"message": repr(error)[:300], "type": "InternalServerError", "code": 500}})
        else:
            self._respond(200, completion(request.pictures, tokens_in, batcher.tokens))

    def _respond(self, status: int, what: dict[str, Any]) -> None:
        data = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, batcher: Batcher) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.batcher = batcher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SIZES), default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--answer-tokens", type=int, default=80)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batch-tokens", type=int, default=131_072)
    parser.add_argument("--static", action="store_true")
    chosen = parser.parse_args()
    model = Model(SIZES[chosen.size], chosen.device, chosen.dtype, static=chosen.static)
    warm = prepare(ChatRequest((text_ids("warm " * 400),)), model.size)
    for count in sorted({1, chosen.batch}):
        model.answer([warm] * count, min(8, chosen.answer_tokens))
    server = Server(Batcher(model, chosen.answer_tokens, chosen.batch, chosen.batch_tokens))
    threading.Thread(target=server.serve_forever, name="http", daemon=True).start()
    about = {"port": server.server_port, "size": chosen.size, "answer_tokens": chosen.answer_tokens, **model.about}
    print(json.dumps(about), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
