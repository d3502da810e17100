"""Writes to the database beside the event loop; changes that come together share one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from appliance.store.database import Database

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _PendingChange:
    change: Callable[[], Any]
    durable: bool
    noted: asyncio.Future[Any]


class CommitBatcher:
    """A durable commit waits for the disk, some milliseconds or, on a memory card, a hundred: the link must not wait
    for it too, and those who come meanwhile share the next one.

    Invariant: `note` returns after the commit. Changes are made in the order of their coming, one transaction at a
    time; when one of a transaction fails, none of it is kept and all are told. Owner: the service's event loop.
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
        note = _PendingChange(change, durable, asyncio.get_running_loop().create_future())
        self._waiting.append(note)
        if not writing:
            self._writing = asyncio.create_task(self._write(), name="notary")
        result: Result = await note.noted
        return result

    async def _write(self) -> None:
        while self._waiting:
            notes, self._waiting = self._waiting, []
            try:
                results = await asyncio.to_thread(self._commit, notes)
            except Exception as error:  # noqa: BLE001 - it is told to those who asked
                for note in notes:
                    if not note.noted.done():
                        note.noted.set_exception(error)
                continue
            for note, result in zip(notes, results, strict=True):
                if not note.noted.done():
                    note.noted.set_result(result)

    def _commit(self, notes: list[_PendingChange]) -> list[Any]:
        with self._db.transaction(durable=any(note.durable for note in notes)):
            return [note.change() for note in notes]
