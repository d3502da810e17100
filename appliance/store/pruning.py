"""Deletes segments of the continuous recording, oldest first, and never what an alert still needs."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import StoreError
from appliance.store.database import Database
from appliance.store.deletions import Class, Deletions, Reason
from appliance.store.held import HELD, NOT_HELD
from appliance.store.paths import SEGMENTS, inside

BATCH = 500
BATCHES_A_RUN = 20
WRITING_S_MAX = 600.0

# Both orders are an index's own, so the first BATCH rows cost the same with a thousand rows and with a million.
OF_ALL = f"""{HELD} SELECT path, camera, kind, bytes, t_end FROM segment
    WHERE kind = 'continuous' AND t_end < :before_t AND (complete = 1 OR t_end < :written_t) AND {NOT_HELD}
    ORDER BY t_end LIMIT {BATCH}"""
OF_CAMERA = f"""{HELD} SELECT path, camera, kind, bytes, t_end FROM segment
    WHERE camera = :camera AND t_start < :before_t AND kind = 'continuous' AND t_end < :before_t
    AND (complete = 1 OR t_end < :written_t) AND {NOT_HELD} ORDER BY t_start LIMIT {BATCH}"""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Old:
    """A segment that may go."""

    path: str
    camera: str
    kind: Class
    bytes: int
    t_end: float

    @classmethod
    def of(cls, row: sqlite3.Row) -> Old:
        return cls(row["path"], row["camera"], row["kind"], row["bytes"], row["t_end"])


class Pruner:
    """Deletes segments and enters them in the ledger.

    State of one run: what was deleted and refused, and how many batches are left. Owner: retention's thread.
    """

    def __init__(self, db: Database, root: Path, deletions: Deletions) -> None:
        self._db = db
        self._root = root
        self._deletions = deletions
        self.begin()

    def begin(self) -> None:
        """A new run."""
        self.files = self.bytes = self.refused = 0
        self._batches = BATCHES_A_RUN

    @property
    def tired(self) -> bool:
        """This run has done enough: what is still too much waits for the next."""
        return self._batches <= 0

    def prune(
        self, reason: Reason, *, before_t: float = 9e15, enough: float = float("inf"), camera: str | None = None
    ) -> float:
        """Delete what ended before `before_t` until `enough` bytes are freed; how many were. Raises StoreError."""
        freed = 0.0
        while freed < enough and not self.tired:
            candidates = self._candidates(before_t, camera)
            more = self._delete(candidates, enough - freed, reason)
            freed += more
            self._batches -= 1
            if not more:
                break
        return freed

    def _candidates(self, before_t: float, camera: str | None) -> list[Old]:
        values = {"before_t": min(before_t, 9e15), "camera": camera, "written_t": self._db.clock.now() - WRITING_S_MAX}
        with self._db.read() as connection:
            return [Old.of(row) for row in connection.execute(OF_ALL if camera is None else OF_CAMERA, values)]

    def _delete(self, candidates: list[Old], enough: float, reason: Reason) -> float:
        freed = 0.0
        dropped = []
        for each in candidates:
            if freed >= enough:
                break
            try:
                if remove_file(self._root, each.path):
                    self._deletions.add(each.camera, each.kind, reason, each.bytes, each.t_end)
                    self.files += 1
                    self.bytes += each.bytes
                freed += each.bytes
            except StoreError as error:
                logger.warning("a segment row was dropped, its file left alone: %s", error)
                self.refused += 1
            except OSError as error:
                logger.warning("a segment cannot be deleted: %s", error)
                self.refused += 1
                continue
            dropped.append(each.path)
        drop_rows(self._db, self._deletions, dropped)
        return freed


def remove_file(root: Path, relative: str) -> bool:
    """Delete a segment's file: before its row, so that a kill leaves a row, not an orphan. False: it was not there.

    Raises OSError, and StoreError for a path that leads elsewhere.
    """
    try:
        inside(root, relative, SEGMENTS).unlink()
    except FileNotFoundError:
        return False
    return True


def drop_rows(db: Database, deletions: Deletions, paths: list[str]) -> None:
    """Take the rows of deleted files away, and enter the deletions, in one transaction. Raises StoreError."""
    if paths:
        with db.transaction(durable=False) as connection:
            connection.executemany("DELETE FROM segment WHERE path = ?", [(path,) for path in paths])
            deletions.enter(connection)
        deletions.entered()
