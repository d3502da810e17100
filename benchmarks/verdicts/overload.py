"""More escalations than the engines can answer: who is answered, how soon, and what the others are told.

    python -m benchmarks.verdicts.overload                          # 1,800 a minute for 5 minutes, two thirds too many
    python -m benchmarks.verdicts.overload --rate 600 --seconds 15 --places 6

Sites in one load generator send at random times (open loop, seeded) to a real nats-server; a real worker in a process
of its own judges `--places` at a time with an engine that takes `--latency-s` for each. One in ten is urgent, three are
normal, six are low. Times are the generator's: from an escalation being published until its verdict passes by. Over its
capacity a worker must not collapse: it goes on answering at its capacity, the urgent ones in time, and each of the
others is answered, later, or told that it is not judged (`worker.shed_s`). Exit code 1: not so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import nats
import numpy as np
from nats.aio.client import Client
from nats.aio.msg import Msg

from appliance import wire
from benchmarks.stub_engines import instant_worker
from cloud_worker.fair_queue import RESERVE_SHARE_MAX
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import evidence_image, ref_of

SITES = 20
MIX = ("high", *("normal",) * 3, *("low",) * 6)
SHED_S = {"high": 60.0, "normal": 30.0, "low": 10.0}
SETTLE_S_MAX = 90.0
HIGH_WAIT_S_MAX = 1.0  # of nine in ten urgent ones, beside the engine's own time
CAPACITY_SHARE_MIN = 0.6  # of the engine's capacity, in every part of the run: less is a collapse
PARTS = 5


@dataclass(frozen=True, slots=True)
class Fate:
    """One escalation: its priority, when it was published, when its verdict passed by, and whether it was judged."""

    priority: str
    sent_t: float
    verdict_t: float | None = None
    judged: bool = False


@dataclass(frozen=True, slots=True)
class PriorityRow:
    """What became of one priority. Seconds are of those that were judged."""

    priority: str
    sent: int
    judged: int
    shed: int
    unanswered: int
    p50_s: float
    p90_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class OverloadResult:
    """A run. parts: escalations judged a second, in fifths of the time of sending.

    capacity_per_s: of the places that are not reserved for urgent ones; latency_s: of the engine.
    """

    rows: tuple[PriorityRow, ...]
    capacity_per_s: float
    latency_s: float
    parts: tuple[float, ...]

    @property
    def faults(self) -> list[str]:
        """Return what a worker over its capacity must not do, in sentences."""
        found = [f"{row.unanswered} of {row.priority} have no answer" for row in self.rows if row.unanswered]
        high, normal, low = self.rows
        if high.shed or high.p90_s > self.latency_s + HIGH_WAIT_S_MAX:
            found.append(f"urgent ones were late: p90 {high.p90_s:.2f} s, {high.shed} not judged")
        shares = [row.shed / max(1, row.sent) for row in (low, normal)]
        if shares[0] < shares[1]:
            found.append(f"more of normal than of low were not judged: {shares[1]:.0%}, {shares[0]:.0%}")
        slow = [each for each in self.parts[1:] if each < CAPACITY_SHARE_MIN * self.capacity_per_s]
        if slow:
            found.append(f"it collapsed: {min(slow):.1f} a second are judged of {self.capacity_per_s:.1f}")
        return found


class LoadGenerator:
    """Sends escalations of many sites, and hears their verdicts. State: the fates by escalation."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._image = evidence_image(1, (160, 120))
        self.fates: dict[str, Fate] = {}
        self._open = 0
        self._all_answered = asyncio.Event()

    async def start(self) -> None:
        await self._client.subscribe("vedette.*.verdict", cb=self._heard, pending_msgs_limit=-1)
        ref = ref_of(self._image, kind="crop")
        for n in range(SITES):
            await self._client.jetstream().publish(wire.media_subject(f"load-{n}", ref.id, 0), self._image)

    async def send(self, per_minute: float, seconds: float) -> None:
        """Send at that mean rate, each at its own time, whether or not the earlier ones are answered."""
        tasks: list[asyncio.Task[None]] = []
        chance, began, due_s = random.Random(per_minute), time.monotonic(), 0.0
        while (due_s := due_s + chance.expovariate(per_minute / 60)) < seconds:
            await asyncio.sleep(max(0.0, began + due_s - time.monotonic()))
            tasks.append(asyncio.create_task(self._send(len(tasks), chance.choice(MIX))))
        await asyncio.gather(*tasks)

    async def settle(self, seconds: float) -> None:
        """Wait until all are answered, at most so long."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_answered.wait(), seconds)

    async def _send(self, n: int, priority: str) -> None:
        name, site = f"esc-{n}", f"load-{n % SITES}"
        ref = ref_of(self._image, kind="crop")
        escalation = wire.Escalation(
            id=name, site=site, camera="gate", alert=f"alert-{n}", rule="r", kind="enter", label="person",
            severity="alert", t=time.time(), created_t=time.time(), media=(ref,),
        )  # fmt: skip
        self.fates[name] = Fate(priority, time.time())
        self._open += 1
        self._all_answered.clear()
        headers = {"Nats-Msg-Id": wire.escalation_message_id(escalation)}
        subject = wire.escalation_subject(site, priority)
        await self._client.jetstream(timeout=30).publish(subject, escalation.to_json(), headers=headers)

    async def _heard(self, message: Msg) -> None:
        if not message.data:
            return  # a worker asks whether a verdict is stored
        verdict: wire.Verdict = wire.Verdict.from_json(message.data)
        fate = self.fates.get(verdict.escalation)
        if fate is not None and fate.verdict_t is None:
            judged = verdict.decision == "confirmed"
            self.fates[verdict.escalation] = Fate(fate.priority, fate.sent_t, time.time(), judged)
            self._open -= 1
            if not self._open:
                self._all_answered.set()


async def load(url: str, per_minute: float, seconds: float) -> list[Fate]:
    """Return what became of each escalation."""
    client = await nats.connect(url, pending_size=32 * 1024 * 1024)
    try:
        generator = LoadGenerator(client)
        await generator.start()
        await generator.send(per_minute, seconds)
        await generator.settle(SETTLE_S_MAX)
        return list(generator.fates.values())
    finally:
        await client.close()


def summary(fates: Sequence[Fate], places: int, latency_s: float, seconds: float) -> OverloadResult:
    began = min(fate.sent_t for fate in fates)
    ends = [fate.verdict_t - began for fate in fates if fate.judged and fate.verdict_t is not None]
    counts, _ = np.histogram(ends, bins=PARTS, range=(0, seconds))
    rows = tuple(row(priority, [each for each in fates if each.priority == priority]) for priority in wire.PRIORITIES)
    open_places = places - places // RESERVE_SHARE_MAX  # as many urgent ones come
    parts = tuple(float(count / (seconds / PARTS)) for count in counts)
    return OverloadResult(rows, open_places / latency_s, latency_s, parts)


def row(priority: str, fates: Sequence[Fate]) -> PriorityRow:
    took = [each.verdict_t - each.sent_t for each in fates if each.judged and each.verdict_t is not None] or [0.0]
    p50, p90, p99 = (round(float(np.percentile(took, share)), 3) for share in (50, 90, 99))
    unanswered = sum(each.verdict_t is None for each in fates)
    judged = sum(each.judged for each in fates)
    return PriorityRow(priority, len(fates), judged, len(fates) - judged - unanswered, unanswered, p50, p90, p99)


def run(
    per_minute: float, seconds: float, places: int, latency_s: float, shed_s: Mapping[str, float] = SHED_S
) -> OverloadResult:
    """Run the whole of it."""
    with tempfile.TemporaryDirectory(prefix="vedette-overload-") as folder:
        server = NatsServer(find_nats_servers()[0], Path(folder) / "nats").start()
        try:
            with instant_worker(server.url, concurrency=places, latency_s=latency_s, shed_s=shed_s):
                fates = asyncio.run(load(server.url, per_minute, seconds))
        finally:
            server.stop()
    return summary(fates, places, latency_s, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verdicts.overload", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rate", type=float, default=1800.0, help="escalations a minute (1800)")
    parser.add_argument("--seconds", type=float, default=300.0, help="(300)")
    parser.add_argument("--places", type=int, default=9, help="answered at a time (9)")
    parser.add_argument("--latency-s", type=float, default=0.5, help="of an answer (0.5)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    chosen = parser.parse_args(arguments)
    found = run(chosen.rate, chosen.seconds, chosen.places, chosen.latency_s)
    print("| priority | sent | judged | told: not judged | no answer | p50 s | p90 s | p99 s |")
    print("|---|---|---|---|---|---|---|---|")
    for each in found.rows:
        print("| " + " | ".join(map(str, asdict(each).values())) + " |")
    parts = ", ".join(f"{each:.1f}" for each in found.parts)
    print(f"judged a second, in fifths of the time: {parts}; the engine's capacity is {found.capacity_per_s:.1f}")
    print(*found.faults, sep="\n")
    if chosen.json:
        chosen.json.write_text(json.dumps({**asdict(found), "faults": found.faults}, indent=1))
    return int(bool(found.faults))


if __name__ == "__main__":
    sys.exit(main())
