"""Tracks of two replay logs, matched by where and when they were, since their numbers mean nothing across logs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from appliance.boxes import overlap
from appliance.types import Box, FrameBoxes, LogLine, Point, StreamHeader

OVERLAP_MIN = 0.3
SHARED_LOOKS_MIN = 2
_BETWEEN_S_MAX = 3.0  # a track is taken to be on the way between two sightings no further apart


@dataclass(frozen=True, slots=True)
class Track:
    """One object as one log tells it: when and where it was seen, in order. run counts the headers before it."""

    camera: str
    run: int
    number: int
    label: str
    times: tuple[float, ...]
    boxes: tuple[Box, ...]

    @property
    def t_start(self) -> float:
        return self.times[0]

    @property
    def t_end(self) -> float:
        return self.times[-1]

    @property
    def seconds(self) -> float:
        return self.t_end - self.t_start

    @property
    def middle(self) -> Point:
        """The centre of its box half-way through its sightings."""
        x1, y1, x2, y2 = self.boxes[len(self.boxes) // 2]
        return (x1 + x2) / 2, (y1 + y2) / 2

    def at(self, t: float) -> Box | None:
        """Where it was at `t`, between two sightings in a straight line; None: not there."""
        if not self.t_start <= t <= self.t_end:
            return None
        index = bisect_left(self.times, t)
        if self.times[index] == t:
            return self.boxes[index]
        before, after = self.times[index - 1], self.times[index]
        if after - before > _BETWEEN_S_MAX:
            return None
        share = (t - before) / (after - before)
        a, b = self.boxes[index - 1], self.boxes[index]
        return (
            a[0] + share * (b[0] - a[0]),
            a[1] + share * (b[1] - a[1]),
            a[2] + share * (b[2] - a[2]),
            a[3] + share * (b[3] - a[3]),
        )


@dataclass(frozen=True, slots=True)
class Matched:
    """Pairs (of the first log, of the second), and who found no partner. breaks: for a track of the second log without
    a partner the one of the first log in whose place it was, if there is one; joins: the other way round."""

    pairs: tuple[tuple[Track, Track], ...]
    gone: tuple[Track, ...]
    new: tuple[Track, ...]
    breaks: dict[tuple[int, int], Track]
    joins: dict[tuple[int, int], Track]


def tracks_of(lines: Iterable[LogLine], camera: str) -> tuple[Track, ...]:
    """The tracks of one camera in the order of their first sightings; `lines` with the first header."""
    run = 0
    found: dict[tuple[int, int], list[tuple[float, str, Box]]] = {}
    for line in lines:
        if line.camera != camera:
            continue
        run += isinstance(line, StreamHeader)
        if isinstance(line, FrameBoxes):
            for each in line.objects:
                found.setdefault((run, each.track), []).append((line.t, each.label, each.box))
    return tuple(
        Track(
            camera,
            run,
            number,
            Counter(label for _, label, _ in seen).most_common(1)[0][0],
            tuple(t for t, _, _ in seen),
            tuple(box for _, _, box in seen),
        )
        for (run, number), seen in found.items()
    )


def match(before: Sequence[Track], after: Sequence[Track]) -> Matched:
    """Pair the tracks that were in the same place for longest, each with at most one other."""
    shared = [
        (looks, one, other)
        for one in before
        for other in after
        if one.t_start <= other.t_end and other.t_start <= one.t_end
        for looks in (_shared_looks(one, other),)
        if looks
    ]
    shared.sort(key=lambda each: (-each[0], each[1].run, each[1].number, each[2].run, each[2].number))
    partner: dict[tuple[int, int], Track] = {}
    taken: set[tuple[int, int]] = set()
    breaks: dict[tuple[int, int], Track] = {}
    joins: dict[tuple[int, int], Track] = {}
    for _, one, other in shared:
        if key(one) not in partner and key(other) not in taken:
            partner[key(one)] = other
            taken.add(key(other))
    for _, one, other in shared:
        if key(other) not in taken:
            breaks.setdefault(key(other), one)
        if key(one) not in partner:
            joins.setdefault(key(one), other)
    return Matched(
        pairs=tuple((one, partner[key(one)]) for one in before if key(one) in partner),
        gone=tuple(one for one in before if key(one) not in partner),
        new=tuple(other for other in after if key(other) not in taken),
        breaks=breaks,
        joins=joins,
    )


def key(track: Track) -> tuple[int, int]:
    """What tells the tracks of one camera in one log apart."""
    return track.run, track.number


def _shared_looks(one: Track, other: Track) -> int:
    """At how many sightings of the one that was seen less often both were in the same place."""
    few, many = (one, other) if len(one.times) <= len(other.times) else (other, one)
    places = ((box, many.at(t)) for t, box in zip(few.times, few.boxes, strict=True))
    looks = sum(there is not None and overlap(box, there) >= OVERLAP_MIN for box, there in places)
    return looks if looks >= min(SHARED_LOOKS_MIN, len(few.times)) else 0
