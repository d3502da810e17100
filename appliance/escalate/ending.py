"""How a question ends without an answer: visibly, and with what left of it noted."""

from __future__ import annotations

import sqlite3

from appliance.escalate.departures import Departures
from appliance.store.changes import touch
from appliance.store.database import Database
from appliance.store.rows import EscalationRow, MediaRow, read_media
from appliance.store.steps import give_up


class Endings:
    """Owner: the outbox. Each ending is one transaction; what the cloud said of an earlier step stands."""

    def __init__(self, db: Database, departures: Departures) -> None:
        self._db = db
        self._departures = departures

    def drop(self, row: EscalationRow, why: str) -> list[str]:
        """Give a question up, visibly, and forget its pictures; returns the paths of the files that only it needed.

        What the cloud said of an earlier step stands. Raises StoreError.
        """
        with self._db.transaction() as connection:
            ended = row.step > 0 and give_up(self._db, connection, row, why, self._db.clock.now())
            if not ended:
                connection.execute(
                    "UPDATE escalation SET state = 'expired', wait = '', error = ? WHERE id = ?",
                    (f"given up: {why}", row.id),
                )
            media = read_media_of(connection, row.id)
            for each in media:
                self._departures.half_left(connection, row, each, "given up")
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            own = [each.path for each in media if _is_its_own(connection, row.alert, each.path)]
            connection.executemany(
                "UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ? WHERE alert = ? AND path = ?",
                [(why, row.alert, path) for path in own],
            )
            touch(self._db, connection, row.alert)
        return own

    def expire(self, row: EscalationRow, age_s: float) -> None:
        """Give it up, visibly: it could not be sent, or was not answered, within `age_s`. Raises StoreError."""
        if row.step and self._end_with_what_was_said(row, age_s):
            return
        hours = age_s / 3600
        why = "no verdict came" if row.state == "sent" else f"could not be sent ({row.error or 'no connection'})"
        with self._db.transaction() as connection:
            changed = connection.execute(
                "UPDATE escalation SET state = 'expired', error = ? WHERE id = ? AND state = ?",
                (f"given up after {hours:g} h: {why}", row.id, row.state),
            )
            if changed.rowcount:
                for media in read_media_of(connection, row.id):
                    self._departures.half_left(connection, row, media, "given up")
                touch(self._db, connection, row.alert)

    def _end_with_what_was_said(self, row: EscalationRow, age_s: float) -> bool:
        """The cloud saw the first evidence and was unsure; that stands when what it asked for could not be sent."""
        hours = age_s / 3600
        why = f"no answer to that came within {hours:g} h"
        if row.state != "sent":
            why = f"that could not be sent within {hours:g} h ({row.error or 'no connection'})"
        with self._db.transaction() as connection:
            ended = give_up(self._db, connection, row, why, self._db.clock.now())
            for media in read_media_of(connection, row.id) if ended else ():
                self._departures.half_left(connection, row, media, "given up")
        return ended


def read_media_of(connection: sqlite3.Connection, escalation: str) -> list[MediaRow]:
    """What an escalation carries, in order."""
    rows = connection.execute("SELECT * FROM media WHERE escalation = ? ORDER BY n", (escalation,))
    return [read_media(row) for row in rows]


def _is_its_own(connection: sqlite3.Connection, alert: str, path: str) -> bool:
    """Whether neither another question nor the alert's own page shows this file."""
    row = connection.execute(
        """SELECT EXISTS (SELECT 1 FROM media WHERE path = ?1) OR EXISTS (
               SELECT 1 FROM evidence WHERE alert = ?2 AND path = ?1
               AND (kind IN ('still', 'boxes') OR kind = 'clip' AND n = 0)) AS shown""",
        (path, alert),
    ).fetchone()
    return not row["shown"]
