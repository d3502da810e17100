"""The worker's numbers: Prometheus metrics, and the status that it announces to the sites over NATS.

The names are those of /metrics (docs/worker.md).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nats.aio.client import Client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from appliance.base.clock import Clock
from appliance.base.errors import UplinkError
from appliance.base.stage_latencies import EDGES_S
from appliance.base.telemetry import LogThrottle
from appliance.broker.nats_connection import broker_errors
from appliance.wire import POOL_COUNT_MAX, POOL_SUBJECT, PRICE_MAX, PRIORITIES, Escalation, PoolStatus, Verdict
from cloud_worker.config import PoolConfig
from cloud_worker.dead_letter_store import KINDS

STAGES = ("link", "queue", "fetch", "preprocess", "decision", "model", "publish")
SERIES_MAX = 500  # of verdicts by version: a site names its own model, so that the labels have no bound of their own
OTHER = "other"
ENGINE_STATES = ("up", "cold", "away")
LIVES = 4  # an announcement counts until so many more should have come
JUDGE_S_FIRST = 1.0  # seconds of a verdict, until the first one tells
_PRICE_CHARS_MAX = 64  # a float and a currency

logger = logging.getLogger(__name__)

disable_created_metrics()  # type: ignore[no-untyped-call]  # its `…_created` series are none of ours
_WHOLE_BOUND = re.compile(rb'(le="\d+)\.0"')


class WorkerMetrics:
    """Owner of the worker's metrics, in a registry of their own. Any thread may count and read."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._versions: set[tuple[str, ...]] = set()
        self.stages = self._seconds(
            "stage", "Seconds of an escalation in each stage; link spans two clocks.", "stage", "priority"
        )
        self.verdict_seconds = self._seconds(
            "verdict", "Seconds from the escalation being stored at the broker until its verdict was.", "priority"
        )
        self.decision_seconds = self._seconds(
            "decision",
            "Seconds from the escalation being stored at the broker until its decision was; its reason may follow.",
            "priority",
        )
        self.judged = self._counter("judged", "Escalations that the engine judged.")
        self.verdicts = self._counter(
            "verdicts",
            "Verdicts by decision and version. The camera's detector said yes to all: `rejected` is a disagreement.",
            "decision", "engine", "model", "prompt", "edge_model",
        )  # fmt: skip
        self.more_evidence = self._counter("more_evidence", "Verdicts that asked for more.", "need")
        self.double_checks = self._counter("second_looks", "Escalations that the model was asked twice.")
        self.tokens = self._counter(
            "tokens", "Tokens that the model read (cached: of these, from its cache) and wrote.", "kind"
        )
        self.retries = self._counter("retries", "Escalations given back to be tried again.")
        self.repeated = self._counter("repeated", "Escalations that had been answered before.")
        self.withdrawn = self._counter("withdrawn", "Escalations that another region had answered.")
        self.refused = self._counter("refused", "Messages that are no escalations.")
        self.given_up = self._counter("given_up", "Escalations that were ended without a judgement.")
        self.dead = self._counter("dead_letters", "Escalations put among the dead letters.", "kind")
        for kind in KINDS:  # from zero on: an increase from no series to 1 is none to Prometheus
            self.dead.labels(kind)
        self.shed = self._counter("shed", "Escalations answered unjudged: they had waited too long.", "priority")
        self.calls = self._counter("engine_calls", "Calls of the engines, by outcome.", "engine", "outcome")
        self.states = Gauge(
            "vedette_worker_engine_state", "1 for the state of an engine: up, cold or away.", ("engine", "state"),
            registry=self._registry,
        )  # fmt: skip
        self.archived = self._counter("archived", "Objects for the archive, by result.", "result")

    def add_gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Add a number that is read when the metrics are read."""
        Gauge(f"vedette_worker_{name}", text, registry=self._registry).set_function(read)

    def add_gauges(self, name: str, text: str, read: Callable[[str], float]) -> None:
        """Add such a number for each priority."""
        gauge = Gauge(f"vedette_worker_{name}", text, ("priority",), registry=self._registry)
        for priority in PRIORITIES:
            gauge.labels(priority).set_function(partial(read, priority))

    def add_engine(self, name: str, state: Callable[[], str]) -> None:
        """Add an engine, whose state is read when the metrics are read."""
        for each in ENGINE_STATES:
            self.states.labels(name, each).set_function(partial(_is_state, state, each))

    def record_verdict(self, escalation: Escalation, verdict: Verdict, priority: str) -> None:
        """Count a verdict that was made and stored."""
        self.verdicts.labels(*self._bounded(verdict, escalation.model)).inc()
        if verdict.need is not None:
            self.more_evidence.labels(verdict.need).inc()
        if verdict.looks > 1:
            self.double_checks.inc()
        self.tokens.labels("in").inc(verdict.tokens_in)
        self.tokens.labels("out").inc(verdict.tokens_out)
        self.tokens.labels("cached").inc(verdict.tokens_cached)
        for stage, seconds in verdict.timings.items():
            if stage in STAGES:
                self.stages.labels(stage, priority).observe(seconds)

    def text(self) -> bytes:
        """Write the Prometheus text format, version 0.0.4; whole bounds of buckets have no fraction: `le="5"`."""
        return _WHOLE_BOUND.sub(rb'\1"', generate_latest(self._registry))

    def judge_s_mean(self) -> float | None:
        """Return the seconds that the model took for one escalation, over all; None if there was none."""
        sums = {"_sum": 0.0, "_count": 0.0}
        for metric in self.stages.collect():
            for sample in metric.samples:
                kind = sample.name.removeprefix("vedette_worker_stage_seconds")
                if kind in sums and sample.labels.get("stage") == "model":
                    sums[kind] += sample.value
        return sums["_sum"] / sums["_count"] if sums["_count"] else None

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vedette_worker_{name}_total", text, labels, registry=self._registry)

    def _seconds(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"vedette_worker_{name}_seconds", text, labels, buckets=EDGES_S, registry=self._registry)

    def _bounded(self, verdict: Verdict, edge_model: str) -> tuple[str, ...]:
        """Return the labels of a verdict; all are `other` beyond SERIES_MAX."""
        labels = (verdict.decision, verdict.engine, verdict.model, verdict.prompt_version, edge_model)
        if labels not in self._versions and len(self._versions) >= SERIES_MAX:
            return (OTHER,) * len(labels)
        self._versions.add(labels)
        return labels


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The worker's counts since it started.

    `more`: how many of those judged asked for more evidence.
    """

    judged: int
    more: int
    repeated: int
    refused: int
    retried: int
    given_up: int
    dead: int

    @classmethod
    def of(cls, metrics: WorkerMetrics) -> WorkerCounts:
        return cls(
            judged=total(metrics.judged),
            more=total(metrics.more_evidence),
            repeated=total(metrics.repeated),
            refused=total(metrics.refused),
            retried=total(metrics.retries),
            given_up=total(metrics.given_up),
            dead=total(metrics.dead),
        )


