"""Which of the pictures that are decoded after the fact are handed on."""

from __future__ import annotations

# Of what is decoded late, at most about so many pictures can become looks, evenly spread: five a second, as usual, over
# the usual group of two seconds. If the detector is not there at once they wait: 14 MB of 720p pictures, 31 of 1080p.
LATE_MAX = 10
LATE_MAX_THRIFTY = 5  # 2.5 a second: two looks, of which one is told, in the first second of a visitor


class Thinner:
    """State: from when on the next picture is kept. Lives for one catching up."""

    def __init__(self, span_s: float, fps: float, most: int) -> None:
        """Of `span_s` seconds about `most` pictures are kept; all of them where `fps` a second would be no more."""
        self._every_s = span_s / most if span_s * fps > most + 0.5 else 0.0
        self._next_t = float("-inf")

    def keeps(self, t: float) -> bool:
        """Whether the picture of camera time `t` is one of them; in rising order."""
        if t < self._next_t:
            return False
        self._next_t = max(self._next_t + self._every_s, t + self._every_s / 2)
        return True
