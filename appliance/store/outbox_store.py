"""Stores the outbox: which escalation is sent next, how much of each is sent, and which are dropped."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.store.database import Database, bump_rev
from appliance.store.escalations import (
    BY_PRIORITY,
    INDEXED,
    UNSETTLED,
    EscalationStore,
    escalation_rows,
    in_states,
    stored_body,
)
from appliance.store.rows import (
    Delivery,
    EscalationRow,
    MediaRow,
    read_escalation,
)

_MEDIA_BYTES = "(SELECT sum(json_extract(ref, '$.bytes')) FROM media WHERE media.escalation = escalation.id)"
RESEND_FIRST_S = 900.0  # longer than a busy worker takes; a verdict that is only late is not worth the bytes
RESEND_LAST_S = 6 * 3600.0  # an escalation that the broker refused for hours is tried some times a day
_ROWID_MAX = 2**63 - 1  # SQLite's largest rowid
CLOCK_STEP_SEEN_S = 30.0  # what was written this short a time ago was written by the clock as it is now
STEP_S_MIN = 60.0  # two clocks of one machine drift apart by less than this between two starts
_REGION = "uplink_region"
_REGION_BYTES = 7  # of a digest: a whole number that SQLite stores
_BOOT, _APART = "clock_boot", "clock_apart_ms"
PUBLISHED: tuple[Delivery, ...] = ("ready", "sent")  # a publisher may be at work on it
DROPPABLE: tuple[Delivery, ...] = ("deferred", "ready")  # with their evidence made, and not sent
UNSENT: tuple[Delivery, ...] = ("waiting", "deferred", "ready")


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """An escalation that is ready, as the order of sending sees it. attempts: of its present step, without success."""

    id: str
    created_t: float
    attempts: int


class OutboxQueue:
    """The escalations as the uplink reads them: which is next, due again, too old, or the first to give up.

    Any thread may read. Every method raises StoreError.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def queue_heads(
        self, priority: str, *, after_t: float = -1e18, until_t: float = 1e18, untried: bool = False, limit: int
    ) -> list[QueueEntry]:
        """Return the oldest escalations that are ready and were made in after_t < t <= until_t.

        untried: only those that never failed. The query uses the index on state, priority and age: it costs the same
        with ten escalations and with a hundred thousand.
        """
        rows = self._db.rows(
            f"""SELECT id, created_t, attempts FROM escalation
                WHERE {INDEXED} AND state = 'ready' AND priority = ? AND created_t > ? AND created_t <= ?
                {"AND attempts = 0" if untried else ""} ORDER BY created_t LIMIT ?""",
            (priority, after_t, until_t, limit),
        )
        return [QueueEntry(row["id"], row["created_t"], row["attempts"]) for row in rows]

    def ready(self, escalation: str) -> EscalationRow | None:
        """Return the escalation if it still is to be sent."""
        return next(iter(escalation_rows(self._db, "WHERE id = ? AND state = 'ready'", (escalation,))), None)

    def is_open(self, escalation: str) -> bool:
        """Return False if the escalation is settled or expired."""
        rows = self._db.rows("SELECT state FROM escalation WHERE id = ?", (escalation,))
        return not any(row["state"] in ("settled", "expired") for row in rows)

    def next_resend(self, t: float, limit: int) -> list[EscalationRow]:
        """Return the escalations that were sent long ago and have no verdict.

        They are due after RESEND_FIRST_S, then after twice as long each time, up to RESEND_LAST_S.
        """
        return escalation_rows(
            self._db,
            """WHERE state = 'sent' AND sent_t <= ?
               AND sent_t + min(? * (1 << min(max(attempts, 1) - 1, 8)), ?) <= ? ORDER BY sent_t, id LIMIT ?""",
            (t - RESEND_FIRST_S, RESEND_FIRST_S, RESEND_LAST_S, t, limit),
        )

    def made_before(self, priority: str, before_t: float, limit: int) -> list[EscalationRow]:
        """Those of a priority that are under way and older than `before_t`.

        A row that was written after a younger one is no older than that one, whatever the clock said: the clock may
        have been set back and forth again between two looks at it, so that nobody saw a step.
        """
        old = f"{INDEXED} AND priority = ? AND created_t < ?"
        if not escalation_rows(self._db, f"WHERE {old} LIMIT 1", (priority, before_t)):
            return []  # what comes next reads the whole table
        (first_young,) = self._db.row(
            "SELECT min(rowid) FROM escalation WHERE created_t BETWEEN ? AND ?", (before_t, self._db.clock.now())
        )
        until = first_young if first_young is not None else _ROWID_MAX
        return escalation_rows(self._db, f"WHERE {old} AND rowid < ? LIMIT ?", (priority, before_t, until, limit))

    def least_urgent(self, limit: int) -> list[tuple[EscalationRow, int]]:
        """Return the escalations to give up first when there is no room, each with its bytes.

        The least urgent come first, and of these the oldest.
        """
        rows = self._db.rows(
            f"""SELECT escalation.*, length(body) + coalesce({_MEDIA_BYTES}, 0) AS held_bytes FROM escalation
                WHERE {in_states(DROPPABLE)} ORDER BY {BY_PRIORITY} DESC, created_t, id LIMIT ?""",
            (limit,),
        )
        return [
            (read_escalation({name: row[name] for name in row.keys() if name != "held_bytes"}), row["held_bytes"])  # noqa: SIM118
            for row in rows
        ]

    def most_urgent(self, states: Sequence[Delivery], without: Sequence[str]) -> EscalationRow | None:
        """Return the most urgent escalation in one of `states`, of these the oldest; without: `id:step` of others."""
        found = escalation_rows(
            self._db,
            f"""WHERE {in_states(states)} AND id || ':' || step NOT IN (SELECT value FROM json_each(?))
                ORDER BY {BY_PRIORITY}, created_t, id LIMIT 1""",
            (json.dumps(without),),
        )
        return found[0] if found else None

    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent: the bodies of what is not sent, and their files."""
        found: int = self._db.row(
            f"""SELECT coalesce(sum(length(body)), 0) + coalesce(sum({_MEDIA_BYTES}), 0) FROM escalation
                WHERE {in_states(UNSENT)}"""
        )[0]
        return found

    def unanswered_s(self, t: float) -> float | None:
        """For how long the escalation that was sent first waits for its verdict; None: none does."""
        first_t = self._db.row(f"SELECT min(sent_t) FROM escalation WHERE {INDEXED} AND state = 'sent'")[0]
        return None if first_t is None else max(0.0, t - first_t)


class OutboxStore:
    """The same rows as the uplink writes them: how far each escalation got, and how it ends without a verdict.

    Owner: the uplink writes. Invariants: as of EscalationStore. Every method raises StoreError.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._escalations = EscalationStore(db)

    def mark_sent(self, row: EscalationRow, t: float) -> bool:
        """Record that the broker stored the step that `row` was read at.

        Return False when that is no news: it was recorded before, or the escalation is no longer at this step.
        """
        with self._db.transaction() as connection:
            changed = connection.execute(  # failures before the first success do not put off the first resend
                f"""UPDATE escalation SET state = 'sent', sent_t = ?, error = '',
                    attempts = iif(sent_t IS NULL, 1, attempts + 1)
                    WHERE id = ? AND step = ? AND {in_states(PUBLISHED)}""",
                (t, row.id, row.step),
            )
            news = changed.rowcount > 0 and row.state != "sent"
            if news:
                bump_rev(self._db, connection, row.alert)
                self._db.latencies.end("broker", row.id)
                self._db.latencies.begin("verdict", row.id)
            return news

    def mark_failed(self, row: EscalationRow, error: str) -> None:
        """Record that an attempt to send failed."""
        self._db.execute(
            f"""UPDATE escalation SET attempts = attempts + 1, error = iif({in_states(PUBLISHED)}, ?, error)
                WHERE id = ? AND step = ?""",
            (error, row.id, row.step),
            durable=False,
        )

    def add_bytes(self, row: EscalationRow, bytes_sent: int) -> None:
        """Bytes that left the site for the step that `row` was read at."""
        with self._db.transaction(durable=False) as connection:
            connection.execute("UPDATE escalation SET bytes_sent = bytes_sent + ? WHERE id = ?", (bytes_sent, row.id))
            connection.execute(
                """INSERT INTO step (escalation, n, bytes_sent) VALUES (?, ?, ?)
                   ON CONFLICT DO UPDATE SET bytes_sent = bytes_sent + excluded.bytes_sent""",
                (row.id, row.step, bytes_sent),
            )

    def set_chunks_acked(self, media: MediaRow, chunks_acked: int) -> None:
        """Record how many chunks of a file the broker has stored."""
        self._db.execute(
            "UPDATE media SET chunks_acked = ? WHERE escalation = ? AND n = ?",
            (chunks_acked, media.escalation, media.n),
            durable=False,
        )

    def reopen(self, row: EscalationRow, lost: Sequence[MediaRow]) -> None:
        """Send a sent escalation again, after the media in `lost`, which the broker no longer has."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE escalation SET state = 'ready' WHERE id = ? AND step = ? AND state = 'sent'", (row.id, row.step)
            )
            for media in lost:
                self.set_chunks_acked(media, 0)

    def move_to_region(self, region: str) -> int:
        """Note where the link is; when that is news, what was sent is to be sent again. Return how many that are."""
        number = int.from_bytes(hashlib.sha256(region.encode()).digest()[:_REGION_BYTES], "big")
        with self._db.transaction() as connection:
            row = connection.execute("SELECT value FROM counter WHERE name = ?", (_REGION,)).fetchone()
            if row is not None and row["value"] == number:
                return 0
            connection.execute(
                "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (_REGION, number)
            )
            if row is None:
                return 0
            return connection.execute("UPDATE escalation SET state = 'ready' WHERE state = 'sent'").rowcount

    def drop_medium(self, row: EscalationRow, media: MediaRow, error: str) -> None:
        """Send the escalation without a file that cannot be read any more; `error` says why."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM media WHERE escalation = ? AND n = ?", (row.id, media.n))
            body = stored_body(connection, row.id)
            rest = tuple(ref for ref in body.media if ref.id != media.ref.id)
            body = body.model_copy(update={"media": rest})
            connection.execute(
                "UPDATE escalation SET body = ?, error = ? WHERE id = ?", (body.to_json().decode(), error, row.id)
            )

    def drop_all_media(self, row: EscalationRow) -> None:
        """Take all images from an escalation: this camera sends none (any more)."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            body = stored_body(connection, row.id).model_copy(update={"media": (), "can": (), "image_free": True})
            connection.execute("UPDATE escalation SET body = ? WHERE id = ?", (body.to_json().decode(), row.id))

    def shift_clock(self, step_s: float) -> None:
        """Move what is under way with the wall clock, which was stepped: it is no older than before.

        Rows with the time of this moment were made, or sent, by the clock as it is now, and stay.
        """
        now = self._db.clock.now()
        self._db.execute(
            f"""UPDATE escalation SET
                    created_t = iif(created_t > :before OR created_t BETWEEN :since AND :now,
                                    created_t, created_t + :step),
                    sent_t = iif(sent_t > :before OR sent_t BETWEEN :since AND :now, sent_t, sent_t + :step)
                WHERE {in_states(UNSETTLED)}""",
            {"step": step_s, "before": now - step_s, "since": now - CLOCK_STEP_SEEN_S, "now": now},
        )

    # How it ends without a verdict

    def expire(self, row: EscalationRow, error: str) -> bool:
        """Give it up, visibly; False when its state is another by now."""
        with self._db.transaction() as connection:
            changed = connection.execute(
                "UPDATE escalation SET state = 'expired', error = ? WHERE id = ? AND state = ?",
                (error, row.id, row.state),
            )
            if changed.rowcount:
                bump_rev(self._db, connection, row.alert)
            return changed.rowcount > 0

    def drop(self, row: EscalationRow, why: str) -> list[str] | None:
        """Give it up for want of room, visibly, and forget its media: their evidence is missing from now on.

        Returns the paths of the files that only it needed. A verdict on an earlier step stands. None: a verdict has
        ended it since `row` was read, and nothing is changed.
        """
        with self._db.transaction() as connection:
            if not (row.step > 0 and self._escalations.close_unsure(row, why)):
                ended = connection.execute(
                    f"""UPDATE escalation SET state = 'expired', wait = '', error = ?
                        WHERE id = ? AND {in_states(UNSETTLED)}""",
                    (f"given up: {why}", row.id),
                )
                if not ended.rowcount:
                    return None
            paths = [
                each["path"]
                for each in connection.execute("SELECT path FROM media WHERE escalation = ? ORDER BY n", (row.id,))
            ]
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            own = [path for path in paths if not _is_shared(connection, row.alert, path)]
            connection.executemany(
                "UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ? WHERE alert = ? AND path = ?",
                [(why, row.alert, path) for path in own],
            )
            bump_rev(self._db, connection, row.alert)
        return own


def _is_shared(connection: sqlite3.Connection, alert: str, path: str) -> bool:
    """Return True if another escalation or the alert's own page shows this file."""
    row = connection.execute(
        """SELECT EXISTS (SELECT 1 FROM media WHERE path = ?1) OR EXISTS (
               SELECT 1 FROM evidence WHERE alert = ?2 AND path = ?1
               AND (kind IN ('still', 'boxes') OR kind = 'clip' AND n = 0)) AS shown""",
        (path, alert),
    ).fetchone()
    return bool(row["shown"])


