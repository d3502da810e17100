"""What the policy must know of the one who looks at the pictures."""

from __future__ import annotations

from typing import Protocol

import av


class Attention(Protocol):
    """Whoever takes the pictures; `t` is the camera's time in seconds, as in the pictures handed over."""

    def busy(self, t: float) -> bool:
        """Something moves or is followed, or did a moment ago: every picture may matter."""
        ...

    def moved(self, t: float) -> bool:
        """Something moves, or did a moment ago."""
        ...

    def overdue(self, t: float) -> bool:
        """The detector must look at a picture of this time, whatever moves."""
        ...

    def changed(self, picture: av.VideoFrame) -> bool:
        """Whether this picture, compared with what is usual there, would count as movement; nothing is learnt."""
        ...
