"""Opens the SQLite file for one writer and many readers, and words its errors so that a person can act.

It also brings a file to the schema that this program knows, one numbered step at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.base.clock import Clock
from appliance.base.errors import StoreError, StoreUnavailable, lacks_files
from appliance.base.stage_latencies import StageLatencies

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 5.0  # of SQLite's own lock: a checkpoint takes less
IDLE_READERS_MAX = 8  # as many as the dashboard reads with at once; more are opened and closed
CACHE_KB = 512  # of a connection; SQLite's own 2 MB fill within an hour, in each, with what the kernel holds anyway
WAL_BYTES_KEPT = 64 * 1024 * 1024  # of the log after a checkpoint: SQLite need not let it grow anew

# Step n (counted from 1) brings a file from version n-1 to n. A step that was released is never edited: add one.
_STEP_FILES = sorted(Path(__file__).parent.glob("schema_*_*.sql"), key=lambda path: int(path.stem.split("_")[1]))
STEPS: tuple[str, ...] = tuple(path.read_text(encoding="utf-8") for path in _STEP_FILES)

# Python 3.10 gives no error code, so SQLite's own words (sqlite3_errstr) decide.
_REMEDIES = (
    ("database or disk is full", "the disk is full: free some space, or lower storage.size_max_gb or keep_hours"),
    ("disk i/o error", "the disk cannot be read or written: check its free space and its health (dmesg)"),
    ("malformed", "the file is damaged: stop, move it away and start again, or restore a copy"),
    ("not a database", "the file is not a Vedette database: move it away or point storage.dir at another folder"),
    ("readonly", "the file may not be written: check the owner and rights of storage.dir"),
    ("unable to open", "the file cannot be opened: check that storage.dir exists and may be written"),
    ("locked", "another program holds the file: stop it (is a second `vedette run` using this storage.dir?)"),
)

# Of these the file itself comes to no harm: what could not be written may be written later.
_PASSING = ("database or disk is full", "disk i/o error", "locked")


class StoreInUse(StoreError):
    """Another process is the file's writer."""


