"""Two-stage matching (ByteTrack) of one frame's detections to tracks: confident detections first, then doubtful
ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes, describe, similarity
from appliance.track.association import IMPOSSIBLE, assign, contested_rows, match_costs
from appliance.track.track_state import LOST_S, Track
from appliance.types import Box, Detections

Floats = NDArray[np.float64]

HIGH_SCORE = 0.4  # scores from here on take part in the first stage, lower ones only continue what is known


class FrameObservation:
    """What was found, in plain numbers, a row each: boxes, scores, classes, groups (the class each may be mistaken
    within).

    planes: the picture; parts: those of it that were looked at, none: all of it. taken: track row to detection. State
    besides: what those who were asked for look like.
    """

    __slots__ = ("_boxes", "_known", "boxes", "class_ids", "groups", "planes", "regions", "scores", "taken")

    def __init__(self, found: Detections, group_of: Sequence[int], planes: Planes, parts: Sequence[Box]) -> None:
        self._boxes = found.boxes
        self._known: dict[int, Floats] = {}
        self.boxes: list[Box] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in found.boxes.tolist()]
        self.scores: list[float] = found.scores.tolist()
        self.class_ids: list[int] = found.class_ids.tolist()
        self.groups = [group_of[class_id] for class_id in self.class_ids]
        self.planes = planes
        self.regions = tuple(parts)
        self.taken: dict[int, int] = {}

    def free(self, least: float, most: float = 2.0) -> list[int]:
        """Which detections with a score from `least` to below `most` no track has."""
        used = set(self.taken.values())
        return [index for index, score in enumerate(self.scores) if least <= score < most and index not in used]

    def appearance(self, wanted: Iterable[int]) -> list[Floats]:
        """What the detections `wanted` look like (`describe`); only where there is a picture."""
        rows = list(wanted)
        if any(row not in self._known for row in rows):
            # Whoever was surely seen will most likely be asked for, too: to describe all at once costs little more.
            likely = {*rows, *(row for row, score in enumerate(self.scores) if score >= HIGH_SCORE)}
            new = sorted(likely.difference(self._known))
            self._known.update(zip(new, describe(self.planes, self._boxes[new]), strict=True))
        return [self._known[row] for row in rows]


def inside_regions(box: Box, parts: Iterable[Box]) -> bool:
    """Whether `box`, as far as it is in the picture, lies wholly in one of `parts`.

    What stands there would have been found; what an inner edge cuts is not trusted.
    """
    x1, y1, x2, y2 = clipped(box)
    return any(
        x1 >= part[0] - 1e-6 and y1 >= part[1] - 1e-6 and x2 <= part[2] + 1e-6 and y2 <= part[3] + 1e-6
        for part in parts
    )


def outside_regions(box: Box, parts: Iterable[Box]) -> bool:
    """Whether `box` lies wholly outside all of `parts`."""
    return all(box[2] <= part[0] or box[0] >= part[2] or box[3] <= part[1] or box[1] >= part[3] for part in parts)


def clipped(box: Box) -> Box:
    """What of `box` is in the picture."""
    x1, y1, x2, y2 = box
    return min(1.0, max(0.0, x1)), min(1.0, max(0.0, y1)), min(1.0, max(0.0, x2)), min(1.0, max(0.0, y2))


# Chosen on PETS09-S2L1 with three networks at 3.3, 5 and 10 looks a second, each for a reason that does not depend on
# the clip, and checked on footage that was not used. Figures: docs/accuracy.md, fixtures/accuracy.json.
OVERLAP_MIN = 0.1
DISTANCE_MAX = 0.8
LOW_OVERLAP_MIN = 0.4
# For who was doubtful the last time, too: in rain, in infrared, far away no better box is to be expected of them, and a
# filter that was corrected by such boxes is further off. Who was sure just now is more likely hidden, and the doubtful
# box somebody else's. But a box of another height is of a part of them, and would lead the filter astray.
POOR_OVERLAP_MIN = 0.2
POOR_GROWTH = 1.5
# Looks differ by 0.05 +- 0.05 for the same person and by 0.23 +- 0.10 for another (`likeness`): another one costs as
# much as no overlap at all, and all that looks say is a preference; it forbids nothing.
APPEARANCE_WEIGHT = 6.0
COST_MAX = 2.0 + APPEARANCE_WEIGHT
APPEARANCE_SAMPLES_MIN = 3  # a portrait counts in full from so many looks on
GAP_OVERLAP_MIN = 0.5


class TwoStageMatcher:
    """The tracks as one look finds them. slow: the look before was long ago.

    Lives for one look; what it decides is written into `Look.taken`.
    """

    def __init__(self, tracks: Sequence[Track], look: FrameObservation, *, slow: bool) -> None:
        self._tracks = tracks
        self._look = look
        self._slow = slow

    def match(self, held: Sequence[int]) -> None:
        """Who is who: the sure boxes first, then the doubtful ones for who is left, then those who are new,
        and what may be nobody."""
        look = self._look
        rows = self._matchable(held)
        known = [row for row in rows if self._tracks[row].number]
        fresh = [row for row in rows if not self._tracks[row].number and self._tracks[row].tentative is None]
        faint = [row for row in rows if self._tracks[row].tentative is not None]
        self._associate(known, look.free(HIGH_SCORE))
        left = [row for row in known if row not in look.taken]
        if left:
            self._associate(left, look.free(0.0, HIGH_SCORE), doubtful=True)
        if fresh:
            self._associate(fresh, look.free(HIGH_SCORE))
        if faint:
            self._associate(faint, look.free(0.0))

    def _matchable(self, held: Sequence[int]) -> list[int]:
        """The tracks that a box of this look may be: not those that are known to stand elsewhere."""
        rows = [row for row in range(len(self._tracks)) if row not in held]
        parts = self._look.regions
        if not parts:
            return rows
        tracks = self._tracks
        return [row for row in rows if not (tracks[row].at_rest and outside_regions(tracks[row].filter.box, parts))]

    def _associate(self, rows: list[int], free: list[int], *, doubtful: bool = False) -> None:
        """Pair tracks `rows` with the detections `free`, which nobody has yet; adds to `look.taken`.

        doubtful: the detections are, and must overlap; to be near is not enough.
        """
        if not rows or not free:
            return
        boxes = [self._look.boxes[index] for index in free]
        groups = [self._look.groups[index] for index in free]
        overlap_min, distance_max = (POOR_OVERLAP_MIN, 0.0) if doubtful else (OVERLAP_MIN, DISTANCE_MAX)
        table = []
        for row in rows:
            track = self._tracks[row]
            # After a gap only a box in the same place is believed to be the same; and who walked may have stopped.
            gone = track.unseen_s > LOST_S
            expected = track.last if gone and self._slow else track.filter.box
            costs = match_costs(
                expected, track.filter.spread(), boxes, overlap_min=overlap_min, distance_max=distance_max
            )
            if doubtful:
                costs = [
                    cost if _continues(track, expected, box, 1 - cost) else IMPOSSIBLE
                    for cost, box in zip(costs, boxes, strict=True)
                ]
            dearest = 1 - GAP_OVERLAP_MIN if gone else COST_MAX
            mine = (cost <= dearest and group == track.group for cost, group in zip(costs, groups, strict=True))
            table.append([cost if may else IMPOSSIBLE for cost, may in zip(costs, mine, strict=True)])
        if self._look.planes:
            self._compare_looks(table, rows, free)
        for row, column in assign(table, COST_MAX):
            self._look.taken[rows[row]] = free[column]

    def _compare_looks(self, table: list[list[float]], rows: list[int], free: list[int]) -> None:
        """Make those dearer that look different, where there is a choice: looks forbid nothing, they only prefer."""
        torn = [
            (row, track.appearance, track.appearance_samples)
            for row in contested_rows(table, COST_MAX)
            if (track := self._tracks[rows[row]]).appearance is not None
        ]
        if not torn:
            return
        columns = [column for column in range(len(free)) if any(table[row][column] < IMPOSSIBLE for row, _, _ in torn)]
        seen = np.array(self._look.appearance([free[column] for column in columns]))
        alike = similarity(np.array([portrait for _, portrait, _ in torn]), seen).tolist()
        for (row, _, sittings), line in zip(torn, alike, strict=True):
            weight = APPEARANCE_WEIGHT * min(1.0, sittings / APPEARANCE_SAMPLES_MIN)
            for column, each in zip(columns, line, strict=True):
                table[row][column] += weight * (1 - each)


def _continues(track: Track, expected: Box, box: Box, shared: float) -> bool:
    """Whether a doubtful box that overlaps by `shared` with where `track` is expected may be of it."""
    if track.score >= HIGH_SCORE or shared >= LOW_OVERLAP_MIN:
        return shared >= LOW_OVERLAP_MIN
    growth = (box[3] - box[1]) / max(expected[3] - expected[1], 1e-9)
    return 1 / POOR_GROWTH < growth < POOR_GROWTH
