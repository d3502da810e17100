"""The database file: opened with care, one writer, errors that say what to do."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError, StoreUnavailable
from appliance.store import database
from appliance.store.database import CACHE_KB, Database
from appliance.store.decisions import DecisionStore
from appliance.store.escalations import EscalationStore
from appliance.store.outbox_queue import OutboxQueue
from tests.support.sample_rows import sample_escalation


def count_up_and_fail(db: Database) -> None:
    with db.transaction() as connection:
        db.next_rev(connection)
        raise ZeroDivisionError


def carry_on_after(db: Database, outer: sqlite3.Connection) -> None:
    with contextlib.suppress(ZeroDivisionError):
        count_up_and_fail(db)
    db.next_rev(outer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "vedette.db"


def opened(path: Path) -> Database:
    return Database(path, ManualClock())


def test_a_new_file_gets_the_schema_and_its_version(path: Path) -> None:
    db = opened(path)
    with db.read() as connection:
        assert database.version_of(connection) == len(database.STEPS)
        assert connection.execute("SELECT count(*) FROM alert").fetchone()[0] == 0
    db.close()


def test_the_escalations_of_an_older_file_go_on(path: Path) -> None:
    """A box of schema 1 with an open question is brought to the present one: it waits for nothing."""
    path.parent.mkdir()
    raw = sqlite3.connect(path, isolation_level=None)
    database.migrate(raw, database.STEPS[:1])
    raw.execute(
        "INSERT INTO alert VALUES ('a','gate','r','alert','[]','[]','[]',0.5,1.0,NULL,'',NULL,NULL,NULL,NULL,1.0,1)"
    )
    body = sample_escalation("q", of="a").to_json().decode()
    raw.execute(
        "INSERT INTO escalation (id, alert, site, camera, priority, state, body, created_t) VALUES (?,?,?,?,?,?,?,?)",
        ("q", "a", "depot", "gate", "high", "ready", body, 1.0),
    )
    raw.close()
    db = opened(path)
    row = OutboxQueue(db).ready("q")
    assert row is not None
    assert (row.id, row.step, row.evidence, row.wait, row.until_t) == ("q", 0, "", "", None)
    assert EscalationStore(db).postponed(10) == []
    assert DecisionStore(db).outcomes() == []
    db.close()


def test_opening_again_changes_nothing(path: Path) -> None:
    first = opened(path)
    with first.transaction() as connection:
        assert first.next_rev(connection) == 1
    first.close()
    again = opened(path)
    assert again.rev() == 1
    again.close()


def test_refuses_a_newer_schema_and_says_so(path: Path) -> None:
    opened(path).close()
    raw = sqlite3.connect(path)
    raw.execute(f"PRAGMA user_version = {len(database.STEPS) + 1}")
    raw.close()
    with pytest.raises(
        StoreError, match=rf"schema {len(database.STEPS) + 1} and this program knows {len(database.STEPS)}.*newer"
    ):
        opened(path)


def test_a_migration_that_fails_leaves_the_last_good_version(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    steps = ("CREATE TABLE a (x);\n", "CREATE TABLE b (x);\n-- why; because\nINSERT INTO nowhere VALUES (1);\n")
    with pytest.raises(sqlite3.OperationalError):
        database.migrate(raw, steps)
    assert database.version_of(raw) == 1
    assert raw.execute("SELECT name FROM sqlite_master").fetchall() == [("a",)]
    assert database.migrate(raw, (steps[0], "CREATE TABLE b (x);")) == 1
    raw.close()


def test_a_second_core_on_the_same_folder_is_refused(path: Path) -> None:
    first = opened(path)
    with pytest.raises(StoreError, match="in use by another"):
        opened(path)
    first.close()
    opened(path).close()


@pytest.mark.parametrize("what", ["moved", "deleted", "replaced", "log moved", "lock moved"])
def test_a_file_that_went_away_is_read_and_not_written(path: Path, what: str) -> None:
    db, aside = opened(path), path.with_name("aside")
    with db.transaction() as connection:
        connection.execute("UPDATE counter SET value = 7")
    target = path.with_name(path.name + {"log moved": "-wal", "lock moved": ".lock"}.get(what, ""))
    target.rename(aside)
    if what == "replaced":
        raw = sqlite3.connect(path)
        raw.execute("CREATE TABLE counter (name, value)")
        raw.commit()
        raw.close()
    with pytest.raises(StoreUnavailable, match="was moved, deleted or replaced while Vedette runs"), db.transaction():
        pass
    assert db.displaced
    assert db.rev() == 7, "what was written can still be read"
    if what not in ("deleted", "replaced"):
        aside.rename(target)
        assert db.displaced == ""
        with db.transaction() as connection:
            connection.execute("UPDATE counter SET value = 8")
        assert db.rev() == 8
    db.close()


def test_a_truncated_file_is_refused_or_told(path: Path) -> None:
    db = opened(path)
    with db.transaction() as connection:
        rows = [("yard", float(n), "r", n, n, 1, "[]" * 50) for n in range(5000)]
        connection.executemany("INSERT INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    db.close()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match="damaged"):
        opened(path).row("SELECT count(*) FROM boxes")


def test_a_disk_that_may_only_be_read_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "card"
    place.mkdir()
    opened(place / "vedette.db").close()
    bound = [["mount", "--bind", str(place), str(place)], ["mount", "-o", "remount,ro,bind", str(place)]]
    if os.geteuid() or any(subprocess.run(each, capture_output=True, check=False).returncode for each in bound):
        pytest.skip("a disk can be made read-only by root only")
    try:
        with pytest.raises(StoreError, match="may not be written: check its owner and rights"):
            opened(place / "vedette.db")
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_says_whether_the_file_is_new(path: Path) -> None:
    first = opened(path)
    assert first.is_new
    first.close()
    again = opened(path)
    assert not again.is_new
    again.close()


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        opened(tmp_path)


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StoreError, match=r"cannot be made.*storage\.dir"):
        opened(tmp_path / "data" / "vedette.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="may not be written"):
        opened(tmp_path / "vedette.db")


def test_a_file_that_is_no_database(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"This is a letter to my aunt.\n" * 400)
    with pytest.raises(StoreError, match="not a Vedette database"):
        opened(path)
    path.unlink()
    opened(path).close()  # the failed try holds nothing


def test_a_damaged_file_is_found(path: Path) -> None:
    db = opened(path)
    with db.transaction() as connection:
        rows = [("yard", float(n), "r", n, n, 1, "[]" * 50) for n in range(5000)]
        connection.executemany("INSERT INTO boxes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    db.close()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 20000)
    again = opened(path)
    with pytest.raises(StoreError, match="damaged"):
        again.row("SELECT total(frame) FROM boxes")
    again.close()


def test_all_or_nothing(path: Path) -> None:
    db = opened(path)
    with pytest.raises(ZeroDivisionError):
        count_up_and_fail(db)
    assert db.rev() == 0
    db.close()


def test_a_nested_transaction_joins_and_a_failed_part_dooms_the_whole(path: Path) -> None:
    db = opened(path)
    with db.transaction() as outer:
        db.next_rev(outer)
        with db.transaction() as inner:
            assert inner is outer
            db.next_rev(inner)
    assert db.rev() == 2
    with pytest.raises(StoreError, match="nothing of it was kept"), db.transaction() as outer:
        carry_on_after(db, outer)
    assert db.rev() == 2
    db.close()


def test_what_must_last_is_not_written_inside_what_need_not(path: Path) -> None:
    db = opened(path)
    with pytest.raises(StoreError, match="power cut"), db.transaction(durable=False), db.transaction():
        pass
    with db.transaction() as connection, db.transaction(durable=False):
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    db.close()


def test_readers_see_one_state_and_do_not_wait_for_the_writer(path: Path) -> None:
    db = opened(path)
    with db.transaction() as writing:
        db.next_rev(writing)
        seen = []
        reader = threading.Thread(target=lambda: seen.append(db.rev()))
        reader.start()
        reader.join(60)
        assert seen == [0]
    with db.read() as before:
        before.execute("SELECT count(*) FROM counter").fetchone()
        with db.transaction() as writing:
            db.next_rev(writing)
        assert before.execute("SELECT value FROM counter").fetchone()[0] == 1
    assert db.rev() == 2
    db.close()


def test_readers_cannot_write(path: Path) -> None:
    db = opened(path)
    with pytest.raises(StoreError, match="may not be written"), db.read() as connection:
        connection.execute("UPDATE counter SET value = 9")
    db.close()


def test_connections_hold_little_of_what_the_kernel_holds_too(path: Path) -> None:
    db = opened(path)
    try:
        with db.read() as reader, db.transaction() as writer:
            kept = [each.execute("PRAGMA cache_size").fetchone()[0] for each in (reader, writer)]
        assert kept == [-CACHE_KB, -CACHE_KB], "SQLite's own is 2 MB a connection"
    finally:
        db.close()


def test_readers_are_reused_however_many_threads_ask(path: Path) -> None:
    db = opened(path)

    def crowd() -> int:
        gate = threading.Barrier(20)

        def ask() -> None:
            with db.read() as connection:
                connection.execute("SELECT 1").fetchone()
                gate.wait(60)

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return sum(_target(fd).startswith(str(path)) for fd in os.listdir("/proc/self/fd"))

    first = crowd()  # SQLite itself holds closed handles back for the next connection while the file is locked
    assert crowd() <= first
    assert crowd() <= first
    db.close()
    assert not any(_target(fd).startswith(str(path)) for fd in os.listdir("/proc/self/fd"))


def test_readers_that_nobody_takes_are_closed(path: Path) -> None:
    """Each holds its caches: eight that once read together kept 7 MB of a core for good."""

    def is_open(reader: sqlite3.Connection) -> bool:
        try:
            return bool(reader.execute("SELECT 1"))
        except sqlite3.ProgrammingError:
            return False

    db = opened(path)
    with contextlib.ExitStack() as together:
        readers = [together.enter_context(db.read()) for _ in range(5)]
    db.readers.close_spare()
    assert all(map(is_open, readers)), "they were just read with"
    assert db.rows("SELECT 1")
    db.readers.close_spare()
    assert sum(map(is_open, readers)) == 1
    db.readers.close_spare()
    assert not any(map(is_open, readers)), "nobody has read since"
    assert db.rows("SELECT 1")
    db.close()
    db.readers.close_spare()


def test_close_folds_the_log_in_and_then_nothing_is_taken(path: Path) -> None:
    db = opened(path)
    with db.transaction() as connection:
        db.next_rev(connection)
    db.close()
    db.close()
    assert not path.with_name("vedette.db-wal").exists()
    with pytest.raises(StoreError, match="is closed"), db.transaction():
        pass
    with pytest.raises(StoreError, match="is closed"), db.read():
        pass


FULL_DISK = """
import resource, sys
from pathlib import Path
from appliance.base.clock import ManualClock
from appliance.base.errors import StoreError, StoreUnavailable
from appliance.store.database import Database

db = Database(Path(sys.argv[1]), ManualClock())
def fill(times):
    with db.transaction() as connection:
        for n in range(times):
            db.next_rev(connection)
            connection.execute("INSERT INTO meter VALUES (?, 'r', 'c', ?, 1)", (str(n), "k" * 900))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
try:
    fill(20_000)
    sys.exit("the disk was never full")
except StoreError as error:
    print(error)
assert db.rev() == 0, "half a transaction was kept"
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
fill(100)
print("rev", db.rev())
assert db.row("PRAGMA quick_check(1)")[0] == "ok"
db.close()
"""


def test_a_full_disk_is_reported_and_forgotten_once_there_is_room(path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    assert "free space" in done.stdout
    assert "rev 100" in done.stdout


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_without_a_file_descriptor_it_is_a_matter_of_waiting(path: Path) -> None:
    db = opened(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(StoreUnavailable, match="too many files are open"):
            db.rev()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert db.rev() >= 0
    db.close()
