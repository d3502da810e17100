"""Copies the database while it is written, and checks a copy before it is restored."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import PreconditionError, StoreError
from appliance.store.database import STEPS, open_read_only, statements, version_of
from appliance.store.users import log_access

SCHEMA_KNOWN = len(STEPS)
REV_STEP = 1_000_000  # browsers that follow changes have seen smaller numbers than any of a restored file


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """Facts about a copy's content."""

    schema: int
    alerts: int
    users: int


def copy_database(path: Path, to: Path) -> CopyFacts:
    """Copy one consistent state, beside a running appliance or without one. Raises StoreError.

    In one step: a copy in many would begin anew with each write of the core, which is one a second.
    """
    to.unlink(missing_ok=True)
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with open_read_only(path) as source, contextlib.closing(sqlite3.connect(to)) as target:
            source.execute("ROLLBACK")  # the copy takes a state of its own
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
            return _facts(target)
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be copied: {error}") from None


def evidence_paths(copy: Path) -> list[str]:
    """Return the evidence files that a copy names, relative to the storage folder. Raise StoreError."""
    with _opened(copy) as connection:
        return [row[0] for row in connection.execute("SELECT path FROM evidence WHERE state = 'ready' ORDER BY path")]


def schema_of(path: Path) -> int:
    """Return the schema version of a database that no process has open. Raise StoreError."""
    with _opened(path) as connection:
        return version_of(connection)


def check_copy(path: Path) -> CopyFacts:
    """Check a copy and return its facts. Raise PreconditionError with the reason in words.

    The reasons: it is no database of Vedette, a newer one, damaged, or it holds statements that are not Vedette's and
    would run with its rights.
    """
    with _opened(path) as connection:
        try:
            schema = version_of(connection)
            if schema > SCHEMA_KNOWN:
                raise PreconditionError(
                    f"its database has schema {schema} and this program knows {SCHEMA_KNOWN}: it was made by a newer "
                    "Vedette; install that version first"
                )
            if schema < 1 or _programs(connection) != _own_programs(schema):
                raise PreconditionError("its database is not one that Vedette made")
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise PreconditionError(f"its database is damaged ({found})")
            return _facts(connection)
        except sqlite3.Error as error:
            raise PreconditionError(f"its database cannot be read: {error}") from None


def note_restore(path: Path, t: float, who: str, about: str) -> None:
    """Say in the access log of a checked copy who restores it, and when (UTC seconds). Raises StoreError."""
    with _opened(path) as connection:
        if version_of(connection) >= 13:
            log_access(connection, t, who, "", "restored", about)
            connection.commit()


def prepare_copy(path: Path, running: Path) -> None:
    """Make a checked copy ready to take the place of `running`. Raise StoreError.

    The copy signs nobody in, and its changes are counted on from beyond those of now.
    """
    rev = 0
    if running.is_file():
        with open_read_only(running) as connection:
            rev = connection.execute("SELECT value FROM counter WHERE name = 'rev'").fetchone()[0]
    with _opened(path) as connection:
        if version_of(connection) >= 10:
            connection.execute("DELETE FROM session")
        connection.execute("UPDATE counter SET value = max(value, ?) WHERE name = 'rev'", (rev + REV_STEP,))
        connection.commit()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StoreError(f"{path.name} cannot be read: {error}") from None


def _facts(connection: sqlite3.Connection) -> CopyFacts:
    schema = version_of(connection)
    alerts = connection.execute("SELECT count(*) FROM alert").fetchone()[0]
    users = connection.execute("SELECT count(*) FROM user").fetchone()[0] if schema >= 13 else 0
    return CopyFacts(schema, alerts, users)


def _programs(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Return the triggers and views, which run by themselves, with their SQL, and the names of the tables.

    Of names only those of tables that SQLite makes are left out: whoever makes a file may call a trigger as they like.
    """
    rows = connection.execute(
        """SELECT type, name, iif(type IN ('trigger', 'view'), coalesce(sql, ''), '') FROM sqlite_master
           WHERE type <> 'index' AND NOT (type = 'table' AND substr(name, 1, 7) = 'sqlite_')"""
    )
    return {(kind, name, sql) for kind, name, sql in rows}


def _own_programs(schema: int) -> set[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        for step in STEPS[:schema]:
            for statement in statements(step):
                connection.execute(statement)
        return _programs(connection)
