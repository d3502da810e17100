"""Seeded faults over two regions, a cluster of three nats-servers and a single one, and the history of it checked.

    python -m benchmarks.chaos.regions --faults 500 --seed 1        # some hours; exit code 1: a contradiction

A real site (SQLite on disk) escalates all the while; each region has its own worker and its own engine. A fault is one
of: the leader of the escalations' stream is killed; the whole first region is; both; the engine of a region does not
answer; its worker is lost as spot capacity is; the site's clock is set by an hour; its disk refuses verdicts. The
regions share nothing: what an escalation needs in another region the site sends again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import nats.errors

from appliance.base.broker_config import BrokerAddress, BrokerConfig
from appliance.base.clock import SystemClock
from appliance.base.errors import EngineUnavailable, StoreUnavailable
from appliance.types import JudgeKind
from appliance.wire import STREAM_ESCALATION, Need, Verdict
from benchmarks.chaos.checker import Finding, Promises, check, paid_elsewhere
from benchmarks.chaos.history import HistoryEvent, broker_events, site_events, watch_site, write_history
from cloud_worker.judge import JudgeCase, Opinion
from tests.servers.nats import NatsCluster, NatsServer, find_nats_servers
from tests.servers.site import Site, evidence_image
from tests.servers.worker import WorkerThread

FAULTS = ("leader", "region", "both", "engine", "spot", "clock", "disk")
FIRST, SECOND = "eu-central", "eu-west"
FAILOVER_S, FAILBACK_S = 1.5, 2.0  # of the site; a cluster elects a leader within some 4 s
DOWN_S = (0.5, 4.0)
CLOCK_S = 3600.0
SETTLE_S_MAX = 120.0
WATCH_S = 0.05
EVENTS_S_MAX = 30.0  # to read a region's verdicts, which has just been started


class SetClock(SystemClock):
    """A site's wall clock that is set."""

    wrong_s = 0.0

    def now(self) -> float:
        return time.time() + self.wrong_s


@dataclass(eq=False)
class ChaosEngine:
    """Confirms everything when it is `up`, and writes the engine's part of the history."""

    region: str
    events: list[HistoryEvent]
    up: bool = True
    seconds: float = 0.01
    worker: int = 0
    name: str = "openai"
    kind: JudgeKind = "vlm"
    model: str = "scripted"
    prompt_version: str = ""
    answer_schema: str = ""
    uses: frozenset[Need] = frozenset({"crop", "frame", "clip"})

    async def judge(self, case: JudgeCase) -> Opinion:
        where = f"{self.region} {self.worker}"
        for what in ("asked", "answered"):
            if not self.up:
                if what == "answered":
                    self._note("failed", case, where)
                raise EngineUnavailable("the engine is away, on purpose")
            self._note(what, case, where)
            await asyncio.sleep(self.seconds)
        return Opinion(decision="confirmed", reason="It is so.", confidence=0.9)

    async def check(self) -> str:
        return "ready"

    async def close(self) -> None: ...

    def _note(self, what: Any, case: JudgeCase, where: str) -> None:
        event = HistoryEvent(
            t=time.time(), what=what, escalation=case.escalation.id, step=case.escalation.step, where=where,
            region=self.region,
        )  # fmt: skip
        self.events.append(event)


