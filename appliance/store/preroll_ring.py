"""The pre-roll rings: the last minutes of cameras that are not recorded, from which alerts keep what they need.

A ring may lie in memory (storage.preroll_dir), so that an SD card is written to only when something happens. Then
`<storage.dir>/preroll` is a link, and a crash or power cut loses only what is in the ring.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

from appliance.base.errors import MissingDependency, StoreError
from appliance.base.local_files import flush_to_disk
from appliance.base.telemetry import LogThrottle
from appliance.store.database import Database
from appliance.store.deletions import (
    BATCH,
    NOT_HELD,
    DeletionLedger,
    DeletionReason,
    PrunableSegment,
    delete_files,
    delete_rows,
    held_clause,
)
from appliance.store.paths import PREROLL, SEGMENTS, inside

logger = logging.getLogger(__name__)

MOVES_PER_RUN = 50  # files copied to disk in one run, each flushed
MARGIN_S = 5.0  # more than evidence reaches, for segments that begin and end late

# The partial index `segment_ring` holds what is not continuous; SQLite uses it where a query repeats that condition.
_IN_RING = "kind <> 'continuous' AND kind = 'pre_roll' AND complete = 1"
_HELD_FOR_ALERT = "kind <> 'continuous' AND kind = 'alert'"


def prepare_ring_folder(root: Path, preroll_dir: Path | None) -> None:
    """Make the folder of the rings, or the link to it, for the start (before ingest runs). Raises MissingDependency."""
    place = root / PREROLL
    try:
        if place.is_symlink():
            place.unlink()
        if preroll_dir is None:
            place.mkdir(exist_ok=True)
            return
        if place.is_dir():  # of before the key was set; what it held is dropped as rows without a file
            shutil.rmtree(place)
        # A name of this folder's own: two boxes' worth of storage may share one folder in memory.
        target = preroll_dir.absolute() / f"vedette-{hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:12]}"
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        place.symlink_to(target)
    except OSError as error:
        raise MissingDependency(
            f"storage.preroll_dir {preroll_dir or place} cannot be used: {error.strerror}"
        ) from None


class PrerollRing:
    """Moves what alerts need from the rings to disk, and lets the rings go round.

    Owner: one thread that calls `run_once()` about once a second. Invariant: what an alert needs is deleted from the
    ring only once it is on disk, and its row always names a file that is whole. Bounded: each ring to its bytes,
    what alerts hold excepted; the recorder pauses at twice that (see ingest/recorder.py).
    """

    def __init__(self, db: Database, root: Path, rings: Mapping[str, int], *, before_s: float, after_s: float) -> None:
        """Take the size of each camera's ring in bytes; a camera that `rings` does not name has none (any more).

        before_s, after_s: how far before an alert's start and after its end its evidence reaches.
        """
        self._held = held_clause(before_s + MARGIN_S, after_s + MARGIN_S)
        self._held_long = held_clause(before_s + MARGIN_S, after_s + MARGIN_S, unanswered=True)
        self._db = db
        self._root = root
        self._rings = rings
        self._share = 1.0
        self._deletions = DeletionLedger(db)
        self._repeats = LogThrottle(logger, db.clock, every_s=60.0)

    def shrink(self, share: float) -> None:
        """Each ring may take this share of its bytes from the next run on. Any thread."""
        self._share = share

    def run_once(self) -> None:
        """Delete the segments that are no longer needed. Raise StoreError."""
        for each in self._needed():
            try:
                self._move(each)
            except (OSError, StoreError) as error:
                self._repeats.report(f"pre-roll that an alert needs stays in the ring: {error}")
                break
        taken = self._db.rows("SELECT camera, bytes FROM usage WHERE class = 'pre_roll' AND files > 0")
        for row in taken:
            self._go_round(row["camera"], row["bytes"] - self._rings.get(row["camera"], 0) * self._share)
        self._let_go()

    def _needed(self) -> list[PrunableSegment]:
        """Whole segments in a ring that an alert needs, oldest first."""
        rows = self._db.rows(
            f"""{self._held} SELECT path, camera, kind, bytes, t_end FROM segment
                WHERE {_IN_RING} AND NOT {NOT_HELD} ORDER BY t_start LIMIT {MOVES_PER_RUN}"""
        )
        return [PrunableSegment.of(row) for row in rows]

    def _move(self, each: PrunableSegment) -> None:
        """Copy to disk, flush, then change the row: a kill at any moment leaves one whole file with a row."""
        source = inside(self._root, each.path, SEGMENTS)
        moved = each.path.replace(PREROLL, SEGMENTS, 1)
        target = inside(self._root, moved, SEGMENTS)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        try:
            shutil.copyfile(source, part)
        except FileNotFoundError:
            delete_rows(self._db, self._deletions, [each.path])
            part.unlink(missing_ok=True)
            return
        except OSError:
            part.unlink(missing_ok=True)
            raise
        flush_to_disk(part)
        part.replace(target)
        flush_to_disk(target.parent)
        with self._db.transaction() as connection:
            # A kill after the copy and before this leaves the copy without a row, and the next start gives it one.
            connection.execute("DELETE FROM segment WHERE path = ?", (moved,))
            connection.execute("UPDATE segment SET path = ?, kind = 'alert' WHERE path = ?", (moved, each.path))
        source.unlink(missing_ok=True)

    def _go_round(self, camera: str, excess: float) -> None:
        if excess <= 0:
            return
        oldest = f"""{self._held} SELECT path, camera, kind, bytes, t_end FROM segment
            WHERE camera = ? AND {_IN_RING} AND {NOT_HELD} ORDER BY t_start LIMIT {BATCH}"""
        rows = self._db.rows(oldest, (camera,))
        self._remove([PrunableSegment.of(row) for row in rows], excess, "ring")

    def _let_go(self) -> None:
        """Delete what was moved for alerts that are finished: their evidence is cut, and no escalation is open."""
        rows = self._db.rows(
            f"""{self._held_long} SELECT path, camera, kind, bytes, t_end FROM segment
                WHERE {_HELD_FOR_ALERT} AND {NOT_HELD} ORDER BY t_start LIMIT {BATCH}"""
        )
        self._remove([PrunableSegment.of(row) for row in rows], float("inf"), "done")

    def _remove(self, candidates: list[PrunableSegment], enough: float, reason: DeletionReason) -> None:
        done = delete_files(self._root, candidates, enough, reason, self._deletions, self._repeats.report)
        delete_rows(self._db, self._deletions, done.paths)
