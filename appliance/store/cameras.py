"""Stores the last state of each camera, and the gaps in which it sent nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.base.errors import camera_address, redact
from appliance.store.database import Database, to_json
from appliance.types import CameraState, CameraStateName, Gap, StreamHeader

GAP_ROWS_MAX = 500  # a camera that comes and goes each minute, for 8 hours
NOT_RUNNING = "the appliance was not running"


def read_gap(row: sqlite3.Row) -> Gap:
    return Gap(camera=row["camera"], t_start=row["t_start"], t_end=row["t_end"], reason=row["reason"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CameraRow:
    """A configured camera.

    `size` (width, height) is (0, 0) until a stream was opened; `since_t` is when `state` began; `rev` grows with every
    change of the row or of its gaps.
    """

    name: str
    run: str
    state: CameraStateName
    reason: str
    since_t: float
    source: str
    model: str
    size: tuple[int, int]
    rev: int


class CameraStore:
    """The camera and gap tables. Invariant: a camera has at most one open gap, and none once it is live."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def ensure(self, sources: Mapping[str, str]) -> None:
        """Make the table hold exactly these cameras (name to URL, of which the host is stored), all connecting.

        A camera that was seen before gets an open gap from its last recorded or examined moment: it lasts until the
        camera is live again.
        """
        with self._db.transaction() as connection:
            self._write_sources(connection, sources, "state = 'connecting', reason = '', since_t = excluded.since_t,")
            for name in sources:
                last_t = _last_heard(connection, name)
                if last_t is not None:
                    _open_gap(connection, name, min(last_t, self._db.clock.now()), NOT_RUNNING)

    def configure(self, sources: Mapping[str, str]) -> None:
        """Update the cameras while the appliance runs: removed ones go, new ones come, the others keep their state."""
        with self._db.transaction() as connection:
            self._write_sources(connection, sources)

    def _write_sources(self, connection: sqlite3.Connection, sources: Mapping[str, str], changes: str = "") -> None:
        """Delete the cameras that are not among `sources`, and write those. changes: of a known one, in SQL."""
        connection.execute(
            "DELETE FROM camera WHERE name NOT IN (SELECT value FROM json_each(?))", (to_json(list(sources)),)
        )
        for name, source in sources.items():
            connection.execute(
                f"""INSERT INTO camera (name, since_t, source, rev) VALUES (?, ?, ?, ?)
                    ON CONFLICT (name) DO UPDATE SET {changes} source = excluded.source, rev = excluded.rev""",
                (name, self._db.clock.now(), camera_address(source), self._db.next_rev(connection)),
            )

    def write_state(self, state: CameraState) -> None:
        """Write a change of state; `live` ends the open gap."""
        with self._db.transaction() as connection:
            connection.execute(
                """UPDATE camera SET since_t = CASE WHEN state = :state THEN since_t ELSE :t END,
                   state = :state, reason = :reason, rev = :rev WHERE name = :camera""",
                {
                    "camera": state.camera,
                    "state": state.state,
                    "t": float(state.t),
                    "reason": redact(state.reason),
                    "rev": self._db.next_rev(connection),
                },
            )
            if state.state == "live":
                connection.execute(
                    "UPDATE gap SET t_end = max(t_start, ?) WHERE camera = ? AND t_end IS NULL", (state.t, state.camera)
                )

    def write_header(self, header: StreamHeader) -> None:
        """Write the model and frame size of a camera's new session, and what its boxes are judged by."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE camera SET run = ?, model = ?, width = ?, height = ?, rev = ? WHERE name = ?",
                (header.run, header.model, *header.size, self._db.next_rev(connection), header.camera),
            )
            connection.execute(
                "INSERT OR IGNORE INTO stream VALUES (?, ?, ?, ?, ?)",
                (header.camera, header.run, self._db.clock.now(), header.known_before,
                 to_json(dict(header.calibration))),
            )  # fmt: skip

    def write_gap(self, gap: Gap) -> None:
        """Write a gap that began or ended; one that overlaps a known gap is the same gap, reported again."""
        with self._db.transaction() as connection:
            known = connection.execute(
                """SELECT id, t_start, t_end FROM gap WHERE camera = ? AND t_start <= ?
                   AND (t_end IS NULL OR t_end >= ?) ORDER BY t_start DESC LIMIT 1""",
                (gap.camera, gap.t_start if gap.t_end is None else gap.t_end, gap.t_start),
            ).fetchone()
            if known is None and gap.t_end is None:
                _open_gap(connection, gap.camera, gap.t_start, gap.reason)
            elif known is None:
                connection.execute(
                    "INSERT INTO gap (camera, t_start, t_end, reason) VALUES (?, ?, ?, ?)",
                    (gap.camera, gap.t_start, gap.t_end, redact(gap.reason)),
                )
            else:  # max() of a NULL is NULL: a gap that begins where one ended opens that one again
                connection.execute(
                    """UPDATE gap SET t_start = min(t_start, :t_start), t_end = max(coalesce(t_end, 0), :t_end)
                       WHERE id = :id""",
                    {"t_start": gap.t_start, "t_end": gap.t_end, "id": known["id"]},
                )
            self._touch(connection, gap.camera)

    def mark_all_lost(self, t: float, reason: str) -> None:
        """Mark each camera whose footage has not ended as lost, from `t` on: the ingest process died."""
        with self._db.transaction() as connection:
            for row in connection.execute("SELECT name FROM camera WHERE state != 'ended'").fetchall():
                _open_gap(connection, row["name"], t, reason)
                connection.execute(
                    """UPDATE camera SET since_t = CASE WHEN state = 'lost' THEN since_t ELSE ? END,
                       state = 'lost', reason = ?, rev = ? WHERE name = ?""",
                    (t, redact(reason), self._db.next_rev(connection), row["name"]),
                )

    def all(self) -> list[CameraRow]:
        """Every configured camera, by name."""
        return [_read_camera(row) for row in self._db.rows("SELECT * FROM camera ORDER BY name")]

    def get(self, name: str) -> CameraRow | None:
        """One camera."""
        row = self._db.row("SELECT * FROM camera WHERE name = ?", (name,))
        return None if row is None else _read_camera(row)

    def gaps(self, camera: str, limit: int = 50) -> list[Gap]:
        """Return the newest gaps of a camera, newest first; one that lasts has `t_end` None."""
        rows = self._db.rows(
            "SELECT * FROM gap WHERE camera = ? ORDER BY t_start DESC, id DESC LIMIT ?",
            (camera, max(1, min(limit, GAP_ROWS_MAX))),
        )
        return [read_gap(row) for row in rows]

    def _touch(self, connection: sqlite3.Connection, camera: str) -> None:
        connection.execute("UPDATE camera SET rev = ? WHERE name = ?", (self._db.next_rev(connection), camera))


def _open_gap(connection: sqlite3.Connection, camera: str, t: float, reason: str) -> None:
    connection.execute(
        """INSERT INTO gap (camera, t_start, reason) SELECT ?, ?, ?
           WHERE NOT EXISTS (SELECT 1 FROM gap WHERE camera = ? AND t_end IS NULL)""",
        (camera, t, redact(reason), camera),
    )


def _last_heard(connection: sqlite3.Connection, camera: str) -> float | None:
    row = connection.execute(
        """SELECT max(t) FROM (SELECT max(t) AS t FROM boxes WHERE camera = :camera
           UNION ALL SELECT t_end FROM (SELECT t_end FROM segment WHERE camera = :camera ORDER BY t_start DESC LIMIT 1))
        """,
        {"camera": camera},
    ).fetchone()
    found: float | None = row[0]
    return found


def _read_camera(row: sqlite3.Row) -> CameraRow:
    fields = dict(row)
    size = (fields.pop("width"), fields.pop("height"))
    return CameraRow(**fields, size=size)
