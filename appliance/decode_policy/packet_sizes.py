"""Packet sizes as a motion cue: an encoder spends bytes on what it did not foresee, and a visitor is that.

Each kind of packet (P frames, B frames; key frames are decoded anyway) has its own usual size and spread, both robust:
median and median absolute deviation over the last packets of that kind. The excess of each packet over the usual adds
up in a cumulative sum (CUSUM, Page 1954), so that one big packet is a cue, and so is a small rise that stays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

LEARN_MIN = 24  # packets of a kind, before their sizes say anything
WINDOW = 240  # packets of a kind: 16 s at 15 fps; drift of light and rate control is slower than that
RENEW_EVERY = 8  # packets; the median is not worth more often
SIGMA_OF_MAD = 1.4826  # of a normal distribution
SPREAD_SHARE_MIN = 0.1  # of the median: an encoder in a dark room makes packets of nearly one size
SPREAD_BYTES_MIN = 24.0  # less is the size of headers, not of what moved


@dataclass(frozen=True, slots=True)
class CusumThreshold:
    """When packet sizes are a cue. All in spreads; chosen on the rendered clips (docs/decode.md)."""

    slack: float  # above the usual that is forgiven in each packet
    sum_min: float  # of what is beyond, added up, that is a cue
    packet_max: float  # one packet counts at most so much, so that a single oddity need not be a cue


NORMAL = CusumThreshold(slack=1.0, sum_min=10.0, packet_max=8.0)
CALM_SHARE = 0.5  # of NORMAL's `sum_min`, in every mode: below it the packets of a GOP have their usual sizes
KEYS_MIN, KEYS_MAX = 4, 16  # key frames, before their sizes say anything, and that are remembered
KEY_SPREAD_SHARE_MIN = 0.002  # of the median: an empty room's are nearly equal
KEY_SPREADS_MAX = 2.5  # from the median, that a key frame of nothing new may be
ECONOMY = CusumThreshold(slack=2.5, sum_min=40.0, packet_max=15.0)  # `latency: thrifty`


class PacketSizes:
    """State: per kind the last sizes, their median and spread, the sum. Deterministic in the packets it is given.

    `observe` learns nothing; `learn` gets only packets in which nothing was found, so that a visitor who stays does not
    become the usual, and rain, which is nothing, does.
    """

    def __init__(self, threshold: CusumThreshold = NORMAL) -> None:
        self._threshold = threshold
        self._kinds = {False: _PacketKind(), True: _PacketKind()}

    @property
    def known(self) -> bool:
        """True if enough was learnt to recognise a cue."""
        return any(kind.known for kind in self._kinds.values())

    def observe(self, size: int, *, b_frame: bool = False) -> bool:
        """Return True if a packet that is no key frame is a cue."""
        return self._kinds[b_frame].take(size, self._threshold)

    def learn(self, size: int, *, b_frame: bool = False) -> None:
        self._kinds[b_frame].learn(size)

    @property
    def is_calm(self) -> bool:
        """Since `begin_gop` no packets added up to half a cue, neither larger nor, as of a frozen picture, smaller."""
        return all(kind.peak < CALM_SHARE * NORMAL.sum_min for kind in self._kinds.values())

    def begin_gop(self) -> None:
        for kind in self._kinds.values():
            kind.peak = 0.0

    def reset_sums(self) -> None:
        """Reset the sums: they were a cue, and all packets up to here were decoded."""
        for kind in self._kinds.values():
            kind.sum = kind.sum_above = kind.sum_below = 0.0


class KeyFrameSizes:
    """The usual size of key frames at rest.

    A place that nobody entered is coded with much the same number of bytes each time, so another size is a reason to
    decode the key frame, and the usual one is none.

    State: the last sizes. It is deterministic in the packets it is given.
    """

    def __init__(self) -> None:
        self._sizes: deque[int] = deque(maxlen=KEYS_MAX)

    def learn(self, size: int) -> None:
        """Learn the size of a key frame in which nothing was found."""
        self._sizes.append(size)

    def is_usual(self, size: int) -> bool:
        """Return True if this one shows nothing new, as far as its size tells."""
        if len(self._sizes) < KEYS_MIN:
            return False
        usual = median(self._sizes)
        spread = SIGMA_OF_MAD * median([abs(each - usual) for each in self._sizes])
        return abs(size - usual) <= KEY_SPREADS_MAX * max(spread, KEY_SPREAD_SHARE_MIN * usual)


class _PacketKind:
    """The sizes of one kind of packet."""

    def __init__(self) -> None:
        self.sum = self.sum_above = self.sum_below = self.peak = 0.0
        self._sizes: deque[int] = deque(maxlen=WINDOW)
        self._usual = 0.0
        self._spread = 0.0
        self._fresh = 0

    @property
    def known(self) -> bool:
        return len(self._sizes) >= LEARN_MIN

    def take(self, size: int, threshold: CusumThreshold) -> bool:
        if not self.known:
            return False
        off = (size - self._usual) / self._spread
        self.sum = max(0.0, self.sum + min(off, threshold.packet_max) - threshold.slack)
        self.sum_above = _doubt(self.sum_above, off)
        self.sum_below = _doubt(self.sum_below, -off)
        self.peak = max(self.peak, self.sum_above, self.sum_below)
        return self.sum >= threshold.sum_min

    def learn(self, size: int) -> None:
        self._sizes.append(size)
        self._fresh += 1
        if self._fresh >= RENEW_EVERY or len(self._sizes) == LEARN_MIN:
            self._fresh = 0
            sizes = sorted(self._sizes)
            usual = self._usual = float(median(sizes))
            off = median([abs(each - usual) for each in sizes])  # two runs in order: sorting them again costs little
            self._spread = max(SIGMA_OF_MAD * off, SPREAD_SHARE_MIN * self._usual, SPREAD_BYTES_MIN)


def _doubt(before: float, off: float) -> float:
    """Return the sum of what is beyond the usual in one direction, as for a cue of NORMAL and never more than that."""
    return min(NORMAL.sum_min, max(0.0, before + min(off, NORMAL.packet_max) - NORMAL.slack))
