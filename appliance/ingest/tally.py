"""What a camera's watch has done since the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.types import DecodeState, ShedReason


@dataclass(frozen=True, slots=True)
class WatchCounts:
    """Since the start: frames decoded, packets damaged, looks answered, looks that were due and got no answer (why: by
    reason); packets that were not decoded; looks asked for again. decoding: what is decoded now, and why. ages: see
    `Ages.counts`."""

    decoded: int
    damaged: int
    examined: int
    unexamined: int
    skipped: int = 0
    decoding: DecodeState = "everything"
    decoding_reason: str = ""
    why: Mapping[ShedReason, int] = field(default_factory=dict)
    ages: tuple[int, ...] = ()
    retried: int = 0

    def why_since(self, before: WatchCounts) -> dict[ShedReason, int]:
        """Looks that came to nothing since then, by reason; reasons for which there were none are left out."""
        found = {reason: count - before.why.get(reason, 0) for reason, count in self.why.items()}
        return {reason: count for reason, count in found.items() if count}

    def ages_since(self, before: WatchCounts) -> tuple[int, ...]:
        return tuple(now - then for now, then in zip(self.ages, before.ages or (0,) * len(self.ages), strict=True))
