"""When a change is believed: once it was seen twice in a row, far enough apart."""

from __future__ import annotations

from dataclasses import dataclass

# A little less than the time between two looks at the default 5 a second: there and at every slower rate two looks do.
# Cameras that are examined faster need more looks, so that a rule does not grow jumpier with the frame rate.
SETTLE_S = 0.15
# Detectors place the foot of a standing person to about +-5 % of the box height from look to look.
MARGIN = 0.05


@dataclass(slots=True)
class Streak:
    """Looks in a row that say the same new thing. `since` is the time of the first; None: there is none."""

    since: float | None = None

    def add(self, t: float) -> float | None:
        """One more look; the time of the first once the change is to be believed."""
        if self.since is None:
            self.since = t
        return self.since if t - self.since >= SETTLE_S else None

    def clear(self) -> None:
        self.since = None
