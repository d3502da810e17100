"""Counters that survive restarts: bytes, frames and faults, summed per day, core run, camera and metric."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import itemgetter
from sqlite3 import Connection, Row
from typing import Literal

from appliance.base.clock import day_bounds, local_day
from appliance.store.database import Database
from appliance.types import DecodeStatus

Since = Literal["start", "today", "all"]


class MetricName(str, Enum):
    """Names of the metrics.

    Where a member names a label, the same name with an empty label is another sum or none. The values stand in the
    database and are never changed.
    """

    PACKETS = "packets"
    DECODED = "decoded"
    SKIPPED = "skipped"
    EXAMINED = "examined"
    UNEXAMINED = "unexamined"  # label: a DropReason; "" for all reasons together
    RETRIED = "retried"
    DECODER_FAILED = "decoder_failed"
    UNRECORDED = "unrecorded"
    RECONNECTS = "reconnects"
    CAMERA_BYTES = "camera_bytes"  # label: "" as the kernel counted them, "estimated" from packet sizes
    DETECT_BYTES = "detect_bytes"  # of camera_bytes, what came as a second stream beside the main one
    UPTIME_S = "uptime_s"  # of the core; belongs to no camera
    UPLINK_BYTES = "uplink_bytes"  # label: the purpose where it is known; "" for every byte
    OUTBOX_DROPPED = "outbox_dropped"
    OUTBOX_DROPPED_BYTES = "outbox_dropped_bytes"
    OUTBOX_EXPIRED = "outbox_expired"
    NOTICE_LOCAL_BYTES = "notice_local_bytes"  # to a target on the site, so not on the uplink
    HEALTH = "health"  # label: a HealthKind
    HELD_BACK = "held_back"  # events that a cooldown held back; label: the rule
    TRACKS_EVICTED = "tracks_evicted"  # that the rules forgot early, because they remember only so many
    RECHECK = "second_look"  # label: the outcome
    ALERTS = "alerts"  # that were opened
    ENERGY_J = "energy_j"  # that the box drew; label: where it was measured
    ENERGY_CAMERA_S = "energy_camera_s"  # seconds over which that was measured, times the cameras that ran
    FRAME_AGE_MS = "age_ms"  # label: the upper edge in ms, "more" beyond the last, "sum" of all ages in ms


@dataclass(frozen=True, slots=True)
class Metric:
    """A counter's name and, where it has one, its label."""

    name: MetricName
    label: str = ""

    @property
    def kind(self) -> str:
        """How it stands in the database."""
        return f"{self.name.value}_{self.label}" if self.label else self.name.value

    @classmethod
    def parse(cls, kind: str) -> Metric | None:
        """Return the metric that the database calls `kind`; None for one of another version of Vedette."""
        for name in _LONGEST_FIRST:
            if kind == name.value:
                return cls(name)
            if kind.startswith(f"{name.value}_"):
                return cls(name, kind[len(name.value) + 1 :])
        return None


# Kept by the hour as well, for HOURS_KEPT: what the page Savings draws.
_HOURLY = (
    MetricName.CAMERA_BYTES, MetricName.DETECT_BYTES, MetricName.UPLINK_BYTES, MetricName.EXAMINED,
    MetricName.UPTIME_S,
)  # fmt: skip
HOURS_KEPT = 31 * 24  # a month by the hour; days are kept for ever
HOUR_S = 3600  # seconds
_LONGEST_FIRST = sorted(MetricName, key=lambda name: -len(name.value))


@dataclass(frozen=True, slots=True)
class MeterTotal:
    """The sum of one metric for one camera ("" for what belongs to no camera)."""

    camera: str
    metric: Metric
    amount: int

    @property
    def kind(self) -> str:
        """The metric as it stands in the database."""
        return self.metric.kind


@dataclass(frozen=True, slots=True)
class PeriodTotals:
    """The sums of an hour (t: UTC seconds of its begin) or of a day (day: of the appliance's calendar)."""

    t: float
    day: str
    totals: tuple[MeterTotal, ...]


