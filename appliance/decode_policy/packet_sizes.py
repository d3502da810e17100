"""Packet sizes as a motion cue: robust statistics for each kind of packet and a cumulative sum (CUSUM, Page 1954) of
what is above the usual.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

LEARN_MIN = 24  # packets of a kind, before their sizes say anything
WINDOW = 240  # of a kind: 16 s at 15 fps; drift of light and rate control is slower than that
RENEW_EVERY = 8
SIGMA_OF_MAD = 1.4826
SPREAD_SHARE_MIN = 0.1  # of the median: an encoder in a dark room makes packets of nearly one size
SPREAD_BYTES_MIN = 24.0


@dataclass(frozen=True, slots=True)
class CusumThreshold:
    """What is a cue. slack: spreads above the usual that are forgiven in each packet; sum_min: of what is beyond, added
    up, a cue; one packet counts at most `packet_max`, so that a single oddity need not be one."""

    slack: float
    sum_min: float
    packet_max: float


NORMAL = CusumThreshold(slack=1.0, sum_min=10.0, packet_max=8.0)
ECONOMY = CusumThreshold(slack=2.5, sum_min=40.0, packet_max=15.0)


class PacketSizes:
    """State: per kind the last sizes, their median and spread, the sum. Deterministic in the packets it is given.

    What it is shown in `take` it does not learn from; that is for `learn`, to which only packets go in which nothing
    was found, so that a visitor who stays does not become the usual, and rain, which is nothing, does.
    """

    def __init__(self, bar: CusumThreshold = NORMAL) -> None:
        self._bar = bar
        self._kinds = {False: _Kind(), True: _Kind()}

    @property
    def known(self) -> bool:
        """Whether enough was learnt to tell a cue."""
        return any(kind.known for kind in self._kinds.values())

    def observe(self, size: int, *, between: bool = False) -> bool:
        """Whether a packet that is no key frame is a cue. between: a B picture."""
        return self._kinds[between].take(size, self._bar)

    def learn(self, size: int, *, between: bool = False) -> None:
        self._kinds[between].learn(size)

    def reset_sums(self) -> None:
        """Forget the sums: what led to them was looked into."""
        for kind in self._kinds.values():
            kind.sum = 0.0


class _Kind:
    """The packets of one kind."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._sizes: deque[int] = deque(maxlen=WINDOW)
        self._usual = 0.0
        self._spread = 0.0
        self._fresh = 0

    @property
    def known(self) -> bool:
        return len(self._sizes) >= LEARN_MIN

    def take(self, size: int, bar: CusumThreshold) -> bool:
        if not self.known:
            return False
        above = min((size - self._usual) / self._spread, bar.packet_max)
        self.sum = max(0.0, self.sum + above - bar.slack)
        return self.sum >= bar.sum_min

    def learn(self, size: int) -> None:
        self._sizes.append(size)
        self._fresh += 1
        if self._fresh >= RENEW_EVERY or len(self._sizes) == LEARN_MIN:
            self._fresh = 0
            sizes = sorted(self._sizes)
            usual = self._usual = float(median(sizes))
            off = median([abs(each - usual) for each in sizes])  # two runs in order: sorting them again costs little
            self._spread = max(SIGMA_OF_MAD * off, SPREAD_SHARE_MIN * self._usual, SPREAD_BYTES_MIN)
