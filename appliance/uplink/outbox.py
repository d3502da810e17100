"""The outbox: the state of escalations to be sent, the audit of sent data, and the quota on the disk."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from appliance import wire
from appliance.base.clock import Clock, ClockStepDetector
from appliance.base.errors import StoreError
from appliance.store.audit import AuditKind, AuditRow, AuditStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore, VerdictEffect
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.outbox_store import ClockOffset, OutboxQueue, OutboxStore
from appliance.store.rows import EscalationRow, MediaRow

EXPIRE_EVERY_S = 60.0  # ages are counted in hours
QUOTA_EVERY_S = 10.0  # what is over it meanwhile is some crops
DROPS_PER_RUN = 200  # some 100 ms of the disk
_EXPIRE_BATCH = 500  # rows of one transaction
_WHY_CHARS_MAX = 300  # of a reason in a row

Result = TypeVar("Result")


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


logger = logging.getLogger(__name__)


class Outbox:
    """The escalations from `ready` on, and their media. send_queue.py selects the next one.

    Owner: the uplink; any thread may read. Invariant: every change of state is one transaction, which also writes the
    audit row of data that left the site. Bytes are payload and headers, retries included. Every method raises
    StoreError.
    """

    def __init__(self, db: Database, expire_s: float, ttl_s: Mapping[str, float] | None = None) -> None:
        """expire_s: the age at which an escalation is given up; ttl_s: the same for some priorities."""
        self._db = db
        self.probe = db.probe
        """Checks that a send could be recorded now. Raises StoreUnavailable while it could not."""
        self._store = OutboxStore(db)
        self.queue = OutboxQueue(db)
        """Its rows in the order in which they go, expire or are given up."""
        self._escalations = EscalationStore(db)
        self._audit = _SentAudit(db)
        self.clock_offset = ClockOffset(db)
        self._expire_s = dict.fromkeys(wire.PRIORITIES, expire_s) | dict(ttl_s or {})

    # Work that is due

    def media_of(self, escalation: str) -> list[MediaRow]:
        """Return the files that an escalation carries, in order."""
        return self._escalations.media(escalation)

    # How far it got

    def chunk_acked(self, row: EscalationRow, media: MediaRow, chunks_acked: int, bytes_sent: int) -> None:
        """Record that the broker has stored `chunks_acked` chunks of a file.

        This is not flushed to the disk; the escalation's own `sent` is. After a power cut in between the file is sent
        and audited again.
        """
        with self._db.transaction(durable=False):
            self._store.set_chunks_acked(media, chunks_acked)
            self._store.add_bytes(row, bytes_sent)
            if chunks_acked >= media.ref.chunks:
                self._audit.record(row, media.ref.kind, media.ref.bytes, media.ref.sha256)

    def sent(self, row: EscalationRow, t: float, bytes_sent: int) -> None:
        """Record that the broker has stored the escalation."""
        facts = row.body.to_json()
        note = "sent again, as no verdict came; " if row.state == "sent" else ""
        with self._db.transaction():
            self._store.mark_sent(row, t)
            self._store.add_bytes(row, bytes_sent)
            self._audit.record(row, "facts", len(facts), hashlib.sha256(facts).hexdigest(), note)

    def failed(self, row: EscalationRow, error: str, bytes_sent: int = 0) -> None:
        """Record a failed attempt; `bytes_sent` may have left all the same."""
        with self._db.transaction(durable=False):
            self._store.mark_failed(row, error)
            self._store.add_bytes(row, bytes_sent)

    def reopen(self, row: EscalationRow, lost: Sequence[MediaRow]) -> None:
        """Send a sent escalation again, after the media in `lost`, which the broker no longer has."""
        self._store.reopen(row, lost)

    def region_changed(self, region: str) -> int:
        """Mark escalations without a verdict to be sent again in the new region; return how many there are.

        OutboxCheck sends the media that this region's broker lacks. The same transaction records the region, so a
        restart knows where everything was sent.
        """
        with self._db.transaction():
            return self._store.move_to_region(region)

    def media_lost(self, row: EscalationRow, media: MediaRow, reason: str) -> None:
        """Send the escalation without a file that cannot be read any more, with the reason."""
        with self._db.transaction():
            self._audit.record_part(row, media, "given up")
            self._store.drop_medium(row, media, reason)

    def withhold(self, row: EscalationRow) -> None:
        """Take all images from an escalation: this camera sends none (any more)."""
        with self._db.transaction():
            for media in self.media_of(row.id):
                self._audit.record_part(row, media, "withheld")
            self._store.drop_all_media(row)

    def answered_here(self, row: EscalationRow, take: Callable[[], VerdictEffect]) -> VerdictEffect:
        """Apply a verdict of the appliance's own, and audit the files of which only a part has left."""
        with self._db.transaction():
            effect = take()
            for media in self.media_of(row.id) if effect == "settled" else ():
                self._audit.record_part(row, media, "judged on the appliance")
            return effect

    # How it ends without a verdict

    def expire(self, t: float) -> int:
        """Give up escalations that were not sent or not answered in time, and show it; return how many."""
        count = 0
        for priority, age_s in self._expire_s.items():
            while rows := self.queue.made_before(priority, t - age_s, _EXPIRE_BATCH):
                with self._db.transaction():  # one flush: a backlog of days is thousands, and the link waits meanwhile
                    for row in rows:
                        self._expire(row, age_s)
                count += len(rows)
        return count

    def give_up(self, row: EscalationRow, why: str) -> None:
        """Give up an escalation that nobody can answer, and show it; its media are kept.

        If it waits for a further step, the verdict on the earlier step stands.
        """
        with self._db.transaction():
            if not (row.step and self._escalations.close_unsure(row, why)):
                self._store.expire(row, f"given up: {why}")

    def drop(self, rows: Sequence[EscalationRow], why: str) -> list[list[str] | None]:
        """Give up escalations, show them, and forget their media; return of each the paths of files that it alone used.

        The cloud's answer to an earlier step is kept. None: it was answered meanwhile, and nothing is changed. All are
        dropped in one transaction: one flush of the disk instead of as many.
        """
        found = []
        with self._db.transaction():
            for row in rows:
                carried = self.media_of(row.id)
                paths = self._store.drop(row, why)
                for media in carried if paths is not None else ():
                    self._audit.record_part(row, media, "given up")
                found.append(paths)
        return found

    def _expire(self, row: EscalationRow, age_s: float) -> None:
        """End an escalation that is too old.

        If it waits for a further step, the verdict on the earlier step stands: the request could not be sent or was not
        answered.
        """
        hours, cause = f"{age_s / 3600:g} h", row.error or "no connection"
        with self._db.transaction():
            ended = False
            if row.step:
                late = f"no answer to that came within {hours}"
                unsent = f"that could not be sent within {hours} ({cause})"
                ended = self._escalations.close_unsure(row, late if row.state == "sent" else unsent)
            if not ended:
                why = "no verdict came" if row.state == "sent" else f"could not be sent ({cause})"
                ended = self._store.expire(row, f"given up after {hours}: {why}")
            for media in self.media_of(row.id) if ended else ():
                self._audit.record_part(row, media, "given up")

    # The clock

    def clock_stepped(self, step_s: float) -> None:
        """Move the open escalations with the wall clock: they are no older than before it was set."""
        with self._db.transaction(durable=bool(step_s)):
            if step_s:
                self._store.shift_clock(step_s)
            self.clock_offset.save()


