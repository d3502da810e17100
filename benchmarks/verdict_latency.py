"""From an escalation being ready to its verdict being applied, without a model's own time: the transport alone.

    .venv/bin/python -m benchmarks.verdict_latency --rate 100 --seconds 180
    .venv/bin/python -m benchmarks.verdict_latency --overload 3

A site (SQLite on disk), a nats-server and a worker process on this machine over loopback; four pictures of 60 KB a
question, or two of 5 KB with `--overload`. The engine answers at once, or, with `--overload N`, takes `--latency-s` for
each of at most `--places` at a time, and is asked N times as many as it can answer: one in ten of them grave. Budget:
p50 0.15 s, p99 0.5 s at 100 questions a minute; at three times the capacity the grave ones take at most twice as long
(p95, the engine's time included) as with nothing else to do, and of the others each one is accounted for. `way` is the
time without the engine's own; `stages` are p50 and p95 of those of docs/worker.md, and `back` is from the verdict's
making to its being applied.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.wire import Verdict
from benchmarks.instant_worker import Instant, instant_worker
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import Site, evidence_image, site
from tests.support.waiting import until

__all__ = ["Instant", "measure", "ways"]
MIX = ("alert", *("warning", "info", "warning", "info") * 2, "warning")
"""Severities of ten questions in a row."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="questions a minute")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument("--overload", type=float, help="times the engine's capacity")
    parser.add_argument("--places", type=int, default=8, help="with --overload: questions that it answers at a time")
    parser.add_argument("--latency-s", type=float, default=2.0, help="with --overload: for each of them")
    parser.add_argument("--every-server", action="store_true", help="with each nats-server that is installed")
    options = parser.parse_args()
    for binary in find_nats_servers()[: None if options.every_server else 1]:
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(binary, Path(folder) / "nats").start()
            try:
                measured = overload if options.overload else measure
                print(json.dumps({"server": binary.version, **measured(server.url, Path(folder) / "site", options)}))
            finally:
                server.stop()


def measure(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure at a rate that can be answered."""
    with instant_worker(url), site(folder, url) as here:
        here.ask(-1)
        until(lambda: here.settled(-1), 60)  # connected, streams made
        count = int(options.rate * options.seconds / 60)
        sent = ask(here, count, options.rate, lambda n: pictures(n, options.pictures), ("alert",))
        until(lambda: here.settled(*range(count)), 60, every_s=0.2)
        found = ways(here, sent)
        sent_bytes_each = here.meter_totals()["uplink_bytes"] / (count + 1)
    took = np.array([each["all"] for each in found])
    return {
        "questions": count,
        "per_minute": options.rate,
        "kilobytes_each": round(sent_bytes_each / 1000, 1),
        "p50_s": round(float(np.percentile(took, 50)), 4),
        "p99_s": round(float(np.percentile(took, 99)), 4),
        "max_s": round(float(took.max()), 4),
        "stages_s": stages(found),
    }


def overload(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Ask the grave questions alone first, at their own rate, then among all the others."""
    capacity = options.places / options.latency_s * 60
    rate = capacity * options.overload
    count = int(rate * options.seconds / 60)
    with instant_worker(url, concurrency=options.places, latency_s=options.latency_s), site(folder, url) as here:
        here.ask(-1)
        until(lambda: here.settled(-1), 60)
        alone = range(10 * count, 10 * count + count // len(MIX))
        sent = ask(here, len(alone), rate / len(MIX), small, ("alert",), first=alone.start)
        until(lambda: here.settled(*alone), 60 + options.latency_s, every_s=0.2)
        before = ways(here, sent)
        sent = ask(here, count, rate, small, MIX)
        grave = range(0, count, len(MIX))
        until(lambda: here.settled(*grave), 120 + 10 * options.latency_s, every_s=0.2)
        among = ways(here, {name: t for name, t in sent.items() if int(name_of(here, name)) % len(MIX) == 0})
        fate = fates(here, sent)
    assert sum(sum(each.values()) for each in fate.values()) == count, fate
    return {
        "capacity_per_minute": capacity,
        "per_minute": rate,
        "questions": count,
        "grave_p50_s": (at(before, "all", 50), at(among, "all", 50)),
        "grave_p95_s": (at(before, "all", 95), at(among, "all", 95)),
        "grave_ratio_p95": round(at(among, "all", 95) / at(before, "all", 95), 2),
        "grave_way_p95_s": (at(before, "way", 95), at(among, "way", 95)),
        "stages_alone_s": stages(before),
        "stages_overloaded_s": stages(among),
        "fates": fate,
    }


def ask(
    here: Site,
    count: int,
    rate: float,
    images_of: Callable[[int], tuple[bytes, ...]],
    mix: Sequence[str],
    first: int = 0,
) -> dict[str, float]:
    """Send `count` escalations at `rate` a minute; when each was sent, by its id."""
    sent: dict[str, float] = {}
    started = time.monotonic()
    for n in range(count):
        media = images_of(first + n)
        threading.Event().wait(max(0.0, started + n * 60 / rate - time.monotonic()))
        before = time.time()
        sent[here.ask(first + n, media, severity=mix[n % len(mix)])] = before
    return sent


def pictures(n: int, count: int) -> tuple[bytes, ...]:
    return tuple(evidence_image(n * 10 + k, (280, 200), noise=True) for k in range(count))


def small(n: int) -> tuple[bytes, ...]:
    return tuple(evidence_image(n * 2 + k, (76, 60), noise=True) for k in range(2))


def ways(here: Site, sent: Mapping[str, float]) -> list[dict[str, float]]:
    """Return the seconds of each stage for each question that was sent, and of `all` until it was applied."""
    with here.db.read() as connection:
        rows = connection.execute("SELECT escalation, body, applied_t FROM verdict").fetchall()
    found = []
    for row in rows:
        if row["escalation"] in sent:
            verdict: Verdict = Verdict.from_json(row["body"].encode())
            whole, back = row["applied_t"] - sent[row["escalation"]], row["applied_t"] - verdict.judged_t
            found.append({**verdict.timings, "back": back, "way": whole - verdict.timings["model"], "all": whole})
    assert len(found) == len(sent)
    return found


def name_of(here: Site, escalation: str) -> str:
    """Return the number of the alert that the escalation asks about."""
    with here.db.read() as connection:
        row = connection.execute("SELECT alert FROM escalation WHERE id = ?", (escalation,)).fetchone()
    return str(row["alert"]).removeprefix("alert-")


def fates(here: Site, sent: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """Return the state of each question by priority, as the dashboard and /metrics show it."""
    with here.db.read() as connection:
        rows = connection.execute("SELECT id, priority, state FROM escalation").fetchall()
    found: dict[str, Counter[str]] = {}
    for row in rows:
        if row["id"] in sent:
            found.setdefault(row["priority"], Counter())[row["state"]] += 1
    return {priority: dict(counter) for priority, counter in found.items()}


def stages(found: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return p50 and p95 of each."""
    return {name: (at(found, name, 50), at(found, name, 95)) for name in found[0]}


def at(found: Sequence[Mapping[str, float]], name: str, percent: float) -> float:
    return round(float(np.percentile([each[name] for each in found], percent)), 4)


if __name__ == "__main__":
    main()
