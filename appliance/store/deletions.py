"""Deletes segments, oldest first and never what an alert still needs, and keeps the ledger of all deletions."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from appliance.base.clock import local_day
from appliance.base.errors import StoreError
from appliance.store.database import Database
from appliance.store.escalations import INDEXED, POSTPONED
from appliance.store.paths import SEGMENTS, inside

StorageClass = Literal["continuous", "pre_roll", "alert", "evidence"]
STORAGE_CLASSES: tuple[StorageClass, ...] = get_args(StorageClass)
DeletionReason = Literal["age", "camera_quota", "quota", "size", "disk", "ring", "done", "person"]
KEPT_S = 400 * 86400.0  # a year and a month: this month compared with the same of last year
ROLL_S_MAX = 65.0  # pre-roll, post-roll and escalation span are at most 60 s
BATCH = 500  # rows in one transaction
BATCHES_PER_RUN = 20  # what is still too much waits for the next run, seconds later
WRITING_S_MAX = 600.0  # an incomplete segment older than this is not being written any more
_WAITING_STATE = "state = 'waiting'"
NOT_HELD = """NOT EXISTS (SELECT 1 FROM held WHERE held.camera = segment.camera
    AND segment.t_end > held.t0 AND segment.t_start < held.t1)"""


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
        """Write what was added, inside the transaction of `connection`; then call `written` once it is committed."""
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
        self._db.execute("DELETE FROM deleted WHERE last_t < ?", (self._db.clock.now() - KEPT_S,), durable=False)


def newest_deletions(connection: sqlite3.Connection, limit: int) -> list[DeletedRow]:
    """Return the newest entries but those of the rings, the last first."""
    rows = connection.execute(
        "SELECT * FROM deleted WHERE reason <> 'ring' ORDER BY last_t DESC, camera, class LIMIT ?", (limit,)
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


logger = logging.getLogger(__name__)


def held_clause(before_s: float = ROLL_S_MAX, after_s: float = ROLL_S_MAX, *, unanswered: bool = False) -> str:
    """Return a `WITH held (camera, t0, t1)`: the spans of open alerts and of alerts whose evidence is still to be cut.

    They are few, found by indexes and computed once: else each segment would be compared with every alert of its
    camera. unanswered: also the alerts whose escalation is not settled, for the cloud may request more evidence.
    """
    states = f"{INDEXED} UNION SELECT alert FROM escalation WHERE {POSTPONED}"
    return f"""WITH held AS MATERIALIZED (
        SELECT camera, t_start - {before_s:g} AS t0, coalesce(t_end, 9e15) + {after_s:g} AS t1 FROM alert
        WHERE id IN (SELECT id FROM alert WHERE t_end IS NULL
            UNION SELECT alert FROM evidence WHERE {_WAITING_STATE}
            UNION SELECT alert FROM escalation WHERE {states if unanswered else f"{INDEXED} AND {_WAITING_STATE}"}))"""


HELD = held_clause()

# Both orders are an index's own, so the first BATCH rows cost the same with a thousand rows and with a million.
OF_ALL = f"""{HELD} SELECT path, camera, kind, bytes, t_end FROM segment
    WHERE kind = 'continuous' AND t_end < :before_t AND (complete = 1 OR t_end < :written_t) AND {NOT_HELD}
    ORDER BY t_end LIMIT {BATCH}"""
OF_CAMERA = f"""{HELD} SELECT path, camera, kind, bytes, t_end FROM segment
    WHERE camera = :camera AND t_start < :before_t AND kind = 'continuous' AND t_end < :before_t
    AND (complete = 1 OR t_end < :written_t) AND {NOT_HELD} ORDER BY t_start LIMIT {BATCH}"""


@dataclass(frozen=True, slots=True)
class PrunableSegment:
    """A segment that may go."""

    path: str
    camera: str
    kind: StorageClass
    bytes: int
    t_end: float

    @classmethod
    def of(cls, row: sqlite3.Row) -> PrunableSegment:
        return cls(row["path"], row["camera"], row["kind"], row["bytes"], row["t_end"])


class SegmentPruner:
    """Deletes segments and enters them in the ledger.

    State of one run: what was deleted and refused, and how many batches are left. Owner: retention's thread.
    """

    def __init__(self, db: Database, root: Path, deletions: DeletionLedger) -> None:
        self._db = db
        self._root = root
        self._deletions = deletions
        self.begin()

    def begin(self) -> None:
        """Begin a new run."""
        self.files = self.bytes = self.refused = 0
        self._batches = BATCHES_PER_RUN

    @property
    def exhausted(self) -> bool:
        """This run has done enough: what is still too much waits for the next."""
        return self._batches <= 0

    def prune(
        self, reason: DeletionReason, *, before_t: float = 9e15, enough: float = float("inf"), camera: str | None = None
    ) -> float:
        """Delete what ended before `before_t` until `enough` bytes are freed; how many were. Raises StoreError."""
        freed = 0.0
        while freed < enough and not self.exhausted:
            candidates = self._candidates(before_t, camera)
            more = self._delete(candidates, enough - freed, reason)
            freed += more
            self._batches -= 1
            if not more:
                break
        return freed

    def _candidates(self, before_t: float, camera: str | None) -> list[PrunableSegment]:
        values = {"before_t": min(before_t, 9e15), "camera": camera, "written_t": self._db.clock.now() - WRITING_S_MAX}
        return [PrunableSegment.of(row) for row in self._db.rows(OF_ALL if camera is None else OF_CAMERA, values)]

    def _delete(self, candidates: list[PrunableSegment], enough: float, reason: DeletionReason) -> float:
        done = delete_files(self._root, candidates, enough, reason, self._deletions, logger.warning)
        self.files += done.files
        self.bytes += done.bytes
        self.refused += done.refused
        delete_rows(self._db, self._deletions, done.paths)
        return done.freed


@dataclass(slots=True)
class DeletedFiles:
    """Result of `delete_files`. freed: bytes of rows that may go. paths: of those rows. refused: files that stay."""

    freed: float = 0.0
    files: int = 0
    bytes: int = 0
    refused: int = 0
    paths: list[str] = field(default_factory=list)


def delete_files(
    root: Path,
    candidates: Iterable[PrunableSegment],
    enough: float,
    reason: DeletionReason,
    deletions: DeletionLedger,
    report: Callable[[str], object],
) -> DeletedFiles:
    """Delete files of segments until `enough` bytes are freed, and note each in the ledger.

    A row whose path leads elsewhere goes, and its file stays; a file that the disk does not give up keeps its row.
    """
    done = DeletedFiles()
    for each in candidates:
        if done.freed >= enough:
            break
        try:
            if remove_file(root, each.path):
                deletions.add(each.camera, each.kind, reason, each.bytes, each.t_end)
                done.files += 1
                done.bytes += each.bytes
            done.freed += each.bytes
        except StoreError as error:
            report(f"a segment row was dropped, its file left alone: {error}")
            done.refused += 1
        except OSError as error:
            report(f"a segment cannot be deleted: {error}")
            done.refused += 1
            continue
        done.paths.append(each.path)
    return done


def remove_file(root: Path, relative: str) -> bool:
    """Delete a segment's file: before its row, so that a kill leaves a row, not an orphan. False: it was not there.

    Raises OSError, and StoreError for a path that leads elsewhere.
    """
    try:
        inside(root, relative, SEGMENTS).unlink()
    except FileNotFoundError:
        return False
    return True


def delete_rows(db: Database, deletions: DeletionLedger, paths: list[str]) -> None:
    """Take the rows of deleted files away, and enter the deletions, in one transaction. Raises StoreError."""
    if paths:
        with db.transaction(durable=False) as connection:
            connection.executemany("DELETE FROM segment WHERE path = ?", [(path,) for path in paths])
            deletions.write(connection)
        deletions.written()