def _is_state(read: Callable[[], str], state: str) -> float:
    return float(read() == state)


def total(counter: Counter) -> int:
    """Return the sum over all labels."""
    return int(sum(sample.value for metric in counter.collect() for sample in metric.samples))


class PoolAnnouncer:
    """Publisher of a small message every `pool.every_s`.

    Owner: the worker's loop owns it, with one task a connection. State: it knows when the worker began, and so the rest
    of its cold start.
    """

    def __init__(
        self,
        settings: PoolConfig,
        worker: str,
        slots: int,
        metrics: WorkerMetrics,
        clock: Clock,
        *,
        ready: Callable[[], bool],
        waiting: Callable[[], int],
    ) -> None:
        """Take `ready`, which says whether escalations are taken now, and `waiting`, the count that the broker stores.

        The count is that for all workers.
        """
        self._settings = settings
        self._worker = worker
        self._slots = slots
        self._metrics = metrics
        self._clock = clock
        self._ready = ready
        self._waiting = waiting
        self._began = clock.monotonic()
        self._log = LogThrottle(logger, clock)

    async def run(self, client: Client) -> None:
        """Announce for as long as the connection lasts, or until cancelled."""
        while True:
            await self.announce(client)
            await asyncio.sleep(self._settings.every_s)

    async def announce(self, client: Client) -> None:
        """Announce the worker as it is now, once."""
        try:
            with broker_errors("the worker could not be announced"):
                await client.publish(POOL_SUBJECT, self.status().to_json())
        except UplinkError as error:  # the connection's own task says that it is lost
            self._log.report(error)

    def status(self) -> PoolStatus:
        """Return the worker's status as it is now."""
        ready = self._ready()
        left_s = self._settings.cold_start_s - (self._clock.monotonic() - self._began)
        return PoolStatus(
            worker=self._worker,
            ready=ready,
            waiting=min(max(0, self._waiting()), POOL_COUNT_MAX),
            slots=self._slots,
            judge_s=min(self._metrics.judge_s_mean() or JUDGE_S_FIRST, 3600.0),
            cold_start_s=0.0 if ready else max(0.0, left_s),
            gpu_hour=self.price(),
            ttl_s=min(300.0, self._settings.every_s * LIVES),
        )

    def price(self) -> float | None:
        """Return the price in the file, which a watcher of the spot market keeps up to date, or the fixed one."""
        if self._settings.gpu_hour_file is None:
            return self._settings.gpu_hour
        return self._price_in(self._settings.gpu_hour_file)

    def _price_in(self, path: Path) -> float | None:
        try:
            with path.open(encoding="utf-8") as file:
                price = float(file.read(_PRICE_CHARS_MAX))
            if not 0 <= price <= PRICE_MAX:  # not a number is neither
                raise ValueError
        except (OSError, ValueError):
            self._log.report(f"{path} (pool.gpu_hour_file) holds no price from 0 to {PRICE_MAX:g}: none is announced")
            return None
        return price
