"""Decides when a rule is armed, in the appliance's own time zone."""

from __future__ import annotations

from collections.abc import Callable

from appliance.config import DAYS, OffPeakConfig, Schedule

MINUTES_A_DAY = 24 * 60  # minutes
LocalTime = Callable[[float], tuple[int, int]]
"""The weekday (Monday 0) and minute of the day at which a frame time falls at the site."""


class ArmedHours:
    """The armed hours of a rule.

    A span that runs past midnight belongs to the day on which it begins: `days: [fri], hours: ["22:00-06:00"]` is
    armed until six on Saturday morning. The end of a span is not part of it. A span that ends where it begins lasts
    24 hours.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._days = frozenset(DAYS.index(day) for day in schedule.days)
        self._spans = tuple(_span(text) for text in schedule.hours)

    def armed(self, weekday: int, minute: int) -> bool:
        """Return True if the rule is armed in this minute; weekday: Monday 0; minute: 0..1439."""
        today, yesterday = weekday in self._days, (weekday - 1) % 7 in self._days
        return any(
            (today and start <= minute < end) or (yesterday and minute < end - MINUTES_A_DAY)
            for start, end in self._spans
        )

    def edges(self) -> frozenset[int]:
        """Return the minutes of the week (Monday 00:00 is 0) at which a span begins or ends."""
        return frozenset(
            (day * MINUTES_A_DAY + minute) % (7 * MINUTES_A_DAY)
            for day in self._days
            for span in self._spans
            for minute in span
        )

    def opens_in(self, weekday: int, minute: int) -> int:
        """Return the minutes until it is armed: 0 when it is now; at most a week."""
        for ahead in range(8 * MINUTES_A_DAY):
            days, at = divmod(minute + ahead, MINUTES_A_DAY)
            if self.armed((weekday + days) % 7, at):
                return ahead
        return 8 * MINUTES_A_DAY


def armed_at(schedule: Schedule | None, local_time: LocalTime) -> Callable[[float], bool]:
    """Return a function that says if a time (UTC seconds) is within the schedule; without a schedule it always is."""
    if schedule is None:
        return lambda t: True
    hours = ArmedHours(schedule)
    return lambda t: hours.armed(*local_time(t))


def off_peak_in_s(hours: OffPeakConfig | None, local_time: LocalTime | None) -> Callable[[float], float] | None:
    """Return the seconds from a time until the off-peak hours, 0 inside them.

    Return None if there are none, or no time of day.
    """
    if hours is None or local_time is None:
        return None
    spans, at = ArmedHours(hours), local_time
    return lambda t: spans.opens_in(*at(t)) * 60.0


def _span(text: str) -> tuple[int, int]:
    start, end = (int(part[:2]) * 60 + int(part[3:]) for part in text.split("-"))
    return (start, end) if end > start else (start, end + MINUTES_A_DAY)
