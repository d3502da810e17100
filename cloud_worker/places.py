"""How many questions may be judged at the same time, with room kept for the urgent ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from appliance.wire import PRIORITIES

RESERVE_SHARE = 8


class Places:
    """Owner of `total` places; what is not of the top priority takes at most `total - reserve` of them.

    So an alert does not wait for a slow answer to something that is not urgent. With one place nothing is kept.
    """

    def __init__(self, total: int, given: Callable[[], None]) -> None:
        """`given` is called after a place was given back."""
        self.total = total
        self.reserve = max(1, total // RESERVE_SHARE) if total > 1 else 0
        self._taken: Counter[str] = Counter()
        self._given = given

    def taken(self, priority: str) -> int:
        return self._taken[priority]

    def open_to(self) -> tuple[str, ...]:
        """The priorities that may take a place now."""
        if self._taken.total() >= self.total:
            return ()
        others = self._taken.total() - self._taken[PRIORITIES[0]]
        return PRIORITIES if others < self.total - self.reserve else PRIORITIES[:1]

    def take(self, priority: str) -> None:
        self._taken[priority] += 1

    def give(self, priority: str) -> None:
        self._taken[priority] -= 1
        self._given()
