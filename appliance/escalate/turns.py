"""Whose turn it is: what just happened before what waited, the urgent before the less urgent, nobody last for ever."""

from __future__ import annotations

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
CLAIM_BYTES = 16 * 1024
_HEAD = 16
_FOREVER_S = 1e9
_INDEXED = "state IN ('waiting', 'ready', 'sent')"  # said as the partial index says it, or SQLite does not use it


@dataclass(frozen=True, slots=True)
class Turn:
    """The question to send next. contested: it went before others, the backlog before what is live or the reverse."""

    row: EscalationRow
    live: bool
    contested: bool


class Turns:
    """Picks from the outbox's ready questions. Owner: the uplink's task.

    State: the bytes that the backlog may claim because what is live went before it. All picks go by the index on
    state, priority and age: they cost the same with ten questions and with a hundred thousand.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._claim = 0.0

    def pick(self, now: float, priorities: Sequence[str] = PRIORITIES, busy: Collection[str] = ()) -> Turn | None:
        """The next question of `priorities` that is not `busy`; None: there is none. Raises StoreError."""
        live = self._live(now, priorities, busy)
        waited = self._backlog(now, priorities, busy)
        if live is not None and (waited is None or self._claim < CLAIM_BYTES):
            return Turn(live, live=True, contested=waited is not None)
        return Turn(waited, live=False, contested=live is not None) if waited is not None else None

    def took(self, turn: Turn, size: int) -> None:
        """`size` bytes were sent for it."""
        if not turn.contested:
            self._claim = 0.0
        elif turn.live:
            self._claim = min(CLAIM_BYTES + CHUNK_BYTES, self._claim + size * BACKLOG_SHARE / (1 - BACKLOG_SHARE))
        else:
            self._claim -= size

    def _live(self, now: float, priorities: Sequence[str], busy: Collection[str]) -> EscalationRow | None:
        """Within a priority the oldest first, those that failed later."""
        for priority in LIVE_PRIORITIES:
            if priority in priorities:
                after = (priority, now - LIVE_S)
                found = self._heads("priority = ? AND created_t > ?", after, busy)
                if found:
                    return self._read(min(found)[1])
        return None

    def _backlog(self, now: float, priorities: Sequence[str], busy: Collection[str]) -> EscalationRow | None:
        """By priority, then by age, where waiting makes up for priority."""
        heads = []
        for rank, priority in enumerate(PRIORITIES):
            if priority in priorities:
                end = now - LIVE_S if priority in LIVE_PRIORITIES else now + _FOREVER_S
                found = self._heads("priority = ? AND created_t <= ?", (priority, end), busy)
                heads += [(rank * AGEING_S + due, name) for due, name in found]
        return self._read(min(heads)[1]) if heads else None

    def _heads(self, where: str, values: tuple[str, float], busy: Collection[str]) -> list[tuple[float, str]]:
        """The first of a priority, each with its place in the order: the oldest, and the oldest that never failed."""
        found: list[tuple[float, str]] = []
        with self._db.read() as connection:
            for extra, count in (("", _HEAD), ("AND attempts = 0", 1)):
                rows = connection.execute(
                    f"""SELECT id, created_t, attempts FROM escalation
                        WHERE {_INDEXED} AND state = 'ready' AND {where} {extra} ORDER BY created_t LIMIT ?""",
                    (*values, len(busy) + count),
                )
                found += [
                    (row["created_t"] + min(row["attempts"], PENALTIES_MAX) * PENALTY_S, row["id"])
                    for row in rows
                    if row["id"] not in busy
                ]
        return found

    def _read(self, name: str) -> EscalationRow | None:
        with self._db.read() as connection:
            row = connection.execute("SELECT * FROM escalation WHERE id = ?", (name,)).fetchone()
        return read_escalation(row) if row is not None else None
