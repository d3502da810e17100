"""How long the recording may go on as it does before a limit deletes it early: arithmetic on what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

DAY_S = 86400.0  # seconds
ForecastKind = Literal["unknown", "age", "fills", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One thing that grows: a camera's recording, or evidence.

    rate: bytes a second; None: not yet known. bytes: what it takes now; level: where it stops growing, because its time
    is up or its own quota is reached (inf: nowhere).
    """

    rate: float | None
    bytes: float
    level: float

    def added(self, seconds: float) -> float:
        """Bytes that it takes more after `seconds`."""
        if not self.rate:
            return 0.0
        return min(self.rate * seconds, max(0.0, self.level - self.bytes))

    @property
    def full_s(self) -> float:
        """Seconds until it is at its level; inf: it does not get there."""
        if not self.rate:
            return float("inf")
        return max(0.0, self.level - self.bytes) / self.rate


def fills_in_s(things: Sequence[Growth], room: float) -> float | None:
    """Seconds until `things` together have taken `room` bytes more; None: they level off before.

    Each grows in a straight line up to its level, so what they take is linear between the moments of levelling off.
    """
    if room <= 0:
        return 0.0
    before_s, before = 0.0, 0.0
    for until_s in sorted({each.full_s for each in things if each.rate}):
        slope = sum(each.rate or 0.0 for each in things if each.full_s > before_s)
        after = sum(each.added(until_s) for each in things)
        if after >= room or until_s == float("inf"):
            return before_s + (room - before) / slope if slope > 0 else None
        before_s, before = until_s, after
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of a recording.

    outlook: unknown (too young), age (its time is up before any limit is reached), fills (a limit deletes it before its
    time, from `days_left` on; 0: it does so now), off (nothing is recorded). limit: which one: camera_quota, quota,
    size, disk; "" for age. keeps_s: how far back the recording will then reach.
    """

    outlook: ForecastKind
    days_left: float | None = None
    limit: str = ""
    keeps_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPlan:
    """A camera that records continuously: what it is allowed. rate, bytes: see `Growth`; quota: inf for none."""

    rate: float | None
    bytes: float
    keep_s: float
    quota: float

    @property
    def growth(self) -> Growth:
        by_age = float("inf") if self.rate is None else self.rate * self.keep_s
        return Growth(rate=self.rate, bytes=self.bytes, level=min(by_age, self.quota))


def forecast_site(plans: Mapping[str, RecordingPlan], others: Sequence[Growth], rooms: Mapping[str, float]) -> Forecast:
    """Return the forecast of all cameras together.

    others: what grows beside the recording; rooms: bytes left, by limit. `quota` among the rooms is of the continuous
    recording alone; the other rooms are for everything.
    """
    if not plans:
        return Forecast(outlook="off")
    known = [plan.growth for plan in plans.values()]
    if all(each.rate is None for each in known):
        return Forecast(outlook="unknown")
    times = {limit: fills_in_s(known if limit == "quota" else [*known, *others], room) for limit, room in rooms.items()}
    reached = {limit: seconds for limit, seconds in times.items() if seconds is not None}
    if not reached:
        return Forecast(outlook="age")
    first = min(reached, key=lambda limit: reached[limit])
    return Forecast(outlook="fills", days_left=reached[first] / DAY_S, limit=first)


def forecast_camera(plan: RecordingPlan, site: Forecast, share_s: float | None) -> Forecast:
    """Return the forecast of one camera: its own quota, or the site's limit if that comes first.

    share_s: how far back its recording will reach when the site's limit shares the room out; None: it does not.
    """
    if plan.rate is None:
        return Forecast(outlook="unknown")
    by_quota = plan.quota / plan.rate if plan.rate > 0 else float("inf")
    keeps = min(plan.keep_s, by_quota, share_s if share_s is not None else float("inf"))
    own = by_quota < plan.keep_s
    own_days = max(0.0, plan.quota - plan.bytes) / plan.rate / DAY_S if own else None
    shared = site.outlook == "fills" and share_s is not None and share_s < min(plan.keep_s, by_quota)
    if own_days is not None and not (shared and site.days_left is not None and site.days_left < own_days):
        return Forecast(outlook="fills", days_left=own_days, limit="camera_quota", keeps_s=keeps)
    if shared:
        return Forecast(outlook="fills", days_left=site.days_left, limit=site.limit, keeps_s=keeps)
    return Forecast(outlook="age", keeps_s=keeps)


def reach_s(plans: Mapping[str, RecordingPlan], room: float) -> float | None:
    """Return how far back all recordings reach once `room` bytes hold all of them and the oldest always goes first.

    The moment is the same for all. None: they fit with their age limits.
    """
    spans = sorted({_span(plan) for plan in plans.values() if plan.rate})
    before_s, taken = 0.0, 0.0
    for until_s in spans:
        slope = sum(plan.rate or 0.0 for plan in plans.values() if _span(plan) > before_s)
        after = taken + slope * (until_s - before_s)
        if after > room:
            return before_s + max(0.0, room - taken) / slope
        before_s, taken = until_s, after
    return None


def _span(plan: RecordingPlan) -> float:
    return min(plan.keep_s, plan.quota / plan.rate) if plan.rate else 0.0
