"""The parts of retention that are about rows: boxes, old evidence, and notes that nobody asks for any more."""

from __future__ import annotations

import contextlib
from pathlib import Path

from appliance.errors import StoreError
from appliance.store.changes import touch
from appliance.store.database import Database
from appliance.store.paths import EVIDENCE, inside

BOXES_A_BATCH = 20_000
ALERTS_A_RUN = 200

# The cameras in the boxes table, by hopping along its primary key.
_CAMERAS = """WITH RECURSIVE hop (camera) AS (SELECT min(camera) FROM boxes UNION ALL
    SELECT (SELECT min(camera) FROM boxes WHERE camera > hop.camera) FROM hop WHERE hop.camera IS NOT NULL)
    SELECT camera FROM hop WHERE camera IS NOT NULL"""


def thin_boxes(db: Database, keep_s: float, held: str) -> int:
    """Delete box rows older than their camera's recording, or than `keep_s` where there is none; return how many.

    held: a `WITH held AS (camera, t0, t1)` clause of what must stay. Bounded to one batch a camera.
    """
    deleted = 0
    with db.read() as connection:
        cameras = [row["camera"] for row in connection.execute(_CAMERAS).fetchall()]
    for camera in cameras:
        with db.transaction(durable=False) as connection:
            cutoff_t = connection.execute(
                f"""{held} SELECT min(coalesce((SELECT min(t_start) FROM segment WHERE camera = :camera), :keep_t),
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


def thin_evidence(db: Database, root: Path, older_s: float) -> list[int]:
    """Delete the evidence files of alerts older than `older_s`, unless an escalation of theirs is still under way.

    The rows stay and say that it was removed. Returns the size of each file deleted.
    """
    with db.read() as connection:
        alerts = connection.execute(
            """SELECT id FROM alert WHERE t_end < ? AND EXISTS (SELECT 1 FROM evidence WHERE alert = alert.id
                   AND state = 'ready') AND NOT EXISTS (SELECT 1 FROM escalation WHERE alert = alert.id
                   AND state IN ('waiting', 'ready', 'sent')) ORDER BY t_start LIMIT ?""",
            (db.clock.now() - older_s, ALERTS_A_RUN),
        ).fetchall()
    return [size for row in alerts for size in _remove_evidence(db, root, row["id"], older_s)]


def _remove_evidence(db: Database, root: Path, alert_id: str, older_s: float) -> list[int]:
    sizes = []
    with db.read() as connection:
        rows = connection.execute(
            "SELECT path, bytes FROM evidence WHERE alert = ? AND state = 'ready'", (alert_id,)
        ).fetchall()
    for row in rows:
        with contextlib.suppress(StoreError, OSError):
            file = inside(root, row["path"], EVIDENCE)
            file.unlink()
            sizes.append(row["bytes"])
            file.parent.rmdir()  # succeeds with the last one
    with db.transaction() as connection:
        connection.execute(
            """UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ?
               WHERE alert = ? AND state = 'ready'""",
            (f"removed after {older_s / 86400:g} days", alert_id),
        )
        touch(db, connection, alert_id)
    return sizes


def thin_notes(db: Database, older_s: float) -> None:
    """Delete held-back events and ended gaps older than `older_s`."""
    before_t = db.clock.now() - older_s
    with db.transaction(durable=False) as connection:
        connection.execute("DELETE FROM event WHERE alert IS NULL AND t < ?", (before_t,))
        connection.execute("DELETE FROM gap WHERE t_end < ?", (before_t,))
