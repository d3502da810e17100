"""Measures how long each stage takes from the camera to the notified person: the same histograms in every process."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate

from appliance.base.clock import Clock

STAGES = {
    "alert": "from the camera's time of an event to its alert in the store",
    "evidence": "from the alert to its escalation with all evidence in the outbox",
    "broker": "from the outbox to the broker",
    "verdict": "from the broker to the decision in the store",
    "told": "from the alert to a person told, or to giving that up; what a target waits for on purpose included",
}
"""The stages of an appliance. `vedette_frame_age_seconds` measures the time before them; a worker has stages of its own
in `verdict`."""
# Upper bounds of the histograms, seconds: from a message over a local network to a backlog of half an hour.
EDGES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
BEGUN_MAX = 4096  # stages whose end is awaited; an outbox that waits for a link holds more, and those are not timed


class StageLatencies:
    """The histograms of this process. Any thread.

    State: for each stage how many took how long, and their sum; when the stages began whose end is awaited.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts = {stage: [0] * (len(EDGES_S) + 1) for stage in STAGES}
        self._sums = dict.fromkeys(STAGES, 0.0)
        self._begun: OrderedDict[tuple[str, str], float] = OrderedDict()

    def observe(self, stage: str, seconds: float) -> None:
        """Count one that took so long; below 0 (two clocks that disagree) it counts as 0."""
        seconds = max(0.0, seconds)
        with self._lock:
            self._counts[stage][bisect_left(EDGES_S, seconds)] += 1
            self._sums[stage] += seconds

    def begin(self, stage: str, name: str) -> None:
        """Start the watch of one, which `end` reads."""
        with self._lock:
            self._begun[stage, name] = self._clock.monotonic()
            while len(self._begun) > BEGUN_MAX:
                self._begun.popitem(last=False)

    def end(self, stage: str, name: str) -> None:
        """Count one that `begin` was called for, once; of any other nothing is known."""
        with self._lock:
            began = self._begun.pop((stage, name), None)
        if began is not None:
            self.observe(stage, self._clock.monotonic() - began)

    def read(self) -> dict[str, tuple[list[tuple[str, float]], float]]:
        """Return the stages that anything was counted for: (upper bound, how many up to it) for each, and the sum."""
        edges = [*(f"{edge:g}" for edge in EDGES_S), "+Inf"]
        with self._lock:
            return {
                stage: (list(zip(edges, map(float, accumulate(counts)), strict=True)), self._sums[stage])
                for stage, counts in self._counts.items()
                if any(counts)
            }
