"""The order in which escalations are sent: recent before backlog, urgent before less urgent, with a share for the
backlog.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from appliance.store.database import Database
from appliance.store.rows import EscalationRow, read_escalation
from appliance.wire import CHUNK_BYTES, PRIORITIES

LIVE_S = 120.0  # a question this young is live: somebody may be waiting for its answer
LIVE_PRIORITIES = PRIORITIES[:2]
AGEING_S = 600.0  # in the backlog, who waited this long goes before a younger one of the next higher priority
PENALTY_S = 60.0  # each failed attempt lets others of that age go first, so that one bad question blocks nobody
PENALTIES_MAX = 10
BACKLOG_SHARE = 0.1  # of the bytes is the backlog's, however much is live
BACKLOG_CREDIT_BYTES = 16 * 1024
PAGE_S = 1.0  # the order of the backlog is looked up this often: who waited loses nothing by it
_HEAD = 16
_PAGE = 64
_FOREVER_S = 1e9
_INDEXED = "state IN ('waiting', 'ready', 'sent')"  # said as the partial index says it, or SQLite does not use it


@dataclass(frozen=True, slots=True)
class QueuedEscalation:
    """The question to send next. contested: it went before others, the backlog before what is live or the reverse."""

    row: EscalationRow
    live: bool
    contested: bool


class SendQueue:
    """Picks from the outbox's ready questions. Owner: the uplink's task.

    State: the bytes that the backlog may claim because what is live went before it, and the backlog's next few, in
    their order, for PAGE_S; each is looked at again when its turn comes. All picks go by the index on state, priority
    and age: they cost the same with ten questions and with a hundred thousand.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._claim = 0.0
        self._page: list[_QueuePosition] = []
        self._page_of: tuple[float, tuple[str, ...]] = (0.0, ())

    @property
    def backlog_due(self) -> bool:
        """The backlog's share is due, whatever is live."""
        return self._claim >= BACKLOG_CREDIT_BYTES

    def pick(
        self, now: float, priorities: Sequence[str] = PRIORITIES, busy: Collection[str] = (), *, live_only: bool = False
    ) -> QueuedEscalation | None:
        """The next question of `priorities` that is not `busy`; None: there is none. Raises StoreError.

        live_only: of the backlog nothing may go now, and there is some.
        """
        with self._db.read() as connection:
            live = self._live(connection, now, priorities, busy)
            if live_only:
                return QueuedEscalation(live, live=True, contested=True) if live is not None else None
            waited = self._waited(connection, now, priorities, busy)
        if live is not None and (waited is None or not self.backlog_due):
            return QueuedEscalation(live, live=True, contested=waited is not None)
        return QueuedEscalation(waited, live=False, contested=live is not None) if waited is not None else None

    def record_sent(self, turn: QueuedEscalation, size: int) -> None:
        """`size` bytes were sent for it."""
        if not turn.contested:
            self._claim = 0.0
        elif turn.live:
            self._claim = min(
                BACKLOG_CREDIT_BYTES + CHUNK_BYTES, self._claim + size * BACKLOG_SHARE / (1 - BACKLOG_SHARE)
            )
        else:
            self._claim -= size

    def _live(
        self, connection: sqlite3.Connection, now: float, priorities: Sequence[str], busy: Collection[str]
    ) -> EscalationRow | None:
        """Within a priority the oldest first, those that failed later."""
        for priority in LIVE_PRIORITIES:
            if priority in priorities:
                places, _ = _heads(connection, "created_t > ?", (priority, now - LIVE_S), _HEAD + len(busy))
                free = [place for place in places if place.name not in busy]
                if free:
                    return _read(connection, min(free))
        return None

    def _waited(
        self, connection: sqlite3.Connection, now: float, priorities: Sequence[str], busy: Collection[str]
    ) -> EscalationRow | None:
        """By priority, then by age, where waiting makes up for priority."""
        looked_t, of = self._page_of
        if of != tuple(priorities) or not looked_t <= now < looked_t + PAGE_S:
            self._page = []
        for fresh in (False, True):
            if fresh:
                self._page, self._page_of = _page(connection, now, priorities, len(busy)), (now, tuple(priorities))
            for place in list(self._page):
                if place.name in busy:
                    continue
                row = _read(connection, place)
                if row is not None and row.attempts == place.attempts:
                    return row
                self._page.remove(place)
                if row is not None:  # it failed meanwhile, and its place is another one
                    break
        return None


@dataclass(frozen=True, slots=True, order=True)
class _QueuePosition:
    """Where a question stands in the order. due: the lower, the earlier."""

    due: float
    name: str
    attempts: int


def _page(connection: sqlite3.Connection, now: float, priorities: Sequence[str], busy: int) -> list[_QueuePosition]:
    """The next of the backlog, in order, as far as it is sure that no other belongs between them."""
    places, sure = [], float("inf")
    for rank, priority in enumerate(PRIORITIES):
        if priority in priorities:
            end = now - LIVE_S if priority in LIVE_PRIORITIES else now + _FOREVER_S
            found, until = _heads(connection, "created_t <= ?", (priority, end), _PAGE + busy, rank * AGEING_S)
            places += found
            sure = min(sure, until)
    places.sort()
    return [place for n, place in enumerate(places) if place.due <= sure or n <= busy]


def _heads(
    connection: sqlite3.Connection, where: str, values: tuple[str, float], count: int, later_s: float = 0.0
) -> tuple[list[_QueuePosition], float]:
    """The first of a priority: the oldest, and the oldest that never failed; and from which place on there are more."""
    found: dict[str, _QueuePosition] = {}
    until = float("inf")
    for extra in ("", "AND attempts = 0"):
        rows = connection.execute(
            f"""SELECT id, created_t, attempts FROM escalation
                WHERE {_INDEXED} AND state = 'ready' AND priority = ? AND {where} {extra}
                ORDER BY created_t LIMIT ?""",
            (*values, count),
        ).fetchall()
        for row in rows:
            due = row["created_t"] + later_s + min(row["attempts"], PENALTIES_MAX) * PENALTY_S
            found[row["id"]] = _QueuePosition(due, row["id"], row["attempts"])
        if len(rows) < count:
            break
        until = min(until, rows[-1]["created_t"] + later_s)
    return list(found.values()), until


def _read(connection: sqlite3.Connection, place: _QueuePosition) -> EscalationRow | None:
    """The question, if it still is to be sent."""
    row = connection.execute("SELECT * FROM escalation WHERE id = ? AND state = 'ready'", (place.name,)).fetchone()
    return read_escalation(row) if row is not None else None
