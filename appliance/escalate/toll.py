"""What may be spent on the wire, now and today, and the count of what was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from appliance.broker import LinkState
from appliance.clock import Clock
from appliance.escalate.account import Account
from appliance.escalate.allowance import DayAllowance
from appliance.escalate.limits import Limits
from appliance.escalate.shaping import TokenBucket
from appliance.savings import ledger


class Meter(Protocol):
    """Where bytes are counted; see appliance.store.meter."""

    def add(self, camera: str, kind: str, amount: int) -> None: ...

    def of_day(self, kind: str, day: str) -> int: ...


class Toll:
    """Owner of the rate, of the day's allowance and of the account. All that the link puts on the wire is taken from
    the first two and counted in the third, whether it had to wait or not. Owner: the uplink's task.
    """

    def __init__(self, limits: Limits, meter: Meter, clock: Clock, link: Callable[[], LinkState]) -> None:
        """link: what the link has put on the wire so far."""
        self._account = Account(meter)
        self._bucket = TokenBucket(limits.kbps_max, clock)
        self._link = link
        self.today = DayAllowance(
            limits.mb_day, limits.over_mb_day, lambda day: meter.of_day(ledger.UPLINK, day), clock
        )

    def wait_s(self, *, live: bool) -> float:
        """Seconds until a message may go; 0: now."""
        return self._bucket.wait_s(live=live)

    def pay(self, camera: str, purpose: str, size: int) -> None:
        """A message goes out. purpose: see Account."""
        self._account.message(camera, purpose, size)
        self._spend(size)

    def pay_overhead(self) -> None:
        """Count what the wire carried beyond the messages."""
        self._spend(self._account.overhead(self._link()))

    def _spend(self, size: int) -> None:
        self._bucket.take(size)
        self.today.spend(size)
