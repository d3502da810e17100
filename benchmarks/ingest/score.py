"""What a contender found of what there was: seconds and visits found, how soon, and what it saw where nothing was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.ingest.taken import Taken
from benchmarks.ingest.truth import Box, Truth, Visit

OVERLAP_MIN = 0.4
ON_SOMETHING_MIN = 0.1
SECOND_SHARE_MIN = 0.5
ROOM_S = 3.0
GROUPS = {"person": "person", "car": "vehicle", "truck": "vehicle", "bus": "vehicle", "van": "vehicle"}


@dataclass(frozen=True, slots=True)
class Look:
    """What was told of one frame. frame: counted from the camera's first; told_t: when it was heard, UTC seconds."""

    frame: int
    told_t: float
    boxes: tuple[tuple[str, Box], ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts that add up over cameras and rounds. The firsts are seconds after an object was to be seen."""

    seconds: int = 0
    seconds_found: int = 0
    visits: int = 0
    visits_found: int = 0
    wrong: int = 0
    first_told_s: tuple[float, ...] = field(default=())
    first_seen_s: tuple[float, ...] = field(default=())

    def __add__(self, other: Score) -> Score:
        return Score(
            self.seconds + other.seconds,
            self.seconds_found + other.seconds_found,
            self.visits + other.visits,
            self.visits_found + other.visits_found,
            self.wrong + other.wrong,
            self.first_told_s + other.first_told_s,
            self.first_seen_s + other.first_seen_s,
        )


def overlap(one: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    areas = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return width * height / (areas - width * height)


def score(truth: Truth, looks: Sequence[Look], begin: int, end: int, taken: Taken) -> Score:
    """Of one camera, between two frames. taken: when its frames were taken.

    A second of an object counts when half its frames show it well enough, and is found when one look in it has a box
    of its kind there. A visit is found when one of its seconds is.
    """
    within = [look for look in looks if begin <= look.frame < end]
    visits = list(truth.shown(begin, end))
    total = Score(wrong=sum(_wrong(look, visits) for look in within))
    for visit in visits:
        total += _score_visit(visit, within, truth.fps, end, taken)
    return total


def _score_visit(visit: Visit, looks: Sequence[Look], fps: int, end: int, taken: Taken) -> Score:
    shown: dict[int, int] = {}
    for frame, sight in visit.sights.items():
        shown[frame // fps] = shown.get(frame // fps, 0) + sight.counts
    due = {second for second, frames in shown.items() if frames >= SECOND_SHARE_MIN * fps}
    hits = [look for look in looks if _finds(look, visit)]
    found = due & {look.frame // fps for look in hits}
    if not due:
        return Score()
    part = Score(seconds=len(due), seconds_found=len(found), visits=1, visits_found=int(bool(found)))
    first = next((frame for frame, sight in sorted(visit.sights.items()) if sight.counts), None)
    # Timed only where it is seen to come in, and with room to be told of before the measurement ends.
    if first is None or first == min(visit.sights) or first > end - ROOM_S * fps or not hits:
        return part
    told = min(look.told_t for look in hits) - taken.t(first)
    seen = (min(look.frame for look in hits) - first) / fps
    return part + Score(first_told_s=(told,), first_seen_s=(seen,))


def _finds(look: Look, visit: Visit) -> bool:
    sight = visit.sights.get(look.frame)
    return sight is not None and any(
        GROUPS.get(label) == visit.label and overlap(box, sight.box) >= OVERLAP_MIN for label, box in look.boxes
    )


def _wrong(look: Look, visits: Sequence[Visit]) -> int:
    """Boxes of people and vehicles that lie on none of what is there."""
    there = [visit.sights[look.frame].box for visit in visits if look.frame in visit.sights]
    return sum(
        label in GROUPS and all(overlap(box, each) < ON_SOMETHING_MIN for each in there) for label, box in look.boxes
    )
