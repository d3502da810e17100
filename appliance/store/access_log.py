"""A bounded log of the sign-ins to the dashboard and the changes made through it."""

from __future__ import annotations

import sqlite3

from appliance.store.database import Database
from appliance.types.accounts import AccessLogRow

ROWS_MAX = 5000  # half a megabyte; years of changes, and weeks of somebody who guesses


class AccessLog:
    """The access_log table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def write(self, who: str, address: str, what: str, about: str = "") -> None:
        """Add a row; the oldest of too many goes."""
        with self._db.transaction() as connection:
            log_access(connection, self._db.clock.now(), who, address, what, about)

    def refused(self, who: str, since: float) -> tuple[int, int]:
        """How many wrong tries to sign in as `who` there were since then, and from how many addresses."""
        with self._db.read() as connection:
            row = connection.execute(
                "SELECT count(*), count(DISTINCT address) FROM access_log "
                "WHERE who = ? AND t >= ? AND what LIKE 'was refused:%'", (who, since),
            ).fetchone()  # fmt: skip
            return row[0], row[1]

    def newest(self, limit: int = 100) -> list[AccessLogRow]:
        with self._db.read() as connection:
            rows = connection.execute("SELECT * FROM access_log ORDER BY id DESC LIMIT ?", (limit,))
            return [AccessLogRow(**dict(row)) for row in rows]


def log_access(connection: sqlite3.Connection, t: float, who: str, address: str, what: str, about: str = "") -> None:
    """Add a row inside the transaction of `connection`."""
    connection.execute(
        "INSERT INTO access_log (t, who, address, what, about) VALUES (?, ?, ?, ?, ?)",
        (t, who[:100], address[:100], what, about[:200]),
    )
    connection.execute("DELETE FROM access_log WHERE id <= (SELECT max(id) FROM access_log) - ?", (ROWS_MAX,))
