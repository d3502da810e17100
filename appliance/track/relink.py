"""Who was hidden for a while and is seen again elsewhere: a new track takes its old number back."""

from __future__ import annotations

import math
from collections.abc import Iterable

from appliance.track.appearance import likeness
from appliance.track.kalman import sizes, to_centre
from appliance.track.trace import Trace

# Behind a van or a pillar people are for a few seconds; later somebody else of the same clothes is as likely.
RELINK_S = 5.0
# Somebody who walks briskly does 2 sizes of the box a second (a person's is about 0.6 of the height), beside the
# uncertainty of the boxes themselves. Running is not meant: who runs is followed by the filter or not at all.
SPEED = 2.0
NEAR = 0.8
# 19 of 20 looks at the same person are at least so alike; a second candidate must be clearly less alike.
ALIKE_MIN = 0.88
CLEAR = 0.03


def recognise(fresh: Trace, missing: Iterable[Trace]) -> Trace | None:
    """The one of the numbered tracks `missing` that `fresh` is again, or None.

    It must have been within reach, of about the same size, look the same, and be the only one that does. Who was last
    seen at the picture's border has left, and is somebody new when a person comes in there.
    """
    if fresh.portrait is None:
        return None
    found = [
        (float(likeness(fresh.portrait[None], each.portrait[None])[0, 0]), each)
        for each in missing
        if each.portrait is not None and each.group == fresh.group and not each.at_edge() and _in_reach(fresh, each)
    ]
    found.sort(key=lambda pair: -pair[0])
    if not found or found[0][0] < ALIKE_MIN:
        return None
    if len(found) > 1 and found[0][0] - found[1][0] < CLEAR:
        return None
    return found[0][1]


def take_over(fresh: Trace, known: Trace) -> None:
    """`fresh` goes on as `known`: number, votes and portrait."""
    fresh.number, known.number = known.number, 0
    for class_id, score in known.votes.items():
        fresh.votes[class_id] = fresh.votes.get(class_id, 0.0) + score
    if fresh.portrait is not None and known.portrait is not None:
        fresh.portrait = (fresh.portrait + known.portrait) / 2
        fresh.sittings = max(fresh.sittings, known.sittings)


def _in_reach(fresh: Trace, known: Trace) -> bool:
    if known.unseen_s > RELINK_S:
        return False
    here, there = to_centre(fresh.last), to_centre(known.last)
    if not 0.5 < there[3] / max(here[3], 1e-9) < 2.0:
        return False
    step_x, step_y = (
        (at - was) / ((size + other) / 2)
        for at, was, size, other in zip(here[:2], there[:2], sizes(here), sizes(there), strict=True)
    )
    return math.sqrt(step_x * step_x + step_y * step_y) <= NEAR + SPEED * known.unseen_s
