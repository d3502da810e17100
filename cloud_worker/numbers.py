"""What a worker counts and measures; the names are those of /metrics (docs/worker.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from appliance.wire import Escalation, Verdict
from cloud_worker.exposition import Counter, Gauge, Histogram, Labels, exposition

STAGES = ("link", "queue", "fetch", "preprocess", "model", "publish")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Numbers:
    """Owner of the worker's metrics. For one task loop; reading is a snapshot."""

    def __init__(self) -> None:
        self.stages = Histogram(
            "vedette_worker_stage_seconds",
            "Seconds of a question in each stage; link spans two clocks.",
            ("stage", "priority"),
            SECONDS,
        )
        self.verdict_seconds = Histogram(
            "vedette_worker_verdict_seconds",
            "Seconds from the question being stored at the broker until its verdict was.",
            ("priority",),
            SECONDS,
        )
        self.judged = Counter("vedette_worker_judged_total", "Questions that the engine judged.")
        self.verdicts = Counter(
            "vedette_worker_verdicts_total",
            "Verdicts by decision and version. The camera's detector said yes to all: `rejected` is a disagreement.",
            ("decision", "engine", "model", "prompt", "edge_model"),
        )
        self.more = Counter("vedette_worker_more_evidence_total", "Verdicts that asked for more.", ("need",))
        self.looks = Counter("vedette_worker_second_looks_total", "Questions that the model was asked twice.")
        self.tokens = Counter("vedette_worker_tokens_total", "Tokens that the model read and wrote.", ("kind",))
        self.retries = Counter("vedette_worker_retries_total", "Questions given back to be tried again.")
        self.repeated = Counter("vedette_worker_repeated_total", "Questions that had been answered before.")
        self.refused = Counter("vedette_worker_refused_total", "Messages that are no questions.")
        self.given_up = Counter("vedette_worker_given_up_total", "Questions that were ended without a judgement.")
        self.dead = Counter("vedette_worker_dead_letters_total", "Questions put among the dead letters.", ("kind",))
        self.archived = Counter("vedette_worker_archived_total", "Objects for the archive, by result.", ("result",))
        self._gauges: list[Gauge] = []

    def watch(self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], dict[Labels, float]]) -> None:
        """A number that is asked for when somebody reads."""
        self._gauges.append(Gauge(name, text, labels, read))

    def said(self, escalation: Escalation, verdict: Verdict, priority: str) -> None:
        """A verdict was made and stored."""
        names = (verdict.engine, verdict.model, verdict.prompt_version, escalation.model)
        self.verdicts.add(verdict.decision, *names)
        if verdict.need is not None:
            self.more.add(verdict.need)
        if verdict.looks > 1:
            self.looks.add()
        self.tokens.add("in", by=verdict.tokens_in)
        self.tokens.add("out", by=verdict.tokens_out)
        for stage, seconds in verdict.timings.items():
            if stage in STAGES:
                self.stages.observe(seconds, stage, priority)

    def text(self) -> str:
        families = [each for each in vars(self).values() if isinstance(each, (Counter, Histogram))]
        return exposition([*families, *self._gauges])


@dataclass(frozen=True, slots=True)
class Counts:
    """What this worker did since it started. more: of those judged, how many asked for more evidence."""

    judged: int
    more: int
    repeated: int
    refused: int
    retried: int
    given_up: int
    dead: int

    @classmethod
    def of(cls, n: Numbers) -> Counts:
        counters = (n.judged, n.more, n.repeated, n.refused, n.retries, n.given_up, n.dead)
        return cls(*(int(each.total()) for each in counters))
