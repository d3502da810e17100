"""What the recording takes, per camera and class, and how fast it grows: read from running sums, never added up."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from appliance.store.deletions import CLASSES, Class

HOUR_S = 3600.0
LOOK_BACK_HOURS = 24
RATE_AFTER_S = 3600.0  # of video; before, a rate says more about the start than about the camera
EVIDENCE_AFTER_S = 6 * 3600.0  # alerts come in bursts
_TRIM_FROM = 8  # with so many hours, the highest and the lowest are left out


@dataclass(frozen=True, slots=True)
class Taken:
    """What one class of one camera takes."""

    camera: str
    what: Class
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What everything takes."""

    rows: tuple[Taken, ...]

    def bytes(self, what: Class | None = None, camera: str | None = None) -> int:
        """Bytes of a class (None: all, but what may lie in memory) and camera (None: all)."""
        chosen = ("continuous", "alert", "evidence") if what is None else (what,)
        return sum(row.bytes for row in self.rows if row.what in chosen and camera in (None, row.camera))

    def files(self, what: Class, camera: str | None = None) -> int:
        return sum(row.files for row in self.rows if row.what == what and camera in (None, row.camera))

    def cameras(self, what: Class | None = None) -> list[str]:
        """Of which cameras there is anything, by name; the file may not know them any more."""
        return sorted({row.camera for row in self.rows if row.files > 0 and what in (None, row.what)})


def usage_of(connection: sqlite3.Connection) -> Usage:
    """The running sums."""
    rows = connection.execute("SELECT camera, class, files, bytes FROM usage")
    return Usage(tuple(Taken(row["camera"], row["class"], row["files"], row["bytes"]) for row in rows))


def count_again(connection: sqlite3.Connection) -> None:
    """Make the running sums anew from the rows, for the start: two scans."""
    connection.execute("DELETE FROM usage")
    connection.execute("INSERT INTO usage SELECT camera, kind, count(*), sum(bytes) FROM segment GROUP BY 1, 2")
    connection.execute(
        """INSERT INTO usage SELECT alert.camera, 'evidence', count(*), sum(evidence.bytes) FROM evidence
           JOIN alert ON alert.id = evidence.alert WHERE evidence.state = 'ready' GROUP BY alert.camera"""
    )


@dataclass(frozen=True, slots=True)
class Hour:
    """What was written in one hour of the recording: bytes, and seconds of video (0 for evidence)."""

    hour: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Written:
    """What was written in the last LOOK_BACK_HOURS: hours by camera and class, and when the first of all began."""

    hours: dict[tuple[str, Class], tuple[Hour, ...]]
    now: float

    def rate(self, camera: str, what: Class) -> float | None:
        """Bytes a second of video of a recorded class, as `trimmed_rate` reckons; None: not yet known."""
        return trimmed_rate(self.hours.get((camera, what), ()))

    def evidence_rate(self, camera: str) -> float | None:
        """Bytes of evidence a second, quiet hours included; None: not yet known."""
        watched_s = self.watched_s
        if watched_s < EVIDENCE_AFTER_S:
            return None
        return sum(hour.bytes for hour in self.hours.get((camera, "evidence"), ())) / watched_s

    @property
    def watched_s(self) -> float:
        """Seconds since the first hour in which anything was written, at most LOOK_BACK_HOURS."""
        first = min((hour.hour for hours in self.hours.values() for hour in hours), default=None)
        if first is None:
            return 0.0
        return max(0.0, min(self.now - first * HOUR_S, LOOK_BACK_HOURS * HOUR_S))

    def seconds(self, camera: str, what: Class) -> float:
        """Seconds of video in these hours."""
        return sum(hour.seconds for hour in self.hours.get((camera, what), ()))


def written_of(connection: sqlite3.Connection, now: float) -> Written:
    """What was written in the last LOOK_BACK_HOURS before `now`."""
    first = int(now / HOUR_S) - LOOK_BACK_HOURS + 1
    found: dict[tuple[str, Class], list[Hour]] = {}
    rows = connection.execute("SELECT * FROM written WHERE hour BETWEEN ? AND ? ORDER BY hour", (first, now / HOUR_S))
    for row in rows:
        if row["class"] in CLASSES:
            found.setdefault((row["camera"], row["class"]), []).append(Hour(row["hour"], row["bytes"], row["seconds"]))
    return Written({key: tuple(hours) for key, hours in found.items()}, now)


def trimmed_rate(hours: tuple[Hour, ...]) -> float | None:
    """Bytes a second of video; None: of less than RATE_AFTER_S of video it is not yet known.

    Of seconds that were recorded, so that a camera that was away does not look cheap. With `_TRIM_FROM` hours or more
    the busiest and the quietest are left out: one hour of snow or of a covered lens is not the day.
    """
    known = [hour for hour in hours if hour.seconds > 0]
    if sum(hour.seconds for hour in known) < RATE_AFTER_S:
        return None
    if len(known) >= _TRIM_FROM:
        known = sorted(known, key=lambda hour: hour.bytes / hour.seconds)[1:-1]
    return sum(hour.bytes for hour in known) / sum(hour.seconds for hour in known)
