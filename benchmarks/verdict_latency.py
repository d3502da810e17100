"""From an escalation being ready to its verdict being applied, without a model's own time: the transport alone.

    .venv/bin/python -m benchmarks.verdict_latency --rate 100 --seconds 180
    .venv/bin/python -m benchmarks.verdict_latency --pictures 2 --side 76 --rtt-ms 50     # two crops over a long way

A site (SQLite on disk), a nats-server and a worker process on this machine over loopback; four pictures of 60 KB a
question; the engine answers at once (one with more than it can answer: benchmarks.verdicts.overload). Budget: p50
0.15 s, p99 0.5 s at 100 questions a minute. `stages` are p50 and p95 of those of docs/worker.md, and `back` is from the
verdict's making to its being applied.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.wire import Verdict
from benchmarks.far_broker import far
from benchmarks.instant_worker import instant_worker
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import Site, evidence_image, site
from tests.support.waiting import until


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="questions a minute")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pictures", type=int, default=4)
    parser.add_argument(
        "--side", type=int, default=280, help="of each picture, in pixels: 280 is some 60 kB, 76 is 6 kB"
    )
    parser.add_argument("--rtt-ms", type=float, default=0.0, help="between site and broker, beyond loopback")
    parser.add_argument("--every-server", action="store_true", help="with each nats-server that is installed")
    options = parser.parse_args()
    for binary in find_nats_servers()[: None if options.every_server else 1]:
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(binary, Path(folder) / "nats").start()
            try:
                with far(server.port, options.rtt_ms / 1000) as port:
                    way = f"nats://127.0.0.1:{port}" if options.rtt_ms else server.url
                    found = measure(server.url, way, Path(folder) / "site", options)
                print(json.dumps({"server": binary.version, **found}))
            finally:
                server.stop()


def measure(url: str, way: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure at a rate that can be answered. way: the broker as the site reaches it."""
    with instant_worker(url), site(folder, way) as here:
        here.ask(-1)
        until(lambda: here.settled(-1), 60)  # connected, streams made
        count = int(options.rate * options.seconds / 60)
        sent = ask(here, count, options.rate, lambda n: pictures(n, options.pictures, options.side))
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


def ask(
    here: Site, count: int, rate: float, images_of: Callable[[int], tuple[bytes, ...]], first: int = 0
) -> dict[str, float]:
    """Send `count` escalations at `rate` a minute; when each was sent, by its id."""
    sent: dict[str, float] = {}
    started = time.monotonic()
    for n in range(count):
        media = images_of(first + n)
        threading.Event().wait(max(0.0, started + n * 60 / rate - time.monotonic()))
        before = time.time()
        sent[here.ask(first + n, media, severity="alert")] = before
    return sent


def pictures(n: int, count: int, side: int) -> tuple[bytes, ...]:
    return tuple(evidence_image(n * 10 + k, (side, side * 5 // 7), noise=True) for k in range(count))


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
            applied_t = row["applied_t"]
            whole, back = applied_t - sent[row["escalation"]], applied_t - verdict.judged_t
            found.append({**verdict.timings, "back": back, "all": whole})
    assert len(found) == len(sent)
    return found


def stages(found: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return p50 and p95 of each."""
    return {name: (at(found, name, 50), at(found, name, 95)) for name in found[0]}


def at(found: Sequence[Mapping[str, float]], name: str, percent: float) -> float:
    return round(float(np.percentile([each[name] for each in found], percent)), 4)


if __name__ == "__main__":
    main()
