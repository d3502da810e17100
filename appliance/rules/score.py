"""How sure one may be of what a track is, from the scores of its looks."""

from __future__ import annotations

from collections import deque

LOOKS = 9
LOOKS_MIN = 2


class Confidence:
    """The highest median that the last nine scores of a track have ever had; 0 until there are two.

    A median, so that one strong false look cannot fire a rule and one weak look cannot hide a person; the lower of
    the two middle scores where their number is even, so that of two looks both must be good. The highest so far,
    because a person who was well seen does not become less of a person behind a bush. Looks in which the object was
    not found add nothing (adding zeros makes every occlusion a doubt).
    """

    __slots__ = ("_recent", "value")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=LOOKS)
        self.value = 0.0

    def add(self, score: float) -> None:
        self._recent.append(score)
        count = len(self._recent)
        if count >= LOOKS_MIN and score > self.value:
            self.value = max(self.value, sorted(self._recent)[(count - 1) // 2])
