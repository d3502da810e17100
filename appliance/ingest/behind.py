"""How long what is read now has waited in the socket: a reader that cannot keep up must know that it is late."""

from __future__ import annotations

KEEPS_UP_S = 0.3
RESTS_S = 0.5  # more than `rest.REST_S_MAX` and a picture
KNOWN_S_MIN = 1.0
_PICTURES = 1.5  # libavformat gives a picture out when the next has begun: part of that is always there
_MEMORY_S = 10.0
_STEP_S_MAX = 2.0


class Behind:
    """State: the stream's usual bytes a second and seconds a packet, and when it was last read to its end.

    Owner: the thread that reads. Seconds, of which only differences matter, except for camera time.
    """

    def __init__(self) -> None:
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A new connection."""
        self._bytes = self._seconds = self._packets = 0.0
        self._last_t: float | None = None
        self._up_to_date = now

    def read(self, size: int, stream_t: float, waiting: int | None, now: float) -> float:
        """Seconds by which a packet of `size` bytes is late. stream_t: its stamp; waiting: bytes that nobody read yet.

        Never more than what has passed since nothing was waiting. 0 where it cannot be told.
        """
        self._learn(size, stream_t)
        if waiting is None or self._seconds < KNOWN_S_MIN:
            self._up_to_date = now
            return 0.0
        waiting_s = waiting * self._seconds / max(1.0, self._bytes)
        if waiting_s <= max(KEEPS_UP_S, _PICTURES * self._seconds / self._packets):
            self._up_to_date = now
            return 0.0
        behind_s = min(waiting_s, now - self._up_to_date)
        # Who has just rested finds some packets and perhaps the first half of a key frame, and is not behind.
        return behind_s if behind_s > RESTS_S else 0.0

    def _learn(self, size: int, stream_t: float) -> None:
        step_s = 0.0 if self._last_t is None else min(max(0.0, stream_t - self._last_t), _STEP_S_MAX)
        self._last_t = stream_t
        kept = 1 - step_s / _MEMORY_S if self._seconds > KNOWN_S_MIN else 1.0
        self._bytes = self._bytes * kept + size
        self._seconds = self._seconds * kept + step_s
        self._packets = self._packets * kept + 1
