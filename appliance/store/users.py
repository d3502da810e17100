"""The accounts of the dashboard: users, tokens, sessions, second factors, and the log of what they did."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base.credentials import token_digest
from appliance.base.errors import StoreError, UsageError
from appliance.store.database import Database, open_read_only
from appliance.types.accounts import (
    AccessLogRow,
    ApiTokenRow,
    Role,
    SecondFactorRow,
    SessionRow,
    SignInCodeRow,
    UserRow,
    name_problem,
)

USERS_MAX = 200  # of a site; all are read each second
TOKENS_MAX = 50  # likewise
SESSIONS_MAX = 1000  # the oldest is signed out beyond
ABOUT_LENGTH_MAX = 500  # characters: a span, a choice and a reason
LOG_ROWS_MAX = 50_000  # five megabytes; `storage.access_log_days` deletes before


class UserStore:
    """The user and api_token tables. Any thread; each method raises StoreError.

    Invariant: once there was a user, at least one admin who is enabled and sees all cameras remains.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    def users(self) -> dict[str, UserRow]:
        """All users, by name."""
        with self._db.read() as connection:
            return all_users(connection)

    def tokens(self) -> dict[str, ApiTokenRow]:
        """All tokens of programs, by id."""
        return {row["id"]: ApiTokenRow(**dict(row)) for row in self._db.rows("SELECT * FROM api_token ORDER BY name")}

    def sign_in_codes(self) -> dict[str, SignInCodeRow]:
        """Codes from the console that were not used, by user."""
        return {row["user"]: SignInCodeRow(**dict(row)) for row in self._db.rows("SELECT * FROM sign_in_code")}

    def take_sign_in_code(self, row: SignInCodeRow) -> bool:
        """Use up a code. False: another sign-in has."""
        return self._db.execute("DELETE FROM sign_in_code WHERE user = ? AND digest = ?", (row.user, row.digest)) == 1

    def add(self, user: UserRow) -> None:
        """Add a user. Raise UsageError if the name is taken or no name, or there are too many."""
        with self._db.transaction() as connection:
            add_user(connection, user, self._db.clock.now())

    def change(self, name: str, changed: Callable[[UserRow], UserRow]) -> None:
        """Replace all of a user but name and day. Raise UsageError, and what `changed` raises.

        `changed` makes the new row from the row stored at that moment, which may have changed since the caller read it.
        Another password, or being disabled, ends the sessions.
        """
        with self._db.transaction() as connection:
            change_user(connection, changed(_known(connection, name)))

    def remove(self, name: str) -> None:
        """Remove a user. Raise UsageError."""
        with self._db.transaction() as connection:
            remove_user(connection, name)

    def add_token(self, token: str, name: str, role: Role, made_by: str) -> ApiTokenRow:
        """Keep the digest of a new token. Raises UsageError: the name is taken or no name, there are too many."""
        row = ApiTokenRow(
            id=token_digest(token), name=_named(name), role=role, made_by=made_by, created_t=self._db.clock.now()
        )
        with self._db.transaction() as connection:
            if connection.execute("SELECT 1 FROM api_token WHERE name = ?", (name,)).fetchone():
                raise UsageError(f"there is a token {name} already: revoke it, or take another name")
            if connection.execute("SELECT count(*) FROM api_token").fetchone()[0] >= TOKENS_MAX:
                raise UsageError(f"there are {TOKENS_MAX} tokens already: revoke one that is not used any more")
            connection.execute("INSERT INTO api_token VALUES (:id, :name, :role, :made_by, :created_t)", asdict(row))
        return row

    def remove_token(self, token_id: str) -> None:
        """Nothing where there is none."""
        self._db.execute("DELETE FROM api_token WHERE id = ?", (token_id,))


def add_sign_in_code(connection: sqlite3.Connection, row: SignInCodeRow) -> None:
    """In place of an earlier one. Raises UsageError: there is no such user, or they may not sign in."""
    if not _known(connection, row.user).enabled:
        raise UsageError(f"{row.user} may not sign in: vedette users passwd {row.user} lets them again")
    connection.execute("INSERT OR REPLACE INTO sign_in_code VALUES (:user, :digest, :expires_t)", asdict(row))


def all_users(connection: sqlite3.Connection) -> dict[str, UserRow]:
    """All users, by name."""
    return {row["name"]: _read(row) for row in connection.execute("SELECT * FROM user ORDER BY name")}


def stored_users(path: Path) -> dict[str, UserRow]:
    """All users of a database that another process may own, without changing it; none where there is no database."""
    try:
        with open_read_only(path) as connection:
            return all_users(connection)
    except StoreError:
        return {}


def add_user(connection: sqlite3.Connection, user: UserRow, t: float) -> None:
    """Add a user. Raise UsageError: the name is taken or no name, there are too many, or the first is no admin."""
    known = all_users(connection)
    if _named(user.name).casefold() in {each.casefold() for each in known}:
        raise UsageError(f"there is a user {user.name} already")
    if len(known) >= USERS_MAX:
        raise UsageError(f"there are {USERS_MAX} users already: remove one")
    connection.execute(
        "INSERT INTO user VALUES (:name, :role, :cameras, :password, :enabled, :created_t)",
        {**_values(user), "created_t": t},
    )
    _check_admin(connection)


def change_user(connection: sqlite3.Connection, user: UserRow) -> None:
    """Change a user. Raise UsageError if there is no such user, or no admin would be left."""
    before = _known(connection, user.name)
    connection.execute(
        "UPDATE user SET role = :role, cameras = :cameras, password = :password, enabled = :enabled WHERE name = :name",
        _values(user),
    )
    _check_admin(connection)
    if before.password != user.password or not user.enabled:
        connection.execute("DELETE FROM session WHERE user = ?", (user.name,))


