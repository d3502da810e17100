"""From the question being ready to its verdict being applied, without a model's own time: the way itself.

    .venv/bin/python -m benchmarks.verdict_latency --rate 100 --seconds 60

A site (SQLite on disk), a nats-server and a worker on this machine over loopback; four pictures of 60 KB a question.
The engine answers at once. Budget: p50 0.15 s, p99 0.5 s at 100 questions a minute (docs/design.md).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from appliance.wire import Need
from cloud_worker.judge import Case, Opinion
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import picture, site
from tests.servers.worker import worker
from tests.waiting import until


class Instant:
    """An engine without a model."""

    name, model, prompt_version, answer_schema = "instant", "none", "", ""
    uses: frozenset[Need] = frozenset({"crop", "frame"})

    async def judge(self, case: Case) -> Opinion:
        return Opinion(decision="confirmed", reason=f"{len(case.pictures)} pictures arrived.")

    async def check(self) -> str:
        return "instant"

    async def close(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="questions a minute")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pictures", type=int, default=4)
    options = parser.parse_args()
    for binary in find_nats_servers():
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(binary, Path(folder) / "nats").start()
            try:
                print(json.dumps({"server": binary.version, **measure(server.url, Path(folder) / "site", options)}))
            finally:
                server.stop()


def measure(url: str, folder: Path, options: argparse.Namespace) -> dict[str, float]:
    with site(folder, url) as here, worker(url, Instant()):
        here.ask(-1)
        until(lambda: here.settled(-1), 60)  # connected, streams made
        ready: dict[str, float] = {}
        started = time.monotonic()
        count = int(options.rate * options.seconds / 60)
        for n in range(count):
            time.sleep(max(0.0, started + n * 60 / options.rate - time.monotonic()))
            pictures = tuple(picture(n * 10 + k, (280, 200), noise=True) for k in range(options.pictures))
            before = time.time()
            ready[here.ask(n, pictures)] = before
        until(lambda: here.settled(*range(count)), 60)
        with here.db.read() as connection:
            rows = connection.execute("SELECT escalation, applied_t FROM verdict WHERE alert != 'alert--1'").fetchall()
        took = np.array([row["applied_t"] - ready[row["escalation"]] for row in rows])
        sent = here.meter_totals()["uplink_bytes"] / (count + 1)
    assert len(took) == count
    return {
        "questions": count,
        "per_minute": options.rate,
        "kilobytes_each": round(sent / 1000, 1),
        "p50_s": round(float(np.percentile(took, 50)), 4),
        "p99_s": round(float(np.percentile(took, 99)), 4),
        "max_s": round(float(took.max()), 4),
    }


if __name__ == "__main__":
    main()
