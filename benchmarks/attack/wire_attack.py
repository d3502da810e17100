# ruff: noqa: E501 (tables of messages)
"""Messages that no worker and no site would send: verdicts to the appliance; escalations and media to the worker."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import time
from typing import Any

import nats
from nats.aio.client import Client

from appliance import wire
from benchmarks.attack.target import SITE, Tally, Target
from tests.support import hostile_media

SETTLES_S_MAX = 240.0
ANSWERS_S_MAX = 5.0  # of the appliance, while verdicts come
MEMORY_MB_MAX = 500.0
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e308, 1e-320, 10**19, "", "x" * 300, "x" * 60_000, "\x1b[2J\x1b]0;owned\x07", "a\nb: c", "\u202e",
    "../../etc/passwd", "<script>alert(1)</script>", "javascript:alert(1)", [], {}, [[]] * 50, {"a" * 60_000: "x"},
    {"\x1b[31m\n": 1}, {"t": 1e308}, [{"media": "m", "t": 1e308, "supports": "yes"}], [{"kind": "clip", "key": "k", "url": "javascript:1"}],
    "confirmed", "rejected", "unsure", [{"id": "0" * 32}], ["crop"] * 99,
)  # fmt: skip
JUNK = (b"", b"null", b"[]", b"{", b"[" * 60_000, b'{"a":' * 9_000, b"\xff\xfe", b"\0" * 60_000, b'{"schema_version": 1' + b"0" * 4400 + b"}",
        b'{"reason": "\\ud800"}', b'"' + b"\\u0000" * 9_000 + b'"', b"1" * 60_000)  # fmt: skip


def run(target: Target, verdicts: int, escalations: int, media: int, seed: int) -> list[Tally]:
    """Run each part, and check after it whether both sides still do their work."""
    choose = random.Random(seed)
    parts = [
        _attack(target, "verdicts", "core", _verdicts(target, choose, verdicts), target.workers_url),
        _attack(target, "escalations", "worker", _escalations(choose, escalations), target.site_url),
    ]
    if media:
        parts.append(_attack(target, "media", "worker", _media(choose, media), target.site_url))
    return parts


Message = tuple[str, bytes, dict[str, str]]


def _attack(target: Target, name: str, victim: str, messages: list[Message], url: str) -> Tally:
    tally = Tally(name)
    before = target.memory_mb(victim)
    asyncio.run(_publish(url, messages, tally, target))
    _settles(target, tally)
    if (grown := target.memory_mb(victim) - before) > MEMORY_MB_MAX:
        tally.door(f"{victim} has grown by {grown:.0f} MB")
    for path in ("/", "/api/v1/alerts", "/cameras", *_alert_pages(target)):
        began = time.monotonic()
        status, _ = target.get(path)
        tally.count(str(status), path)
        if time.monotonic() - began > ANSWERS_S_MAX:
            tally.error(f"{path} took {time.monotonic() - began:.1f} s")
    return tally


def _alert_pages(target: Target) -> list[str]:
    return [f"/alerts/{each['id']}" for each in target.json("/api/v1/alerts").get("alerts", [])[:20]]


async def _publish(url: str, messages: list[Message], tally: Tally, target: Target) -> None:
    client: Client = await nats.connect(url, inbox_prefix=f"_INBOX.{SITE}", error_cb=_quiet, allow_reconnect=True)
    try:
        slowest = 0.0
        for n, (subject, data, headers) in enumerate(messages):
            await client.publish(subject, data, headers=headers or None)
            tally.count("sent")
            if n % 100 == 99:
                await client.flush(30)
                began = time.monotonic()
                await asyncio.to_thread(target.get, "/healthz")
                slowest = max(slowest, time.monotonic() - began)
        await client.flush(30)
        if slowest > ANSWERS_S_MAX:
            tally.error(f"the appliance took {slowest:.1f} s to answer meanwhile")
    finally:
        await client.close()


async def _quiet(_: Exception) -> None:
    """Refusals are what is expected."""


def _settles(target: Target, tally: Tally) -> None:
    """Wait until the queue is worked off and both sides are well."""
    deadline = time.monotonic() + SETTLES_S_MAX
    left = -1
    while time.monotonic() < deadline:
        left = asyncio.run(_queued(target.workers_url))
        if left == 0 and target.worker_ready()[0] == 200 and b"vedette_link_up 1" in target.get("/metrics")[1]:
            return
        time.sleep(0.5)
    tally.door(f"it does not settle: {left} escalations left, worker {target.worker_ready()}")


async def _queued(url: str) -> int:
    client = await nats.connect(url, error_cb=_quiet)
    try:
        info = await client.jetstream().stream_info(wire.STREAM_ESCALATION)
        return int(info.state.messages)
    finally:
        await client.close()


def _verdicts(target: Target, choose: random.Random, count: int) -> list[Message]:
    """Return verdicts that are valid but for one to three fields, for alerts that are there and for none."""
    ids = [each["id"] for each in target.json("/api/v1/alerts").get("alerts", [])]
    escalations = ["esc-" + hashlib.sha256(f"{SITE}/{each}".encode()).hexdigest()[:16] for each in ids] or ["esc-1"]
    found: list[Message] = []
    for n in range(count):
        verdict = {
            "schema_version": wire.WIRE_SCHEMA, "escalation": choose.choice(escalations), "site": SITE, "alert": choose.choice(ids or ["a"]),
            "decision": "unsure", "reason": "hostile", "confidence": 0.5, "support": [], "engine": "e", "model": "m",
            "prompt_version": "p", "seconds": 1.0, "tokens_in": 1, "tokens_out": 1, "timings": {"model": 1.0}, "worker": "w",
            "judged_t": 1.0, "need": None, "step": 0, "worker_version": "1", "answer_schema": "1", "looks": 1, "archive": [],
        }  # fmt: skip
        for name in choose.sample(sorted(verdict), choose.choice((1, 1, 1, 2, 3))):
            verdict[name] = choose.choice(VALUES)
        data = choose.choice(JUNK) if n % 10 == 9 else json.dumps(verdict).encode()
        found.append((wire.verdict_subject(SITE), data[:65_000], {"Nats-Msg-Id": f"attack-{n}-{choose.random()}"}))
    return found


def _question(n: int, media: list[Any]) -> dict[str, Any]:
    return {
        "schema_version": wire.WIRE_SCHEMA, "id": f"esc-attack-{n}", "site": SITE, "camera": "gate", "alert": "a", "rule": "r",
        "kind": "enter", "label": "person", "severity": "alert", "question": "", "t": 1.0, "created_t": 1.0, "score": 0.5,
        "zone": "", "model": "m", "media": media, "step": 0, "can": [], "image_free": False, "box_version": "",
    }  # fmt: skip


def _escalations(choose: random.Random, count: int) -> list[Message]:
    found: list[Message] = []
    for n in range(count):
        question = _question(n, [])
        for name in choose.sample(sorted(question), choose.choice((1, 1, 2, 3))):
            question[name] = choose.choice((*VALUES, "x" * 400_000))
        data = choose.choice(JUNK) if n % 10 == 9 else json.dumps(question).encode()
        subject = wire.escalation_subject(SITE, choose.choice((*wire.PRIORITIES, "x", "high high", "..", "*")))
        if " " in subject or ".." in subject or "*" in subject:
            subject = wire.escalation_subject(SITE, "odd")
        headers = {"Nats-Msg-Id": f"attack-{n}-{choose.random()}", "X-Odd": "y" * choose.choice((0, 10, 3000))}
        found.append((subject, data[:1_000_000], headers))
    return found


def _media(choose: random.Random, count: int) -> list[Message]:
    """Bombs and nonsense as evidence, each with the right hash and the right number of chunks."""
    images = [hostile_media.marker_bomb(marker) for marker in (0x01, 0xD0, 0xD7)]
    small = hostile_media.jpeg()
    images += [
        hostile_media.resized(small, *size) for size in ((65_500, 65_500), (30_000, 30_000), (7_000, 5_000), (0, 9))
    ]
    images += [small[:n] for n in (3, 20, 200, len(small) - 9)] + [
        b"RIFF\xff\xff\xff\xffWEBPVP8X" + b"\xff" * 40,
        b"\x89PNG",
        small,
    ]
    clips = [*hostile_media.PLAYLISTS.values(), hostile_media.clip(7680, 5120, 2), hostile_media.clip(640, 480, 60),
             hostile_media.clip(form="matroska"), hostile_media.clip()[:900], b"\0\0\0\x18ftypmp42" + b"\0" * 5000]  # fmt: skip
    found: list[Message] = []
    for n in range(count):
        kind = choose.choice(("frame", "crop", "clip"))
        data = bytearray(choose.choice(clips if kind == "clip" else images))
        if choose.random() < 0.5 and len(data) > 40:
            for _ in range(choose.randint(1, 20)):
                data[choose.randrange(4, len(data))] = choose.randrange(256)
        file = hostile_media.evidence(bytes(data), kind)
        ref = json.loads(file.ref.to_json())
        for k in range(file.ref.chunks):
            chunk = bytes(data[k * wire.CHUNK_BYTES : (k + 1) * wire.CHUNK_BYTES])
            found.append((wire.media_subject(SITE, file.ref.id, k), chunk, {}))
        ref["box"] = [0.1, 0.1, 0.9, 0.9]
        question = _question(10_000_000 + n, [ref])
        found.append((wire.escalation_subject(SITE, "high"), json.dumps(question).encode(), {}))
    return found