class ReaderPool:
    """Connections that read, at most IDLE_READERS_MAX of them kept open. Any thread.

    State: the idle ones, the last used at the end, and how many of them nobody has taken since `close_spare`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._spare = 0
        self._lock = threading.Lock()
        self._closed = False

    def take(self) -> sqlite3.Connection:
        """Return an idle connection or a new one. Raise StoreError once the pool is closed."""
        with self._lock:
            if self._closed:
                raise StoreError(f"{self._path}: the database is closed")
            if self._idle:
                found = self._idle.pop()
                self._spare = min(self._spare, len(self._idle))
                return found
        return _open_reader(self._path)

    def give_back(self, connection: sqlite3.Connection) -> None:
        connection.rollback()
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_READERS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def close_spare(self) -> None:
        """Close the connections that nobody has read with since the last call, and give their caches back.

        Each holds up to 0.9 MB, and a moment in which many read at once opens several.
        """
        with self._lock:
            spare, self._idle = self._idle[: self._spare], self._idle[self._spare :]
            self._spare = len(self._idle)
        for reader in spare:
            reader.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._spare = 0
            for reader in self._idle:
                reader.close()
            self._idle.clear()


class Database:
    """Owner of the database file and of every connection to it.

    State: one writing connection behind a re-entrant lock, a few idle reading ones, and a lock file that keeps a
    second core out. Invariants: nothing is written outside `transaction()`; what `transaction()` returned from
    (durable, the default) survives a power cut. While the file is not at its path any more (moved, deleted, or another
    one put there) nothing is written, since it would be lost with the process; what was written can still be read.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        """Open (or create) and migrate the file. Raises StoreError with the remedy."""
        self.path = path
        self.clock = clock
        self.latencies = StageLatencies(clock)
        """Latencies of the stages that this process writes."""
        self._lock = threading.RLock()
        self._depth = 0
        self._doomed = False
        self._durable = True
        self.readers = ReaderPool(path)
        self._closed = False
        _check_place(path)
        self._guard = _only_one(path)
        try:
            with _translated(path):
                self.is_new, self._writer = _open_writer(path)
            self._opened = {each: _identity(each) for each in (path, path.with_name(path.name + "-wal"))}
            self._opened[_lock_path(path)] = _identity(self._guard)
        except BaseException:
            os.close(self._guard)
            raise

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Write: all or nothing. A nested call joins the outer one.

        durable=False leaves the flush to disk to a later commit: for boxes, meters and segment rows, of which a
        power cut may take the last second. Raises StoreError (StoreUnavailable when it is a matter of waiting); the
        transaction is then undone.
        """
        with self._lock:
            if self._depth:
                yield from self._join(durable)
                return
            with _translated(self.path):
                self._begin(durable)
                self._depth, self._doomed = 1, False
                try:
                    yield self._writer
                    if self._doomed:
                        raise StoreError("a part of this transaction failed, so nothing of it was kept")
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
                finally:
                    self._depth = 0

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the writer without a transaction: for a caller that takes a lock of its own after it, never before."""
        with self._lock:
            yield

    @contextlib.contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Read one consistent state of the committed data, from any thread, without waiting for the writer."""
        with _translated(self.path):
            if self.displaced:
                with self._lock:  # readers of their own would open another file, or none
                    yield self._writer
                return
            connection = self.readers.take()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                self.readers.give_back(connection)

    def rows(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> list[sqlite3.Row]:
        """Read all rows of one SELECT, from any thread. Raise StoreError."""
        with self.read() as connection:
            return connection.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[object] | Mapping[str, object] = ()) -> Any:
        """Return the first row of one SELECT; None if there is none. Raise StoreError."""
        with self.read() as connection:
            return connection.execute(statement, values).fetchone()

    def execute(
        self, statement: str, values: Sequence[object] | Mapping[str, object] = (), *, durable: bool = True
    ) -> int:
        """Write one statement in a transaction, the caller's if there is one; return how many rows it changed."""
        with self.transaction(durable=durable) as connection:
            return connection.execute(statement, values).rowcount

    @property
    def displaced(self) -> str:
        """A sentence with the remedy when the file, its log or its lock is not at its path any more; else ''."""
        if self._closed:
            return ""
        for path, opened in self._opened.items():
            if _identity(path) != opened:
                return (
                    f"{path} was moved, deleted or replaced while Vedette runs: put it back, or restart Vedette to "
                    "begin a new one; until then nothing is written"
                )
        return ""

    def next_rev(self, connection: sqlite3.Connection) -> int:
        """Return the next change number, inside the transaction of `connection`."""
        row = connection.execute("UPDATE counter SET value = value + 1 WHERE name = 'rev' RETURNING value").fetchone()
        rev: int = row[0]
        return rev

    def rev(self) -> int:
        """Return the number of the last committed change."""
        with self.read() as connection:
            found: int = connection.execute("SELECT value FROM counter WHERE name = 'rev'").fetchone()[0]
        return found

    def probe(self) -> None:
        """Write a few bytes that change nothing. Raises StoreUnavailable while the disk takes none."""
        with self.transaction() as connection:
            connection.execute("UPDATE counter SET value = value WHERE name = 'rev'")

    def close(self) -> None:
        """Fold the write-ahead log into the file and close all connections. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.readers.close()
            try:
                self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:  # the log stays beside the file and is read at the next start
                logger.warning("%s: the write-ahead log could not be folded in: %s", self.path, error)
            self._writer.close()
            os.close(self._guard)

    def _begin(self, durable: bool) -> None:
        if self._closed:
            raise StoreError(f"{self.path}: the database is closed")
        if gone := self.displaced:
            raise StoreUnavailable(gone)
        if durable != self._durable:  # a PRAGMA that SQLite refuses inside a transaction
            self._writer.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        self._writer.execute("BEGIN IMMEDIATE")

    def _join(self, durable: bool) -> Iterator[sqlite3.Connection]:
        if durable and not self._durable:
            raise StoreError("a change that must survive a power cut was asked for inside one that need not")
        try:
            yield self._writer
        except BaseException:
            self._doomed = True
            raise


def bump_rev(db: Database, connection: sqlite3.Connection, alert_id: str) -> int:
    """Give the alert the next change number, inside the transaction of `connection`, so that readers see the change."""
    rev = db.next_rev(connection)
    connection.execute("UPDATE alert SET rev = ? WHERE id = ?", (rev, alert_id))
    return rev


def to_json(value: Any) -> str:
    """Compact JSON, refusing what JSON cannot hold."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def insert(connection: sqlite3.Connection, table: str, values: Mapping[str, object], how: str = "INSERT") -> bool:
    """Insert a row of named columns, inside the transaction of `connection`; True when it was written."""
    marks = ", ".join(f":{name}" for name in values)
    return connection.execute(f"{how} INTO {table} ({', '.join(values)}) VALUES ({marks})", values).rowcount > 0


