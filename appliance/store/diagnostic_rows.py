"""Rows of the database that help to find a fault: health events, gaps, the schema, numbers of rows."""

from __future__ import annotations

import sqlite3
from typing import Any

HEALTH_ROWS_MAX, GAP_ROWS_MAX = 500, 1000  # the newest; a person reads no more of a diagnostics file


def health_rows(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the newest health events."""
    return _rows(connection, "SELECT * FROM health_event ORDER BY t_start DESC LIMIT ?", HEALTH_ROWS_MAX)


def gap_rows(connection: sqlite3.Connection) -> list[dict[str, Any]]:
    """Return the newest gaps of all cameras."""
    return _rows(
        connection, "SELECT camera, t_start, t_end, reason FROM gap ORDER BY t_start DESC LIMIT ?", GAP_ROWS_MAX
    )


def schema_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """Its version, each table with its number of rows, and the statements that made it all."""
    names = [
        row["name"] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")
    ]
    made = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY 1, 2")
    return {
        "version": connection.execute("PRAGMA user_version").fetchone()[0],
        "page_bytes": connection.execute("PRAGMA page_size").fetchone()[0],
        "pages": connection.execute("PRAGMA page_count").fetchone()[0],
        "largest_id_or_rows": {name: _rough_count(connection, name) for name in names},
        "sql": [dict(row) for row in made],
    }


def _rough_count(connection: sqlite3.Connection, table: str) -> int | None:
    """Return the largest rowid, which is read at once; None if the table has none.

    Counting a table of millions of rows takes seconds.
    """
    try:
        found: int | None = connection.execute(f'SELECT max(rowid) FROM "{table}"').fetchone()[0]
    except sqlite3.OperationalError:  # WITHOUT ROWID
        return None
    return found


def _rows(connection: sqlite3.Connection, query: str, limit: int) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.execute(query, (limit,))]
