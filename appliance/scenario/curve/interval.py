"""How sure the figures of a curve are: bootstrap over clips, and over the incidents in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from appliance.scenario.curve.ranking import Floats, Places, Ranking, recall_at, smallest_share
from appliance.scenario.measures import Estimate, share

RESAMPLES = 2000
_LEVEL = (2.5, 97.5)
_Draw = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class Sample:
    """costs: (K, I) as measured, of each order; drawn, weights: (R, I) the incidents' costs in each draw, and how often
    each counts there."""

    costs: Floats
    drawn: Floats
    weights: Floats

    def recalls(self, shares: Sequence[float]) -> list[Estimate]:
        """The recall at each budget. Where all incidents came out alike the interval is the exact bound for so many,
        see `measures.share`."""
        return [self._recall(share) for share in shares]

    def smallest(self, recall: float) -> Estimate:
        """The smallest budget with this recall; None: never."""
        drawn = [
            smallest_share(costs, recall, weights) for costs, weights in zip(self.drawn, self.weights, strict=True)
        ]
        ends = (smallest_share(self.costs, recall), *np.percentile(drawn, _LEVEL, method="nearest"))
        value, low, high = (float(each) if np.isfinite(each) else None for each in ends)
        return Estimate(value, low, high, self.costs.shape[1])

    def _recall(self, budget: float) -> Estimate:
        count, value = self.costs.shape[1], recall_at(self.costs, budget)
        if value in (0.0, 1.0):
            return share([value == 1.0] * count)
        drawn = ((self.drawn <= budget) * self.weights).sum(axis=1) / self.weights.sum(axis=1)
        low, high = np.percentile(drawn, _LEVEL)
        return Estimate(value, float(low), float(high), count)


class Bootstrap:
    """Draws of whole clips with replacement, and in each drawn clip of its incidents, the same for every strategy.

    Incidents of one clip share light, place and people, so they are not drawn as if they were strangers. What is sent
    and what it may cost are drawn with the clip. Of several orders of sending (random) each draw takes one, so that
    the interval holds their difference as well.
    """

    def __init__(self, whole: Floats, incidents: Places, resamples: int = RESAMPLES) -> None:
        """whole: (F,) what a budget is a share of; incidents: (I,) the footage of each."""
        self._whole = whole
        self._incidents = incidents
        self._draws = [draw for draw in self._drawn(resamples) if draw[1].sum() > 0]

    def sample(self, orders: Sequence[Ranking]) -> Sample:
        """What the draws say of a strategy."""
        drawn = [
            orders[number % len(orders)].costs(self._whole, clips) for number, (clips, _) in enumerate(self._draws)
        ]
        return Sample(
            np.array([each.costs(self._whole) for each in orders]),
            np.array(drawn).reshape(len(drawn), len(self._incidents)),
            np.array([weights for _, weights in self._draws]).reshape(len(drawn), len(self._incidents)),
        )

    def _drawn(self, resamples: int) -> Iterator[_Draw]:
        """(F,) how often each clip counts, (I,) how often each incident."""
        chance = np.random.default_rng(0)
        clips = len(self._whole)
        within = [np.flatnonzero(self._incidents == clip) for clip in range(clips)]
        for _ in range(resamples):
            times = chance.multinomial(clips, np.full(clips, 1 / clips)).astype(float)
            weights = np.zeros(len(self._incidents))
            for clip, places in enumerate(within):
                if len(places) and times[clip]:
                    drawn = chance.multinomial(int(times[clip]) * len(places), np.full(len(places), 1 / len(places)))
                    weights[places] = drawn
            yield times, weights
