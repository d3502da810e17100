"""Asks several engines as one: the best that answers, the next when it is away, a second one when it is slow.

The order is a ladder: all engines of the lowest `order` first (a large model, on several servers), then those of the
next one (a small model), and last, say, a detector that looks again; what none of them answers a person has to look at.
Within an order the engine with the fewest escalations for its weight is asked. A verdict says who answered, and how
many better engines did not (`Verdict.fallback`).

- Each engine has a circuit breaker of its own. It is opened by EngineUnavailable, and closed by a probe, which is a
  real question (`check`), never an escalation. An engine that is idle is probed, too. One that never answered is cold.
- An order whose engines are all away is waited for, for `patience_s`: a server that restarts is better than a worse
  judge. It is waited for once: what comes later in the same outage falls at once.
- A hedge is a second call when the first takes longer than nineteen of twenty did lately. It is made only within
  `hedge_hour_max`, in money. The first answer counts, the other call is cancelled; both are paid for.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from appliance.base.backoff import CircuitBreaker
from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, VedetteError
from appliance.types import JudgeKind
from appliance.wire import Need
from cloud_worker.config import FallbackConfig, PooledEngineConfig
from cloud_worker.judge import Engine, JudgeCase, Opinion

PROBE_FIRST_S, PROBE_LAST_S = 1.0, 60.0  # between probes of an engine that is away, doubled each time
SAMPLES, SAMPLES_MIN = 128, 20  # calls by which the p95 is known; of twenty it is the slowest but one
HEDGE_SHARE = 0.95  # of the calls are answered within the time after which a second one is made
HOUR_S = 3600.0  # seconds of an hour: the span of the money bound
WAIT_S = 0.25  # between two looks at engines that are all away

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class PooledEngine:
    """One engine of the pool. seconds: of its last calls; warm: it has answered since the start; cold_s: until then."""

    settings: PooledEngineConfig
    engine: Engine
    circuit: CircuitBreaker
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    in_hand: int = 0
    warm: bool = False
    cold_s: float = 0.0
    answered_at: float = float("-inf")
    away_at: float = float("-inf")

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def is_up(self) -> bool:
        return self.warm and self.circuit.is_closed()

    @property
    def state(self) -> str:
        """`up`, `cold` (it has never answered) or `away`."""
        return "up" if self.is_up else "away" if self.warm else "cold"

    @property
    def hedge_after_s(self) -> float | None:
        """Return the time within which HEDGE_SHARE of its calls are answered; None: too few were made."""
        if len(self.seconds) < SAMPLES_MIN:
            return None
        return sorted(self.seconds)[math.ceil(HEDGE_SHARE * len(self.seconds)) - 1]

    @property
    def uses(self) -> frozenset[Need]:
        """The evidence that it can look at and may be asked about."""
        evidence = self.settings.evidence
        return self.engine.uses if evidence is None else self.engine.uses & frozenset(evidence)

    def can_judge(self, case: JudgeCase) -> bool:
        """Return True if it may be asked about all the evidence that the case has, or about some of it."""
        wanted = {file.ref.kind for file in case.files}
        return bool(wanted & self.uses) and (self.settings.evidence is None or wanted <= set(self.settings.evidence))


class HedgeBudget:
    """State: what hedges cost within the last hour. Invariant: never more than `hour_max`; 0: there are none."""

    def __init__(self, hour_max: float, clock: Clock) -> None:
        self._hour_max = hour_max
        self._clock = clock
        self._spent: deque[tuple[float, float]] = deque()

    def spend(self, price: float) -> bool:
        """Spend `price` if there is money for it; False: there is not."""
        now = self._clock.monotonic()
        while self._spent and now - self._spent[0][0] >= HOUR_S:
            self._spent.popleft()
        if not self._hour_max or sum(each for _, each in self._spent) + price > self._hour_max:
            return False
        self._spent.append((now, price))
        return True


class EnginePool:
    """An `Engine` made of several. State: the engines, and the money for hedges. Owner: one event loop."""

    name = "pool"
    kind: JudgeKind = "unknown"
    model = ""
    prompt_version = ""
    answer_schema = ""

    def __init__(
        self, engines: Sequence[tuple[PooledEngineConfig, Engine]], limits: FallbackConfig, clock: Clock,
        counted: Callable[[str, str], None] = lambda engine, outcome: None,
    ) -> None:  # fmt: skip
        """Take `counted`, called with an engine and the outcome of a call.

        It is answered, failed, away, hedged (a second call was made) or cancelled (the other one was faster).
        """
        self.engines = [
            PooledEngine(settings, engine, CircuitBreaker(clock, PROBE_FIRST_S, PROBE_LAST_S))
            for settings, engine in sorted(engines, key=lambda each: each[0].order)
        ]
        self._limits = limits
        self._clock = clock
        self._counted = counted
        self._budget = HedgeBudget(limits.hedge_hour_max, clock)
        self._prober: asyncio.Task[None] | None = None
        self._began = clock.monotonic()
        self.uses: frozenset[Need] = frozenset().union(*(each.uses for each in self.engines))

    async def judge(self, case: JudgeCase) -> Opinion:
        """Ask the best engine that is up. Raise EngineUnavailable when none is, EngineError when those asked failed.

        Evidence that none may be asked about is no reason to wait: nothing will change.
        """
        able = [each for each in self.engines if each.can_judge(case)]
        if not able:
            return Opinion(decision="unsure", reason="No engine of this worker takes this evidence.")
        orders = sorted({each.settings.order for each in able})
        began, failure = self._clock.monotonic(), EngineUnavailable("no engine is up")
        for order in orders:
            peers = [each for each in able if each.settings.order == order]
            failed: set[str] = set()
            while await self._is_up(peers, began, wait=order != orders[-1]):
                engine = self._least_busy(peers, failed)
                if engine is None:
                    break
                try:
                    opinion, by = await self._hedged(engine, peers, case)
                except EngineUnavailable as error:
                    failure = error
                except EngineError:  # of this very case: it comes again, and is not given to a worse judge
                    failed.add(engine.name)
                    if self._least_busy(peers, failed) is None:
                        raise
                else:
                    return self._signed(opinion, by, sum(each.settings.order < order for each in able))
            away = [each.circuit.state.why or f"{each.name} has not answered yet" for each in peers if not each.is_up]
            failure = EngineUnavailable("; ".join(away), PROBE_FIRST_S, probed=True) if away else failure
        raise failure

    async def check(self) -> str:
        """Try all engines at once, and go on probing. Raise EngineError when none answers."""
        if self._prober is None:
            self._prober = asyncio.create_task(self._probe(), name="probes of the engines")
        found = await asyncio.gather(*(self._try(each) for each in self.engines))
        if not any(each.is_up for each in self.engines):
            raise EngineUnavailable("; ".join(found))
        return "; ".join(found)

    async def close(self) -> None:
        if self._prober is not None:
            self._prober.cancel()
        for each in self.engines:
            await each.engine.close()

    async def _is_up(self, peers: Sequence[PooledEngine], began: float, *, wait: bool) -> bool:
        """Return True once one of an order is up; False when all are away, with `wait` for patience_s."""
        while not any(each.is_up for each in peers):
            away_at = max(each.away_at if each.warm else self._began for each in peers)
            if not wait or self._clock.monotonic() - min(away_at, began) >= self._limits.patience_s:
                return False
            await asyncio.sleep(WAIT_S)
        return True

    def _least_busy(self, peers: Sequence[PooledEngine], tried: set[str]) -> PooledEngine | None:
        free = [each for each in peers if each.is_up and each.name not in tried]
        return min(free, key=lambda each: (each.in_hand + 1) / each.settings.weight, default=None)

    async def _hedged(
        self, first: PooledEngine, peers: Sequence[PooledEngine], case: JudgeCase
    ) -> tuple[Opinion, PooledEngine]:
        """Ask `first`, and a second engine of its order when it takes long; return the first answer and its engine."""
        calls = {asyncio.create_task(self._ask(first, case)): first}
        try:
            await asyncio.wait(calls, timeout=first.hedge_after_s)
            second = self._least_busy(peers, {first.name})
            slow = not any(call.done() for call in calls) and second is not None
            if slow and second is not None and self._budget.spend(second.settings.price):
                self._counted(second.name, "hedged")
                calls[asyncio.create_task(self._ask(second, case))] = second
            failure = EngineError("no call was made")
            while calls:
                done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                for call in done:
                    error = call.exception()
                    if error is None:
                        return call.result(), calls[call]
                    if not isinstance(error, EngineError):
                        raise error
                    failure = error
                    del calls[call]
            raise failure
        finally:
            for call, engine in calls.items():
                if not call.done():
                    call.cancel()
                    self._counted(engine.name, "cancelled")

    async def _ask(self, pooled: PooledEngine, case: JudgeCase) -> Opinion:
        began = self._clock.monotonic()
        pooled.in_hand += 1
        outcome = "cancelled"
        try:
            opinion = await pooled.engine.judge(case)
            outcome = "answered"
        except EngineUnavailable as error:
            outcome = "away"
            self._lost(pooled, error)
            raise
        except EngineError:
            outcome = "failed"
            raise
        finally:
            pooled.in_hand -= 1
            if outcome != "cancelled":
                self._counted(pooled.name, outcome)
        pooled.answered_at = self._clock.monotonic()
        pooled.seconds.append(pooled.answered_at - began)
        return opinion

    def _lost(self, pooled: PooledEngine, error: EngineUnavailable) -> None:
        if pooled.circuit.is_closed():
            pooled.away_at = self._clock.monotonic()
            logger.warning("the engine %s is away: %s", pooled.name, error)
        pooled.circuit.delay_probe(error.after_s or 0.0, lengthen=pooled.circuit.is_closed())
        pooled.circuit.open(str(error))

    def _signed(self, opinion: Opinion, by: PooledEngine, fallback: int) -> Opinion:
        """Return the opinion with who gave it; its reason, which may follow, is signed, too."""
        rest = opinion.rest
        if rest is not None:
            follows = rest

            async def signed() -> Opinion:
                return replace(await follows, by=by.engine, answered_by=by.name, fallback=fallback)

            rest = asyncio.create_task(signed(), name="reason of an answer")
            rest.add_done_callback(lambda _: follows.cancel())
        return replace(opinion, by=by.engine, answered_by=by.name, fallback=fallback, rest=rest)

    async def _probe(self) -> None:
        """Probe what is away, cold or idle, for ever; one that does not answer holds up no other."""
        probes: dict[str, asyncio.Task[str]] = {}
        try:
            while True:
                await asyncio.sleep(min(PROBE_FIRST_S, self._limits.probe_s))
                now = self._clock.monotonic()
                probes = {name: probe for name, probe in probes.items() if not probe.done()}
                for each in self.engines:
                    idle = each.is_up and not each.in_hand and now - each.answered_at >= self._limits.probe_s
                    if each.name not in probes and (idle or (not each.is_up and each.circuit.probe_in_s <= 0)):
                        probes[each.name] = asyncio.create_task(self._try(each), name=f"probe of {each.name}")
        finally:
            for probe in probes.values():
                probe.cancel()

    async def _try(self, pooled: PooledEngine) -> str:
        """Ask a trial question; return the outcome in a sentence."""
        try:
            description = await pooled.engine.check()
        except Exception as error:  # a fault of one engine's probe would end the probes of all
            if not isinstance(error, VedetteError):
                logger.exception("a fault in the worker while probing the engine %s", pooled.name)
            pooled.circuit.delay_probe()
            self._lost(pooled, error if isinstance(error, EngineUnavailable) else EngineUnavailable(str(error)))
            return f"{pooled.name} is away: {error}"
        if not pooled.warm:
            pooled.cold_s = self._clock.monotonic() - self._began
            logger.info("the engine %s is warm after %.1f s", pooled.name, pooled.cold_s)
        elif not pooled.circuit.is_closed():
            logger.info("the engine %s answers again", pooled.name)
        pooled.warm = True
        pooled.answered_at = self._clock.monotonic()
        pooled.circuit.close()
        return f"{pooled.name}: {description}"
