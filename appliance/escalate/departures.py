"""What left the site, noted in the transaction in which the outbox learns of it."""

from __future__ import annotations

import sqlite3

from appliance import wire
from appliance.store.audit import Audit, AuditKind, AuditRow
from appliance.store.database import Database
from appliance.store.rows import EscalationRow, MediaRow

_WHY_CHARS_MAX = 300


class Departures:
    """Writes the audit. Owner: the outbox."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._audit = Audit(db)

    def left(
        self, connection: sqlite3.Connection, row: EscalationRow, kind: AuditKind, size: int, sha256: str, note: str
    ) -> None:
        """Something left the site: a row of the audit, in the transaction of who calls. note: what was unusual."""
        why = f"{note}rule {row.body.rule}: {row.body.question}"[:_WHY_CHARS_MAX]
        self._audit.write(
            AuditRow(
                t=self._db.clock.now(),
                camera=row.camera,
                escalation=row.id,
                kind=kind,
                bytes=size,
                sha256=sha256,
                why=why,
            ),
            connection,
        )

    def half_left(self, connection: sqlite3.Connection, row: EscalationRow, media: MediaRow, note: str) -> None:
        """A picture of which some chunks left has left in part, and the audit says so."""
        if 0 < media.chunks_acked < media.ref.chunks:
            size = min(media.chunks_acked * wire.CHUNK_BYTES, media.ref.bytes)
            self.left(connection, row, media.ref.kind, size, media.ref.sha256, f"in part, then {note}; ")


def count_bytes(connection: sqlite3.Connection, row: EscalationRow, bytes_sent: int) -> None:
    """Bytes that left for the step that `row` was read at."""
    connection.execute("UPDATE escalation SET bytes_sent = bytes_sent + ? WHERE id = ?", (bytes_sent, row.id))
    connection.execute(
        """INSERT INTO step (escalation, n, bytes_sent) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET bytes_sent = bytes_sent + excluded.bytes_sent""",
        (row.id, row.step, bytes_sent),
    )
