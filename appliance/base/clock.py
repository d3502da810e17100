"""Reads the clock; all other modules are given one. Also computes calendar days and budget periods."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Protocol

from appliance.base.errors import UsageError


class Clock(Protocol):
    """Time as every other module sees it."""

    @property
    def boot_id(self) -> str:
        """Which start of the machine `monotonic` counts from, for who keeps it beyond this process; '': unknown."""
        ...

    def now(self) -> float:
        """Return UTC seconds since the epoch. May jump; for stamps that people and other machines read."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never jump; for time-outs, pacing and durations."""
        ...

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        """Wait; return True at once when `stop` is set."""
        ...


class SystemClock:
    """The machine's clocks."""

    @property
    def boot_id(self) -> str:
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        if stop is None:
            time.sleep(max(0.0, seconds))
            return False
        return stop.wait(max(0.0, seconds))


class ManualClock:
    """A clock that moves only by `advance` and `jump`: replay and tests. `sleep` moves it and returns at once."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.boot_id = ""
        self._now = now
        self._monotonic = 1000.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> bool:
        self.advance(max(0.0, seconds))
        return stop is not None and stop.is_set()

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Step the wall clock only, as NTP or a person does."""
        self._now += seconds


class ClockStepDetector:
    """Notices when the wall clock is stepped (by NTP, by a person), by comparing it with the one that never jumps.

    State: how far the two were apart at the last call. Owner: one loop. Slewing stays below `step_s_min` a call.
    """

    def __init__(self, clock: Clock, step_s_min: float = 60.0) -> None:
        self._clock = clock
        self._step_s_min = step_s_min
        self._apart_s = clock.now() - clock.monotonic()

    def step_s(self) -> float:
        """Return the seconds by which the wall clock was stepped since the last call; 0.0 if it was not."""
        apart_s = self._clock.now() - self._clock.monotonic()
        step_s, self._apart_s = apart_s - self._apart_s, apart_s
        return step_s if abs(step_s) > self._step_s_min else 0.0


def process_cpu_s() -> float:
    """Return the CPU seconds that this process has used so far, all its threads together."""
    return time.process_time()


def thread_cpu_s() -> float:
    """Return the CPU seconds that the calling thread has used so far."""
    return time.thread_time()


_CALENDAR_FIRST_S, _CALENDAR_LAST_S = -62_135_596_800.0, 253_402_300_799.0  # years 1 and 9999


def iso_utc(t: float) -> str:
    """Write `t` (UTC seconds) as `2026-01-31T12:34:56.789Z`; beyond the calendar, as its first or last time."""
    stamp = datetime.fromtimestamp(min(max(t, _CALENDAR_FIRST_S), _CALENDAR_LAST_S), tz=timezone.utc)
    return stamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{stamp.microsecond // 1000:03d}Z"


def local_day(t: float) -> str:
    """Return the calendar day of `t` in the machine's own time zone, as `2026-01-31`."""
    return datetime.fromtimestamp(t).astimezone().strftime("%Y-%m-%d")


def local_hour(t: float) -> str:
    """Return the moment `t` in the machine's own time zone, as `2026-01-31 17:00`."""
    return datetime.fromtimestamp(t).astimezone().strftime("%Y-%m-%d %H:%M")


def day_bounds(day: str) -> tuple[float, float]:
    """Return when a calendar day (`2026-01-31`) of the machine's own time zone begins and ends. Raises ValueError."""
    if len(day) != len("2026-01-31"):
        raise ValueError(day)
    first = datetime.fromisoformat(day)
    return first.astimezone().timestamp(), (first + timedelta(days=1)).astimezone().timestamp()


@dataclass(frozen=True, slots=True)
class Period:
    """The day and the month in which a time lies, for budgets.

    `day` is the day's name; the others are the seconds at which each begins and ends.
    """

    day: str
    day_t: float
    day_end_t: float
    month_t: float
    month_end_t: float


def local_period(t: float) -> Period:
    """Return day and month of the calendar, in the machine's own time zone."""
    here = datetime.fromtimestamp(t).astimezone()
    midnight = datetime(here.year, here.month, here.day)  # noqa: DTZ001 (local, as the calendar on the wall is)
    first = midnight.replace(day=1)
    tomorrow = midnight + timedelta(days=1)
    next_month = (first + timedelta(days=32)).replace(day=1)
    ends = (midnight.timestamp(), tomorrow.timestamp(), first.timestamp(), next_month.timestamp())
    return Period(local_day(t), *ends)


def footage_period(t: float) -> Period:
    """Return the period of a time in footage, in seconds since it began: days of 24 hours, months of 30 days."""
    day, month = t // 86400, t // (30 * 86400)
    return Period(f"day {day:.0f}", day * 86400, (day + 1) * 86400, month * 30 * 86400, (month + 1) * 30 * 86400)


def local_weekday_minute(t: float) -> tuple[int, int]:
    """Return weekday (Monday 0) and minute of the day of `t` in the machine's own time zone; for schedules."""
    local = datetime.fromtimestamp(t).astimezone()
    return local.weekday(), local.hour * 60 + local.minute


def parse_moment(text: str) -> float:
    """Return the UTC seconds of `2026-11-20T10:00` (this machine's time), `…Z` or `…+01:00`. Raises UsageError."""
    try:
        read = datetime.fromisoformat(text.strip().removesuffix("Z") + ("+00:00" if text.strip().endswith("Z") else ""))
        return (read if read.tzinfo else read.astimezone()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"`{text}` is no time: write 2026-11-20T10:00 (this machine's time), 2026-11-20T10:00:00Z or …+01:00"
        ) from None
