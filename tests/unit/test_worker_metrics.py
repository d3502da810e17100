"""The worker's metrics: their names, labels and types are a contract with whoever scrapes them (docs/worker.md)."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance import wire
from appliance.base.broker_config import BrokerConfig
from appliance.base.clock import SystemClock
from appliance.broker.nats_link import NatsLink
from appliance.types import JudgeKind
from cloud_worker.config import RedetectEngine, WorkerConfig
from cloud_worker.dead_letter_store import KINDS
from cloud_worker.evidence import IN_PROCESS
from cloud_worker.judge import Judge
from cloud_worker.metrics import OTHER, SERIES_MAX, WorkerCounts, WorkerMetrics
from cloud_worker.worker import Worker

# Every family that /metrics has had, by type, with its labels.
FAMILIES = {
    "vedette_worker_stage_seconds": ("histogram", {"stage", "priority"}),
    "vedette_worker_verdict_seconds": ("histogram", {"priority"}),
    "vedette_worker_decision_seconds": ("histogram", {"priority"}),
    "vedette_worker_judged": ("counter", set()),
    "vedette_worker_verdicts": ("counter", {"decision", "engine", "model", "prompt", "edge_model"}),
    "vedette_worker_more_evidence": ("counter", {"need"}),
    "vedette_worker_second_looks": ("counter", set()),
    "vedette_worker_tokens": ("counter", {"kind"}),
    "vedette_worker_retries": ("counter", set()),
    "vedette_worker_repeated": ("counter", set()),
    "vedette_worker_refused": ("counter", set()),
    "vedette_worker_given_up": ("counter", set()),
    "vedette_worker_dead_letters": ("counter", {"kind"}),
    "vedette_worker_archived": ("counter", {"result"}),
    "vedette_worker_shed": ("counter", {"priority"}),
    "vedette_worker_withdrawn": ("counter", set()),
    "vedette_worker_engine_calls": ("counter", {"engine", "outcome"}),
    "vedette_worker_engine_state": ("gauge", {"engine", "state"}),
    "vedette_worker_ready": ("gauge", set()),
    "vedette_worker_places": ("gauge", set()),
    "vedette_worker_judging": ("gauge", {"priority"}),
    "vedette_worker_backlog": ("gauge", {"priority"}),
    "vedette_worker_backlog_sites": ("gauge", set()),
    "vedette_worker_archive_waiting": ("gauge", set()),
}
BOUNDS = (
    "0.005",
    "0.01",
    "0.025",
    "0.05",
    "0.1",
    "0.25",
    "0.5",
    "1",
    "2.5",
    "5",
    "10",
    "30",
    "60",
    "300",
    "1800",
    "+Inf",
)


class Idle:
    """An engine that is never asked."""

    name, model, prompt_version, answer_schema = "idle", "m", "", ""
    kind: JudgeKind = "vlm"
    uses: frozenset[wire.Need] = frozenset()

    async def judge(self, case: Any) -> Any:
        raise AssertionError("nothing is judged here")

    async def check(self) -> str:
        return "idle"

    async def close(self) -> None: ...


def escalation(model: str = "yolo-n") -> wire.Escalation:
    return wire.Escalation(
        id="esc-1", site="depot-7", camera="gate", alert="a", rule="r", kind="enter", label="person", severity="alert",
        t=0, created_t=0, model=model,
    )  # fmt: skip


def verdict(**changes: Any) -> wire.Verdict:
    facts = {
        "escalation": "esc-1", "site": "depot-7", "alert": "a", "decision": "confirmed", "reason": "A person.",
        "engine": "openai", "model": "vlm", "prompt_version": "p.1", "seconds": 0.1, "judged_t": 0.0, "tokens_in": 812,
        "tokens_out": 40, "looks": 2, "timings": {"link": 0.02, "publish": 0.004},
    }  # fmt: skip
    return wire.Verdict(**{**facts, **changes})


def test_names_types_and_labels_are_those_of_before() -> None:
    clock = SystemClock()
    link = NatsLink(BrokerConfig(url="nats://127.0.0.1:9"), "w", clock)
    worker = Worker(
        WorkerConfig(engine=RedetectEngine(kind="redetect")), Judge(Idle(), "w", clock, IN_PROCESS), link, clock
    )
    metrics = worker.metrics
    metrics.record_verdict(escalation(), verdict(decision="unsure", need="frame"), "high")
    metrics.verdict_seconds.labels("high").observe(0.1)
    metrics.decision_seconds.labels("high").observe(0.1)
    metrics.dead.labels("engine").inc()
    metrics.archived.labels("stored").inc()
    metrics.shed.labels("low").inc()
    metrics.calls.labels("h200", "answered").inc()
    metrics.add_engine("h200", lambda: "up")
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        found[family.name] = (family.type, labels)
    assert found == FAMILIES
    text = metrics.text().decode()
    assert "_created" not in text
    for bound, count in zip(BOUNDS, (1, *[1] * 15), strict=True):
        line = f'vedette_worker_stage_seconds_bucket{{le="{bound}",priority="high",stage="publish"}} {count}.0'
        assert line in text
    assert "vedette_worker_places 4.0" in text
    assert "vedette_worker_ready 0.0" in text


def test_a_verdict_is_counted_by_the_versions_of_both_sides() -> None:
    metrics = WorkerMetrics()
    metrics.record_verdict(escalation(), verdict(), "high")
    metrics.record_verdict(escalation("yolo-s"), verdict(decision="rejected"), "low")
    text = metrics.text().decode()
    assert 'decision="rejected",edge_model="yolo-s",engine="openai",model="vlm",prompt="p.1"} 1.0' in text
    assert 'vedette_worker_tokens_total{kind="in"} 1624.0' in text
    assert "vedette_worker_second_looks_total 2.0" in text


def test_dead_letters_of_every_kind_are_counted_from_zero() -> None:
    """To Prometheus the step from no series to 1 is no increase: VedetteDeadLetters would not hear of the first one."""
    text = WorkerMetrics().text().decode()
    assert all(f'vedette_worker_dead_letters_total{{kind="{kind}"}} 0.0' in text for kind in KINDS)


def test_the_hit_rate_of_the_prefix_cache_is_what_the_server_counted() -> None:
    metrics = WorkerMetrics()
    for cached in (0, 640, 640):  # the first escalation of a rule fills the cache
        metrics.record_verdict(escalation(), verdict(tokens_cached=cached), "high")
    found = {
        sample.labels["kind"]: sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if sample.name == "vedette_worker_tokens_total"
    }
    assert found == {"in": 3 * 812, "out": 3 * 40, "cached": 2 * 640}


def test_a_site_cannot_make_series_without_end() -> None:
    metrics = WorkerMetrics()
    for n in range(SERIES_MAX + 50):
        metrics.record_verdict(escalation(f"model-{n}"), verdict(), "high")
    text = metrics.text().decode()
    assert text.count("vedette_worker_verdicts_total{") == SERIES_MAX + 1
    assert f'decision="{OTHER}",edge_model="{OTHER}",engine="{OTHER}",model="{OTHER}",prompt="{OTHER}"}} 50.0' in text


@pytest.mark.parametrize("kinds", [(), ("engine",), ("engine", "media", "media")])
def test_counts_are_sums_over_all_labels(kinds: tuple[str, ...]) -> None:
    metrics = WorkerMetrics()
    for kind in kinds:
        metrics.dead.labels(kind).inc()
    metrics.judged.inc()
    counts = WorkerCounts.of(metrics)
    assert (counts.dead, counts.judged, counts.refused) == (len(kinds), 1, 0)
