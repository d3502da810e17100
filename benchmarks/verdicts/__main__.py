"""Verdicts a minute and how long each takes, by a vision-language model of real size behind the worker's own judge.

    python -m benchmarks.verdicts --size 8b --device cuda --dtype bfloat16 --json verdicts.json     # one H200
    python -m benchmarks.verdicts --size tiny --rates 60 --seconds 10                               # proves the way
    python -m benchmarks.verdicts --scripted --order decision_first --evidence crops                # the pace of an 8B

The judge and the engine `openai` of `cloud_worker`, as a worker runs them (its prompt, schema, pictures made smaller,
answers checked), ask a server that puts OpenAI's protocol in front of transformers: continuous batches there are none,
what waits goes together. Weights are random and the answer's words fixed; every token of prompt and answer is computed.
Escalations come at a mean rate with random arrivals, then as fast as they are answered.
The broker is not part of it: benchmarks.uplink measures that. --python: one that has torch and transformers.

NVIDIA's published figures (VSS 3.3 alert verification, H100, Cosmos Nano, one token an answer): 4.66 s (p90) at 95
verdicts a minute, 52.56 s at 276.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

import cv2
import numpy as np

from appliance.base.clock import SystemClock
from appliance.base.errors import EngineError
from appliance.wire import Escalation, MediaRef, Need
from benchmarks import stub_engines
from benchmarks.verdicts.qwen3_vl import SIZES
from cloud_worker.config import OpenAiEngine
from cloud_worker.evidence import IN_PROCESS, EvidenceFile, chunks_of
from cloud_worker.judge import Judge, JudgeCase
from cloud_worker.openai_vlm import OpenAiVlm
from cloud_worker.prompt import AnswerOrder

ROOT = Path(__file__).parents[2]
NVIDIA_P90_S = {95: 4.66, 276: 52.56}
ANSWER_S_MAX = 600.0
STOP_S_MAX = 30.0
CASES = 16  # different ones, sent in turn
QUALITY = 85


@dataclass(frozen=True, slots=True)
class Evidence:
    """The evidence of each escalation: `count` images of a size.

    `side_max` is the longer side that the model is shown.
    """

    kind: Need
    count: int
    size: tuple[int, int]
    side_max: int


EVIDENCE = {
    "crops": Evidence("crop", 2, (320, 320), 768),
    "frames": Evidence("frame", 4, (1280, 720), 768),
    # As many tokens of pictures as NVIDIA's 80 frames of 448x448 (7,840): 16 x 484.
    "clip": Evidence("frame", 16, (704, 704), 704),
}


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One escalation: seconds from its arrival to its whole verdict, and to its decision; a wait for a slot included.

    valid: a verdict that names the images; tokens of prompt and answer.
    """

    seconds: float
    decision_s: float
    valid: bool
    tokens_in: int
    tokens_out: int
    preprocess_s: float


@cache
def cases(name: str) -> tuple[JudgeCase, ...]:
    return tuple(_case(name, EVIDENCE[name], seed) for seed in range(CASES))


def _case(name: str, evidence: Evidence, seed: int) -> JudgeCase:
    pictures = tuple(_picture(evidence, seed * 100 + n, float(n)) for n in range(evidence.count))
    escalation = Escalation(
        id=f"esc-{name}-{seed}", site="bench", camera="gate", alert=f"alert-{seed}", rule="intruder", kind="enter",
        label="person", severity="alert", question="Is somebody in the yard?", t=0.0, created_t=0.0, score=0.7,
        zone="yard", media=tuple(each.ref for each in pictures),
    )  # fmt: skip
    return JudgeCase(escalation=escalation, files=pictures, decoder=IN_PROCESS)