class _SentAudit:
    """The audit of what the outbox sends. State: none. Raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._rows = AuditStore(db)

    def record(self, row: EscalationRow, kind: AuditKind, size: int, sha256: str, note: str = "") -> None:
        """Write an audit row for sent data, in the caller's transaction. note: anything unusual about it."""
        entry = AuditRow(
            t=self._db.clock.now(),
            camera=row.camera,
            escalation=row.id,
            kind=kind,
            bytes=size,
            sha256=sha256,
            why=f"{note}rule {row.body.rule}: {row.body.question}"[:_WHY_CHARS_MAX],
        )
        with self._db.transaction(durable=False) as connection:
            self._rows.write(entry, connection)

    def record_part(self, row: EscalationRow, media: MediaRow, note: str) -> None:
        """Audit a file of which only some chunks left."""
        if 0 < media.chunks_acked < media.ref.chunks:
            size = min(media.chunks_acked * wire.CHUNK_BYTES, media.ref.bytes)
            self.record(row, media.ref.kind, size, media.ref.sha256, f"in part, then {note}; ")


class OutboxQuota:
    """Drops the oldest of the least urgent escalations while the waiting ones take more disk than `outbox_mb_max`.

    All less urgent escalations are dropped before a more urgent one. An escalation is dropped with its facts and media;
    the alert, its still and its clip are kept (retention deletes those). Owner: the uplink's task. State: `dropped`,
    since the start.
    """

    def __init__(self, outbox: Outbox, root: Path, mb_max: float, meter: Meter) -> None:
        self._outbox = outbox
        self._root = root
        self._bytes_max = int(mb_max * 1e6)
        self._mb_max = mb_max
        self._meter = meter
        self.dropped = 0

    def run_once(self) -> int:
        """Free space by dropping at most DROPS_PER_RUN escalations; return how many were dropped. Raise StoreError."""
        over = self._outbox.queue.unsent_bytes() - self._bytes_max
        count = 0
        if over <= 0:
            return 0
        why = f"the outbox is over {self._mb_max:g} MB (uplink.outbox_mb_max), and this was the least urgent"
        chosen: list[tuple[EscalationRow, int]] = []
        for row, size in self._outbox.queue.least_urgent(DROPS_PER_RUN):
            if over <= 0:
                break
            chosen.append((row, size))
            over -= size
        for (row, size), paths in zip(chosen, self._outbox.drop([row for row, _ in chosen], why), strict=True):
            if paths is None:
                continue
            self._delete(paths)
            self._meter.add(row.camera, Metric(MetricName.OUTBOX_DROPPED), 1)
            self._meter.add(row.camera, Metric(MetricName.OUTBOX_DROPPED_BYTES), size)
            count += 1
        self.dropped += count
        logger.warning("%d escalations were given up: %s", count, why)
        return count

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            try:
                (self._root / path).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path} cannot be deleted: {error.strerror}") from None


