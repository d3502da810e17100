"""Users of the dashboard and tokens of programs: the rows, and the rule that somebody can always let others in."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from appliance.base.errors import StoreError, UsageError
from appliance.base.passwords import token_digest
from appliance.store.database import Database, open_read_only
from appliance.store.second_factors import remove_second_factor
from appliance.types.accounts import ApiTokenRow, Role, SignInCodeRow, UserRow, name_problem

USERS_MAX = 200  # of a site; all are read each second
TOKENS_MAX = 50  # likewise


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
        with self._db.read() as connection:
            return {
                row["id"]: ApiTokenRow(**dict(row))
                for row in connection.execute("SELECT * FROM api_token ORDER BY name")
            }

    def sign_in_codes(self) -> dict[str, SignInCodeRow]:
        """Codes from the console that were not used, by user."""
        with self._db.read() as connection:
            return {row["user"]: SignInCodeRow(**dict(row)) for row in connection.execute("SELECT * FROM sign_in_code")}

    def take_sign_in_code(self, row: SignInCodeRow) -> bool:
        """Use up a code. False: another sign-in has."""
        with self._db.transaction() as connection:
            done = connection.execute("DELETE FROM sign_in_code WHERE user = ? AND digest = ?", (row.user, row.digest))
            return done.rowcount == 1

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
        with self._db.transaction() as connection:
            connection.execute("DELETE FROM api_token WHERE id = ?", (token_id,))


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
    connection.execute("DELETE FROM sign_in_code WHERE user = ?", (name,))
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