class ClockOffset:
    """Notices that the wall clock was set while no core ran.

    After such a step everything that waits would seem older or younger than it is. Both clocks go on over a restart of
    the core, so the step shows as long as the machine was not rebooted.

    State: two numbers in the database: the boot that they belong to, and how far the clocks were apart.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._boot = int(db.clock.boot_id.replace("-", "")[:15] or "0", 16)

    def stepped_s(self) -> float:
        """Seconds by which the wall clock was stepped since the last `save`; 0.0: it was not, or that is not known."""
        if not self._boot:
            return 0.0
        rows = self._db.rows("SELECT name, value FROM counter WHERE name IN (?, ?)", (_BOOT, _APART))
        found = {row["name"]: row["value"] for row in rows}
        if found.get(_BOOT) != self._boot or _APART not in found:
            return 0.0
        step_s = self._apart_s() - found[_APART] / 1000
        return step_s if abs(step_s) > STEP_S_MIN else 0.0

    def save(self) -> None:
        """Remember how far the clocks are apart now. Raises StoreError."""
        if not self._boot:
            return
        with self._db.transaction(durable=False) as connection:
            connection.executemany(
                "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                ((_BOOT, self._boot), (_APART, round(self._apart_s() * 1000))),
            )

    def _apart_s(self) -> float:
        return self._db.clock.now() - self._db.clock.monotonic()
