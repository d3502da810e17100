"""The router and what it is held against: for each, the order in which it sends what it has."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from appliance.scenario.curve.footage import Footage
from appliance.scenario.curve.ranking import Candidate, Incident, Ranking, all_or_nothing, ranked, ranking

Name = Literal["router", "confidence-only", "motion-only", "random", "every examined frame", "everything"]
BASELINES: tuple[Name, ...] = ("confidence-only", "motion-only", "random")
_DRAWN_A_SECOND = 2  # moments that random may choose from


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way of choosing. orders: what it would send, first things first; several where chance decides.

    whole: it sends all or nothing, so it is one point and no curve.
    """

    name: Name
    orders: tuple[tuple[Candidate, ...], ...]
    whole: bool = False

    def rankings(self, incidents: Sequence[Incident], *, counted: bool = False) -> tuple[Ranking, ...]:
        """counted: the price of a thing is one, as for whoever has to look at it, instead of its bytes."""
        found = [ranking(order, incidents, [1.0] * len(order) if counted else None) for order in self.orders]
        return tuple(all_or_nothing(each) for each in found) if self.whole else tuple(found)


def strategies(films: Sequence[Footage], seeds: int) -> tuple[Strategy, ...]:
    """All that choose, the router first. seeds: how often random is played."""
    apart = [each.apart_s for each in films]
    motion = [each for number, film in enumerate(films) for each in _moved(number, film)]
    return (
        Strategy(name="router", orders=(tuple(ranked(router(films))),)),
        Strategy(name="confidence-only", orders=(tuple(ranked(confidence(films))),)),
        Strategy(name="motion-only", orders=(tuple(spread(motion, apart)),)),
        Strategy(name="random", orders=tuple(tuple(spread(_random(films, seed), apart)) for seed in range(seeds))),
        Strategy(name="every examined frame", orders=(tuple(_examined(films)),), whole=True),
    )


def router(films: Sequence[Footage]) -> list[Candidate]:
    """The questions that the router would ask, each with its own evidence."""
    return [
        Candidate(
            footage=number,
            t=each.route.t,
            value=each.route.value,
            bytes=each.bytes,
            moments=each.moments,
            alert=each.route.alert,
        )
        for number, film in enumerate(films)
        for each in film.questions
    ]


def confidence(films: Sequence[Footage]) -> list[Candidate]:
    """Every track of a kind that is watched, by its best score, with the evidence that the router would send of it."""
    return [
        Candidate(footage=number, t=each.t, value=each.score, bytes=each.bytes, moments=each.moments)
        for number, film in enumerate(films)
        for each in film.sighted
    ]


def spread(candidates: Sequence[Candidate], apart: Sequence[float]) -> list[Candidate]:
    """In falling value, but none within `apart` seconds (of each footage) of one that is sent already; once nothing is
    left that far apart, at half the distance, and so on: never worse than sending neighbours one after the other."""
    left, order, share = ranked(candidates), list[Candidate](), 1.0
    sent: dict[int, list[float]] = {}
    while left:
        close = []
        for each in left:
            times = sent.setdefault(each.footage, [])
            place = bisect(times, each.t)
            if all(abs(each.t - t) >= share * apart[each.footage] for t in times[max(0, place - 1) : place + 1]):
                times.insert(place, each.t)
                order.append(each)
            else:
                close.append(each)
        left, share = close, share / 2 if share > 0.01 else 0.0
    return order


def _moved(number: int, film: Footage) -> list[Candidate]:
    return [_frame(number, each.t, each.motion, each.frame_bytes) for each in film.seen if each.motion > 0]


def _examined(films: Sequence[Footage]) -> list[Candidate]:
    return [_frame(number, each.t, 0.0, each.frame_bytes) for number, film in enumerate(films) for each in film.seen]


def _random(films: Sequence[Footage], seed: int) -> list[Candidate]:
    """Moments anywhere in the footage; each weighs what the frame that was examined nearest to it weighs."""
    chance = np.random.default_rng(seed)
    found = []
    for number, film in enumerate(films):
        if not film.seen:
            continue
        looked = np.array([each.t for each in film.seen])
        for t in chance.uniform(0, film.seconds, int(np.ceil(film.seconds * _DRAWN_A_SECOND))):
            nearest = film.seen[int(np.abs(looked - t).argmin())]
            found.append(_frame(number, float(t), float(chance.random()), nearest.frame_bytes))
    return found


def _frame(number: int, t: float, value: float, size: int) -> Candidate:
    return Candidate(footage=number, t=t, value=value, bytes=size, moments=(t,))
