"""How tracks begin: detections that spawn confident or tentative tracks, and re-identification of lost ones by
appearance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from appliance.track.appearance import similarity
from appliance.track.association import overlap_of_smaller
from appliance.track.kalman import sizes, to_centre
from appliance.track.matching import FrameObservation
from appliance.track.track_state import SPAWN_SCORE_MIN, Track

TENTATIVE_SCORE_MIN = 0.3  # from here on a box is kept in mind, in case it is seen to walk (`faint`)
APART = 0.3  # and only where it is not largely of somebody known: their boxes come apart when they meet
# A newcomer whose box lies to such a part in one that is taken (or the other way round) is the same object twice.
DOUBLE = 0.7


def spawn_confident(look: FrameObservation, held: Iterable[Track], room: int) -> list[int]:
    """At most `room` detections that begin tracks: half a person again, a van that is also a truck, or part of a parked
    thing that is `held` by its place do not."""
    places = [(track.group, track.filter.box) for track in held]
    there = places + [(look.groups[index], look.boxes[index]) for index in sorted(look.taken.values())]
    fresh: list[int] = []
    for index in look.free(SPAWN_SCORE_MIN):
        group, box = look.groups[index], look.boxes[index]
        if len(fresh) < room and not any(
            group == other and overlap_of_smaller(box, taken) > DOUBLE for other, taken in there
        ):
            fresh.append(index)
            there.append((group, box))
    return fresh


def spawn_tentative(look: FrameObservation, tracks: Sequence[Track], fresh: Sequence[int], room: int) -> list[int]:
    """At most `room` detections that are too doubtful to begin tracks, but may be somebody, if they walk."""
    doubtful = look.free(TENTATIVE_SCORE_MIN, SPAWN_SCORE_MIN)
    if not doubtful or room <= 0:
        return []
    there = [each.filter.box for each in tracks] + [look.boxes[each] for each in (*fresh, *look.taken.values())]
    found: list[int] = []
    for index in doubtful:
        box = look.boxes[index]
        if len(found) < room and not any(overlap_of_smaller(box, other) > APART for other in there):
            found.append(index)
            there.append(box)
    return found


def covers_known_track(guess: Track, tracks: Iterable[Track]) -> bool:
    """Whether a guess has met somebody known: its box may be one of theirs, or theirs in part."""
    return any(each.number and overlap_of_smaller(guess.last, each.filter.box) > APART for each in tracks)


# Behind a van or a pillar people are for a few seconds; later somebody else of the same clothes is as likely.
REID_S = 5.0
# Somebody who walks briskly does 2 sizes of the box a second (a person's is about 0.6 of the height), beside the
# uncertainty of the boxes themselves. Running is not meant: who runs is followed by the filter or not at all.
SPEED = 2.0
NEAR = 0.8
# 19 of 20 looks at the same person are at least so alike; a second candidate must be clearly less alike.
ALIKE_MIN = 0.88
CLEAR = 0.03


def reidentify(fresh: Track, missing: Iterable[Track]) -> Track | None:
    """The one of the numbered tracks `missing` that `fresh` is again, or None.

    It must have been within reach, of about the same size, look the same, and be the only one that does. Who was last
    seen at the picture's border has left, and is somebody new when a person comes in there.
    """
    if fresh.appearance is None:
        return None
    found = [
        (float(similarity(fresh.appearance[None], each.appearance[None])[0, 0]), each)
        for each in missing
        if each.appearance is not None and each.group == fresh.group and not each.at_edge() and _in_reach(fresh, each)
    ]
    found.sort(key=lambda pair: -pair[0])
    if not found or found[0][0] < ALIKE_MIN:
        return None
    if len(found) > 1 and found[0][0] - found[1][0] < CLEAR:
        return None
    return found[0][1]


def inherit_identity(fresh: Track, known: Track) -> None:
    """`fresh` goes on as `known`: number, votes and portrait."""
    fresh.number, known.number = known.number, 0
    for class_id, score in known.votes.items():
        fresh.votes[class_id] = fresh.votes.get(class_id, 0.0) + score
    if fresh.appearance is not None and known.appearance is not None:
        fresh.appearance = (fresh.appearance + known.appearance) / 2
        fresh.appearance_samples = max(fresh.appearance_samples, known.appearance_samples)


def _in_reach(fresh: Track, known: Track) -> bool:
    if known.unseen_s > REID_S:
        return False
    here, there = to_centre(fresh.last), to_centre(known.last)
    if not 0.5 < there[3] / max(here[3], 1e-9) < 2.0:
        return False
    step_x, step_y = (
        (at - was) / ((size + other) / 2)
        for at, was, size, other in zip(here[:2], there[:2], sizes(here), sizes(there), strict=True)
    )
    return math.sqrt(step_x * step_x + step_y * step_y) <= NEAR + SPEED * known.unseen_s