class OutboxUpkeep:
    """Follows the clock, expires old escalations, and enforces the quota, with and without a link.

    Owner: the task or thread that empties the outbox. State: when each of these is due next, and a step of the clock
    that is not recorded yet.
    """

    def __init__(self, outbox: Outbox, quota: OutboxQuota, clock: Clock) -> None:
        self._outbox = outbox
        self._quota = quota
        self._clock = clock
        self._steps = ClockStepDetector(clock)
        self._step_s = 0.0
        self._began = False
        self._expire_at = self._quota_at = float("-inf")

    def run_once(self) -> None:
        """Do what is due. Raises StoreError."""
        self._follow_clock()
        now = self._clock.monotonic()
        if now >= self._expire_at:
            self._outbox.expire(self._clock.now())
            self._expire_at = now + EXPIRE_EVERY_S
        if now >= self._quota_at:
            self._quota.run_once()
            self._quota_at = now + QUOTA_EVERY_S

    def _follow_clock(self) -> None:
        """Record a step of the clock once, before anything expires because of it; on failure, try again next time."""
        self._step_s += self._steps.step_s()
        if not self._began:  # what was missed holds what was seen since
            self._step_s = self._outbox.clock_offset.stepped_s() or self._step_s
        if self._began and not self._step_s:
            return
        self._outbox.clock_stepped(self._step_s)
        if self._step_s:
            logger.warning("the clock was stepped by %+.0f s: open escalations are no older for that", self._step_s)
        self._step_s, self._began = 0.0, True
