"""The outbox: which escalations are still to be sent, how far each got, what left the site, and the quota of the
disk.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import wire
from appliance.errors import StoreError
from appliance.store.alert_writes import bump_rev
from appliance.store.audit import AuditKind, AuditRow, AuditStore
from appliance.store.clock_offset import ClockOffset
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.rows import EscalationRow, MediaRow, read_escalation, read_media
from appliance.uplink.send_queue import SendQueue

logger = logging.getLogger(__name__)

_WHY_CHARS_MAX = 300


class EgressAudit:
    """Writes the audit. Owner: the outbox."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._audit = AuditStore(db)

    def record_sent(
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

    def record_partly_sent(
        self, connection: sqlite3.Connection, row: EscalationRow, media: MediaRow, note: str
    ) -> None:
        """A picture of which some chunks left has left in part, and the audit says so."""
        if 0 < media.chunks_acked < media.ref.chunks:
            size = min(media.chunks_acked * wire.CHUNK_BYTES, media.ref.bytes)
            self.record_sent(connection, row, media.ref.kind, size, media.ref.sha256, f"in part, then {note}; ")


def count_bytes(connection: sqlite3.Connection, row: EscalationRow, bytes_sent: int) -> None:
    """Bytes that left for the step that `row` was read at."""
    connection.execute("UPDATE escalation SET bytes_sent = bytes_sent + ? WHERE id = ?", (bytes_sent, row.id))
    connection.execute(
        """INSERT INTO step (escalation, n, bytes_sent) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET bytes_sent = bytes_sent + excluded.bytes_sent""",
        (row.id, row.step, bytes_sent),
    )


class EscalationClosures:
    """Owner: the outbox. Each ending is one transaction; what the cloud said of an earlier step stands."""

    def __init__(self, db: Database, departures: EgressAudit) -> None:
        self._db = db
        self._departures = departures

    def drop(self, row: EscalationRow, why: str) -> list[str]:
        """Give a question up, visibly, and forget its pictures; returns the paths of the files that only it needed.

        What the cloud said of an earlier step stands. Raises StoreError.
        """
        with self._db.transaction() as connection:
            ended = row.step > 0 and EscalationStore(self._db).close_unsure(row, why)
            if not ended:
                connection.execute(
                    "UPDATE escalation SET state = 'expired', wait = '', error = ? WHERE id = ?",
                    (f"given up: {why}", row.id),
                )
            media = read_media_of(connection, row.id)
            for each in media:
                self._departures.record_partly_sent(connection, row, each, "given up")
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            own = [each.path for each in media if _is_unshared(connection, row.alert, each.path)]
            connection.executemany(
                "UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ? WHERE alert = ? AND path = ?",
                [(why, row.alert, path) for path in own],
            )
            bump_rev(self._db, connection, row.alert)
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
                    self._departures.record_partly_sent(connection, row, media, "given up")
                bump_rev(self._db, connection, row.alert)

    def _end_with_what_was_said(self, row: EscalationRow, age_s: float) -> bool:
        """The cloud saw the first evidence and was unsure; that stands when what it asked for could not be sent."""
        hours = age_s / 3600
        why = f"no answer to that came within {hours:g} h"
        if row.state != "sent":
            why = f"that could not be sent within {hours:g} h ({row.error or 'no connection'})"
        with self._db.transaction() as connection:
            ended = EscalationStore(self._db).close_unsure(row, why)
            for media in read_media_of(connection, row.id) if ended else ():
                self._departures.record_partly_sent(connection, row, media, "given up")
        return ended


def read_media_of(connection: sqlite3.Connection, escalation: str) -> list[MediaRow]:
    """What an escalation carries, in order."""
    rows = connection.execute("SELECT * FROM media WHERE escalation = ? ORDER BY n", (escalation,))
    return [read_media(row) for row in rows]


def _is_unshared(connection: sqlite3.Connection, alert: str, path: str) -> bool:
    """Whether neither another question nor the alert's own page shows this file."""
    row = connection.execute(
        """SELECT EXISTS (SELECT 1 FROM media WHERE path = ?1) OR EXISTS (
               SELECT 1 FROM evidence WHERE alert = ?2 AND path = ?1
               AND (kind IN ('still', 'boxes') OR kind = 'clip' AND n = 0)) AS shown""",
        (path, alert),
    ).fetchone()
    return not row["shown"]


RESEND_FIRST_S = 900.0
RESEND_LAST_S = 6 * 3600.0
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
        self._departures = EgressAudit(db)
        self._endings = EscalationClosures(db, self._departures)
        self._clock_mark = ClockOffset(db)

    def next_ready(self, limit: int) -> list[EscalationRow]:
        """What is to be sent, in the order of its going (see turns.py), for who wants to know. Raises StoreError."""
        turns, found = SendQueue(self.db), dict[str, EscalationRow]()
        while len(found) < limit and (turn := turns.pick(self.db.clock.now(), busy=found)):
            found[turn.row.id] = turn.row
        return list(found.values())

    def next_resend(self, t: float, limit: int) -> list[EscalationRow]:
        """What was sent long ago and has no verdict: 15 minutes, then twice as long each time, up to 6 hours."""
        with self._db.read() as connection:
            rows = connection.execute(
                """SELECT * FROM escalation WHERE state = 'sent' AND sent_t <= ?
                   AND sent_t + min(? * (1 << min(max(attempts, 1) - 1, 8)), ?) <= ? ORDER BY sent_t, id LIMIT ?""",
                (t - RESEND_FIRST_S, RESEND_FIRST_S, RESEND_LAST_S, t, limit),
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
                self._departures.record_sent(connection, row, media.ref.kind, media.ref.bytes, media.ref.sha256, "")

    def media_lost(self, row: EscalationRow, media: MediaRow, reason: str) -> None:
        """A file cannot be read any more: the question goes without it, and says so. Raises StoreError."""
        with self._db.transaction() as connection:
            self._departures.record_partly_sent(connection, row, media, "given up")
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
                self._departures.record_partly_sent(connection, row, media, "withheld")
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
            self._departures.record_sent(connection, row, "facts", len(facts), hashlib.sha256(facts).hexdigest(), again)
            if changed.rowcount and row.state != "sent":
                bump_rev(self._db, connection, row.alert)

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
            self._clock_mark.save()

    def clock_missed_s(self) -> float:
        """Seconds by which the clock was stepped while nobody looked, before this start. Raises StoreError."""
        return self._clock_mark.stepped_s()

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

    def held_bytes(self) -> int:
        """Bytes that wait to be sent: the questions that are not sent, and their files. Raises StoreError."""
        with self._db.read() as connection:
            row = connection.execute(
                f"""SELECT coalesce(sum(length(body)), 0) + coalesce(sum({_FILES}), 0) AS bytes
                    FROM escalation WHERE state IN ('waiting', 'deferred', 'ready')"""
            ).fetchone()
        held: int = row["bytes"]
        return held

    def least_urgent(self, limit: int) -> list[tuple[EscalationRow, int]]:
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


DROPS_PER_RUN = 200

Count = Callable[[str, str, int], None]


class OutboxQuota:
    """Gives up the oldest of the least urgent questions while all that wait take too much disk.

    Before anything urgent everything less urgent goes. A question takes its facts and its pictures; the alert itself,
    its still and its clip stay (retention sees to those). Owner: the uplink's task. `dropped` counts since the start.
    """

    def __init__(self, outbox: Outbox, root: Path, mb_max: float, count: Count) -> None:
        """count: the meter's `add`, told of each question (`outbox_dropped`) and its bytes (`outbox_dropped_bytes`)."""
        self._outbox = outbox
        self._root = root
        self._bytes_max = int(mb_max * 1e6)
        self._mb_max = mb_max
        self._count = count
        self.dropped = 0

    def run_once(self) -> int:
        """Make room, at most DROPS_A_RUN questions at a time; returns how many went. Raises StoreError."""
        over = self._outbox.held_bytes() - self._bytes_max
        count = 0
        if over <= 0:
            return 0
        why = f"the outbox is over {self._mb_max:g} MB (uplink.outbox_mb_max), and this was the least urgent"
        for row, size in self._outbox.least_urgent(DROPS_PER_RUN):
            if over <= 0:
                break
            self._delete(self._outbox.drop(row, why))
            self._count(row.camera, "outbox_dropped", 1)
            self._count(row.camera, "outbox_dropped_bytes", size)
            over -= size
            count += 1
        self.dropped += count
        logger.warning("%d questions were given up: %s", count, why)
        return count

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            try:
                (self._root / path).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path} cannot be deleted: {error.strerror}") from None
