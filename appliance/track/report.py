"""What is said of an object that was seen."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.track.trace import Trace
from appliance.types import TrackedObject


def report(track: Trace, score: float, labels: Sequence[str]) -> TrackedObject:
    """The box as the detector said when it was sure (`score`); the less so, the more of what the filter makes of it."""
    trust = max(0.0, 2 * score - 1)
    rest = 1 - trust
    seen, expected = track.last, track.filter.box
    return TrackedObject(
        track=track.number,
        label=labels[track.class_id()],
        score=round(score, 3),
        box=(
            _side(trust * seen[0] + rest * expected[0]),
            _side(trust * seen[1] + rest * expected[1]),
            _side(trust * seen[2] + rest * expected[2]),
            _side(trust * seen[3] + rest * expected[3]),
        ),
        stood_s=track.stood_s,
    )


def _side(share: float) -> float:
    return round(min(1.0, max(0.0, share)), 4)
