"""Counters, gauges and histograms, and the Prometheus text format (version 0.0.4) in which they are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

Labels = tuple[str, ...]
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

    def _key(self, known: Iterable[Labels], labels: Labels) -> Labels:
        assert len(labels) == len(self.labels), f"{self.name} has the labels {self.labels}"
        known = set(known)
        return labels if labels in known or len(known) < SERIES_MAX else (OTHER,) * len(labels)


class Counter(_Family):
    """Grows."""

    kind = "counter"

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, text, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

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

    def __init__(self, name: str, text: str, labels: Sequence[str], read: Callable[[], dict[Labels, float]]) -> None:
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
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

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
