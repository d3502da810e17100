"""Orders escalations for sending: live before backlog, urgent before less urgent, a share for the backlog.

It also finds those that are due again, too old, or the first to give up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from appliance.store.database import Database
from appliance.store.escalations import (
    BY_PRIORITY,
    INDEXED,
    OPEN,
    Delivery,
    EscalationRow,
    escalation_rows,
    in_states,
    read_escalation,
)
from appliance.wire import CHUNK_BYTES, PRIORITIES

LIVE_PRIORITIES = PRIORITIES[:2]
_FOREVER = 1e18  # seconds, later than any time
_MEDIA_BYTES = "(SELECT sum(json_extract(ref, '$.bytes')) FROM media WHERE media.escalation = escalation.id)"
RESEND_FIRST_S = 900.0  # longer than a busy worker takes; a verdict that is only late is not worth the bytes
RESEND_LAST_S = 6 * 3600.0  # an escalation that the broker refused for hours is tried some times a day
_ROWID_MAX = 2**63 - 1  # SQLite's largest rowid
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
        self, priority: str, *, after_t: float, until_t: float, untried: bool, limit: int
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
            f"""WHERE {INDEXED} AND state = 'sent' AND sent_t <= ?
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
                WHERE {OPEN} AND {in_states(DROPPABLE)} ORDER BY {BY_PRIORITY} DESC, created_t, id LIMIT ?""",
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
            f"""WHERE {OPEN} AND {in_states(states)} AND id || ':' || step NOT IN (SELECT value FROM json_each(?))
                ORDER BY {BY_PRIORITY}, created_t, id LIMIT 1""",
            (json.dumps(without),),
        )
        return found[0] if found else None

    def unsent_bytes(self) -> int:
        """Bytes that wait to be sent: the bodies of what is not sent, and their files."""
        found: int = self._db.row(
            f"""SELECT coalesce(sum(length(body)), 0) + coalesce(sum({_MEDIA_BYTES}), 0) FROM escalation
                WHERE {OPEN} AND {in_states(UNSENT)}"""
        )[0]
        return found

    def unanswered_s(self, t: float) -> float | None:
        """For how long the escalation that was sent first waits for its verdict; None: none does."""
        first_t = self._db.row(f"SELECT min(sent_t) FROM escalation WHERE {INDEXED} AND state = 'sent'")[0]
        return None if first_t is None else max(0.0, t - first_t)


# The order of sending follows from the delay that a person at the dashboard notices; see docs/uplink.md for the effect.
LIVE_S = 120.0  # an escalation this young is live: a person may be waiting for its verdict
AGEING_S = 600.0  # in the backlog, waiting this long makes up for one step of priority
PENALTY_S = 60.0  # each failed attempt lets others of that age go first, so that one bad escalation blocks no other
PENALTIES_MAX = 10  # of these that count
BACKLOG_SHARE = 0.1  # of the bytes for the backlog, however much is live
CREDIT_BYTES = 16 * 1024  # owed to the backlog before it goes first: a few crops
PAGE_S = 1.0  # for which the backlog's order is remembered: who waited for hours loses nothing by a second
HEAD, PAGE = 16, 64  # of a priority, how many are read at a time: of what is live, and of the backlog


@dataclass(frozen=True, slots=True)
class QueuedEscalation:
    """The escalation to send next. contested: it overtook one of the other class (live or backlog)."""

    row: EscalationRow
    live: bool
    contested: bool


class SendQueue:
    """Picks from the escalations that are ready. Owner: the uplink's task.

    State: the bytes owed to the backlog because live escalations overtook it, and the next few of the backlog in order,
    valid for PAGE_S. Each is read again before it is sent. All selections use the index on state, priority and age,
    so they cost the same with ten escalations and with a hundred thousand.
    """

    def __init__(self, store: OutboxQueue) -> None:
        self._store = store
        self._credit = 0.0
        self._page: list[_QueuePosition] = []
        self._page_of: tuple[float, tuple[str, ...]] = (0.0, ())

    @property
    def backlog_due(self) -> bool:
        """The backlog's share is due, whatever is live."""
        return self._credit >= CREDIT_BYTES

    def pick(
        self, now: float, priorities: Sequence[str] = PRIORITIES, busy: Collection[str] = (), *, live_only: bool = False
    ) -> QueuedEscalation | None:
        """Return the next escalation of `priorities` that is not `busy`; None: there is none. Raise StoreError.

        live_only: backlog is waiting but may not be sent now.
        """
        live = self._live(now, priorities, busy)
        if live_only:
            return QueuedEscalation(live, live=True, contested=True) if live is not None else None
        waited = self._waited(now, priorities, busy)
        if live is not None and (waited is None or not self.backlog_due):
            return QueuedEscalation(live, live=True, contested=waited is not None)
        return QueuedEscalation(waited, live=False, contested=live is not None) if waited is not None else None

    def record_sent(self, queued: QueuedEscalation, size: int) -> None:
        """`size` bytes were sent for it."""
        share, credit_max = BACKLOG_SHARE, CREDIT_BYTES + CHUNK_BYTES
        if not queued.contested:
            self._credit = 0.0
        elif queued.live:
            self._credit = min(credit_max, self._credit + size * share / (1 - share))
        else:
            self._credit -= size

    def _live(self, now: float, priorities: Sequence[str], busy: Collection[str]) -> EscalationRow | None:
        """Within a priority the oldest first, those that failed later."""
        for priority in LIVE_PRIORITIES:
            if priority in priorities:
                heads, _ = self._heads(priority, HEAD + len(busy), after_t=now - LIVE_S)
                free = [each for each in heads if each.id not in busy]
                if free:
                    return self._store.ready(min(free).id)
        return None

    def _waited(self, now: float, priorities: Sequence[str], busy: Collection[str]) -> EscalationRow | None:
        """By priority, then by age, where waiting makes up for priority."""
        read_t, of = self._page_of
        if of != tuple(priorities) or not read_t <= now < read_t + PAGE_S:
            self._page = []
        for fresh in (False, True):
            if fresh:
                self._page, self._page_of = self._read_page(now, priorities, len(busy)), (now, tuple(priorities))
            for position in list(self._page):
                if position.id in busy:
                    continue
                row = self._store.ready(position.id)
                if row is not None and row.attempts == position.attempts:
                    return row
                self._page.remove(position)
                if row is not None:  # it failed meanwhile, and its position is another one
                    break
        return None

    def _read_page(self, now: float, priorities: Sequence[str], busy: int) -> list[_QueuePosition]:
        """Return the next of the backlog, in order, as far as no other can belong between them."""
        page: list[_QueuePosition] = []
        sure_until = float("inf")
        for rank, priority in enumerate(PRIORITIES):
            if priority not in priorities:
                continue
            until_t = now - LIVE_S if priority in LIVE_PRIORITIES else _FOREVER
            later_s = rank * AGEING_S
            heads, until = self._heads(priority, PAGE + busy, until_t=until_t, later_s=later_s)
            page += heads
            sure_until = min(sure_until, until)
        page.sort()
        return [each for n, each in enumerate(page) if each.due <= sure_until or n <= busy]

    def _heads(
        self, priority: str, count: int, *, after_t: float = -_FOREVER, until_t: float = _FOREVER, later_s: float = 0.0
    ) -> tuple[list[_QueuePosition], float]:
        """Return the first escalations of a priority, and the `due` time from which on more follow.

        The first are the oldest, and the oldest that never failed. later_s: the delay of each in the order, beyond its
        age.
        """
        found: dict[str, _QueuePosition] = {}
        more_from = float("inf")
        for untried in (False, True):
            entries = self._store.queue_heads(priority, after_t=after_t, until_t=until_t, untried=untried, limit=count)
            for each in entries:
                penalty_s = min(each.attempts, PENALTIES_MAX) * PENALTY_S
                found[each.id] = _QueuePosition(each.created_t + later_s + penalty_s, each.id, each.attempts)
            if len(entries) < count:
                break
            more_from = min(more_from, entries[-1].created_t + later_s)
        return list(found.values()), more_from


@dataclass(frozen=True, slots=True, order=True)
class _QueuePosition:
    """Where an escalation stands in the order. due: the lower, the earlier."""

    due: float
    id: str
    attempts: int
