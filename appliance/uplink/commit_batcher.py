"""Group commit: writes to the database beside the event loop; changes that come together share one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from appliance.store.database import Database

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _PendingChange:
    make: Callable[[], Any]
    durable: bool
    done: asyncio.Future[Any]


class CommitBatcher:
    """Commits durable changes together, in a thread, so that the link does not wait for the disk.

    A durable commit takes some milliseconds or, on a memory card, a hundred. Changes that come meanwhile share the next
    one.

    State: the changes that wait. Invariant: `commit` returns after the commit. Changes are made in the order of their
    coming, one transaction at a time; when one of a transaction fails, none of it is kept and every caller gets the
    error. Owner: the uplink's event loop.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._waiting: list[_PendingChange] = []
        self._writing: asyncio.Task[None] | None = None

    async def commit(self, change: Callable[[], Result], *, durable: bool = True) -> Result:
        """Make `change` (a call that writes to the database). Raises what it raises, StoreError."""
        writing = self._writing is not None and not self._writing.done()
        if not durable and not writing:  # it waits for no disk: two changes of threads would take longer
            return change()
        pending = _PendingChange(change, durable, asyncio.get_running_loop().create_future())
        self._waiting.append(pending)
        if not writing:
            self._writing = asyncio.create_task(self._write(), name="commit batcher")
        result: Result = await pending.done
        return result

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                results = await asyncio.to_thread(self._commit, batch)
            except Exception as error:  # noqa: BLE001 - every caller gets it
                for each in batch:
                    if not each.done.done():
                        each.done.set_exception(error)
                continue
            for each, result in zip(batch, results, strict=True):
                if not each.done.done():
                    each.done.set_result(result)

    def _commit(self, batch: list[_PendingChange]) -> list[Any]:
        with self._db.transaction(durable=any(each.durable for each in batch)):
            return [each.make() for each in batch]
