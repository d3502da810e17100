"""A number of slots of a kind for all visitors.

One account or address has a share of them, so the others still get theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from appliance.web.visitor import visitor_keys


class VisitorSlots:
    """State: how many are taken, of all and of each visitor who has one. Owner: the event loop."""

    def __init__(self, total: int, share: int, error: type[Exception], full: str, own: str) -> None:
        """error: raised with `full` where all are taken, with `own` where this visitor's share is."""
        self._total, self._share = total, share
        self._error, self._full, self._own = error, full, own
        self._held: Counter[str] = Counter()
        self.taken = 0

    def take(self) -> Callable[[], None]:
        """Take one, for the visitor who asks. Returns what gives it back, once. Raises the error."""
        keys = visitor_keys()
        if any(self._held[key] >= self._share for key in keys):
            raise self._error(self._own)
        if self.taken >= self._total:
            raise self._error(self._full)
        self.taken += 1
        self._held.update(keys)

        def give_back() -> None:
            self.taken -= 1
            self._held -= Counter(keys)  # and those who have none left are forgotten

        return give_back
