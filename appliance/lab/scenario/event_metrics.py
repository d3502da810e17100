"""How well events were reported: recall, precision, delay and alerts per hour, each with its 95 % interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
_LEVEL = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure from `of` observations with its 95 % interval. value None: there was nothing to observe."""

    value: float | None
    low: float | None
    high: float | None
    of: int


NO_ESTIMATE = Estimate(None, None, None, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFigures:
    """recall: of the events that had to be reported; precision: of those that were judged; delay_s: the median."""

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
    places: Sequence[bool], answers: Sequence[bool], delays: Sequence[float], *, alerts: int, footage_s: float
) -> EventFigures:
    """places: for each event that had to be reported, whether it was; answers: for each judged one, whether right."""
    return EventFigures(
        recall=estimate_share(places),
        precision=estimate_share(answers),
        delay_s=estimate_median(delays),
        delay_p90_s=round(float(np.percentile(delays, 90)), 3) if delays else None,
        alerts=alerts,
        footage_s=footage_s,
    )


def estimate_share(outcomes: Sequence[bool]) -> Estimate:
    """The share that is True with its percentile-bootstrap interval over the observations (incidents).

    Resampling n yes/no observations is drawing from a binomial. Where all came out alike the bootstrap would claim
    certainty, of however few; there the far end is the exact one-sided bound of 97.5 % (Clopper & Pearson 1934).
    """
    count, right = len(outcomes), sum(outcomes)
    if count == 0:
        return NO_ESTIMATE
    if right in (0, count):
        far = 0.025 ** (1 / count)
        return Estimate(float(right == count), far if right else 0.0, 1.0 if right else 1 - far, count)
    drawn = np.random.default_rng(0).binomial(count, right / count, RESAMPLES) / count
    low, high = np.percentile(drawn, _LEVEL)
    return Estimate(right / count, float(low), float(high), count)


def estimate_median(values: Sequence[float]) -> Estimate:
    """The median with its percentile-bootstrap interval; of a single value there is no interval."""
    if not values:
        return NO_ESTIMATE
    every = np.asarray(values, float)
    if len(every) == 1:
        return Estimate(float(every[0]), None, None, 1)
    drawn = np.median(np.random.default_rng(0).choice(every, (RESAMPLES, len(every))), axis=1)
    low, high = np.percentile(drawn, _LEVEL)
    return Estimate(float(np.median(every)), float(low), float(high), len(every))
