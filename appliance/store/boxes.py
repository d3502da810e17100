"""What was detected in each examined frame, kept as long as the recording."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from appliance.store.database import Database
from appliance.store.rows import objects_json, read_boxes
from appliance.types import FrameBoxes

SPAN_ROWS_MAX = 20_000
AHEAD_S_MAX = 60.0  # a camera's own clock is believed that far


class BoxStore:
    """The boxes table. The core writes about once a second; any thread reads."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def append(self, camera: str, run: str, frames: Sequence[FrameBoxes]) -> None:
        """Write a batch of examined frames of one session of a camera; a frame twice is one. Raises StoreError."""
        if not frames:
            return
        rows = [
            (camera, float(each.t), run, each.seq, each.frame, each.looked, objects_json(each.objects))
            for each in frames
        ]
        with self._db.transaction(durable=False) as connection:
            connection.executemany("INSERT OR REPLACE INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def span(
        self, camera: str, t0: float, t1: float, limit: int = SPAN_ROWS_MAX, *, run: str | None = None
    ) -> list[FrameBoxes]:
        """The examined frames with t0 <= t <= t1, oldest first, of one session (`run`) or (None) of all."""
        with self._db.read() as connection:
            return boxes_between(connection, camera, t0, t1, limit, run=run)

    def latest(self, camera: str) -> FrameBoxes | None:
        """The newest examined frame of the camera's present session (a clock that was set back leaves others ahead)."""
        with self._db.read() as connection:
            row = connection.execute(
                """SELECT * FROM boxes WHERE camera = :camera AND t <= :t
                   AND run = coalesce((SELECT nullif(run, '') FROM camera WHERE name = :camera), run)
                   ORDER BY t DESC LIMIT 1""",
                {"camera": camera, "t": self._db.clock.now() + AHEAD_S_MAX},
            ).fetchone()
        return None if row is None else read_boxes(row)


def boxes_between(
    connection: sqlite3.Connection,
    camera: str,
    t0: float,
    t1: float,
    limit: int = SPAN_ROWS_MAX,
    *,
    run: str | None = None,
) -> list[FrameBoxes]:
    """See `BoxStore.span`; over any connection."""
    only = "" if run is None else "AND run = ?"
    values = (camera, t0, t1, *(() if run is None else (run,)), max(1, min(limit, SPAN_ROWS_MAX)))
    rows = connection.execute(
        f"SELECT * FROM boxes WHERE camera = ? AND t BETWEEN ? AND ? {only} ORDER BY t, seq LIMIT ?", values
    )
    return [read_boxes(row) for row in rows]
