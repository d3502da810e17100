"""Reads a storage folder beside a running appliance, or without one.

Replays, exports, cassettes, kept scenarios and diagnostics use it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.store.alert_rows import ALERT_COLUMNS, AlertRow, read_alert, read_event
from appliance.store.alerts import AlertDetail, alert_detail
from appliance.store.boxes import boxes_between, stored_calibration
from appliance.store.cameras import read_gap
from appliance.store.database import open_read_only
from appliance.store.escalations import (
    EscalationRow,
    MediaRow,
    StepRow,
    VerdictRow,
    read_escalation,
    read_media,
    read_step,
    read_verdict,
)
from appliance.store.paths import DATABASE
from appliance.store.segments import covering
from appliance.types import Event, FrameBoxes, Gap, Review, SegmentRow

_PAGE = 200  # rows of one transaction
_WINDOW_S = 600.0  # `covering` compares all rows of a window with each other
HEALTH_ROWS_MAX, GAP_ROWS_MAX = 500, 1000  # the newest; a person reads no more of a diagnostics file


@dataclass(frozen=True, slots=True)
class SettledEscalation:
    """An escalation with its final verdict and its steps."""

    escalation: EscalationRow
    verdict: VerdictRow
    steps: tuple[StepRow, ...]


def settled_escalations(root: Path, t0: float, t1: float) -> Iterator[SettledEscalation]:
    """Yield the escalations made from t0 to t1 (UTC seconds) that have a verdict, oldest first. Raise StoreError.

    One page is held in memory. Each page is a read of its own: the appliance may run meanwhile, and is never held up.
    """
    after: tuple[float, str] = (t0, "")
    while True:
        with open_read_only(root / DATABASE) as connection:
            rows = connection.execute(
                """SELECT escalation.* FROM escalation JOIN verdict ON verdict.escalation = escalation.id
                   WHERE (created_t, id) > (?, ?) AND created_t <= ? ORDER BY created_t, id LIMIT ?""",
                (*after, t1, _PAGE),
            ).fetchall()
            page = [_settled_escalation(connection, row) for row in rows]
        yield from page
        if len(page) < _PAGE:
            return
        after = (page[-1].escalation.times.created_t, page[-1].escalation.id)


def _settled_escalation(connection: sqlite3.Connection, row: sqlite3.Row) -> SettledEscalation:
    escalation = read_escalation(row)
    verdict = connection.execute("SELECT * FROM verdict WHERE escalation = ?", (escalation.id,)).fetchone()
    steps = connection.execute("SELECT * FROM step WHERE escalation = ? ORDER BY n", (escalation.id,)).fetchall()
    return SettledEscalation(escalation, read_verdict(verdict), tuple(map(read_step, steps)))


@dataclass(frozen=True, slots=True)
class ReviewedEvent:
    """An event, the alert it belongs to (None: a cooldown held it back), and the review of that alert.

    deleted: a person deleted the alert.
    """

    event: Event
    alert: str | None
    review: Review | None
    deleted: bool


class StorageArchive:
    """Read-only access to a storage folder. Holds no connection, takes no lock; the appliance may run meanwhile."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._path = root / DATABASE

    def segments(self, camera: str, t0: float, t1: float) -> list[SegmentRow]:
        """Return the segments that hold any frame of t0..t1, oldest first. Raise StoreError."""
        found: dict[str, SegmentRow] = {}
        with open_read_only(self._path) as connection:
            begin = t0
            while begin < t1:
                rows = covering(connection, camera, begin, min(begin + _WINDOW_S, t1))
                found.update((row.path, row) for row in rows)
                begin += _WINDOW_S
        return sorted(found.values(), key=lambda row: (row.t_start, row.path))

    def gaps(self, camera: str, t0: float, t1: float) -> list[Gap]:
        """Return the gaps that touch t0..t1, oldest first. Raise StoreError."""
        with open_read_only(self._path) as connection:
            rows = connection.execute(
                """SELECT * FROM gap WHERE camera = ? AND t_start <= ? AND (t_end IS NULL OR t_end >= ?)
                   ORDER BY t_start, id""",
                (camera, t1, t0),
            ).fetchall()
        return [read_gap(row) for row in rows]

    def span(self, camera: str) -> tuple[float, float] | None:
        """From when to when anything is recorded of the camera; None: nothing is. Raises StoreError."""
        with open_read_only(self._path) as connection:
            row = connection.execute(
                "SELECT min(t_start) AS begin, max(t_end) AS end FROM segment WHERE camera = ? AND frames > 0",
                (camera,),
            ).fetchone()
        return None if row["begin"] is None else (row["begin"], row["end"])

    def alert(self, alert_id: str) -> AlertDetail | None:
        """Return an alert with all that belongs to it. Raise StoreError."""
        with open_read_only(self._path) as connection:
            return alert_detail(connection, alert_id)

    def media(self, escalation: str) -> list[MediaRow]:
        """Return the files that an escalation carries, in order. Raise StoreError."""
        with open_read_only(self._path) as connection:
            rows = connection.execute("SELECT * FROM media WHERE escalation = ? ORDER BY n", (escalation,))
            return list(map(read_media, rows))

    def reviewed_alerts(self, camera: str) -> list[AlertRow]:
        """Return the alerts of a camera that people reviewed and nobody deleted, the newest first. Raise StoreError."""
        with open_read_only(self._path) as connection:
            rows = connection.execute(
                f"""SELECT {ALERT_COLUMNS} FROM alert WHERE audit = 0 AND camera = ? AND review IS NOT NULL
                    AND deleted_t IS NULL ORDER BY t_start DESC""",
                (camera,),
            )
            return list(map(read_alert, rows))

    def alerts(self, after: tuple[str, float, str] | None, limit: int, *, audited: bool = False) -> list[AlertRow]:
        """Return a page of all alerts in order of camera, time and id, after the last row's (camera, t_start, id).

        audited: the frames in which nothing was reported and that were sent for an audit, instead of alerts.
        """
        with open_read_only(self._path) as connection:
            rows = connection.execute(
                f"""SELECT {ALERT_COLUMNS} FROM alert WHERE audit = ? AND (camera, t_start, id) > (?, ?, ?)
                    ORDER BY camera, t_start, id LIMIT ?""",
                (int(audited), *(after or ("", float("-inf"), "")), limit),
            )
            return [read_alert(row) for row in rows]

    def events(self, camera: str, t0: float, t1: float) -> list[ReviewedEvent]:
        """Every event of t0..t1, oldest first, those that a cooldown held back included. Raises StoreError."""
        window = (camera, t0, t1)
        within = "FROM event WHERE camera = ? AND t BETWEEN ? AND ?"
        with open_read_only(self._path) as connection:
            reviewed = f"SELECT id, review, deleted_t FROM alert WHERE id IN (SELECT alert {within})"
            known = {
                row["id"]: (row["review"], row["deleted_t"] is not None) for row in connection.execute(reviewed, window)
            }
            rows = connection.execute(f"SELECT * {within} ORDER BY t, id", window)
            return [
                ReviewedEvent(read_event(row), row["alert"], *known.get(row["alert"], (None, False))) for row in rows
            ]

    def examined_frames(self, camera: str, t0: float, t1: float, run: str) -> list[FrameBoxes]:
        """Return the examined frames from t0 to t1 in one session of the camera, oldest first. Raise StoreError."""
        with open_read_only(self._path) as connection:
            return boxes_between(connection, camera, t0, t1, run=run or None)

    def calibration(self, camera: str, run: str) -> dict[str, tuple[float, float]]:
        """Return the calibration of the scores in one session of the camera; {}: none. Raise StoreError."""
        with open_read_only(self._path) as connection:
            return stored_calibration(connection, camera, run)


