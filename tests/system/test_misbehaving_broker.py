"""Whatever a broker says at whatever moment, neither the uplink nor a worker ends, and both go on when it behaves."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from cloud_worker.judge import JudgeCase, Opinion
from tests.servers.accelerated_loop import FastClock, FastLoop
from tests.servers.jetstream_faults import FAULTS
from tests.servers.scripted_jetstream import ScriptedJetStream
from tests.servers.site import Site, evidence_image
from tests.servers.worker import WorkerThread
from tests.support.waiting import until

SPEED = 20.0
RECOVERY_S_MAX = 30.0
SEEDS = 50  # of one test: some 75 faults, which meet STATES_MIN
STATES_MIN = 20
HANDSHAKE = ("CONNECT", "PING", "SUB answers", "SUB inbox")
STREAMS = ("escalation", "media", "verdict", "dead")
# What is done before a question is asked, and states that are then reached. `forget` takes consumers or streams away.
SCENES: dict[str, tuple[str, ...]] = {
    "question": (
        "site: PUB media", "site: PUB escalation", "site: MSG verdict", "site: +ACK of verdict",
        "site: NEXT verdict", "worker: MSG announcement", "worker: stream count escalation", "worker: SUB inbox",
        "worker: UNSUB",
        "worker: NEXT escalation", "worker: no escalation", "worker: MSG escalation", "worker: direct get",
        "worker: PUB verdict", "worker: +ACK of escalation", "worker: +WPI of escalation", "worker: PUB",
    ),
    "site connects": (
        "INFO", *(f"site: {what}" for what in HANDSHAKE), "site: SUB vedette_pool.status",
        "site: consumer info of verdict", "site: NEXT verdict",
    ),
    "worker connects": (
        "INFO", *(f"worker: {what}" for what in HANDSHAKE), *(f"worker: stream info {kind}" for kind in STREAMS),
        "worker: SUB vedette.*.escalation.*", "worker: create consumer of verdict",
        "worker: consumer info of escalation",
    ),
    "no consumers": (
        "site: no consumer info of verdict", "site: create consumer of verdict",
        "worker: no consumer info of escalation",
        "worker: create consumer of escalation", "site: NEXT verdict of no consumer",
    ),
    "no streams": (
        "worker: STREAM.INFO of no stream", *(f"worker: create stream {kind}" for kind in STREAMS),
        "site: CONSUMER.INFO of no stream", "site: CONSUMER.CREATE of no stream", "site: PUB",
        "site: STREAM.INFO of no stream",
    ),
}  # fmt: skip
IMAGE = evidence_image(1, (64, 48))


class Agreeing:
    """A judge that confirms all it is asked."""

    name = model = prompt_version = answer_schema = "agreeing"
    kind = "vlm"
    uses = frozenset({"crops", "frames"})

    async def judge(self, case: JudgeCase) -> Opinion:
        return Opinion(decision="confirmed", reason="yes")

    async def check(self) -> str:
        return "agrees"

    async def close(self) -> None: ...


@dataclass
class Parts:
    """A broker, a site and a worker that share a clock which is SPEED times as fast as others."""

    broker: ScriptedJetStream
    site: Site
    worker: WorkerThread
    asked: int = 0
    slowest: tuple[float, int] = (0.0, 0)

    def ask(self) -> int:
        self.asked += 1
        self.site.ask(self.asked, (IMAGE,))
        return self.asked

    def alive(self) -> None:
        assert not self.site.failures, self.site.failures
        assert self.worker.alive, "the worker ended"

    def play(self, seed: int) -> None:
        """One or two faults drawn by the seed; then a question that comes after them is settled."""
        chance, broker = random.Random(seed), self.broker
        scene = chance.choice(list(SCENES))
        for n in range(chance.randrange(1, 3)):
            broker.arm(f"{seed}.{n}", chance.choice(SCENES[scene]), chance.choice(list(FAULTS)))
        if scene.startswith("no "):
            broker.forget(streams=scene == "no streams")
        if scene != "question":
            broker.cut(scene.split()[0] if scene.endswith("connects") else "")
        first, began = self.ask(), time.monotonic()
        while broker.armed and not self.site.settled(first) and time.monotonic() - began < 20.0 / SPEED:
            self.alive()
            threading.Event().wait(0.002)
        broker.disarm()
        behaves, second = time.monotonic(), self.ask()
        until(lambda: self.alive() or self.site.settled(second), RECOVERY_S_MAX / SPEED, lambda: (seed, broker.played))
        self.slowest = max(self.slowest, ((time.monotonic() - behaves) * SPEED, seed))


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parts]:
    new_loop = partial(FastLoop, SPEED)
    monkeypatch.setattr(asyncio, "new_event_loop", new_loop)
    monkeypatch.setattr(asyncio.events, "new_event_loop", new_loop)
    clock = FastClock(SPEED)
    with ScriptedJetStream(new_loop) as broker:
        site = Site(tmp_path / "site", broker.url, clock=clock).connect()
        worker = WorkerThread(broker.url, Agreeing(), clock=clock).start()
        made = Parts(broker, site, worker)
        try:
            first = made.ask()
            until(lambda: site.settled(first), 20, lambda: broker.reached)
            yield made
        finally:
            worker.stop()
            site.close()


def play(parts: Parts, seeds: range) -> int:
    """Run the seeds and print what was reached (`-s` shows it); returns at how many states something went wrong."""
    for seed in seeds:
        parts.play(seed)
    broker = parts.broker
    met = Counter(state for state, _ in broker.played.elements())
    print(f"\n{len(broker.reached)} states reached, at {len(met)} something went wrong", end=", ")
    print(f"{broker.played.total()} times in {len(broker.played)} ways")
    print(*(f"{count:6} {met[state]:4}  {state}" for state, count in sorted(broker.reached.items())), sep="\n")
    print(f"slowest recovery: {parts.slowest[0]:.1f} s after the broker behaved (seed {parts.slowest[1]})")
    return len(met)


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.slow) for block in range(1, 20))])
def test_no_answer_ends_the_uplink_or_a_worker(parts: Parts, block: int) -> None:
    assert play(parts, range(block * SEEDS, (block + 1) * SEEDS)) >= STATES_MIN


@pytest.mark.parametrize("state", ["site: consumer info of verdict", "worker: stream info dead"])
def test_a_connection_that_is_stale_when_something_is_to_be_subscribed_to(parts: Parts, state: str) -> None:
    """As after a suspend, a `docker pause` or a restart of the hub."""
    for n in range(5):
        parts.broker.arm(str(n), state, "stale after the answer")
        parts.broker.cut()
        until(lambda: parts.alive() or not parts.broker.armed, 10, "it was reached")
    last = parts.ask()
    until(lambda: parts.alive() or parts.site.settled(last), RECOVERY_S_MAX / SPEED)
