"""How much the uplink may send a day, and who may still go when that is used up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from appliance.clock import Clock, local_day
from appliance.wire import PRIORITIES

URGENT = PRIORITIES[:1]


class DayAllowance:
    """The bytes of one calendar day, all that is around the payload included.

    State: what was sent today, and whether a message did not fit (then the day is over, so that the order of what
    waits stays what it is). Owner: the uplink's task. The connection's own upkeep goes on, and counts.
    """

    def __init__(
        self, mb_day: float | None, over: Literal["urgent", "wait"], sent_on: Callable[[str], int], clock: Clock
    ) -> None:
        """sent_on: bytes that the meter has for a day (`local_day`); asked at the start and when the day changes."""
        self._bytes = None if mb_day is None else int(mb_day * 1e6)
        self._over = over
        self._sent_on = sent_on
        self._clock = clock
        self._day = ""
        self._sent = 0
        self._used_up = False

    @property
    def why(self) -> str:
        """What waits, and for what; '': nothing does."""
        if self._bytes is None or not self._used_up:
            return ""
        who = "all but the most urgent waits" if self._over == "urgent" else "all questions wait"
        return f"the {self._bytes / 1e6:g} MB of today are sent: {who} until midnight (uplink.mb_day)"

    def priorities(self) -> tuple[str, ...]:
        """Of which priorities questions may be sent now."""
        self._look_at_the_day()
        if not self._used_up:
            return PRIORITIES
        return URGENT if self._over == "urgent" else ()

    def fits(self, size: int, priority: str) -> bool:
        """Whether a message of `size` bytes may go today. One that may not ends the day for all that must wait."""
        if self._bytes is None:
            return True
        self._look_at_the_day()
        if self._sent + size > self._bytes:
            self._used_up = True
        return priority in self.priorities()

    def spend(self, amount: int) -> None:
        """`amount` bytes were sent."""
        self._look_at_the_day()
        self._sent += amount

    def _look_at_the_day(self) -> None:
        if self._bytes is None:
            return
        day = local_day(self._clock.now())
        if day != self._day:
            self._day, self._sent, self._used_up = day, self._sent_on(day), False
        self._used_up = self._used_up or self._sent >= self._bytes