def health_rows(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the newest health events."""
    return _rows(connection, "SELECT * FROM health_event ORDER BY t_start DESC LIMIT ?", HEALTH_ROWS_MAX)


def gap_rows(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the newest gaps of all cameras."""
    return _rows(
        connection, "SELECT camera, t_start, t_end, reason FROM gap ORDER BY t_start DESC LIMIT ?", GAP_ROWS_MAX
    )


def schema_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """Its version, each table with its number of rows, and the statements that made it all."""
    names = [
        row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    ]
    made = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY 1, 2")
    return {
        "version": connection.execute("PRAGMA user_version").fetchone()[0],
        "page_bytes": connection.execute("PRAGMA page_size").fetchone()[0],
        "pages": connection.execute("PRAGMA page_count").fetchone()[0],
        "largest_id_or_rows": {name: _rough_count(connection, name) for name in names},
        "sql": [dict(row) for row in made],
    }


def _rough_count(connection: sqlite3.Connection, table: str) -> int | None:
    """Return the largest rowid, which is read at once; None if the table has none.

    Counting a table of millions of rows takes seconds.
    """
    try:
        found: int | None = connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0]
    except sqlite3.OperationalError:  # WITHOUT ROWID
        return None
    return found


def _rows(connection: sqlite3.Connection, query: str, limit: int) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query, (limit,))]
