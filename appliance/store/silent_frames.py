"""Frames that were sent although nothing was reported in them, and what people and models answered about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from appliance import wire
from appliance.store.database import Database, bump_rev, to_json
from appliance.store.decisions import LABELLED
from appliance.store.escalations import EscalationStore

SHOWN_MAX = 20  # frames on the page


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentFrameCounts:
    """Counts of silent frames.

    sent: frames; known: those for which a person or a language model said whether something was missed; missed: those
    of them in which something was. by: the known ones by who answered (person or vlm). missed_alerts: the newest of
    those, by the id under which each is found.
    """

    sent: int = 0
    known: int = 0
    missed: int = 0
    by: Mapping[str, int] = field(default_factory=dict)
    missed_alerts: tuple[str, ...] = ()


class SilentFrameStore:
    """Rows of `alert` with `audit` set, and their escalations. Owner: the core; any thread may read."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._escalations = EscalationStore(db)

    def add(self, escalation: wire.Escalation, labels: Sequence[str], run: str) -> bool:
        """Write the frame with its escalation, which begins with one whole frame. Raise StoreError.

        Return False if the frame is stored already.
        """
        with self._db.transaction() as connection:
            written = connection.execute(
                """INSERT OR IGNORE INTO alert (id, camera, run, severity, rules, labels, tracks, score, t_start, t_end,
                       end_reason, created_t, rev, audit)
                   VALUES (?, ?, ?, 'info', ?, ?, '[]', 0.0, ?, ?, 'audit', ?, 0, 1)""",
                (
                    escalation.alert, escalation.camera, run, to_json([escalation.rule]), to_json(list(labels)),
                    escalation.t, escalation.t, self._db.clock.now(),
                ),
            )  # fmt: skip
            if written.rowcount == 0:
                return False
            self._escalations.add(escalation, wire.PRIORITIES[-1])
            connection.execute("UPDATE escalation SET need = 'frame' WHERE id = ?", (escalation.id,))
            bump_rev(self._db, connection, escalation.alert)
            return True

    def counts(self) -> SilentFrameCounts:
        """Over all that are stored. Raises StoreError."""
        with self._db.read() as connection:
            sent = connection.execute("SELECT count(*) FROM alert WHERE audit = 1").fetchone()[0]
            known = connection.execute(
                f"""SELECT alert.id, iif(review IS NULL, alert.judge, 'person') AS by,
                       CASE review WHEN 'reviewed' THEN 1 WHEN 'false_alarm' THEN 0
                            ELSE verdict = 'confirmed' END AS missed
                    FROM alert WHERE audit = 1 AND {LABELLED} ORDER BY t_start DESC"""
            ).fetchall()
        return _counted(sent, known)


def _counted(sent: int, known: Sequence[sqlite3.Row]) -> SilentFrameCounts:
    by: dict[str, int] = {}
    for row in known:
        by[row["by"]] = by.get(row["by"], 0) + 1
    missed = [row["id"] for row in known if row["missed"]]
    return SilentFrameCounts(
        sent=sent, known=len(known), missed=len(missed), by=by, missed_alerts=tuple(missed[:SHOWN_MAX])
    )
