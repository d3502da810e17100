"""What the curves say, as numbers. Budgets and loads are shares (1 = all of the cameras' bytes) and things an hour."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.scenario.curve.ranking import Lead
from appliance.scenario.measures import Estimate

BUDGETS = (0.001, 0.003, 0.01, 0.02, 0.03, 0.10, 1.0)
GOAL = 0.95
BAR = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One strategy. points: (budget, recall) where recall rises, of random the mean; band: (budget, low, high), of
    random over its seeds, else the bootstrap interval; at: recall at the panel's budgets; smallest: the least budget
    with recall GOAL, None where none has; spent, reached, things: what sending all it has costs, the recall of that,
    and how many that are (of random the mean). whole: it is all or nothing, one point and no curve.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...]
    at: tuple[Estimate, ...]
    smallest: Estimate
    spent: float
    reached: float
    things: float
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where the router and a baseline are ahead of each other; at all other budgets up to 100 % they are level."""

    baseline: str
    router_ahead: tuple[Lead, ...]
    baseline_ahead: tuple[Lead, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Strategies over the same budgets, the router first."""

    budgets: tuple[float, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One camera's part in it. untimed: entries of `expect` that say no moment, and so are not labels here."""

    scenario: str
    camera: str
    bytes: int
    seconds: float
    incidents: int
    alerts: int
    false_alerts: int
    asked: int
    asked_bytes: int
    untimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """sent: recall over the share of the cameras' bytes; seen: over things to look at per camera-hour. verdicts: what
    the stand-in is; judged_by: who gave the verdicts that the scenarios name; missed: incidents that the router finds
    at no budget, and whether an alert was raised at all; raised, raised_smallest: how many incidents raised one, and
    the least budget with which the router finds the goal's share of those; skipped: what was left out, and why."""

    films: tuple[Counted, ...]
    models: tuple[str, ...]
    incidents: int
    sent: Panel
    comparisons: tuple[Comparison, ...]
    seen: Panel
    verdicts: str
    missed: tuple[str, ...]
    raised: int
    raised_smallest: float | None
    seeds: int
    resamples: int
    judged_by: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    goal: float = GOAL
    bar: float = BAR

    @property
    def bar_met(self) -> bool:
        """Whether the router reaches the goal within the bar, and no baseline is ahead of it at any budget."""
        smallest = self.sent.curves[0].smallest.value
        return smallest is not None and smallest <= self.bar and not any(c.baseline_ahead for c in self.comparisons)

    @property
    def camera_bytes(self) -> int:
        return sum(film.bytes for film in self.films)

    @property
    def camera_seconds(self) -> float:
        return sum(film.seconds for film in self.films)
