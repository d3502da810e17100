"""The ledger of deletions: how much of which class was deleted, when, and why."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from appliance.base.clock import local_day
from appliance.store.database import Database

StorageClass = Literal["continuous", "pre_roll", "alert", "evidence"]
STORAGE_CLASSES: tuple[StorageClass, ...] = get_args(StorageClass)
DeletionReason = Literal["age", "camera_quota", "quota", "size", "disk", "ring", "done", "person"]
DELETION_REASONS: tuple[DeletionReason, ...] = get_args(DeletionReason)
KEPT_S = 400 * 86400.0  # a year and a month: this month compared with the same of last year


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRow:
    """Deletions of a camera and class on one day (of the appliance's own calendar) for one reason.

    reason: age (older than its limit), camera_quota, quota (of the class), size (size_max_gb), disk (too little was
    free), ring (the pre-roll ring went round), done (taken out of the ring for an alert that is finished), person (a
    person deleted the alert, and the time to take that back is over). until_t: the newest moment that was deleted;
    last_t: when the last of it was deleted. UTC seconds.
    """

    day: str
    camera: str
    what: StorageClass
    reason: DeletionReason
    files: int
    bytes: int
    until_t: float
    last_t: float


@dataclass(slots=True)
class _Sum:
    files: int = 0
    bytes: int = 0
    until_t: float = 0.0


class DeletionLedger:
    """The ledger, and deletions that could not be entered yet.

    State: sums by camera, class and reason that are not written. Owner: the thread that deletes. Invariant: what was
    deleted is entered once, in the transaction that takes its rows away or in a later one.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._pending: dict[tuple[str, StorageClass, DeletionReason], _Sum] = {}

    def add(self, camera: str, what: StorageClass, reason: DeletionReason, size: int, until_t: float) -> None:
        """One file went; it is entered with the next `enter`."""
        known = self._pending.setdefault((camera, what, reason), _Sum())
        known.files += 1
        known.bytes += size
        known.until_t = max(known.until_t, until_t)

    def write(self, connection: sqlite3.Connection) -> None:
        """Write what was added, inside the transaction of `connection`; then call `entered` once it is committed."""
        now = self._db.clock.now()
        connection.executemany(
            """INSERT INTO deleted VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
               files = files + excluded.files, bytes = bytes + excluded.bytes,
               until_t = max(until_t, excluded.until_t), last_t = excluded.last_t""",
            [
                (local_day(now), *key, each.files, each.bytes, float(each.until_t), now)
                for key, each in self._pending.items()
            ],
        )

    def written(self) -> None:
        self._pending.clear()

    def forget_old(self) -> None:
        """Delete entries of more than a year ago. Raises StoreError."""
        with self._db.transaction(durable=False) as connection:
            connection.execute("DELETE FROM deleted WHERE last_t < ?", (self._db.clock.now() - KEPT_S,))


def newest_deletions(connection: sqlite3.Connection, limit: int, *, rings: bool = False) -> list[DeletedRow]:
    """Return the newest entries, the last first; those of the rings only with `rings`."""
    rows = connection.execute(
        f"""SELECT * FROM deleted {"" if rings else "WHERE reason <> 'ring'"} ORDER BY last_t DESC, camera, class
            LIMIT ?""",
        (limit,),
    )
    return [DeletedRow(**{("what" if key == "class" else key): row[key] for key in row.keys()}) for row in rows]  # noqa: SIM118


def deletion_totals(
    connection: sqlite3.Connection,
) -> tuple[Counter[tuple[StorageClass, DeletionReason]], Counter[tuple[StorageClass, DeletionReason]]]:
    """Files and bytes deleted by class and reason, as far back as the ledger goes."""
    files: Counter[tuple[StorageClass, DeletionReason]] = Counter()
    size: Counter[tuple[StorageClass, DeletionReason]] = Counter()
    for row in connection.execute("SELECT class, reason, sum(files) AS n, sum(bytes) AS b FROM deleted GROUP BY 1, 2"):
        files[row["class"], row["reason"]] = row["n"]
        size[row["class"], row["reason"]] = row["b"]
    return files, size
