"""Who is new: boxes of one look that no track has, and with which a track begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from appliance.track.association import cover
from appliance.track.look import Look
from appliance.track.trace import BEGIN, Trace

GUESS = 0.3  # from here on a box is kept in mind, in case it is seen to walk (`faint`)
APART = 0.3  # and only where it is not largely of somebody known: their boxes come apart when they meet
# A newcomer whose box lies to such a part in one that is taken (or the other way round) is the same object twice.
DOUBLE = 0.7


def newcomers(look: Look, held: Iterable[Trace], room: int) -> list[int]:
    """At most `room` detections that begin tracks: half a person again, a van that is also a truck, or part of a parked
    thing that is `held` by its place do not."""
    places = [(track.group, track.filter.box) for track in held]
    there = places + [(look.groups[index], look.boxes[index]) for index in sorted(look.taken.values())]
    fresh: list[int] = []
    for index in look.free(BEGIN):
        group, box = look.groups[index], look.boxes[index]
        if len(fresh) < room and not any(group == other and cover(box, taken) > DOUBLE for other, taken in there):
            fresh.append(index)
            there.append((group, box))
    return fresh


def guesses(look: Look, tracks: Sequence[Trace], fresh: Sequence[int], room: int) -> list[int]:
    """At most `room` detections that are too doubtful to begin tracks, but may be somebody, if they walk."""
    doubtful = look.free(GUESS, BEGIN)
    if not doubtful or room <= 0:
        return []
    there = [each.filter.box for each in tracks] + [look.boxes[each] for each in (*fresh, *look.taken.values())]
    found: list[int] = []
    for index in doubtful:
        box = look.boxes[index]
        if len(found) < room and not any(cover(box, other) > APART for other in there):
            found.append(index)
            there.append(box)
    return found


def is_part(guess: Trace, tracks: Iterable[Trace]) -> bool:
    """Whether a guess has met somebody known: its box may be one of theirs, or theirs in part."""
    return any(each.number and cover(guess.last, each.filter.box) > APART for each in tracks)
