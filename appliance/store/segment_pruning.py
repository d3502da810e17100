"""Deletes segments of the continuous recording, oldest first, and never what an alert still needs."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from appliance.base.errors import StoreError
from appliance.store.database import Database
from appliance.store.deletions import DeletionLedger, DeletionReason, StorageClass
from appliance.store.escalations import INDEXED
from appliance.store.paths import SEGMENTS, inside

logger = logging.getLogger(__name__)

ROLL_S_MAX = 65.0  # pre-roll, post-roll and escalation span are at most 60 s
BATCH = 500  # rows in one transaction
BATCHES_PER_RUN = 20  # what is still too much waits for the next run, seconds later
WRITING_S_MAX = 600.0  # an incomplete segment older than this is not being written any more

_WAITING_STATE = "state = 'waiting'"
_UNSETTLED_STATE = f"{INDEXED} OR wait <> ''"


def held_clause(before_s: float = ROLL_S_MAX, after_s: float = ROLL_S_MAX, *, unanswered: bool = False) -> str:
    """Return a `WITH held (camera, t0, t1)`: the spans of open alerts and of alerts whose evidence is still to be cut.

    unanswered: also the alerts whose escalation is not settled, for the cloud may request more evidence.
    """
    return f"""WITH held AS (
        SELECT camera, t_start - {before_s:g} AS t0, coalesce(t_end, 9e15) + {after_s:g} AS t1 FROM alert
        WHERE t_end IS NULL OR id IN (SELECT alert FROM evidence WHERE {_WAITING_STATE})
        OR id IN (SELECT alert FROM escalation WHERE {_UNSETTLED_STATE if unanswered else _WAITING_STATE}))"""


HELD = held_clause()
NOT_HELD = """NOT EXISTS (SELECT 1 FROM held WHERE held.camera = segment.camera
    AND segment.t_end > held.t0 AND segment.t_start < held.t1)"""

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
        with self._db.read() as connection:
            return [
                PrunableSegment.of(row) for row in connection.execute(OF_ALL if camera is None else OF_CAMERA, values)
            ]

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