class Meter:
    """Amounts not yet written, and the meter table; what each camera decodes now, which is never written.

    Owner: the core; any thread adds. Invariant: an amount is in memory or in the table, never in both or neither; a
    kill loses at most what came since the last `flush` (the core calls it every second).
    """

    def __init__(self, db: Database, run: str) -> None:
        """run: the id of this start of the core."""
        self._db = db
        self._run = run
        self._lock = threading.Lock()
        self._pending: Counter[tuple[str, Metric]] = Counter()
        self._decoding: dict[str, DecodeStatus] = {}
        self._up_until = db.clock.monotonic()
        self._hour = 0

    def note(self, camera: str, decoding: DecodeStatus) -> None:
        """Remember what the camera decodes now."""
        with self._lock:
            self._decoding[camera] = decoding

    def decoding(self) -> dict[str, DecodeStatus]:
        """Return the last status of each camera."""
        with self._lock:
            return dict(self._decoding)

    def add(self, camera: str, metric: Metric, amount: int) -> None:
        """Count `amount` more."""
        if amount:
            with self._lock:
                self._pending[camera, metric] += amount

    def count_uptime(self) -> None:
        """Count the whole seconds since the last call, or since this was made. One thread."""
        seconds = int(self._db.clock.monotonic() - self._up_until)
        self._up_until += seconds
        self.add("", Metric(MetricName.UPTIME_S), seconds)

    def flush(self, day: str) -> None:
        """Write what was added, to the account of `day` (`local_day`). Raises StoreError; nothing is lost then."""
        with self._db.exclusive(), self._lock:  # in this order: others add() inside a transaction of theirs
            if not self._pending:
                return
            rows = [(day, self._run, camera, metric.kind, amount) for (camera, metric), amount in self._pending.items()]
            with self._db.transaction(durable=False) as connection:
                connection.executemany(
                    """INSERT INTO meter VALUES (?, ?, ?, ?, ?)
                       ON CONFLICT DO UPDATE SET amount = amount + excluded.amount""",
                    rows,
                )
                self._write_hour(connection, int(self._db.clock.now()) // HOUR_S)
            self._pending.clear()

    def _write_hour(self, connection: Connection, hour: int) -> None:
        connection.executemany(
            """INSERT INTO meter_hour VALUES (?, ?, ?, ?)
               ON CONFLICT DO UPDATE SET amount = amount + excluded.amount""",
            [
                (hour, camera, metric.kind, amount)
                for (camera, metric), amount in self._pending.items()
                if metric.name in _HOURLY and metric.label in ("", "estimated")
            ],
        )
        if hour != self._hour:
            connection.execute("DELETE FROM meter_hour WHERE hour <= ?", (hour - HOURS_KEPT,))
            self._hour = hour

    def total_of_day(self, metric: Metric, day: str) -> int:
        """Return the amount of a metric in the account of `day`, by all cameras and runs. Raises StoreError."""
        row = self._db.row(
            "SELECT coalesce(sum(amount), 0) AS amount FROM meter WHERE day = ? AND kind = ?", (day, metric.kind)
        )
        amount: int = row["amount"]
        return amount

    def totals_since_day(self, day: str) -> list[MeterTotal]:
        """Return sums from `day` on, of the days for which the hours are known too. Raise StoreError."""
        uptime = MetricName.UPTIME_S.value
        rows = self._db.rows(
            """SELECT camera, kind, sum(amount) AS amount FROM meter
               WHERE day >= ? AND day IN (SELECT day FROM meter WHERE kind = ?) GROUP BY camera, kind""",
            (day, uptime),
        )
        return list(_totals_of(rows))

    def by_hour(self, since_t: float) -> list[PeriodTotals]:
        """Return the sums of each hour from `since_t` on that has any count, oldest first. Raise StoreError."""
        rows = self._db.rows(
            "SELECT hour, camera, kind, amount FROM meter_hour WHERE hour >= ? ORDER BY hour",
            (int(since_t) // HOUR_S,),
        )
        return [
            PeriodTotals(hour * HOUR_S, local_day(hour * HOUR_S), _totals_of(found))
            for hour, found in groupby(rows, key=itemgetter("hour"))
        ]

    def by_day(self, first_day: str) -> list[PeriodTotals]:
        """Return the sums of each day from `first_day` on that has any count, oldest first. Raise StoreError."""
        rows = self._db.rows(
            """SELECT day, camera, kind, sum(amount) AS amount FROM meter WHERE day >= ?
               GROUP BY day, camera, kind ORDER BY day""",
            (first_day,),
        )
        return [
            PeriodTotals(day_bounds(day)[0], day, _totals_of(found))
            for day, found in groupby(rows, key=itemgetter("day"))
        ]

    def totals(self, since: Since) -> list[MeterTotal]:
        """Return sums since this core started, since midnight, or ever, by camera and metric.

        Unflushed amounts are included.
        """
        where = {"start": "WHERE run = ?", "today": "WHERE day = ?", "all": "WHERE ? = ''"}[since]
        values = ({"start": self._run, "today": local_day(self._db.clock.now()), "all": ""}[since],)
        with self._db.read() as connection, self._lock:  # in this order, as in `flush`: a read may wait for the writer
            sums = Counter(self._pending)
            rows = connection.execute(
                f"SELECT camera, kind, sum(amount) AS amount FROM meter {where} GROUP BY camera, kind", values
            )
            for row in rows:
                if (metric := Metric.parse(row["kind"])) is not None:
                    sums[row["camera"], metric] += row["amount"]
        found = sorted(sums.items(), key=lambda item: (item[0][0], item[0][1].kind))
        return [MeterTotal(camera, metric, amount) for (camera, metric), amount in found]


def _totals_of(rows: Iterable[Row]) -> tuple[MeterTotal, ...]:
    found = ((row["camera"], Metric.parse(row["kind"]), row["amount"]) for row in rows)
    return tuple(MeterTotal(camera, metric, amount) for camera, metric, amount in found if metric is not None)
