"""One slot between a fast producer and a slow consumer: the newest wins, what it replaced is counted."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Latest(Generic[Item]):
    """State: at most one item, and since when the consumer owes a visit. Owners: one producer, one consumer.

    Invariant: `put` never waits; every item is either taken or counted in `dropped`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._item: Item | None = None
        self._since = 0.0
        self._dropped = 0

    def put(self, item: Item, at: float) -> None:
        """Offer `item`; an older one that nobody took is dropped. `at`: monotonic seconds."""
        with self._lock:
            if self._item is None:
                self._since = at
            else:
                self._dropped += 1
            self._item = item

    def peek(self) -> tuple[Item, float] | None:
        """The item and since when something has been waiting here (a replacement keeps its predecessor's place)."""
        with self._lock:
            return None if self._item is None else (self._item, self._since)

    def take(self) -> Item | None:
        with self._lock:
            item, self._item = self._item, None
            return item

    def clear(self) -> None:
        """Throw away what waits, counted."""
        with self._lock:
            self._dropped += self._item is not None
            self._item = None

    def dropped(self) -> int:
        """Items that were replaced or thrown away, ever."""
        with self._lock:
            return self._dropped
