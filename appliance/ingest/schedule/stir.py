"""Is somebody there for whom the next look should not wait?"""

from __future__ import annotations

from appliance.types import Box, FrameBoxes

STIRS = 0.01  # of the picture: what rests is never measured quite alike


class Stir:
    """State: who was where at the last look of one run. Owner: whoever holds the run's answers."""

    def __init__(self) -> None:
        self.stirs = False
        self._present: dict[int, Box] = {}

    def take(self, boxes: FrameBoxes) -> None:
        """Somebody stirs who was not there at the last look, or has moved since. What rests is worth no hurry."""
        before, self._present = self._present, {each.track: each.box for each in boxes.objects}
        self.stirs = any(
            track not in before or max(abs(a - b) for a, b in zip(box, before[track], strict=True)) > STIRS
            for track, box in self._present.items()
        )
