"""How long to wait before trying again: exponential, jittered, bounded, forgiving."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from `first_s` to `last_s`, each spread by ±`jitter`.

    State: the next delay. Owner: one loop. `forgive()` after things went well starts from the beginning.
    """

    def __init__(
        self, first_s: float = 0.5, last_s: float = 8.0, *, jitter: float = 0.25, seed: int | None = None
    ) -> None:
        self._first_s = first_s
        self._last_s = last_s
        self._jitter = jitter
        self._random = random.Random(seed)
        self._next_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now; the following wait is twice as long, up to `last_s`."""
        delay_s, self._next_s = self._next_s, min(self._next_s * 2, self._last_s)
        return min(delay_s * self._random.uniform(1 - self._jitter, 1 + self._jitter), self._last_s)

    def reset(self) -> None:
        """Things went well: begin small again."""
        self._next_s = self._first_s