def _picture(evidence: Evidence, seed: int, t: float) -> EvidenceFile:
    """Return an image with as much detail as a camera's: smooth patches and a little noise."""
    chance, (width, height) = np.random.default_rng(seed), evidence.size
    coarse = chance.integers(30, 220, (height // 16, width // 16, 3), np.uint8)
    smooth = np.asarray(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)
    pixels = np.clip(smooth + chance.normal(0, 3, smooth.shape), 0, 255).astype(np.uint8)
    data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()
    digest = hashlib.sha256(data).hexdigest()
    ref = MediaRef(
        id=digest[:32], kind=evidence.kind, mime="image/jpeg", bytes=len(data), sha256=digest,
        chunks=chunks_of(len(data)), t=t, width=width, height=height, box=(0.3, 0.3, 0.6, 0.9),
    )  # fmt: skip
    return EvidenceFile(ref, data)


async def paced(
    judge: Judge, request: Sequence[JudgeCase], per_minute: float, seconds: float, places: int
) -> list[TimedAnswer]:
    """Escalations with random arrivals at that mean rate (seeded); at most `places` are judged at a time."""
    chance, room = random.Random(per_minute), asyncio.Semaphore(places)
    began, due_s = time.perf_counter(), 0.0
    tasks: list[asyncio.Task[TimedAnswer]] = []
    while (due_s := due_s + chance.expovariate(per_minute / 60)) < seconds:
        await asyncio.sleep(max(0.0, began + due_s - time.perf_counter()))
        tasks.append(asyncio.create_task(_one(judge, request[len(tasks) % len(request)], room)))
    return list(await asyncio.gather(*tasks))


async def flat_out(judge: Judge, request: Sequence[JudgeCase], seconds: float, places: int) -> float:
    """Verdicts a second with every slot in use all the time."""
    began, count = time.perf_counter(), 0

    async def place(first: int) -> None:
        nonlocal count
        n = first
        while time.perf_counter() - began < seconds:
            await _one(judge, request[n % len(request)], asyncio.Semaphore(1))
            count, n = count + 1, n + places

    await asyncio.gather(*(place(n) for n in range(places)))
    return count / (time.perf_counter() - began)


async def _one(judge: Judge, case: JudgeCase, room: asyncio.Semaphore) -> TimedAnswer:
    began = time.perf_counter()
    async with room:
        try:
            verdict, rest = await judge.begin(case)
            decision_s = time.perf_counter() - began
            verdict = verdict if rest is None else await rest
        except EngineError:
            took_s = time.perf_counter() - began
            return TimedAnswer(took_s, took_s, False, 0, 0, 0.0)
    valid = verdict.decision == "confirmed" and len(verdict.support) > 0
    preprocess_s = verdict.timings.get("preprocess", 0.0)
    return TimedAnswer(
        time.perf_counter() - began, decision_s, valid, verdict.tokens_in, verdict.tokens_out, preprocess_s
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rate with one kind of evidence.

    `busy` is the share of the time in which the model ran; `batch` is the mean number of escalations per run of the
    model.
    """

    evidence: str
    per_minute: float
    questions: int
    valid: int
    mean_s: float
    decision_p50_s: float
    decision_p90_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    tokens_in: float
    tokens_out: float
    preprocess_s: float
    batch: float
    busy: float

    @property
    def table_row(self) -> str:
        nvidia = NVIDIA_P90_S.get(round(self.per_minute))
        return (
            f"| {self.evidence} | {self.per_minute:g} | {self.questions} ({self.valid} valid) | {self.mean_s:.2f} | "
            f"{self.decision_p50_s:.2f} | {self.decision_p90_s:.2f} | {self.p50_s:.2f} | {self.p90_s:.2f} | "
            f"{self.p99_s:.2f} | {self.tokens_in:.0f} + {self.tokens_out:.0f} | {self.batch:.1f} | {self.busy:.0%} | "
            f"{f'{nvidia} s' if nvidia else '-'} |"
        )


HEAD = (
    "| evidence | a minute | questions | mean s | decision p50 | p90 | whole p50 | p90 | p99 | tokens | batch | busy "
    "| NVIDIA p90 |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    with served(chosen) as about:
        print(json.dumps({name: value for name, value in about.items() if name != "port"}), flush=True)
        url = f"http://127.0.0.1:{about['port']}"
        rows, flat = asyncio.run(measure(url, chosen))
    print(HEAD)
    print(*(row.table_row for row in rows), sep="\n")
    for evidence, per_s in flat.items():
        print(f"{evidence}, {chosen.places} at a time: {per_s:.2f} verdicts a second, {per_s * 60:.0f} a minute")
    if chosen.json:
        terms = {"places": chosen.places, "seconds": chosen.seconds, "batch": chosen.batch}
        answer = {"about": about, "terms": terms, "rows": [asdict(row) for row in rows], "flat_out_per_s": flat}
        chosen.json.write_text(json.dumps(answer, indent=1))
    return int(any(row.valid < row.questions for row in rows))


async def measure(url: str, chosen: argparse.Namespace) -> tuple[list[Row], dict[str, float]]:
    """Every kind of evidence at every rate, then as fast as it goes."""
    rows, flat = [], {}
    for name in chosen.evidence:
        evidence = EVIDENCE[name]
        settings = OpenAiEngine(
            kind="openai", url=f"{url}/v1", model="bench", images_max=evidence.count,
            image_side_max=evidence.side_max, timeout_s=ANSWER_S_MAX, answer_order=chosen.order,
        )  # fmt: skip
        engine = OpenAiVlm(settings, SystemClock())
        judge = Judge(engine, "bench", SystemClock(), IN_PROCESS)
        try:
            await judge.check()
            for per_minute in chosen.rates:
                before = stats(url)
                took = await paced(judge, cases(name), per_minute, chosen.seconds, chosen.places)
                rows.append(row(name, per_minute, took, before, stats(url)))
                print(rows[-1].table_row, file=sys.stderr, flush=True)
            if chosen.flat_out > 0:
                flat[name] = await flat_out(judge, cases(name), chosen.flat_out, chosen.places)
        finally:
            await engine.close()
    return rows, flat


def row(
    evidence: str, per_minute: float, took: Sequence[TimedAnswer], before: dict[str, float], after: dict[str, float]
) -> Row:
    """before, after: the server's counts of its batches."""
    seconds = [each.seconds for each in took] or [0.0]
    p50, p90, p99 = (float(np.percentile(seconds, share)) for share in (50, 90, 99))
    decided = [each.decision_s for each in took] or [0.0]
    ran = {name: after[name] - before[name] for name in after}
    return Row(
        evidence=evidence, per_minute=per_minute, questions=len(took), valid=sum(each.valid for each in took),
        mean_s=statistics.fmean(seconds), decision_p50_s=float(np.percentile(decided, 50)),
        decision_p90_s=float(np.percentile(decided, 90)), p50_s=p50, p90_s=p90, p99_s=p99,
        tokens_in=statistics.fmean([each.tokens_in for each in took] or [0]),
        tokens_out=statistics.fmean([each.tokens_out for each in took] or [0]),
        preprocess_s=statistics.fmean([each.preprocess_s for each in took] or [0]),
        batch=ran["answers"] / max(1, ran["batches"]), busy=ran["busy_s"] / max(1e-9, ran["seconds"]),
    )  # fmt: skip


def stats(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/stats", timeout=30) as answer:
        found: dict[str, float] = json.load(answer)
    return found


@contextmanager
def served(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the model server in its own Python, and yield its description."""
    if chosen.scripted:
        with stub_engines.served(chosen.first_token_ms / 1000, chosen.token_ms / 1000) as port:
            pace = {"first_token_ms": chosen.first_token_ms, "token_ms": chosen.token_ms}
            yield {"port": port, "engine": "scripted", "order": chosen.order, **pace}
        return
    words = ["--size", chosen.size, "--device", chosen.device, "--dtype", chosen.dtype, "--batch", str(chosen.batch),
             "--answer-tokens", str(chosen.answer_tokens), *(["--static"] if chosen.static else [])]  # fmt: skip
    child = subprocess.Popen(
        [chosen.python, "-m", "benchmarks.verdicts.server", *words],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        first = child.stdout.readline()
        if not first:
            raise SystemExit("the model server did not come up; the lines above say why (it needs torch, transformers)")
        yield json.loads(first)
    finally:
        child.terminate()
        child.wait(STOP_S_MAX)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verdicts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=sorted(SIZES), default="8b", help="Qwen3-VL's shapes (8b)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch, transformers and Pillow")
    parser.add_argument("--evidence", nargs="+", choices=sorted(EVIDENCE), default=["crops", "frames", "clip"])
    parser.add_argument("--rates", nargs="+", type=float, default=[95.0, 276.0], help="verdicts a minute (95 276)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each rate (60)")
    parser.add_argument("--flat-out", type=float, default=20.0, help="seconds as fast as it goes, 0: not (20)")
    parser.add_argument("--places", type=int, default=32, help="questions judged at a time (worker.concurrency)")
    parser.add_argument("--batch", type=int, default=32, help="of the model, at most")
    parser.add_argument("--answer-tokens", type=int, default=80, help="of each answer (80; NVIDIA's tables: 1)")
    parser.add_argument("--order", choices=get_args(AnswerOrder), default="reason_first", help="of the answer")
    parser.add_argument("--scripted", action="store_true", help="no model: an engine that streams at a given pace")
    parser.add_argument("--first-token-ms", type=float, default=120.0, help="of the scripted engine (120)")
    parser.add_argument("--token-ms", type=float, default=7.0, help="likewise, of each further token (7)")
    parser.add_argument("--static", action="store_true", help="a cache of fixed size: compiled decoding on a GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
