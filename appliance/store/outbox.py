"""The outbox: how far each escalation got, how it ends without a verdict, and the audit of what was sent."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from appliance import wire
from appliance.store.audit import AuditKind, AuditRow, AuditStore
from appliance.store.database import Database, bump_rev
from appliance.store.escalations import (
    UNSETTLED,
    Delivery,
    EscalationRow,
    EscalationStore,
    MediaRow,
    VerdictEffect,
    in_states,
    stored_body,
)
from appliance.store.outbox_queue import OutboxQueue

CLOCK_STEP_SEEN_S = 30.0  # what was written this short a time ago was written by the clock as it is now
STEP_S_MIN = 60.0  # two clocks of one machine drift apart by less than this between two starts
_EXPIRE_BATCH = 500  # rows of one transaction
_WHY_CHARS_MAX = 300  # of a reason in a row
_REGION = "uplink_region"
_REGION_BYTES = 7  # of a digest: a whole number that SQLite stores
_BOOT, _APART = "clock_boot", "clock_apart_ms"
_PUBLISHED: tuple[Delivery, ...] = ("ready", "sent")  # a publisher may be at work on it
_SET_COUNTER = "INSERT INTO counter VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value"
_SET_CHUNKS = "UPDATE media SET chunks_acked = ? WHERE escalation = ? AND n = ?"

Result = TypeVar("Result")


class Outbox:
    """The escalations from `ready` on, and their media.

    Owner: the uplink; any thread may read. Invariants: as of EscalationStore; every change of state is one transaction,
    which also writes the audit row of data that left the site. Bytes are payload and headers, retries included. Every
    method raises StoreError.
    """

    def __init__(self, db: Database, expire_s: float, ttl_s: Mapping[str, float] | None = None) -> None:
        """expire_s: the age at which an escalation is given up; ttl_s: the same for some priorities."""
        self._db = db
        self.probe = db.probe
        """Checks that a send could be recorded now. Raises StoreUnavailable while it could not."""
        self.queue = OutboxQueue(db)
        """Its rows in the order in which they go, expire or are given up."""
        self.commits = CommitBatcher(db)
        """Makes changes of it for the uplink's event loop."""
        self.clock_offset = ClockOffset(db)
        self._escalations = EscalationStore(db)
        self._audit = _SentAudit(db)
        self._expire_s = dict.fromkeys(wire.PRIORITIES, expire_s) | dict(ttl_s or {})

    def media_of(self, escalation: str) -> list[MediaRow]:
        """Return the files that an escalation carries, in order."""
        return self._escalations.media(escalation)

    # How far it got

    def chunk_acked(self, row: EscalationRow, media: MediaRow, chunks_acked: int, bytes_sent: int) -> None:
        """Record that the broker has stored `chunks_acked` chunks of a file.

        This is not flushed to the disk; the escalation's own `sent` is. After a power cut in between the file is sent
        and audited again.
        """
        with self._db.transaction(durable=False) as connection:
            connection.execute(_SET_CHUNKS, (chunks_acked, media.escalation, media.n))
            _add_bytes(connection, row, bytes_sent)
            if chunks_acked >= media.ref.chunks:
                self._audit.record(connection, row, media.ref.kind, media.ref.bytes, media.ref.sha256)

    def sent(self, row: EscalationRow, t: float, bytes_sent: int) -> None:
        """Record that the broker has stored the step that `row` was read at.

        That is no news when it was recorded before, or when the escalation is no longer at this step.
        """
        facts = row.body.to_json()
        note = "sent again, as no verdict came; " if row.state == "sent" else ""
        with self._db.transaction() as connection:
            changed = connection.execute(  # failures before the first success do not put off the first resend
                f"""UPDATE escalation SET state = 'sent', sent_t = ?, error = '',
                    attempts = iif(sent_t IS NULL, 1, attempts + 1)
                    WHERE id = ? AND step = ? AND {in_states(_PUBLISHED)}""",
                (t, row.id, row.step),
            )
            if changed.rowcount > 0 and row.state != "sent":
                bump_rev(self._db, connection, row.alert)
                self._db.latencies.end("broker", row.id)
                self._db.latencies.begin("verdict", row.id)
            _add_bytes(connection, row, bytes_sent)
            self._audit.record(connection, row, "facts", len(facts), hashlib.sha256(facts).hexdigest(), note)

    def failed(self, row: EscalationRow, error: str, bytes_sent: int = 0) -> None:
        """Record a failed attempt; `bytes_sent` may have left all the same."""
        with self._db.transaction(durable=False) as connection:
            connection.execute(
                f"""UPDATE escalation SET attempts = attempts + 1, error = iif({in_states(_PUBLISHED)}, ?, error)
                    WHERE id = ? AND step = ?""",
                (error, row.id, row.step),
            )
            _add_bytes(connection, row, bytes_sent)

    def reopen(self, row: EscalationRow, lost: Sequence[MediaRow]) -> None:
        """Send a sent escalation again, after the media in `lost`, which the broker no longer has."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE escalation SET state = 'ready' WHERE id = ? AND step = ? AND state = 'sent'", (row.id, row.step)
            )
            connection.executemany(_SET_CHUNKS, [(0, media.escalation, media.n) for media in lost])

    def region_changed(self, region: str) -> int:
        """Note where the link is; when that is news, what was sent is to be sent again. Return how many that are.

        OutboxCheck sends the media that this region's broker lacks. The same transaction records the region, so a
        restart knows where everything was sent.
        """
        number = int.from_bytes(hashlib.sha256(region.encode()).digest()[:_REGION_BYTES], "big")
        with self._db.transaction() as connection:
            row = connection.execute("SELECT value FROM counter WHERE name = ?", (_REGION,)).fetchone()
            if row is not None and row["value"] == number:
                return 0
            connection.execute(_SET_COUNTER, (_REGION, number))
            if row is None:
                return 0
            return connection.execute("UPDATE escalation SET state = 'ready' WHERE state = 'sent'").rowcount

    def media_lost(self, row: EscalationRow, media: MediaRow, reason: str) -> None:
        """Send the escalation without a file that cannot be read any more, with the reason."""
        with self._db.transaction() as connection:
            self._audit.record_parts(connection, row, [media], "given up")
            connection.execute("DELETE FROM media WHERE escalation = ? AND n = ?", (row.id, media.n))
            body = stored_body(connection, row.id)
            body = body.model_copy(update={"media": tuple(ref for ref in body.media if ref.id != media.ref.id)})
            connection.execute(
                "UPDATE escalation SET body = ?, error = ? WHERE id = ?", (body.to_json().decode(), reason, row.id)
            )

    def withhold(self, row: EscalationRow) -> None:
        """Take all images from an escalation: this camera sends none (any more)."""
        with self._db.transaction() as connection:
            self._audit.record_parts(connection, row, self.media_of(row.id), "withheld")
            connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
            body = stored_body(connection, row.id).model_copy(update={"media": (), "can": (), "image_free": True})
            connection.execute("UPDATE escalation SET body = ? WHERE id = ?", (body.to_json().decode(), row.id))

    def answered_here(self, row: EscalationRow, take: Callable[[], VerdictEffect]) -> VerdictEffect:
        """Apply a verdict of the appliance's own, and audit the files of which only a part has left."""
        with self._db.transaction() as connection:
            effect = take()
            if effect == "settled":
                self._audit.record_parts(connection, row, self.media_of(row.id), "judged on the appliance")
            return effect

    # How it ends without a verdict

    def expire(self, t: float) -> Counter[str]:
        """Give up escalations that were not sent or not answered in time, and show it; return how many by camera."""
        count = Counter[str]()
        for priority, age_s in self._expire_s.items():
            while rows := self.queue.made_before(priority, t - age_s, _EXPIRE_BATCH):
                with self._db.transaction() as connection:  # one flush: a backlog of days is thousands
                    count.update(row.camera for row in rows if self._expire(connection, row, age_s))
        return count

    def give_up(self, row: EscalationRow, why: str) -> None:
        """Give up an escalation that nobody can answer, and show it; its media are kept.

        If it waits for a further step, the verdict on the earlier step stands.
        """
        with self._db.transaction() as connection:
            if not (row.step and self._escalations.close_unsure(row, why)):
                _end(self._db, connection, row, f"given up: {why}")

    def drop(self, rows: Sequence[EscalationRow], why: str) -> list[list[str] | None]:
        """Give up escalations, show them, and forget their media; return of each the paths of files that it alone used.

        Their evidence is missing from now on. The cloud's answer to an earlier step is kept. None: it was answered
        meanwhile, and nothing is changed. All are dropped in one transaction: one flush of the disk instead of as many.
        """
        found: list[list[str] | None] = []
        with self._db.transaction() as connection:
            for row in rows:
                carried = self.media_of(row.id)
                if not (row.step > 0 and self._escalations.close_unsure(row, why)):
                    ended = connection.execute(
                        f"""UPDATE escalation SET state = 'expired', wait = '', error = ?
                            WHERE id = ? AND {in_states(UNSETTLED)}""",
                        (f"given up: {why}", row.id),
                    )
                    if not ended.rowcount:
                        found.append(None)
                        continue
                connection.execute("DELETE FROM media WHERE escalation = ?", (row.id,))
                own = [media.path for media in carried if not _is_shared(connection, row.alert, media.path)]
                connection.executemany(
                    """UPDATE evidence SET state = 'missing', path = '', bytes = 0, reason = ?
                       WHERE alert = ? AND path = ?""",
                    [(why, row.alert, path) for path in own],
                )
                bump_rev(self._db, connection, row.alert)
                self._audit.record_parts(connection, row, carried, "given up")
                found.append(own)
        return found

    def _expire(self, connection: sqlite3.Connection, row: EscalationRow, age_s: float) -> bool:
        """End an escalation that is too old; False when its state is another by now.

        If it waits for a further step, the verdict on the earlier step stands: the request could not be sent or was not
        answered.
        """
        hours, cause = f"{age_s / 3600:g} h", row.error or "no connection"
        ended = False
        if row.step:
            late = f"no answer to that came within {hours}"
            unsent = f"that could not be sent within {hours} ({cause})"
            ended = self._escalations.close_unsure(row, late if row.state == "sent" else unsent)
        if not ended:
            why = "no verdict came" if row.state == "sent" else f"could not be sent ({cause})"
            ended = _end(self._db, connection, row, f"given up after {hours}: {why}")
        if ended:
            self._audit.record_parts(connection, row, self.media_of(row.id), "given up")
        return ended

    # The clock

    def clock_stepped(self, step_s: float) -> None:
        """Move the open escalations with the wall clock: they are no older than before it was set.

        Rows with the time of this moment were made, or sent, by the clock as it is now, and stay.
        """
        now = self._db.clock.now()
        with self._db.transaction(durable=bool(step_s)) as connection:
            if step_s:
                connection.execute(
                    f"""UPDATE escalation SET
                            created_t = iif(created_t > :before OR created_t BETWEEN :since AND :now,
                                            created_t, created_t + :step),
                            sent_t = iif(sent_t > :before OR sent_t BETWEEN :since AND :now, sent_t, sent_t + :step)
                        WHERE {in_states(UNSETTLED)}""",
                    {"step": step_s, "before": now - step_s, "since": now - CLOCK_STEP_SEEN_S, "now": now},
                )
            self.clock_offset.save()


