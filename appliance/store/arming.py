"""Whether the site is armed: a switch that outlives restarts. Disarmed, no rule reports anything."""

from __future__ import annotations

import threading

from appliance.store.database import Database

_COUNTER = "disarmed"


class ArmingStore:
    """The switch. Any thread may read and set it; the core reads it with every frame, so it is kept in memory.

    Invariant: what is in memory is stored.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        with db.read() as connection:
            row = connection.execute("SELECT value FROM counter WHERE name = ?", (_COUNTER,)).fetchone()
        self._armed = row is None or row["value"] == 0

    @property
    def armed(self) -> bool:
        return self._armed

    def set(self, *, armed: bool) -> bool:
        """True: it was otherwise before. Raises StoreError, and then nothing has changed."""
        with self._lock:
            if armed == self._armed:
                return False
            with self._db.transaction() as connection:
                connection.execute(
                    "INSERT INTO counter VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (_COUNTER, int(not armed)),
                )
            self._armed = armed
            return True
