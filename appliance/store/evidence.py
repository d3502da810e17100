"""The evidence of each alert: its still, crops, clip, boxes and the frames that an escalation carries."""

from __future__ import annotations

from collections.abc import Sequence

from appliance import wire
from appliance.store.alert_rows import ALERT_COLUMNS, AlertRow, EvidenceRow, read_alert, read_evidence, write_evidence
from appliance.store.database import Database, bump_rev, to_json
from appliance.store.escalations import EscalationStore, MediaRow, StepEvidence
from appliance.types import Route


class EvidenceStore:
    """The evidence table. Owner: the evidence maker writes, any thread reads."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._escalations = EscalationStore(db)

    def waiting(self, limit: int) -> list[AlertRow]:
        """Alerts that some evidence is still waiting for, oldest first."""
        rows = self._db.rows(
            f"""SELECT {ALERT_COLUMNS} FROM alert WHERE id IN (SELECT alert FROM evidence WHERE state = 'waiting')
                ORDER BY created_t, id LIMIT ?""",
            (limit,),
        )
        return [read_alert(row) for row in rows]

    def of(self, alert_id: str) -> list[EvidenceRow]:
        """All evidence of an alert."""
        rows = self._db.rows("SELECT * FROM evidence WHERE alert = ? ORDER BY kind, n", (alert_id,))
        return [read_evidence(row) for row in rows]

    def put(self, *rows: EvidenceRow) -> None:
        """Write pieces of one alert's evidence in one transaction; their files are on disk. Raises StoreError."""
        with self._db.transaction() as connection:
            for row in rows:
                write_evidence(connection, row)
            bump_rev(self._db, connection, rows[0].alert)

    def make_ready(
        self,
        escalation: wire.Escalation,
        media: Sequence[MediaRow],
        frames: Sequence[EvidenceRow] = (),
        evidence: StepEvidence | None = None,
    ) -> bool:
        """Let a step of an escalation go with the media that are new in it; False when it was no longer waiting.

        The frames become evidence of the alert in the same transaction. evidence: what the step is called; as its media
        are, if not given. Raises StoreError.
        """
        body = escalation.model_copy(update={"media": (*escalation.media, *(each.ref for each in media))})
        with self._db.transaction() as connection:
            if not self._escalations.make_ready(body, media, evidence or (media[-1].ref.kind if media else "facts")):
                return False
            for row in frames:
                write_evidence(connection, row)
            return True

    def add_asked(self, escalation: wire.Escalation, images: Sequence[tuple[wire.MediaRef, str]], route: Route) -> None:
        """Write an escalation that came through the API with its own images, whose files are on disk. Raise StoreError.

        Its alert has `audit` 2, which no list shows. It goes through the outbox and ends as any alert's does.
        """
        with self._db.transaction() as connection:
            connection.execute(
                """INSERT INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, t_end,
                       end_reason, created_t, rev, audit)
                   VALUES (?, ?, '', 'info', ?, ?, '[]', ?, ?, ?, 'api', ?, 0, 2)""",
                (
                    escalation.alert, escalation.camera, to_json([escalation.rule]),
                    to_json([escalation.label] if escalation.label else []), escalation.score, escalation.t,
                    escalation.t, self._db.clock.now(),
                ),
            )  # fmt: skip
            self._escalations.add(escalation, route.priority, route)
            media = [
                MediaRow(escalation=escalation.id, n=n, path=path, ref=ref) for n, (ref, path) in enumerate(images)
            ]
            rows = [_api_row(escalation.alert, n, ref, path) for n, (ref, path) in enumerate(images)]
            self.make_ready(escalation, media, rows, "frame")


def _api_row(alert: str, n: int, ref: wire.MediaRef, path: str) -> EvidenceRow:
    return EvidenceRow(
        alert=alert, kind="frame", n=n, state="ready", path=path, t_start=ref.t, t_end=ref.t, bytes=ref.bytes,
        sha256=ref.sha256, width=ref.width, height=ref.height,
    )  # fmt: skip
