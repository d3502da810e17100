"""How long a track has been in a zone, by the camera's time."""

from __future__ import annotations

from dataclasses import dataclass

# Behind a pillar or a passing car people are hidden for a second or two; a longer loss begins a new stay.
LOSS_S = 3.0


@dataclass(slots=True)
class Stay:
    """One unbroken stay. `began` is moved forward over time in which nobody looked; `told`: it has fired.

    Losses of at most LOSS_S count as presence. Of a time in which nobody looked at all (detector down, camera clock
    stepped) at most `gap_max_s` counts: nobody knows whether the object was there.
    """

    began: float
    seen: float
    told: bool = False

    def look(self, t: float, gap_max_s: float) -> None:
        """The object is seen inside at `t`."""
        unwatched = t - self.seen - gap_max_s
        if unwatched > 0:
            self.began += unwatched
        self.seen = t

    @property
    def seconds(self) -> float:
        """Seconds inside up to the last sighting."""
        return self.seen - self.began