@dataclass(eq=False)
class Region:
    """A region's servers, worker and engine."""

    name: str
    servers: NatsCluster | NatsServer
    urls: list[str]
    replicas: int
    engine: ChaosEngine
    worker: WorkerThread | None = None

    def start_worker(self) -> None:
        self.engine.worker += 1
        addresses = tuple(BrokerAddress(url=url, region=self.name) for url in self.urls)
        self.worker = WorkerThread(
            BrokerConfig(url=self.urls[0], urls=addresses), self.engine, replicas=self.replicas, ack_wait_s=2.0,
            deliveries_max=50, media_wait_s=10,
        ).start()  # fmt: skip

    def kill_worker(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker = None


@dataclass(slots=True)
class RegionsResult:
    """Counts of a run, and what its history contradicts.

    answered: calls of the engine by region. paid_elsewhere: escalations that two regions were paid for.
    """

    raised: int
    faults: Counter[str]
    failovers: int
    answered: Counter[str]
    paid_elsewhere: int
    findings: list[Finding]
    history: list[HistoryEvent] = field(default_factory=list)


class Regions:
    """Owner of all parts of a run, in one folder: the servers are processes, the rest are threads of this one."""

    def __init__(self, folder: Path, seed: int, stack: ExitStack) -> None:
        binary = find_nats_servers()[0]
        self._random = random.Random(seed)
        self._folder = folder
        self.events: list[HistoryEvent] = []
        self.faults: Counter[str] = Counter()
        cluster, single = NatsCluster(binary, folder, "c").start(), NatsServer(binary, folder / "single").start()
        stack.callback(cluster.stop)
        stack.callback(single.stop)
        self.first = Region(FIRST, cluster, cluster.urls, 3, ChaosEngine(FIRST, self.events))
        self.second = Region(SECOND, single, [single.url], 1, ChaosEngine(SECOND, self.events))
        for region in (self.first, self.second):
            region.start_worker()
            stack.callback(region.kill_worker)
            _when_serving(region.urls)
        self.clock = SetClock()
        addresses = [{"url": url, "region": region.name} for region in (self.first, self.second) for url in region.urls]
        self.site = Site(
            folder / "site", cluster.urls[0], urls=addresses, clock=self.clock, failover_s=FAILOVER_S,
            failback_s=FAILBACK_S, silent_s=15.0,
        )  # fmt: skip
        stack.callback(self.site.close)
        with self.site.db.transaction() as connection:
            watch_site(connection)
        self._disk_full = False
        self._let_the_disk_refuse()
        self.site.connect()
        self._ended = threading.Event()
        watching = threading.Thread(target=self._watch_link, name="watch of the link")
        watching.start()
        stack.callback(watching.join)
        stack.callback(self._ended.set)
        self.asked = 0

    def ask(self, count: int) -> None:
        for _ in range(count):
            self.asked += 1
            images = tuple(evidence_image(self.asked, (160, 120 + k)) for k in range(3))  # they are sent together
            self.site.ask(self.asked, images, severity="alert" if self.asked % 3 == 0 else "warning")

    def fault(self, kind: str) -> None:
        """Make one fault, for a moment, while escalations come."""
        self.faults[kind] += 1
        makers: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
            "leader": self._leader, "region": lambda: self.away(self.first), "both": self._both,
            "engine": self._engine, "spot": self._spot, "clock": self._clock, "disk": self._disk,
        }  # fmt: skip
        with makers[kind]():
            self.ask(2)
            threading.Event().wait(self._random.uniform(*DOWN_S))
            self.ask(1)

    def settle(self) -> bool:
        """Wait until everything is answered; False: it was not."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < deadline:
            if self.site.count("settled") == self.asked:
                return True
            threading.Event().wait(0.1)
        return False

    def result(self) -> RegionsResult:
        self.site.cut()
        with self.site.db.read() as connection:
            events = site_events(connection)
        flagged = [HistoryEvent(t=0.0, what="flagged", alert=f"alert-{n}") for n in range(1, self.asked + 1)]
        for region in (self.first, self.second):
            events += asyncio.run(_stored(region, self.site.name))
        history = [*flagged, *events, *self.events]
        answered = Counter(event.region for event in self.events if event.what == "answered")
        return RegionsResult(
            self.asked, self.faults, self.site.service.link.failovers, answered, paid_elsewhere(history),
            check(history, Promises()), history,
        )  # fmt: skip

    @contextlib.contextmanager
    def _leader(self) -> Iterator[None]:
        assert isinstance(self.first.servers, NatsCluster)
        name = asyncio.run(_leader_of(self.first.urls))
        number = int(name.removeprefix("c")) if name else 0
        server = self.first.servers.servers[number]
        server.kill()
        try:
            yield
        finally:
            server.start()

    @contextlib.contextmanager
    def away(self, region: Region) -> Iterator[None]:
        region.servers.kill()
        try:
            yield
        finally:
            region.servers.start()

    @contextlib.contextmanager
    def _both(self) -> Iterator[None]:
        with self.away(self.first), self.away(self.second):
            yield

    @contextlib.contextmanager
    def _engine(self) -> Iterator[None]:
        engine = self._random.choice((self.first, self.second)).engine
        engine.up = False
        try:
            yield
        finally:
            engine.up = True

    @contextlib.contextmanager
    def _spot(self) -> Iterator[None]:
        region = self._random.choice((self.first, self.second))
        region.kill_worker()
        try:
            yield
        finally:
            region.start_worker()

    @contextlib.contextmanager
    def _clock(self) -> Iterator[None]:
        self.clock.wrong_s = self._random.choice((-CLOCK_S, 0.0, CLOCK_S))
        yield

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        self._disk_full = True
        try:
            yield
        finally:
            self._disk_full = False

    def _watch_link(self) -> None:
        last = ""
        while not self._ended.wait(WATCH_S):
            link = self.site.service.link
            region = link.region if link.up else ""
            if region != last:
                self.events.append(HistoryEvent(t=time.time(), what="link", region=region))
                last = region

    def _let_the_disk_refuse(self) -> None:
        whole = self.site.alerts.take_verdict

        def take_verdict(verdict: Verdict, t: float) -> Any:
            if self._disk_full:
                self.events.append(HistoryEvent(t=time.time(), what="refused"))
                raise StoreUnavailable("the disk is full, on purpose")
            return whole(verdict, t)

        self.site.alerts.take_verdict = take_verdict  # type: ignore[method-assign]


def _when_serving(urls: list[str]) -> None:
    """Wait until a worker has made the streams."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while not asyncio.run(_leader_of(urls, any_answer=True)):
        if time.monotonic() > deadline:
            raise TimeoutError("no worker made the streams")
        threading.Event().wait(0.1)


