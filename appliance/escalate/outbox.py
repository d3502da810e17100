"""The outbox: which questions are still to be sent, how far each got, and what left the site. All of it in SQLite."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance import wire
from appliance.escalate.departures import Departures, count_bytes
from appliance.escalate.ending import Endings, read_media_of
from appliance.escalate.turns import Turns
from appliance.store.changes import touch
from appliance.store.clockmark import ClockMark
from appliance.store.database import Database
from appliance.store.rows import EscalationRow, MediaRow, read_escalation

AGAIN_FIRST_S = 900.0
AGAIN_LAST_S = 6 * 3600.0
_SEEN_WITHIN_S = 30.0  # a clock that was set is noticed this soon
_BATCH = 500
_FILES = "(SELECT sum(json_extract(ref, '$.bytes')) FROM media WHERE media.escalation = escalation.id)"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxCounts:
    """How many escalations are in each state, and when the oldest that is not sent was made (None: all are)."""

    waiting: int = 0
    deferred: int = 0
    ready: int = 0
    sent: int = 0
    settled: int = 0
    expired: int = 0
    oldest_t: float | None = None


class Outbox:
    """The escalation rows from `ready` on, and the media rows. Which is next: see turns.py.

    Owner: the uplink; any thread may read. Invariant: every change of state is one transaction, and what left the
    site has an audit row in the same transaction. Bytes are payload and headers, retries included.
    """

    def __init__(self, db: Database, expire_s: float, ttl_s: Mapping[str, float] | None = None) -> None:
        """expire_s: the age at which a question is given up; ttl_s: the same for some priorities."""
        self.db = self._db = db
        self._expire_s = dict.fromkeys(wire.PRIORITIES, expire_s) | dict(ttl_s or {})
        self._departures = Departures(db)
        self._endings = Endings(db, self._departures)
        self._clock_mark = ClockMark(db)

    def next_ready(self, limit: int) -> list[EscalationRow]:
        """What is to be sent, in the order of its going (see turns.py), for who wants to know. Raises StoreError."""
        turns, found = Turns(self.db), dict[str, EscalationRow]()
        while len(found) < limit and (turn := turns.pick(self.db.clock.now(), busy=found)):
            found[turn.row.id] = turn.row
        return list(found.values())

    def next_again(self, t: float, limit: int) -> list[EscalationRow]:
        """What was sent long ago and has no verdict: 15 minutes, then twice as long each time, up to 6 hours."""
        with self._db.read() as connection:
            rows = connection.execute(
                """SELECT * FROM escalation WHERE state = 'sent' AND sent_t <= ?
                   AND sent_t + min(? * (1 << min(max(attempts, 1) - 1, 8)), ?) <= ? ORDER BY sent_t, id LIMIT ?""",
                (t - AGAIN_FIRST_S, AGAIN_FIRST_S, AGAIN_LAST_S, t, limit),
            )
            return [read_escalation(row) for row in rows]

    def media_of(self, escalation: str) -> list[MediaRow]:
        """What an escalation carries, in order."""
        with self._db.read() as connection:
            return read_media_of(connection, escalation)

    def chunk_acked(self, row: EscalationRow, media: MediaRow, chunks_acked: int, bytes_sent: int) -> None:
        """The broker has stored `chunks_acked` chunks of a file now. Raises StoreError.

        Not flushed to the disk: that is done with the question's own `sent`, and after a power cut in between the
        pictures go, and are noted, again.
        """
        complete = chunks_acked >= media.ref.chunks
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                "UPDATE media SET chunks_acked = ? WHERE escalation = ? AND n = ?", (chunks_acked, row.id, media.n)
            )
            count_bytes(connection, row, bytes_sent)
            if complete:
                self._departures.left(connection, row, media.ref.kind, media.ref.bytes, media.ref.sha256, "")

    def media_lost(self, row: EscalationRow, media: MediaRow, reason: str) -> None:
        """A file cannot be read any more: the question goes without it, and says so. Raises StoreError."""
        with self._db.transaction() as connection:
            self._departures.half_left(connection, row, media, "given up")
            connection.execute("DELETE FROM media WHERE escalation = ? AND n = ?", (row.id, media.n))
            body = self._body(connection, row.id)
            rest = tuple(ref for ref in body.media if ref.id != media.ref.id)
            connection.execute(
                "UPDATE escalation SET body = ?, error = ? WHERE id = ?",
                (body.model_copy(update={"media": rest}).to_json().decode(), reason, row.id),
            )

    def withhold(self, row: EscalationRow) -> None:
        """This camera sends no pictures (any more): the question goes, or stands, without those it was given.

        Raises StoreError.
        """
        with self._db.transaction() as connection:
            for media in self.media_of(row.id):
                self._departures.half_left(connection, row, media, "withheld")
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            body = self._body(connection, row.id).model_copy(update={"media": (), "can": (), "image_free": True})
            connection.execute("UPDATE escalation SET body = ? WHERE id = ?", (body.to_json().decode(), row.id))

    def sent(self, row: EscalationRow, t: float, bytes_sent: int) -> None:
        """The broker has stored the question. Raises StoreError."""
        with self._db.transaction() as connection:
            changed = connection.execute(
                """UPDATE escalation SET state = 'sent', sent_t = ?, attempts = attempts + 1, error = ''
                   WHERE id = ? AND step = ? AND state IN ('ready', 'sent')""",
                (t, row.id, row.step),
            )
            count_bytes(connection, row, bytes_sent)
            facts = row.body.to_json()
            again = "sent again, as no verdict came; " if row.state == "sent" else ""
            self._departures.left(connection, row, "facts", len(facts), hashlib.sha256(facts).hexdigest(), again)
            if changed.rowcount and row.state != "sent":
                touch(self._db, connection, row.alert)

    def reopen(self, row: EscalationRow, lost: Sequence[MediaRow]) -> None:
        """A sent question whose pictures `lost` the broker no longer has: send them and it again. Raises StoreError."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE escalation SET state = 'ready' WHERE id = ? AND step = ? AND state = 'sent'", (row.id, row.step)
            )
            for media in lost:
                connection.execute(
                    "UPDATE media SET chunks_acked = 0 WHERE escalation = ? AND n = ?", (row.id, media.n)
                )

    def failed(self, row: EscalationRow, error: str, bytes_sent: int = 0) -> None:
        """An attempt failed; `bytes_sent` may have left all the same. Raises StoreError."""
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                """UPDATE escalation SET attempts = attempts + 1, error = iif(state IN ('ready', 'sent'), ?, error)
                   WHERE id = ? AND step = ?""",
                (error, row.id, row.step),
            )
            count_bytes(connection, row, bytes_sent)

    def clock_stepped(self, step_s: float) -> None:
        """Move the open questions with the wall clock: they are no older than before it was set. Raises StoreError.

        What has the time of this moment was made, or sent, by the clock as it is now, and stays.
        """
        now = self._db.clock.now()
        with self._db.transaction(durable=bool(step_s)) as connection:
            connection.execute(
                """UPDATE escalation SET
                       created_t = iif(created_t > :before OR created_t BETWEEN :since AND :now,
                                       created_t, created_t + :step),
                       sent_t = iif(sent_t > :before OR sent_t BETWEEN :since AND :now, sent_t, sent_t + :step)
                   WHERE :step <> 0 AND state IN ('waiting', 'ready', 'sent')""",
                {"step": step_s, "before": now - step_s, "since": now - _SEEN_WITHIN_S, "now": now},
            )
            self._clock_mark.set()

    def clock_missed_s(self) -> float:
        """Seconds by which the clock was stepped while nobody looked, before this start. Raises StoreError."""
        return self._clock_mark.missed_s()

    def probe(self) -> None:
        """Whether what is sent now could be noted. Raises StoreUnavailable while it could not."""
        self._db.probe()

    def expire(self, t: float) -> int:
        """Give up, visibly, what could not be sent or was not answered in time; return how many. Raises StoreError."""
        count = 0
        for priority, age_s in self._expire_s.items():
            while rows := self._too_old(priority, t - age_s):
                for row in rows:
                    self._endings.expire(row, age_s)
                count += len(rows)
        return count

    def _too_old(self, priority: str, before: float) -> list[EscalationRow]:
        with self._db.read() as connection:
            found = connection.execute(
                """SELECT * FROM escalation
                   WHERE state IN ('waiting', 'ready', 'sent') AND priority = ? AND created_t < ? LIMIT ?""",
                (priority, before, _BATCH),
            )
            return [read_escalation(row) for row in found]

    def unanswered_s(self, t: float) -> float | None:
        """For how long the question that was sent first waits for its answer; None: none does. Raises StoreError."""
        with self._db.read() as connection:
            row = connection.execute(
                """SELECT min(sent_t) AS t FROM escalation
                   WHERE state IN ('waiting', 'ready', 'sent') AND state = 'sent'"""
            ).fetchone()
        return None if row["t"] is None else max(0.0, t - row["t"])

    def held(self) -> int:
        """Bytes that wait to be sent: the questions that are not sent, and their files. Raises StoreError."""
        with self._db.read() as connection:
            row = connection.execute(
                f"""SELECT coalesce(sum(length(body)), 0) + coalesce(sum({_FILES}), 0) AS bytes
                    FROM escalation WHERE state IN ('waiting', 'deferred', 'ready')"""
            ).fetchone()
        held: int = row["bytes"]
        return held

    def least(self, limit: int) -> list[tuple[EscalationRow, int]]:
        """What is given up first when there is no room, with its bytes: the least urgent, and of these the oldest."""
        with self._db.read() as connection:
            found = connection.execute(
                f"""SELECT id, length(body) + coalesce({_FILES}, 0) AS bytes FROM escalation
                    WHERE state IN ('deferred', 'ready')
                    ORDER BY CASE priority WHEN 'low' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END, created_t, id LIMIT ?""",
                (limit,),
            ).fetchall()
            return [
                (read_escalation(connection.execute("SELECT * FROM escalation WHERE id = ?", (each["id"],)).fetchone()),
                 each["bytes"])
                for each in found
            ]  # fmt: skip

    def drop(self, row: EscalationRow, why: str) -> list[str]:
        """Give a question up, visibly, and forget its pictures; returns the paths of the files that only it needed.

        What the cloud said of an earlier step stands. Raises StoreError.
        """
        return self._endings.drop(row, why)

    def counts(self) -> OutboxCounts:
        """Numbers for the dashboard and /metrics."""
        with self._db.read() as connection:
            rows = connection.execute("SELECT state, count(*) AS n FROM escalation GROUP BY state")
            states = {row["state"]: row["n"] for row in rows}
            oldest = connection.execute(
                "SELECT min(created_t) FROM escalation WHERE state IN ('waiting', 'ready')"
            ).fetchone()[0]
        return OutboxCounts(**states, oldest_t=oldest)

    def _body(self, connection: sqlite3.Connection, escalation: str) -> wire.Escalation:
        row = connection.execute("SELECT body FROM escalation WHERE id = ?", (escalation,)).fetchone()
        body: wire.Escalation = wire.Escalation.from_json(row["body"].encode())
        return body
