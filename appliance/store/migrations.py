"""Brings a database file to the schema this program knows, one numbered step at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from appliance.base.errors import StoreError

# Step n (counted from 1) brings a file from version n-1 to n. A step that was released is never edited: add one.
_STEP_FILES = sorted(Path(__file__).parent.glob("schema_*_*.sql"), key=lambda path: int(path.stem.split("_")[1]))
STEPS: tuple[str, ...] = tuple(path.read_text(encoding="utf-8") for path in _STEP_FILES)


def version_of(connection: sqlite3.Connection) -> int:
    """Return the schema version that the file carries; 0 for a new file."""
    found: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return found


def migrate(connection: sqlite3.Connection, steps: tuple[str, ...] = STEPS) -> int:
    """Run the steps that are missing, each in a transaction of its own; return how many ran.

    `connection` is in autocommit mode. Raises StoreError when the file is newer than `steps`, and sqlite3.Error,
    with the file left at the last step that succeeded, when one fails.
    """
    ran = 0
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = version_of(connection)  # read under the lock: another process may just have migrated
            if version > len(steps):
                raise StoreError(
                    f"the database has schema {version} and this program knows {len(steps)}: it was written by a newer "
                    "Vedette; install that version again, or point storage.dir at another folder"
                )
            if version == len(steps):
                connection.execute("ROLLBACK")
                return ran
            for statement in statements(steps[version]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        ran += 1


def statements(script: str) -> Iterator[str]:
    """Yield the statements of `script`.

    `executescript` would commit the transaction that a step must stay inside.
    """
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip() and not all(line.lstrip().startswith("--") for line in pending.splitlines() if line.strip()):
        yield pending
