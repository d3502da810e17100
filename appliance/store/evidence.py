"""The evidence of each alert, and the media that an escalation carries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from appliance import wire
from appliance.store.alert_writes import bump_rev
from appliance.store.database import Database
from appliance.store.escalations import close_unsure
from appliance.store.rows import (
    ALERT_COLUMNS,
    AlertRow,
    EscalationRow,
    EvidenceRow,
    MediaRow,
    StepEvidence,
    read_alert,
    read_escalation,
    read_evidence,
    read_media,
    to_json,
)


class EvidenceStore:
    """The evidence and media tables. Owner: the evidence maker writes, any thread reads."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def waiting(self, limit: int) -> list[AlertRow]:
        """Alerts that some evidence is still waiting for, oldest first."""
        with self._db.read() as connection:
            rows = connection.execute(
                f"""SELECT {ALERT_COLUMNS} FROM alert WHERE id IN (SELECT alert FROM evidence WHERE state = 'waiting')
                    ORDER BY created_t, id LIMIT ?""",
                (limit,),
            )
            return [read_alert(row) for row in rows]

    def waiting_escalations(self, limit: int) -> list[EscalationRow]:
        """Escalations that wait for their frames, the most urgent first."""
        with self._db.read() as connection:
            rows = connection.execute(
                """SELECT * FROM escalation WHERE state = 'waiting'
                   ORDER BY CASE priority WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END, created_t, id LIMIT ?""",
                (limit,),
            )
            return [read_escalation(row) for row in rows]

    def of(self, alert_id: str) -> list[EvidenceRow]:
        """All evidence of an alert."""
        with self._db.read() as connection:
            rows = connection.execute("SELECT * FROM evidence WHERE alert = ? ORDER BY kind, n", (alert_id,))
            return [read_evidence(row) for row in rows]

    def put(self, *rows: EvidenceRow) -> None:
        """Write pieces of one alert's evidence in one transaction; their files are on disk. Raises StoreError."""
        with self._db.transaction() as connection:
            for row in rows:
                _put(connection, row)
            bump_rev(self._db, connection, rows[0].alert)

    def make_ready(
        self,
        escalation: wire.Escalation,
        media: Sequence[MediaRow],
        frames: Sequence[EvidenceRow] = (),
        evidence: StepEvidence | None = None,
    ) -> bool:
        """Let a step of an escalation go with the media that are new in it; False when it was no longer waiting.

        The frames become evidence of the alert, the media rows and the final body are written, and the state turns
        `ready` (`deferred` if the router put it off), all in one transaction. evidence: what the step is called; as
        its media are, if not given. Raises StoreError.
        """
        body = escalation.model_copy(update={"media": (*escalation.media, *(each.ref for each in media))})
        with self._db.transaction() as connection:
            changed = connection.execute(
                """UPDATE escalation SET state = iif(wait = '', 'ready', 'deferred'), body = ?
                   WHERE id = ? AND state = 'waiting' AND step = ?""",
                (body.to_json().decode(), escalation.id, escalation.step),
            )
            if changed.rowcount == 0:
                return False
            connection.execute(
                """INSERT INTO step (escalation, n, evidence) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET evidence = excluded.evidence""",
                (escalation.id, escalation.step, evidence or (media[-1].ref.kind if media else "facts")),
            )
            for each in media:
                connection.execute(
                    "INSERT OR REPLACE INTO media (escalation, n, id, path, ref, chunks) VALUES (?, ?, ?, ?, ?, ?)",
                    (escalation.id, each.n, each.ref.id, each.path, each.ref.to_json().decode(), each.ref.chunks),
                )
            for row in frames:
                _put(connection, row)
            bump_rev(self._db, connection, escalation.alert)
            return True

    def close_unsure(self, asked: EscalationRow, why: str) -> bool:
        """What the cloud asked to see cannot be had: its `unsure` stands, and says `why`. Raises StoreError."""
        with self._db.transaction() as connection:
            return close_unsure(self._db, connection, asked, why, self._db.clock.now())

    def media(self, escalation_id: str) -> list[MediaRow]:
        """What an escalation carries, in order."""
        with self._db.read() as connection:
            rows = connection.execute("SELECT * FROM media WHERE escalation = ? ORDER BY n", (escalation_id,))
            return [read_media(row) for row in rows]


def _put(connection: sqlite3.Connection, row: EvidenceRow) -> None:
    connection.execute(
        """INSERT OR REPLACE INTO evidence
           (alert, kind, n, state, path, t_start, t_end, bytes, sha256, width, height, box, score, reason)
           VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            row.alert,
            row.kind,
            row.n,
            row.state,
            row.path,
            float(row.t_start),
            float(row.t_end),
            row.bytes,
            row.sha256,
            row.width,
            row.height,
            None if row.box is None else to_json(row.box),
            float(row.score),
            row.reason,
        ),
    )
