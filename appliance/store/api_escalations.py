"""Questions that came through the API with their own pictures: rows of `alert` with `audit` 2, which no list shows."""

from __future__ import annotations

from collections.abc import Sequence

from appliance import wire
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.evidence import EvidenceStore
from appliance.store.rows import EvidenceRow, MediaRow, to_json
from appliance.types import Route


class ApiEscalationStore:
    """Writes a question with its escalation and evidence. Owner: the core.

    It then goes through the outbox, is answered, and ends as any alert's escalation does.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._escalations = EscalationStore(db)
        self._evidence = EvidenceStore(db)

    def add(self, escalation: wire.Escalation, images: Sequence[tuple[wire.MediaRef, str]], route: Route) -> None:
        """Write all of it or nothing; the files are on disk. Raise StoreError."""
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
            rows = [_row(escalation.alert, n, ref, path) for n, (ref, path) in enumerate(images)]
            self._evidence.make_ready(escalation, media, rows, "frame")


def _row(alert: str, n: int, ref: wire.MediaRef, path: str) -> EvidenceRow:
    return EvidenceRow(
        alert=alert, kind="frame", n=n, state="ready", path=path, t_start=ref.t, t_end=ref.t, bytes=ref.bytes,
        sha256=ref.sha256, width=ref.width, height=ref.height,
    )  # fmt: skip