def database_versions() -> dict[str, str]:
    """Return the versions of SQLite and of the schema that this program knows; an open file has that schema."""
    return {"sqlite": sqlite3.sqlite_version, "schema": str(len(STEPS))}


@contextlib.contextmanager
def open_read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Read one consistent state of the file beside a running appliance or without one; nothing is made or migrated.

    Raises StoreError.
    """
    if not path.is_file():
        raise StoreError(f"there is no {path}: has this appliance recorded with this storage.dir?")
    with _translated(path):
        connection = _open_reader(path)
        try:
            connection.execute("BEGIN")
            yield connection
        finally:
            connection.close()


@contextlib.contextmanager
def open_beside(path: Path, clock: Clock) -> Iterator[sqlite3.Connection]:
    """One transaction on the file, beside a running appliance or without one, which then makes or migrates it.

    For commands that change what the appliance reads again by itself. Raises StoreError.
    """
    try:
        db = Database(path, clock)
    except StoreInUse:
        with (
            _translated(path),
            contextlib.closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection,
        ):
            connection.row_factory = sqlite3.Row
            if version_of(connection) != len(STEPS):
                raise StoreError("the running appliance is of another version than this command") from None
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        return
    try:
        with db.transaction() as connection:
            yield connection
    finally:
        db.close()


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder; the database needs a file there")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"the folder {path.parent} cannot be made: {error.strerror}; set storage.dir") from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreError(f"the folder {path.parent} may not be written: check its owner and rights, or set storage.dir")


@contextlib.contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Keep every writer out of the file (that need not be there) for as long as this lasts. Raises StoreInUse."""
    guard = _only_one(path)
    try:
        yield
    finally:
        os.close(guard)


def _only_one(path: Path) -> int:
    """Hold a lock file for as long as this process lives: two cores on one folder would send everything twice."""
    lock = _lock_path(path)
    try:
        guard = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{lock} cannot be made: {error.strerror}; check storage.dir") from None
    try:
        fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(guard)
        raise StoreInUse(f"{path} is in use by another `vedette run`: stop that one, or set storage.dir") from None
    return guard


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Device and inode of a path or an open file; None: there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _open_writer(path: Path) -> tuple[bool, sqlite3.Connection]:
    """Return True if the file is a new one, and the connection."""
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
        connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
        is_new = version_of(connection) == 0
        if migrate(connection):
            logger.info("brought %s to the current schema", path)
    except BaseException:
        connection.close()
        raise
    return is_new, connection


def _open_reader(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    return connection


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        text = str(error)
        if "unable to open" in text.lower() and _lacks_files():
            raise StoreUnavailable(f"{path}: too many files are open in this process; it waits") from error
        for words, remedy in _REMEDIES:
            if words in text.lower():
                kind = StoreUnavailable if words in _PASSING else StoreError
                raise kind(f"{path}: {remedy}") from error
        raise StoreError(f"{path}: {text}") from error


def _lacks_files() -> bool:
    """SQLite does not say why it could not open a file."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return lacks_files(error)
    return False


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
