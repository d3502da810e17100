"""Chooses the broker to connect to: fails over to another region, and back to a better one."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.base.backoff import Backoff
from appliance.base.broker_config import BrokerAddress
from appliance.base.clock import Clock

SERVER_PAUSE_S = 0.1  # before the next server of a cluster, which was not tried yet
FAILBACK_S_MAX = 6 * 3600.0  # doubled up to here: a region that flaps is tried four times a day


class BrokerChoice:
    """State: the present region and server, since when it is away, and for how long a better one has answered.

    Owner: one event loop. Invariant: an address is one of `addresses`; what residency forbids is not among them.
    """

    def __init__(self, addresses: Sequence[BrokerAddress], failover_s: float, failback_s: float, clock: Clock) -> None:
        self._regions: dict[str, list[BrokerAddress]] = {}
        for each in addresses:
            self._regions.setdefault(each.region, []).append(each)
        self._order = list(self._regions)
        self._clock = clock
        self._failover_s = failover_s
        self._failback_s = self._failback_first_s = failback_s
        self._server = 0
        self._away_at: float | None = None
        self._up_at: float | None = None
        self._tried = 0
        self._begun_at = clock.monotonic()
        self._returned = False
        self._answers_since: dict[str, float] = {}
        self.region = self._order[0]
        self.failovers = 0

    @property
    def address(self) -> BrokerAddress:
        """The server to connect to now."""
        servers = self._regions[self.region]
        return servers[self._server % len(servers)]

    @property
    def has_other_region(self) -> bool:
        return len(self._order) > 1

    @property
    def probe_every_s(self) -> float:
        """The pause between two looks at a better region: it is seen some times before it is trusted."""
        return min(30.0, self._failback_first_s / 4)

    def pause_s(self, backoff: Backoff) -> float:
        """Return the pause before the next attempt; the backoff is between two attempts at one server.

        It keeps the link neither from the region's other servers, nor from another region for longer than failover_s.
        """
        if self._tried % len(self._regions[self.region]):
            return SERVER_PAUSE_S
        limit_s = max(SERVER_PAUSE_S, self._failover_s) if self.has_other_region else float("inf")
        return min(backoff.next_s(), limit_s)

    def connected(self) -> None:
        """Note that there is a connection. The region stays away if that does not last."""
        self._up_at = self._clock.monotonic()

    def failed(self, *, at_once: bool = False) -> bool:
        """Note that the present server does not serve any more; return True if another region is next.

        at_once: the region was of no use for long enough, although it answers.
        """
        now, up_at, self._up_at = self._clock.monotonic(), self._up_at, None
        if self._away_at is None or (up_at is not None and now - up_at >= self._failover_s):
            self._away_at, self._tried = now, 0
        self._tried += 1
        self._server += 1
        tried_all = self._tried >= len(self._regions[self.region]) and now - self._away_at >= self._failover_s
        if not self.has_other_region or not (at_once or tried_all):
            return False
        flaps = self._returned and now - self._begun_at < self._failback_s
        self._failback_s = min(2 * self._failback_s, FAILBACK_S_MAX) if flaps else self._failback_first_s
        self._returned = False
        self._move(self._order[(self._order.index(self.region) + 1) % len(self._order)])
        return True

    def better(self) -> list[BrokerAddress]:
        """Return the servers of the regions that come before the present one, in order."""
        before = self._order[: self._order.index(self.region)]
        return [each for region in before for each in self._regions[region]]

    def probed(self, answered: Sequence[str]) -> bool:
        """Note which better regions answer; return True if the first of them is to be returned to, and is next."""
        now = self._clock.monotonic()
        self._answers_since = {region: self._answers_since.get(region, now) for region in answered}
        for region in self._order[: self._order.index(self.region)]:
            if now - self._answers_since.get(region, now) >= self._failback_s:
                self._answers_since.clear()
                self._returned = True
                self._move(region)
                return True
        return False

    def _move(self, region: str) -> None:
        self.region, self._server, self._tried, self._away_at = region, 0, 0, None
        self._begun_at = self._clock.monotonic()
        self.failovers += 1
