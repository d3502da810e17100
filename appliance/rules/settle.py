"""When a change is believed: once it was seen in a row for long enough."""

from __future__ import annotations

from dataclasses import dataclass

# A little less than the time between two looks at the default 5 a second: there and at every slower rate two looks do.
# Cameras that are examined faster need more looks, so that a rule does not grow jumpier with the frame rate.
SETTLE_S = 0.15
# Where people touch on the picture a box is often both of them, or half of one, for a look or two: three looks at 5 a
# second, two at 3 a second and slower.
COMPANY_SETTLE_S = 0.29
# Looks are in a row while the object is not missed for longer than this between them.
ROW_S = 0.5
# Detectors place the foot of a person to +-5 % of the box height from look to look (one standard deviation on
# PETS09-S2L1): twice that is left by one look in twenty, and hardly ever by several in a row.
MARGIN = 0.10


@dataclass(slots=True)
class Streak:
    """Looks in a row that say the same new thing. `since` is the time of the first; None: there is none."""

    since: float | None = None

    def add(self, t: float, settle_s: float = SETTLE_S) -> float | None:
        """One more look; the time of the first once the change is to be believed."""
        if self.since is None:
            self.since = t
        return self.since if t - self.since >= settle_s else None

    def clear(self) -> None:
        self.since = None
