"""The index of the recording: which file holds which seconds of which camera."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.errors import StoreError
from appliance.store.database import Database
from appliance.store.paths import SEGMENTS, inside
from appliance.store.rows import read_segment
from appliance.types import SegmentRow

SEGMENT_S_MAX = 600.0  # segment_s is at most 60, and a segment ends at the first key frame after that
ORPHAN_AGE_S = 3600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What the comparison of index and disk found, and what was done."""

    rows_dropped: int = 0
    rows_closed: int = 0
    orphans_kept: int = 0
    orphans_removed: int = 0
    orphan_bytes_removed: int = 0


class Segments:
    """The segment table. Written as ingest reports, read by evidence, live view and retention."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, segment: SegmentRow) -> None:
        """Insert or update by path: a segment is reported when it begins, grows and ends. Raises StoreError.

        One that ended with no frame came to nothing, and its row goes.
        """
        values = (
            segment.path,
            segment.camera,
            float(segment.t_start),
            float(segment.t_end),
            segment.bytes,
            segment.frames,
            segment.codec,
            *segment.size,
            segment.complete,
        )
        with self._db.transaction(durable=False) as connection:
            if segment.complete and not segment.frames:
                connection.execute("DELETE FROM segment WHERE path = ?", (segment.path,))
                return
            connection.execute("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def covering(self, camera: str, t0: float, t1: float) -> list[SegmentRow]:
        """The segments that hold any frame of t0..t1, oldest first, the one being written included.

        After the clock was set back two recordings claim the same hour: the one told last counts.
        """
        with self._db.read() as connection:
            return covering(connection, camera, t0, t1)

    def covered_until(self, camera: str) -> float | None:
        """The camera's time up to which packets are readable on disk; None: nothing is recorded."""
        newest = self.latest(camera)
        return None if newest is None else newest.t_end

    def latest(self, camera: str) -> SegmentRow | None:
        """The segment told last; not the one with the latest time, which a clock set back leaves in the future."""
        with self._db.read() as connection:
            row = connection.execute(  # INSERT OR REPLACE gives each telling a new, higher rowid
                "SELECT * FROM segment WHERE camera = ? ORDER BY rowid DESC LIMIT 1", (camera,)
            ).fetchone()
        return None if row is None else read_segment(row)

    def reconcile(self, root: Path, *, orphan_age_s: float = ORPHAN_AGE_S) -> Reconciled:
        """Compare index and disk, for the start (before ingest runs).

        Rows without a file are dropped; segments that a kill left open are marked complete; files without a row are
        counted, and removed once they are `orphan_age_s` old (nothing can find them any more).
        """
        dropped = closed = 0
        with self._db.transaction() as connection:
            for row in connection.execute("SELECT path, complete FROM segment").fetchall():
                size = _size(root, row["path"])
                if size is None:
                    connection.execute("DELETE FROM segment WHERE path = ?", (row["path"],))
                    dropped += 1
                elif not row["complete"]:
                    connection.execute("UPDATE segment SET complete = 1, bytes = ? WHERE path = ?", (size, row["path"]))
                    closed += 1
        swept = self.sweep_orphans(root, orphan_age_s=orphan_age_s)
        found = Reconciled(
            rows_dropped=dropped,
            rows_closed=closed,
            orphans_kept=swept.orphans_kept,
            orphans_removed=swept.orphans_removed,
            orphan_bytes_removed=swept.orphan_bytes_removed,
        )
        if found != Reconciled():
            logger.info("compared the recording with its index: %s", found)
        return found

    def sweep_orphans(self, root: Path, *, orphan_age_s: float = ORPHAN_AGE_S) -> Reconciled:
        """Remove recorded files that no row knows and that are older than `orphan_age_s`."""
        kept = removed = freed = 0
        now = self._db.clock.now()
        with self._db.read() as connection:
            known = {row["path"] for row in connection.execute("SELECT path FROM segment")}
        for file in _files(root / SEGMENTS):
            if file.relative_to(root).as_posix() in known:
                continue
            with contextlib.suppress(FileNotFoundError):
                stat = file.stat()
                if now - stat.st_mtime < orphan_age_s:
                    kept += 1
                    continue
                file.unlink()
                removed += 1
                freed += stat.st_size
        return Reconciled(orphans_kept=kept, orphans_removed=removed, orphan_bytes_removed=freed)


def covering(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> list[SegmentRow]:
    """See `Segments.covering`; for whoever has the file open in another way."""
    rows = connection.execute(
        """SELECT * FROM segment WHERE camera = ? AND t_start <= ? AND t_start > ? AND t_end >= ? AND frames > 0
           ORDER BY rowid DESC""",
        (camera, t1, t0 - SEGMENT_S_MAX, t0),
    )
    counts: list[SegmentRow] = []
    for row in map(read_segment, rows):
        if sum(_overlap_s(row, later) for later in counts) <= (row.t_end - row.t_start) / 2:
            counts.append(row)
    return sorted(counts, key=lambda row: (row.t_start, row.path))


def _overlap_s(a: SegmentRow, b: SegmentRow) -> float:
    return max(0.0, min(a.t_end, b.t_end) - max(a.t_start, b.t_start))


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.glob("**/*")):
        if entry.is_file() and not entry.is_symlink():
            yield entry


def _size(root: Path, relative: str) -> int | None:
    try:
        return inside(root, relative, SEGMENTS).stat().st_size
    except (FileNotFoundError, NotADirectoryError, StoreError):
        return None
