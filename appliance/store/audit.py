"""The audit of all data that left the site: when, why, how many bytes. Rows are only ever added."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.store.database import Database, open_read_only

AuditKind = Literal["facts", "frame", "crop", "clip", "notice"]
"""notice: a message to a target of `notify` or to the broker of `mqtt`, which has no images; the others go with an
escalation, a frame also to that broker."""
TO_BROKER = "published to the MQTT broker "
"""How the reason of such a row begins. The broker follows, `; `, and `alert ID`, a still's path, or how many states."""
PAGE_MAX = 1000  # rows of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One thing that left. `bytes` is its payload; `sha256` of the file, or of the JSON for facts and notices."""

    id: int = 0
    t: float
    camera: str
    escalation: str
    kind: AuditKind
    bytes: int
    sha256: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTotal:
    """How often one kind left, and the sum of its bytes."""

    kind: AuditKind
    count: int
    bytes: int


class AuditStore:
    """The audit table. Owner: the core; never deleted by retention."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def write(self, row: AuditRow, connection: sqlite3.Connection | None = None) -> None:
        """Add a row (its `id` is ignored), inside the transaction of `connection` when one is given."""
        values = (row.t, row.camera, row.escalation, row.kind, row.bytes, row.sha256, row.why)
        statement = "INSERT INTO audit (t, camera, escalation, kind, bytes, sha256, why) VALUES (?, ?, ?, ?, ?, ?, ?)"
        if connection is not None:
            connection.execute(statement, values)
            return
        self._db.execute(statement, values)

    def page(self, before_id: int | None = None, limit: int = 100) -> list[AuditRow]:
        """Return the rows with ids below `before_id`, newest first."""
        rows = self._db.rows(
            "SELECT * FROM audit WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2",
            (before_id, max(1, min(limit, PAGE_MAX))),
        )
        return [AuditRow(**dict(row)) for row in rows]

    def totals(self, t0: float, t1: float) -> list[AuditTotal]:
        """Count and bytes by kind, of what left in t0..t1."""
        rows = self._db.rows(
            """SELECT kind, count(*) AS count, sum(bytes) AS bytes FROM audit
               WHERE t BETWEEN ? AND ? GROUP BY kind ORDER BY kind""",
            (t0, t1),
        )
        return [AuditTotal(**dict(row)) for row in rows]


def audit_rows(path: Path, t0: float, t1: float, camera: str | None = None) -> Iterator[AuditRow]:
    """Yield the audit rows with t0 <= t < t1 of one camera or (None) of all, oldest first. Raise StoreError.

    A running appliance may own the database.
    """
    with open_read_only(path) as connection:
        rows = connection.execute(
            "SELECT * FROM audit WHERE t >= ?1 AND t < ?2 AND (?3 IS NULL OR camera = ?3) ORDER BY t, id",
            (t0, t1, camera),
        )
        yield from (AuditRow(**dict(row)) for row in rows)
