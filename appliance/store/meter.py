"""Counters that survive restarts: bytes and frames, summed per day, core run, camera and kind."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from appliance.clock import local_day
from appliance.store.database import Database
from appliance.types import DecodeState

Since = Literal["start", "today", "all"]


@dataclass(frozen=True, slots=True)
class MeterTotal:
    """The sum of one kind for one camera ("" for what belongs to no camera)."""

    camera: str
    kind: str
    amount: int


@dataclass(frozen=True, slots=True)
class DecodeStatus:
    """What of a camera's pictures is decoded now, and why, where there is a reason; how late its packets are read."""

    state: DecodeState
    reason: str = ""
    behind_s: float = 0.0


class Meter:
    """Amounts not yet written, and the meter table; what each camera decodes now, which is never written.

    Owner: the core; any thread adds. Invariant: an amount is in memory or in the table, never in both or neither; a
    kill loses at most what came since the last `flush` (the core calls it every second).
    """

    def __init__(self, db: Database, run: str) -> None:
        self._db = db
        self._run = run
        self._lock = threading.Lock()
        self._pending: Counter[tuple[str, str]] = Counter()
        self._decoding: dict[str, DecodeStatus] = {}

    def note(self, camera: str, decoding: DecodeStatus) -> None:
        with self._lock:
            self._decoding[camera] = decoding

    def decoding(self) -> dict[str, DecodeStatus]:
        """By camera, as it was last told."""
        with self._lock:
            return dict(self._decoding)

    def add(self, camera: str, kind: str, amount: int) -> None:
        """Count `amount` more."""
        if amount:
            with self._lock:
                self._pending[camera, kind] += amount

    def flush(self, day: str) -> None:
        """Write what was added, to the account of `day` (`local_day`). Raises StoreError; nothing is lost then."""
        with self._db.exclusive(), self._lock:  # in this order: others add() inside a transaction of theirs
            if not self._pending:
                return
            rows = [(day, self._run, camera, kind, amount) for (camera, kind), amount in self._pending.items()]
            with self._db.transaction(durable=False) as connection:
                connection.executemany(
                    """INSERT INTO meter VALUES (?, ?, ?, ?, ?)
                       ON CONFLICT DO UPDATE SET amount = amount + excluded.amount""",
                    rows,
                )
            self._pending.clear()

    def total_of_day(self, kind: str, day: str) -> int:
        """What of a kind was written to the account of `day`, by all cameras and runs. Raises StoreError."""
        with self._db.read() as connection:
            row = connection.execute(
                "SELECT coalesce(sum(amount), 0) AS amount FROM meter WHERE day = ? AND kind = ?", (day, kind)
            ).fetchone()
        amount: int = row["amount"]
        return amount

    def totals(self, since: Since) -> list[MeterTotal]:
        """Sums since this core started, since midnight, or ever, by camera and kind, unflushed amounts included."""
        where = {"start": "WHERE run = ?", "today": "WHERE day = ?", "all": "WHERE ? = ''"}[since]
        values = ({"start": self._run, "today": local_day(self._db.clock.now()), "all": ""}[since],)
        with self._lock:
            sums = Counter(self._pending)
            with self._db.read() as connection:
                rows = connection.execute(
                    f"SELECT camera, kind, sum(amount) AS amount FROM meter {where} GROUP BY camera, kind", values
                )
                for row in rows:
                    sums[row["camera"], row["kind"]] += row["amount"]
        return [MeterTotal(camera, kind, amount) for (camera, kind), amount in sorted(sums.items())]
