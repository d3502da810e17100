"""The worker's Prometheus metrics; the names are those of /metrics (docs/worker.md)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from appliance.wire import Escalation, Verdict

LabelValues = tuple[str, ...]
SERIES_MAX = 500
OTHER = "other"


class _Family:
    """A name, its help, and one value per combination of labels: at most SERIES_MAX, the rest is called `other`."""

    kind = "untyped"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)

    def lines(self) -> list[str]:
        return [f"# HELP {self.name} {self.text}", f"# TYPE {self.name} {self.kind}", *self._samples()]

    def _samples(self) -> Iterable[str]:
        raise NotImplementedError

    def _key(self, known: Iterable[LabelValues], labels: LabelValues) -> LabelValues:
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}"
        known = set(known)
        return labels if labels in known or len(known) < SERIES_MAX else (OTHER,) * len(labels)


class Counter(_Family):
    """Grows."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._values: dict[LabelValues, float] = {} if labels else {(): 0.0}

    def add(self, *labels: str, by: float = 1.0) -> None:
        key = self._key(self._values, labels)
        self._values[key] = self._values.get(key, 0.0) + by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def total(self) -> float:
        return sum(self._values.values())

    def _samples(self) -> Iterable[str]:
        return [f"{self.name}{_braces(self.labels, key)} {_number(v)}" for key, v in self._values.items()]


class Gauge(_Family):
    """Is what it is when it is read: `read()` returns the value of each combination of labels."""

    kind = "gauge"

    def __init__(
        self, name: str, text: str, labels: Sequence[str], read: Callable[[], dict[LabelValues, float]]
    ) -> None:
        super().__init__(name, text, labels)
        self._read = read

    def _samples(self) -> Iterable[str]:
        return [f"{self.name}{_braces(self.labels, key)} {_number(v)}" for key, v in self._read().items()]


class Histogram(_Family):
    """How often a value fell below each of `bounds` (ascending), their number and their sum."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._counts: dict[LabelValues, list[int]] = {}
        self._sums: dict[LabelValues, float] = {}

    def observe(self, value: float, *labels: str) -> None:
        key = self._key(self._counts, labels)
        counts = self._counts.setdefault(key, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[key] = self._sums.get(key, 0.0) + value

    def count(self, *labels: str) -> int:
        return sum(self._counts.get(labels, ()))

    def _samples(self) -> Iterable[str]:
        for key, counts in self._counts.items():
            total = 0
            for bound, count in zip((*map(_number, self._bounds), "+Inf"), counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_braces((*self.labels, 'le'), (*key, bound))} {total}"
            yield f"{self.name}_sum{_braces(self.labels, key)} {_number(self._sums[key])}"
            yield f"{self.name}_count{_braces(self.labels, key)} {total}"


def exposition(families: Iterable[_Family]) -> str:
    """All of them as text."""
    return "\n".join(line for family in families for line in family.lines()) + "\n"


def _braces(names: Sequence[str], values: Sequence[str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return f"{value:.10g}"


STAGES = ("link", "queue", "fetch", "preprocess", "model", "publish")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class WorkerMetrics:
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
        self.more_evidence = Counter("vedette_worker_more_evidence_total", "Verdicts that asked for more.", ("need",))
        self.second_looks = Counter("vedette_worker_second_looks_total", "Questions that the model was asked twice.")
        self.tokens = Counter("vedette_worker_tokens_total", "Tokens that the model read and wrote.", ("kind",))
        self.retries = Counter("vedette_worker_retries_total", "Questions given back to be tried again.")
        self.repeated = Counter("vedette_worker_repeated_total", "Questions that had been answered before.")
        self.refused = Counter("vedette_worker_refused_total", "Messages that are no questions.")
        self.given_up = Counter("vedette_worker_given_up_total", "Questions that were ended without a judgement.")
        self.dead = Counter("vedette_worker_dead_letters_total", "Questions put among the dead letters.", ("kind",))
        self.archived = Counter("vedette_worker_archived_total", "Objects for the archive, by result.", ("result",))
        self._gauges: list[Gauge] = []

    def add_gauge(
        self, name: str, text: str, labels: tuple[str, ...], read: Callable[[], dict[LabelValues, float]]
    ) -> None:
        """A number that is asked for when somebody reads."""
        self._gauges.append(Gauge(name, text, labels, read))

    def record_verdict(self, escalation: Escalation, verdict: Verdict, priority: str) -> None:
        """A verdict was made and stored."""
        names = (verdict.engine, verdict.model, verdict.prompt_version, escalation.model)
        self.verdicts.add(verdict.decision, *names)
        if verdict.need is not None:
            self.more_evidence.add(verdict.need)
        if verdict.looks > 1:
            self.second_looks.add()
        self.tokens.add("in", by=verdict.tokens_in)
        self.tokens.add("out", by=verdict.tokens_out)
        for stage, seconds in verdict.timings.items():
            if stage in STAGES:
                self.stages.observe(seconds, stage, priority)

    def text(self) -> str:
        families = [each for each in vars(self).values() if isinstance(each, (Counter, Histogram))]
        return exposition([*families, *self._gauges])


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What this worker did since it started. more: of those judged, how many asked for more evidence."""

    judged: int
    more: int
    repeated: int
    refused: int
    retried: int
    given_up: int
    dead: int

    @classmethod
    def of(cls, n: WorkerMetrics) -> WorkerCounts:
        counters = (n.judged, n.more_evidence, n.repeated, n.refused, n.retries, n.given_up, n.dead)
        return cls(*(int(each.total()) for each in counters))
