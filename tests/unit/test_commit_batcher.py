"""What the uplink's loop writes: beside the loop, together when it comes together, and in the order of its coming."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.base.errors import StoreUnavailable
from appliance.store.database import Database
from appliance.store.outbox import CommitBatcher


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    made = Database(tmp_path / "vedette.db", SystemClock())
    yield made
    made.close()


def names(db: Database) -> list[str]:
    with db.read() as connection:
        return [row[0] for row in connection.execute("SELECT name FROM counter WHERE value = 7 ORDER BY rowid")]


class Changes:
    """Writes a row each; the first waits until the others have come."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.held = threading.Event()
        self.threads: list[int] = []

    def write(self, name: str) -> str:
        with self._db.transaction() as connection:
            if name == "first":
                assert self.held.wait(20)
            connection.execute("INSERT INTO counter VALUES (?, 7)", (name,))
            self.threads.append(threading.get_ident())
        return name


def test_what_comes_while_the_disk_is_busy_shares_the_next_transaction(db: Database) -> None:
    changes, batcher = Changes(db), CommitBatcher(db)
    begun: list[int] = []

    async def main() -> list[str]:
        real = db.transaction
        db.transaction = lambda **how: begun.append(1) or real(**how)  # type: ignore[method-assign,func-returns-value]
        first = asyncio.create_task(batcher.commit(lambda: changes.write("first")))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(batcher.commit(functools.partial(changes.write, n))) for n in ("a", "b", "c")]
        await asyncio.sleep(0)
        changes.held.set()
        return list(await asyncio.gather(first, *rest))

    assert asyncio.run(main()) == ["first", "a", "b", "c"] == names(db)
    assert len(begun) - 4 == 2, "two outer transactions for four changes"
    assert threading.get_ident() not in changes.threads, "the loop waits for no disk"


def test_a_transaction_that_fails_is_raised_to_all_who_are_in_it_and_to_no_others(db: Database) -> None:
    changes, batcher = Changes(db), CommitBatcher(db)

    def full() -> str:
        raise StoreUnavailable("the disk is full")

    async def main() -> list[object]:
        first = asyncio.create_task(batcher.commit(lambda: changes.write("first")))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(batcher.commit(each)) for each in (lambda: changes.write("a"), full)]
        await asyncio.sleep(0)
        changes.held.set()
        found: list[object] = list(await asyncio.gather(first, *rest, return_exceptions=True))
        return [*found, await batcher.commit(lambda: changes.write("later"))]

    first, a, b, later = asyncio.run(main())
    assert (first, later) == ("first", "later")
    assert isinstance(a, StoreUnavailable)
    assert isinstance(b, StoreUnavailable)
    assert names(db) == ["first", "later"]


def test_what_need_not_be_flushed_does_not_change_threads_when_nothing_else_is_written(db: Database) -> None:
    batcher = CommitBatcher(db)
    assert asyncio.run(batcher.commit(threading.get_ident, durable=False)) == threading.get_ident()
