"""Measures how well events were reported: recall, precision, delay, alerts per hour, each with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000  # bootstrap draws: the ends of an interval are then stable to about 0.01
LEVEL = (2.5, 97.5)  # percentiles of a 95 % interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure from `of` observations with its 95 % interval (low, high). value None: nothing was observed."""

    value: float | None
    low: float | None
    high: float | None
    of: int


NO_ESTIMATE = Estimate(None, None, None, 0)


def format_estimate(figure: Estimate) -> str:
    """`0.83 (0.61 to 0.97)`, or `-` where nothing was observed."""
    if figure.value is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFigures:
    """recall: of the required events; precision: of the judged ones; delay_s: the median; delay_p90_s: 90 %."""

    recall: Estimate
    precision: Estimate
    delay_s: Estimate
    delay_p90_s: float | None
    alerts: int
    footage_s: float

    @property
    def alerts_per_hour(self) -> float | None:
        return None if self.footage_s <= 0 else self.alerts * 3600 / self.footage_s


def event_figures(
    required: Sequence[bool], judged: Sequence[bool], delays: Sequence[float], *, alerts: int, footage_s: float
) -> EventFigures:
    """Return the figures of a scenario's events.

    required: for each required event, whether it was reported; judged: for each judged event, whether it was right;
    delays: seconds.
    """
    return EventFigures(
        recall=estimate_share(required),
        precision=estimate_share(judged),
        delay_s=estimate_median(delays),
        delay_p90_s=round(float(np.percentile(delays, 90)), 3) if delays else None,
        alerts=alerts,
        footage_s=footage_s,
    )


def estimate_share(outcomes: Sequence[bool]) -> Estimate:
    """Return the share that is True with its percentile-bootstrap interval over the observations (incidents).

    Resampling n yes/no observations is drawing from a binomial. Where all observations agree the bootstrap would claim
    certainty; there the far end is the exact one-sided bound of 97.5 % (Clopper & Pearson 1934).
    """
    count, right = len(outcomes), sum(outcomes)
    if count == 0:
        return NO_ESTIMATE
    if right in (0, count):
        far = 0.025 ** (1 / count)
        return Estimate(float(right == count), far if right else 0.0, 1.0 if right else 1 - far, count)
    drawn = np.random.default_rng(0).binomial(count, right / count, RESAMPLES) / count
    low, high = np.percentile(drawn, LEVEL)
    return Estimate(right / count, float(low), float(high), count)


def estimate_median(values: Sequence[float]) -> Estimate:
    """Return the median with its percentile-bootstrap interval; of a single value there is no interval."""
    if not values:
        return NO_ESTIMATE
    every = np.asarray(values, float)
    if len(every) == 1:
        return Estimate(float(every[0]), None, None, 1)
    drawn = np.median(np.random.default_rng(0).choice(every, (RESAMPLES, len(every))), axis=1)
    low, high = np.percentile(drawn, LEVEL)
    return Estimate(float(np.median(every)), float(low), float(high), len(every))
