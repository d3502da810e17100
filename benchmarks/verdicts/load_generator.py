"""Sends escalations to a judge as sites would: at a mean rate with random arrivals, or as fast as it answers."""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np

from appliance.base.errors import EngineError
from appliance.wire import Escalation, MediaRef, Need
from cloud_worker.images import IN_PROCESS
from cloud_worker.judge import Judge, JudgeCase
from cloud_worker.media_fetch import EvidenceFile, chunks_of

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