class _SentAudit:
    """The audit of what the outbox sends, written in the caller's transaction. State: none. Raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._clock = db.clock
        self._rows = AuditStore(db)

    def record(
        self,
        connection: sqlite3.Connection,
        row: EscalationRow,
        kind: AuditKind,
        size: int,
        sha256: str,
        note: str = "",
    ) -> None:
        """Write an audit row for sent data. note: anything unusual about it."""
        entry = AuditRow(
            t=self._clock.now(),
            camera=row.camera,
            escalation=row.id,
            kind=kind,
            bytes=size,
            sha256=sha256,
            why=f"{note}rule {row.body.rule}: {row.body.question}"[:_WHY_CHARS_MAX],
        )
        self._rows.write(entry, connection)

    def record_parts(
        self, connection: sqlite3.Connection, row: EscalationRow, files: Sequence[MediaRow], note: str
    ) -> None:
        """Audit the files of which only some chunks left."""
        for media in files:
            if 0 < media.chunks_acked < media.ref.chunks:
                size = min(media.chunks_acked * wire.CHUNK_BYTES, media.ref.bytes)
                self.record(connection, row, media.ref.kind, size, media.ref.sha256, f"in part, then {note}; ")


def _end(db: Database, connection: sqlite3.Connection, row: EscalationRow, error: str) -> bool:
    """Give it up, visibly; False when its state is another by now."""
    changed = connection.execute(
        "UPDATE escalation SET state = 'expired', wait = '', error = ? WHERE id = ? AND state = ?",
        (error, row.id, row.state),
    )
    if changed.rowcount:
        bump_rev(db, connection, row.alert)
    return changed.rowcount > 0


def _add_bytes(connection: sqlite3.Connection, row: EscalationRow, bytes_sent: int) -> None:
    """Count bytes that left the site for the step that `row` was read at."""
    connection.execute("UPDATE escalation SET bytes_sent = bytes_sent + ? WHERE id = ?", (bytes_sent, row.id))
    connection.execute(
        """INSERT INTO step (escalation, n, bytes_sent) VALUES (?, ?, ?)
           ON CONFLICT DO UPDATE SET bytes_sent = bytes_sent + excluded.bytes_sent""",
        (row.id, row.step, bytes_sent),
    )


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
            connection.executemany(_SET_COUNTER, ((_BOOT, self._boot), (_APART, round(self._apart_s() * 1000))))

    def _apart_s(self) -> float:
        return self._db.clock.now() - self._db.clock.monotonic()


@dataclass(frozen=True, slots=True)
class _PendingChange:
    make: Callable[[], Any]
    durable: bool
    done: asyncio.Future[Any]


class CommitBatcher:
    """Commits durable changes together, in a thread, so that the link does not wait for the disk.

    A durable commit takes some milliseconds, on a memory card a hundred. Changes that arrive meanwhile share the next
    commit.

    State: the waiting changes. Invariant: `commit` returns after the commit. Changes are made in the order of arrival,
    one transaction at a time. If one change of a transaction fails, the transaction is rolled back and every caller
    gets the error. Owner: the uplink's event loop.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: list[_PendingChange] = []
        self._writing: asyncio.Task[None] | None = None

    async def commit(self, change: Callable[[], Result], *, durable: bool = True) -> Result:
        """Make `change` (a call that writes to the database). Raises what it raises, StoreError."""
        writing = self._writing is not None and not self._writing.done()
        if not durable and not writing:  # it waits for no disk: two changes of threads would take longer
            return change()
        pending = _PendingChange(change, durable, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if not writing:
            self._writing = asyncio.create_task(self._write(), name="commit batcher")
        result: Result = await pending.done
        return result

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                results = await asyncio.to_thread(self._commit, batch)
            except Exception as error:  # noqa: BLE001 - every caller gets it
                for each in batch:
                    if not each.done.done():
                        each.done.set_exception(error)
                continue
            for each, result in zip(batch, results, strict=True):
                if not each.done.done():
                    each.done.set_result(result)

    def _commit(self, batch: list[_PendingChange]) -> list[Any]:
        with self._db.transaction(durable=any(each.durable for each in batch)):
            return [each.make() for each in batch]
