"""Keeps what waits to be sent within `uplink.outbox_mb_max`: what is given up first is declared, counted and shown."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from appliance.errors import StoreError
from appliance.escalate.outbox import Outbox

DROPS_A_RUN = 200

logger = logging.getLogger(__name__)

Count = Callable[[str, str, int], None]


class Room:
    """Gives up the oldest of the least urgent questions while all that wait take too much disk.

    Before anything urgent everything less urgent goes. A question takes its facts and its pictures; the alert itself,
    its still and its clip stay (retention sees to those). Owner: the uplink's task. `dropped` counts since the start.
    """

    def __init__(self, outbox: Outbox, root: Path, mb_max: float, count: Count) -> None:
        """count: the meter's `add`, told of each question (`outbox_dropped`) and its bytes (`outbox_dropped_bytes`)."""
        self._outbox = outbox
        self._root = root
        self._bytes_max = int(mb_max * 1e6)
        self._mb_max = mb_max
        self._count = count
        self.dropped = 0

    def run_once(self) -> int:
        """Make room, at most DROPS_A_RUN questions at a time; returns how many went. Raises StoreError."""
        over = self._outbox.held() - self._bytes_max
        count = 0
        if over <= 0:
            return 0
        why = f"the outbox is over {self._mb_max:g} MB (uplink.outbox_mb_max), and this was the least urgent"
        for row, size in self._outbox.least(DROPS_A_RUN):
            if over <= 0:
                break
            self._delete(self._outbox.drop(row, why))
            self._count(row.camera, "outbox_dropped", 1)
            self._count(row.camera, "outbox_dropped_bytes", size)
            over -= size
            count += 1
        self.dropped += count
        logger.warning("%d questions were given up: %s", count, why)
        return count

    def _delete(self, paths: list[str]) -> None:
        for path in paths:
            try:
                (self._root / path).unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"{path} cannot be deleted: {error.strerror}") from None
