"""The index of the recording: which file holds which seconds of which camera."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from appliance.store.database import Database
from appliance.store.reconcile import ORPHAN_AGE_S, MeasureSegment, ReconcileReport, reconcile
from appliance.store.rows import read_segment
from appliance.types import SegmentRow

SEGMENT_S_MAX = 600.0  # segment_s is at most 60, and a segment ends at the first key frame after that


class SegmentStore:
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
            segment.kind,
        )
        with self._db.transaction(durable=False) as connection:
            if segment.complete and not segment.frames:
                connection.execute("DELETE FROM segment WHERE path = ?", (segment.path,))
                return
            connection.execute("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def covering(self, camera: str, t0: float, t1: float) -> list[SegmentRow]:
        """Return the segments that hold any frame of t0..t1, oldest first, the one being written included.

        After the clock was set back two recordings claim the same hour: the one reported last counts.
        """
        with self._db.read() as connection:
            return covering(connection, camera, t0, t1)

    def covered_until(self, camera: str) -> float | None:
        """Return the camera's time up to which packets are readable on disk; None if nothing is recorded."""
        newest = self.latest(camera)
        return None if newest is None else newest.t_end

    def latest(self, camera: str) -> SegmentRow | None:
        """Return the segment reported last.

        This need not be the one with the latest time: a clock that was set back leaves that one in the future.
        """
        with self._db.read() as connection:
            row = connection.execute(  # INSERT OR REPLACE gives each report a new, higher rowid
                "SELECT * FROM segment WHERE camera = ? ORDER BY rowid DESC LIMIT 1", (camera,)
            ).fetchone()
        return None if row is None else read_segment(row)

    def reconcile(
        self, root: Path, *, measure: MeasureSegment | None = None, orphan_age_s: float = ORPHAN_AGE_S
    ) -> ReconcileReport:
        """Compare index and disk, for the start (before ingest runs); see `reconcile`. Raises StoreError."""
        return reconcile(self._db, root, measure=measure, orphan_age_s=orphan_age_s)


def covering(connection: sqlite3.Connection, camera: str, t0: float, t1: float) -> list[SegmentRow]:
    """See `SegmentStore.covering`; over any connection."""
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