def remove_user(connection: sqlite3.Connection, name: str) -> None:
    """Remove a user. Raise UsageError if there is no such user, or no admin would be left."""
    _known(connection, name)
    connection.execute("DELETE FROM user WHERE name = ?", (name,))
    connection.execute("DELETE FROM session WHERE user = ?", (name,))
    for table in ("sign_in_code", "push_subscription", "push_preference"):  # another may get the name one day
        connection.execute(f"DELETE FROM {table} WHERE user = ?", (name,))
    remove_second_factor(connection, name)
    _check_admin(connection)


def _check_admin(connection: sqlite3.Connection) -> None:
    users = all_users(connection).values()
    if not any(each.role == "admin" and each.enabled and each.cameras is None for each in users):
        raise UsageError("one admin who is enabled and sees all cameras must remain, or nobody could let anybody in")


def _known(connection: sqlite3.Connection, name: str) -> UserRow:
    found = all_users(connection).get(name)
    if found is None:
        raise UsageError(f"there is no user {name}")
    return found


def _named(name: str) -> str:
    if problem := name_problem(name):
        raise UsageError(problem)
    return name


def _values(user: UserRow) -> dict[str, object]:
    return {
        **asdict(user),
        "cameras": None if user.cameras is None else json.dumps(user.cameras),
        "enabled": int(user.enabled),
    }


def _read(row: sqlite3.Row) -> UserRow:
    cameras = None if row["cameras"] is None else tuple(json.loads(row["cameras"]))
    return UserRow(**{**dict(row), "cameras": cameras, "enabled": bool(row["enabled"])})


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
        self._db.execute("DELETE FROM session WHERE id = ?", (session,))

    def all(self) -> dict[str, SessionRow]:
        """All sessions that are not over, by id, newest first. Raises StoreError."""
        rows = self._db.rows(
            "SELECT * FROM session WHERE expires_t > ? ORDER BY created_t DESC", (self._db.clock.now(),)
        )
        return {row["id"]: SessionRow(**dict(row)) for row in rows}


class SecondFactorStore:
    """The second_factor table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def all(self) -> dict[str, SecondFactorRow]:
        """All, by user."""
        return {row["user"]: _read_factor(row) for row in self._db.rows("SELECT * FROM second_factor")}

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
        self._db.execute(
            "UPDATE second_factor SET confirmed = 1, last_step = ?, recovery = ? WHERE user = ?",
            (step, json.dumps(list(recovery)), user),
        )

    def take_step(self, user: str, step: int) -> bool:
        """Use up the codes until `step`. False: they are used up already."""
        return (
            self._db.execute(
                "UPDATE second_factor SET last_step = ? WHERE user = ? AND last_step < ?", (step, user, step)
            )
            == 1
        )

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


def _read_factor(row: sqlite3.Row) -> SecondFactorRow:
    recovery = tuple(json.loads(row["recovery"]))
    return SecondFactorRow(**{**dict(row), "confirmed": bool(row["confirmed"]), "recovery": recovery})


@dataclass(frozen=True, slots=True)
class AccessQuery:
    """Which rows of the access log: from_t <= t < to_t, UTC seconds; None: of anybody, of any camera or none."""

    who: str | None = None
    camera: str | None = None
    from_t: float = 0.0
    to_t: float = 9e15


EVERY_ACCESS = AccessQuery()


class AccessLog:
    """The access_log table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def now(self) -> float:
        """Return the time that rows are written with, UTC seconds."""
        return self._db.clock.now()

    def write(self, who: str, address: str, what: str, about: str = "", camera: str = "") -> None:
        """Add a row; the oldest of too many goes."""
        with self._db.transaction() as connection:
            log_access(connection, self._db.clock.now(), who, address, what, about, camera)

    def refused(self, who: str, since: float) -> tuple[int, int]:
        """How many wrong tries to sign in as `who` there were since then, and from how many addresses."""
        row = self._db.row(
            "SELECT count(*), count(DISTINCT address) FROM access_log "
            "WHERE who = ? AND t >= ? AND what LIKE 'was refused:%'", (who, since),
        )  # fmt: skip
        return row[0], row[1]

    def newest(self, limit: int = 100, wanted: AccessQuery = EVERY_ACCESS) -> list[AccessLogRow]:
        """Return the rows that are wanted, the newest first."""
        rows = self._db.rows(
            """SELECT * FROM access_log WHERE (:who IS NULL OR who = :who) AND (:camera IS NULL OR camera = :camera)
               AND t >= :from_t AND t < :to_t ORDER BY id DESC LIMIT :limit""",
            {**asdict(wanted), "limit": limit},
        )
        return [AccessLogRow(**dict(row)) for row in rows]

    def names(self) -> list[str]:
        """Return everybody who is in it, sorted."""
        return [row["who"] for row in self._db.rows("SELECT DISTINCT who FROM access_log ORDER BY who")]

    def forget_old(self, keep_s: float) -> None:
        """Delete rows older than `keep_s`."""
        self._db.execute("DELETE FROM access_log WHERE t < ?", (self._db.clock.now() - keep_s,), durable=False)


def log_access(
    connection: sqlite3.Connection, t: float, who: str, address: str, what: str, about: str = "", camera: str = ""
) -> None:
    """Add a row inside the transaction of `connection`."""
    connection.execute(
        "INSERT INTO access_log (t, who, address, what, about, camera) VALUES (?, ?, ?, ?, ?, ?)",
        (t, who[:100], address[:100], what, about[:ABOUT_LENGTH_MAX], camera[:100]),
    )
    connection.execute("DELETE FROM access_log WHERE id <= (SELECT max(id) FROM access_log) - ?", (LOG_ROWS_MAX,))
