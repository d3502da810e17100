"""The table of exports: clips made for somebody outside the site, their files, and the links that end."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.base.credentials import token_digest
from appliance.base.errors import StoreError, UsageError
from appliance.store.database import Database, insert
from appliance.store.paths import EXPORTS, inside

KEPT_S = 24 * 3600.0  # a day to download it; with a link, until that ends
LINK_HOURS_MAX = 14 * 24  # two weeks: insurers and the police answer within it
EXPORTS_MAX = 50  # with files at a time; each has at most some hundred MB

Hide = Literal["surroundings", "people"]
ExportState = Literal["making", "ready", "failed", "gone"]


@dataclass(frozen=True, slots=True)
class ExportFiles:
    """The files of an export. bytes, sha256: of the zip. taken: how often that was downloaded."""

    state: ExportState = "making"
    problem: str = ""
    bytes: int = 0
    sha256: str = ""
    taken: int = 0


@dataclass(frozen=True, slots=True)
class ExportLink:
    """A link to the clip of an export: until when it leads there, UTC seconds, and how often it was opened."""

    until_t: float
    opened: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """An export. t_start, t_end: the span asked for, UTC seconds. alert: '' for a span of the camera."""

    id: str
    t: float
    who: str
    why: str
    camera: str
    alert: str
    t_start: float
    t_end: float
    hide: Hide
    files: ExportFiles = ExportFiles()
    link: ExportLink | None = None

    @property
    def folder(self) -> str:
        """Return where its files lie, relative to the storage folder."""
        return f"{EXPORTS}/{self.id}"


_ORDERED = ("id", "t", "who", "why", "camera", "alert", "t_start", "t_end", "hide")


def read_export(row: sqlite3.Row) -> ExportRow:
    """Return a row of the table."""
    link = None if row["link"] is None else ExportLink(row["link_until"], row["opened"])
    files = ExportFiles(row["state"], row["problem"], row["bytes"], row["sha256"], row["taken"])
    return ExportRow(**{name: row[name] for name in _ORDERED}, files=files, link=link)


class ExportStore:
    """The export table. Any thread; each method raises StoreError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def add(self, row: ExportRow) -> None:
        """Add an export that is being made. Raise UsageError if there are too many with files."""
        columns = {name: getattr(row, name) for name in _ORDERED} | {"state": row.files.state}
        with self._db.transaction() as connection:
            held = connection.execute("SELECT count(*) FROM export WHERE state IN ('making', 'ready')").fetchone()[0]
            if held >= EXPORTS_MAX:
                raise UsageError(f"there are {EXPORTS_MAX} exports already: delete one, or wait until one is a day old")
            insert(connection, "export", columns)

    def get(self, export: str) -> ExportRow | None:
        row = self._db.row("SELECT * FROM export WHERE id = ?", (export,))
        return None if row is None else read_export(row)

    def all(self, limit: int = 200) -> list[ExportRow]:
        """Return the newest, the last first."""
        return [read_export(row) for row in self._db.rows("SELECT * FROM export ORDER BY t DESC LIMIT ?", (limit,))]

    def finished(self, export: str, *, size: int = 0, sha256: str = "", problem: str = "") -> bool:
        """Say that its files are there, or, with a problem, that there will be none. False: it was deleted."""
        changed = self._db.execute(
            "UPDATE export SET state = ?, bytes = ?, sha256 = ?, problem = ? WHERE id = ? AND state = 'making'",
            ("failed" if problem else "ready", size, sha256, problem[:300], export),
        )
        return changed > 0

    def interrupt(self, root: Path, problem: str) -> None:
        """Say of each export that is being made that nobody makes it any more, and delete files of none that is there.

        For the start.
        """
        self._db.execute("UPDATE export SET state = 'failed', problem = ? WHERE state = 'making'", (problem[:300],))
        kept = {row["id"] for row in self._db.rows("SELECT id FROM export WHERE state = 'ready'")}
        for folder in (root / EXPORTS).glob("*"):
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def count(self, export: str, what: Literal["taken", "opened"]) -> None:
        """Count a download of the zip, or an opening of the link."""
        self._db.execute(f"UPDATE export SET {what} = {what} + 1 WHERE id = ?", (export,))

    def delete(self, row: ExportRow, root: Path) -> None:
        """Delete its files, and end its link; the row stays."""
        with self._db.transaction() as connection:
            delete_export(connection, root, row)

    def make_link(self, export: str, until_t: float) -> str:
        """Return the token of a new link, which replaces an earlier one. Only its digest is kept."""
        token = secrets.token_urlsafe(24)
        self._db.execute(
            "UPDATE export SET link = ?, link_until = ? WHERE id = ?", (token_digest(token), until_t, export)
        )
        return token

    def end_link(self, export: str) -> None:
        self._db.execute("UPDATE export SET link = NULL, link_until = 0 WHERE id = ?", (export,))

    def by_link(self, token: str) -> ExportRow | None:
        """Return the export that a link leads to; None: there is none, or it ended."""
        row = self._db.row(
            "SELECT * FROM export WHERE link = ? AND link_until > ? AND state = 'ready'",
            (token_digest(token), self._db.clock.now()),
        )
        return None if row is None else read_export(row)


def delete_old_exports(db: Database, root: Path, keep_rows_s: float) -> int:
    """Delete the files of exports that are over, and rows older than `keep_rows_s`; return how many had files.

    An export that was being made when the appliance ended is over, too, after a day. Raises StoreError.
    """
    now = db.clock.now()
    rows = db.rows(
        "SELECT * FROM export WHERE state IN ('making', 'ready') AND t < ? AND link_until < ?", (now - KEPT_S, now)
    )
    with db.transaction(durable=False) as connection:
        for row in rows:
            delete_export(connection, root, read_export(row))
        connection.execute("DELETE FROM export WHERE state IN ('gone', 'failed') AND t < ?", (now - keep_rows_s,))
    return len(rows)


def delete_export(connection: sqlite3.Connection, root: Path, row: ExportRow) -> None:
    """Delete the files of an export and end its link, inside a transaction; the row stays."""
    with contextlib.suppress(StoreError):
        shutil.rmtree(inside(root, row.folder, EXPORTS), ignore_errors=True)
    connection.execute("UPDATE export SET state = 'gone', link = NULL, link_until = 0 WHERE id = ?", (row.id,))
