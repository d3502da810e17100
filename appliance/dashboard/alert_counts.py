"""Count the alerts without counting them for each page again."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.store.alerts import AlertCounts, AlertStore
from appliance.store.database import Database
from appliance.web.visitor import visitor

COUNT_REST = 20.0  # a count is read again after this many times the time that it took: at most 5 % of a core
COUNT_AGE_S_MAX = 5.0  # a page needs no fresher number, and counting walks the table


@dataclass(frozen=True, slots=True)
class CountedAlerts:
    """behind: something has changed since they were counted; within `COUNT_AGE_S_MAX` they are counted again."""

    counts: AlertCounts
    behind: bool = False


@dataclass(frozen=True, slots=True)
class _Count:
    counts: AlertCounts
    rev: int
    good_until: float


class AlertCountCache:
    """The alert counts, read again only when something changed, and at most a twentieth of the time.

    State: the last counts, their change number, and until when they are good. With 100 000 alerts a count takes some
    40 ms, so it may then be a second old; with few alerts it is always of this moment. Any thread may read.
    """

    def __init__(self, db: Database, alerts: AlertStore) -> None:
        self._db = db
        self._alerts = alerts
        self._last: _Count | None = None

    def read(self) -> CountedAlerts:
        """Total, open, to review, by verdict, and undelivered, of the cameras that the visitor may see."""
        if visitor().cameras is not None:
            return CountedAlerts(self._alerts.counts(visitor().cameras))
        last, rev, began = self._last, self._db.rev(), self._db.clock.monotonic()
        if last is not None and (rev == last.rev or began < last.good_until):
            return CountedAlerts(last.counts, behind=rev != last.rev)
        counts, ended = self._alerts.counts(), self._db.clock.monotonic()
        self._last = _Count(counts, rev, ended + min(COUNT_AGE_S_MAX, COUNT_REST * (ended - began)))
        return CountedAlerts(counts)