async def _leader_of(urls: list[str], *, any_answer: bool = False) -> str:
    """Return the server that leads the stream of escalations; empty: it has none now."""
    with contextlib.suppress(nats.errors.Error, OSError, asyncio.TimeoutError):
        client = await nats.connect(urls, connect_timeout=2, allow_reconnect=False, max_reconnect_attempts=1)
        try:
            info = await client.jetstream(timeout=2).stream_info(STREAM_ESCALATION)
            return (info.cluster.leader or "") if info.cluster and info.cluster.leader else "?" if any_answer else ""
        finally:
            await client.close()
    return ""


async def _stored(region: Region, site: str) -> list[HistoryEvent]:
    """Return the broker's part of the history; a cluster that has just begun is asked again."""
    deadline = time.monotonic() + EVENTS_S_MAX
    while True:
        client = await nats.connect(region.urls)
        try:
            return await broker_events(client, site, region.name)
        except (nats.errors.Error, asyncio.TimeoutError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)
        finally:
            await client.close()


def run(folder: Path, faults: Sequence[str], seed: int) -> RegionsResult:
    """Play the faults, wait for all verdicts, and check the history."""
    with ExitStack() as stack:
        regions = Regions(folder, seed, stack)
        regions.ask(4)
        for kind in faults:
            regions.fault(kind)
        regions.settle()
        return regions.result()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos.regions", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--faults", type=int, default=500, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--history", type=Path, metavar="FILE", help="keep the history, also of a right run")
    chosen = parser.parse_args(arguments)
    drawn = random.Random(chosen.seed)
    folder, began = Path(tempfile.mkdtemp(prefix="vedette-regions-")), time.monotonic()
    found = run(folder, [drawn.choice(FAULTS) for _ in range(chosen.faults)], chosen.seed)
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(found.faults.items()))
    print(f"{found.faults.total()} faults in {time.monotonic() - began:.0f} s, seed {chosen.seed}: {faults}")
    judged = ", ".join(f"{count} judged in {region}" for region, count in sorted(found.answered.items()))
    print(f"{found.raised} escalations, {judged}, {found.failovers} changes of region")
    proven = "" if found.findings else ", cut off from the first before its verdict could be read"
    print(f"{found.paid_elsewhere} paid in two regions{proven}")
    print(*found.findings, f"{len(found.history)} events, {len(found.findings)} contradictions", sep="\n")
    if found.findings or chosen.history:
        kept = chosen.history or folder.with_suffix(".jsonl")
        write_history(kept, found.history)
        print(f"history: {kept}")
    shutil.rmtree(folder, ignore_errors=True)
    return int(bool(found.findings))


if __name__ == "__main__":
    sys.exit(main())
