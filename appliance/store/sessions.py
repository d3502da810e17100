"""Sessions of the dashboard's users: one row each; signing out removes it."""

from __future__ import annotations

from appliance.store.database import Database
from appliance.types.accounts import SessionRow

SESSIONS_MAX = 1000  # the oldest is signed out beyond


class SessionStore:
    """The session table. An id is a digest: what can be read here signs nobody in."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, session: str, user: str, expires_t: float, address: str = "") -> None:
        """Add a session; remove the expired ones, and the oldest of too many. Raise StoreError."""
        now = self._db.clock.now()
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM session WHERE expires_t <= ?", (now,))
            connection.execute(
                "INSERT INTO session (id, user, created_t, expires_t, address) VALUES (?, ?, ?, ?, ?)",
                (session, user, now, expires_t, address),
            )
            connection.execute(
                "DELETE FROM session WHERE id NOT IN (SELECT id FROM session ORDER BY created_t DESC LIMIT ?)",
                (SESSIONS_MAX,),
            )

    def remove(self, session: str) -> None:
        """End a session; nothing where there is none. Raises StoreError."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM session WHERE id = ?", (session,))

    def all(self) -> dict[str, SessionRow]:
        """All sessions that are not over, by id, newest first. Raises StoreError."""
        with self._db.read() as connection:
            rows = connection.execute(
                "SELECT * FROM session WHERE expires_t > ? ORDER BY created_t DESC", (self._db.clock.now(),)
            )
            return {row["id"]: SessionRow(**dict(row)) for row in rows}
