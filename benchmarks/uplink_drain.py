"""A backlog of many escalations drains over a shaped uplink while live ones overtake it.

    .venv/bin/python -m benchmarks.uplink_drain --backlog 10000 --kbps 4000

A site (SQLite on disk), a nats-server and a worker process whose engine answers at once, over loopback; two crops of
5 KB each. The backlog is what an outage of 24 hours left. Budget: at least 90 % of the shaped rate, from the
first byte to the last, and the p95 of live escalations at most twice that without a backlog. `stages`: where a
live one spent its time (p50, p95), see benchmarks.verdict_latency.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.instant_worker import instant_worker
from benchmarks.verdict_latency import ask, at, small, stages, ways
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import Site, site
from tests.support.waiting import until

DAY_S = 86400.0
LIVE_FIRST = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backlog", type=int, default=10_000)
    parser.add_argument("--kbps", type=float, default=4000.0)
    parser.add_argument("--live-every-s", type=float, default=1.0)
    parser.add_argument("--live", type=int, default=40, help="live questions, without and with the backlog")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = NatsServer(find_nats_servers()[0], Path(folder) / "nats").start()
        try:
            found = measure(server.url, Path(folder) / "site", options)
        finally:
            server.stop()
    print(json.dumps(found))


def measure(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    limits = {"kbps_max": options.kbps, "outbox_mb_max": 10_000}
    with instant_worker(url, concurrency=16), site(folder, url, expire_s=10 * DAY_S, **limits) as here:
        here.ask(-1)
        until(lambda: here.settled(-1), 60)
        before = live(here, LIVE_FIRST, options)
        here.cut()
        fill(here, options.backlog)
        here.connect()
        until(lambda: here.service.link.up)
        wire, began = here.service.link.wire, time.monotonic()
        loaded = live(here, LIVE_FIRST + options.live, options)
        still = here.count("ready")
        rate_kbps = drained(here, wire, began)
        until(lambda: here.count("settled") >= 1 + 2 * options.live + options.backlog, 300, every_s=0.2)
        until(lambda: here.service.verdicts.applied >= options.backlog + options.live)  # counted once they are written
    assert still, "the backlog was gone before the live questions were: give it more, or less rate"
    alone_s, loaded_s = at(before, "all", 95), at(loaded, "all", 95)
    return {
        "backlog": options.backlog,
        "kbps_max": options.kbps,
        "kbps": round(rate_kbps, 1),
        "share_of_rate": round(rate_kbps / options.kbps, 3),
        "live_p95_alone_s": alone_s,
        "live_p95_loaded_s": loaded_s,
        "live_p50_alone_s": at(before, "all", 50),
        "live_p50_loaded_s": at(loaded, "all", 50),
        "live_ratio_p95": round(loaded_s / alone_s, 2),
        "stages_alone_s": stages(before),
        "stages_loaded_s": stages(loaded),
    }


def drained(here: Site, wire: int, began: float) -> float:
    """Return the kbit/s on the wire until nothing is left to send."""
    until(lambda: here.count("ready") == 0, 3600, every_s=0.05)
    return (here.service.link.wire - wire) * 8 / 1000 / (time.monotonic() - began)


def live(here: Site, first: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Send one escalation after the other, each at its time, and wait for all verdicts; see `ways`."""
    sent = ask(here, options.live, 60 / options.live_every_s, small, first)
    until(lambda: here.settled(*range(first, first + options.live)), 120, every_s=0.2)
    return ways(here, sent)


def fill(here: Site, count: int) -> None:
    """Fill the site with the escalations of a day without a link, one in ten of severity `alert`."""
    for n in range(count):
        here.ask(n, small(n), severity="alert" if n % 10 == 0 else "warning")
    with here.db.transaction() as connection:
        connection.execute(
            "UPDATE escalation SET created_t = created_t - ? * (1 + random() / 9223372036854775808.0) / 2 - 300 "
            "WHERE state = 'ready'",
            (DAY_S,),
        )


if __name__ == "__main__":
    main()
