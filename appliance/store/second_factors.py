"""Second factors of users: the secret shared with an authenticator app, and recovery codes, each taken once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from appliance.store.database import Database
from appliance.types.accounts import SecondFactorRow


class SecondFactorStore:
    """The second_factor table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> dict[str, SecondFactorRow]:
        """All, by user."""
        with self._db.read() as connection:
            return {row["user"]: _read(row) for row in connection.execute("SELECT * FROM second_factor")}

    def begin(self, user: str, secret: str) -> None:
        """Store a new secret that sign-ins do not require yet; one that is confirmed stays."""
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM second_factor WHERE user = ? AND NOT confirmed", (user,))
            connection.execute(
                "INSERT OR IGNORE INTO second_factor (user, secret, created_t) VALUES (?, ?, ?)",
                (user, secret, self._db.clock.now()),
            )

    def confirm(self, user: str, step: int, recovery: Sequence[str]) -> None:
        """Require a code at sign-ins from now on: a first code was right. recovery: digests of the recovery codes."""
        with self._db.transaction() as connection:
            connection.execute(
                "UPDATE second_factor SET confirmed = 1, last_step = ?, recovery = ? WHERE user = ?",
                (step, json.dumps(list(recovery)), user),
            )

    def take_step(self, user: str, step: int) -> bool:
        """Use up the codes until `step`. False: they are used up already."""
        with self._db.transaction() as connection:
            done = connection.execute(
                "UPDATE second_factor SET last_step = ? WHERE user = ? AND last_step < ?", (step, user, step)
            )
            return done.rowcount == 1

    def take_recovery(self, user: str, digest: str) -> bool:
        """Use up a recovery code. False: it is none, or was used."""
        with self._db.transaction() as connection:
            row = connection.execute("SELECT recovery FROM second_factor WHERE user = ?", (user,)).fetchone()
            left = json.loads(row["recovery"]) if row else []
            if digest not in left:
                return False
            left.remove(digest)
            connection.execute("UPDATE second_factor SET recovery = ? WHERE user = ?", (json.dumps(left), user))
            return True

    def remove(self, user: str) -> None:
        """Nothing where there is none."""
        with self._db.transaction() as connection:
            remove_second_factor(connection, user)


def remove_second_factor(connection: sqlite3.Connection, user: str) -> None:
    """Nothing where there is none."""
    connection.execute("DELETE FROM second_factor WHERE user = ?", (user,))


def _read(row: sqlite3.Row) -> SecondFactorRow:
    recovery = tuple(json.loads(row["recovery"]))
    return SecondFactorRow(**{**dict(row), "confirmed": bool(row["confirmed"]), "recovery": recovery})
