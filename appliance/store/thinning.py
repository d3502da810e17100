"""The parts of retention that are about rows: boxes, old evidence, and notes that nobody asks for any more."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from appliance.errors import StoreError
from appliance.store.changes import touch
from appliance.store.database import Database
from appliance.store.deletions import Deletions, Reason
from appliance.store.paths import EVIDENCE, inside

BOXES_A_BATCH = 20_000
ALERTS_A_RUN = 200
WRITTEN_KEPT_S = 72 * 3600
ROOM_WORDS = "removed to make room, after it was reviewed"

# There is evidence to delete, and no question of the alert is under way.
_DONE = """EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id AND state = 'ready')
    AND NOT EXISTS (SELECT 1 FROM escalation WHERE alert = alert.id
                    AND state IN ('waiting', 'deferred', 'ready', 'sent'))"""

# The cameras in the boxes table, by hopping along its primary key.
_CAMERAS = """WITH RECURSIVE hop (camera) AS (SELECT min(camera) FROM boxes UNION ALL
    SELECT (SELECT min(camera) FROM boxes WHERE camera > hop.camera) FROM hop WHERE hop.camera IS NOT NULL)
    SELECT camera FROM hop WHERE camera IS NOT NULL"""


def thin_boxes(db: Database, keep_s: float, held: str) -> int:
    """Delete box rows older than their camera's continuous recording, or than `keep_s` if there is none; how many.

    held: a `WITH held AS (camera, t0, t1)` clause of what must stay. Bounded to one batch a camera.
    """
    deleted = 0
    with db.read() as connection:
        cameras = [row["camera"] for row in connection.execute(_CAMERAS).fetchall()]
    for camera in cameras:
        with db.transaction(durable=False) as connection:
            cutoff_t = connection.execute(
                f"""{held} SELECT min(coalesce((SELECT min(t_start) FROM segment WHERE camera = :camera
                        AND kind = 'continuous'), :keep_t),
                    coalesce((SELECT min(t0) FROM held WHERE camera = :camera), 9e15))""",
                {"camera": camera, "keep_t": db.clock.now() - keep_s},
            ).fetchone()[0]
            gone = connection.execute(
                f"""DELETE FROM boxes WHERE camera = :camera AND t < min(:cutoff_t, coalesce(
                    (SELECT t FROM boxes WHERE camera = :camera ORDER BY t LIMIT 1 OFFSET {BOXES_A_BATCH}), 9e15))""",
                {"camera": camera, "cutoff_t": cutoff_t},
            )
            deleted += gone.rowcount
    return deleted


def thin_evidence(db: Database, root: Path, deletions: Deletions, older_s: float) -> list[int]:
    """Delete the evidence files of alerts older than `older_s`, unless an escalation of theirs is still under way.

    The rows stay and say that it was removed. Returns the size of each file deleted.
    """
    with db.read() as connection:
        alerts = connection.execute(
            f"""SELECT id, camera FROM alert WHERE t_end < ? AND {_DONE} ORDER BY t_start LIMIT ?""",
            (db.clock.now() - older_s, ALERTS_A_RUN),
        ).fetchall()
    words = f"removed after {older_s / 86400:g} days"
    return [size for row in alerts for size in _remove_evidence(db, root, deletions, row, "age", words)]


def shed_evidence(
    db: Database, root: Path, deletions: Deletions, enough: float, reason: Reason, camera: str | None = None
) -> list[int]:
    """Delete the evidence files of the oldest alerts until `enough` bytes are freed: of alerts that a person has
    reviewed and of which no question is under way, and of no others. Returns the size of each file deleted.
    """
    with db.read() as connection:
        alerts = connection.execute(
            f"""SELECT id, camera FROM alert WHERE review IS NOT NULL AND t_end IS NOT NULL AND {_DONE}
                AND NOT EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id AND state = 'waiting')
                AND (:camera IS NULL OR camera = :camera) ORDER BY t_start LIMIT :most""",
            {"camera": camera, "most": ALERTS_A_RUN},
        ).fetchall()
    sizes: list[int] = []
    for row in alerts:
        if sum(sizes) >= enough:
            break
        sizes += _remove_evidence(db, root, deletions, row, reason, ROOM_WORDS)
    return sizes


def _remove_evidence(
    db: Database, root: Path, deletions: Deletions, alert: sqlite3.Row, reason: Reason, words: str
) -> list[int]:
    sizes = []
    with db.read() as connection:
        rows = connection.execute(
            "SELECT path, bytes, t_end FROM evidence WHERE alert = ? AND state = 'ready'", (alert["id"],)
        ).fetchall()
    for row in rows:
        with contextlib.suppress(StoreError, OSError):
            file = inside(root, row["path"], EVIDENCE)
            file.unlink()
            sizes.append(row["bytes"])
            deletions.add(alert["camera"], "evidence", reason, row["bytes"], row["t_end"])
            file.parent.rmdir()  # succeeds with the last one
    with db.transaction() as connection:
        connection.execute(
            """UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ?
               WHERE alert = ? AND state = 'ready'""",
            (words, alert["id"]),
        )
        deletions.enter(connection)
        touch(db, connection, alert["id"])
    deletions.entered()
    return sizes


def thin_notes(db: Database, older_s: float) -> None:
    """Delete held-back events and ended gaps older than `older_s`, and what was written days ago."""
    before_t = db.clock.now() - older_s
    with db.transaction(durable=False) as connection:
        connection.execute("DELETE FROM event WHERE alert IS NULL AND t < ?", (before_t,))
        connection.execute("DELETE FROM gap WHERE t_end < ?", (before_t,))
        connection.execute("DELETE FROM written WHERE hour < ?", ((db.clock.now() - WRITTEN_KEPT_S) / 3600,))
