"""How many escalations may be judged at the same time, with slots reserved for the urgent ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from appliance.base.clock import Clock
from appliance.wire import PRIORITIES

RESERVE_SHARE = 8  # one slot of eight is reserved at least
RESERVE_SHARE_MAX = 2  # one of two at most
PEAK_S = 30.0  # alerts come in bursts of some seconds; the need of the last half minute is the best forecast


class ConcurrencySlots:
    """Owner of `total` slots; what is not of the top priority takes at most `total - reserve` of them.

    So an alert does not wait for a slow answer to something that is not urgent. The reserve is an eighth of the slots,
    or as many as the top priority needed lately at a time, up to half of them; with one slot nothing is reserved.
    State: how many slots each priority has, and the most that the top priority had in this PEAK_S and in the last.
    """

    def __init__(self, total: int, released: Callable[[], None], clock: Clock) -> None:
        """Take `released`, called after a slot was released."""
        self.total = total
        self._in_use: Counter[str] = Counter()
        self._released = released
        self._clock = clock
        self._since = clock.monotonic()
        self._peak = self._peak_before = 0

    @property
    def reserve(self) -> int:
        """The slots that are reserved for the top priority, those that it has included."""
        if self.total == 1:
            return 0
        self._roll()
        recent = max(self._peak, self._peak_before)
        return max(1, self.total // RESERVE_SHARE, min(recent, self.total // RESERVE_SHARE_MAX))

    def in_use(self, priority: str) -> int:
        return self._in_use[priority]

    def open_priorities(self) -> tuple[str, ...]:
        """Return the priorities that may take a slot now."""
        if self._in_use.total() >= self.total:
            return ()
        others = self._in_use.total() - self._in_use[PRIORITIES[0]]
        return PRIORITIES if others < self.total - self.reserve else PRIORITIES[:1]

    def acquire(self, priority: str) -> None:
        self._in_use[priority] += 1
        self._roll()
        self._peak = max(self._peak, self._in_use[PRIORITIES[0]])

    def release(self, priority: str) -> None:
        self._in_use[priority] -= 1
        self._released()

    def _roll(self) -> None:
        """Begin a new PEAK_S with the escalations in hand."""
        now = self._clock.monotonic()
        if now - self._since >= PEAK_S:
            self._peak_before = self._peak if now - self._since < 2 * PEAK_S else 0
            self._peak, self._since = self._in_use[PRIORITIES[0]], now
