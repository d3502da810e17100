"""Decides which detection continues a track (two stages, ByteTrack), begins one, or brings a lost one back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.track.appearance import Planes, describe, similarity
from appliance.track.association import IMPOSSIBLE, assign, contested_rows, match_costs, overlap_of_smaller
from appliance.track.kalman import sizes, to_centre
from appliance.track.track_state import Track
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, Detections, iou

Floats = NDArray[np.float64]


class FrameObservation:
    """The detections of one frame, a row each.

    A row has a box, a score, a class id and a group (the class within which it may be mistaken).

    planes: the frame itself; regions: its examined parts; none: the whole frame. taken: track row to detection row.
    State: the appearances computed so far.
    """

    __slots__ = ("_appearances", "_boxes", "boxes", "class_ids", "groups", "planes", "regions", "scores", "taken")

    def __init__(self, found: Detections, group_of: Sequence[int], planes: Planes, regions: Sequence[Box]) -> None:
        self._boxes = found.boxes
        self._appearances: dict[int, Floats] = {}
        self.boxes: list[Box] = [(x1, y1, x2, y2) for x1, y1, x2, y2 in found.boxes.tolist()]
        self.scores: list[float] = found.scores.tolist()
        self.class_ids: list[int] = found.class_ids.tolist()
        self.groups = [group_of[class_id] for class_id in self.class_ids]
        self.planes = planes
        self.regions = tuple(regions)
        self.taken: dict[int, int] = {}

    def free(self, score_min: float, score_below: float = 2.0) -> list[int]:
        """Return the detections with such a score that no track has taken."""
        used = set(self.taken.values())
        return [
            index for index, score in enumerate(self.scores) if score_min <= score < score_below and index not in used
        ]

    def appearance(self, wanted: Iterable[int]) -> list[Floats]:
        """Return the appearances of the detections `wanted` (`describe`); call it only if there are planes."""
        rows = list(wanted)
        if any(row not in self._appearances for row in rows):
            # Confident detections will most likely be asked for, too: to describe all at once costs little more.
            likely = {*rows, *(row for row, score in enumerate(self.scores) if score >= TUNING.scores.high_score)}
            new = sorted(likely.difference(self._appearances))
            self._appearances.update(zip(new, describe(self.planes, self._boxes[new]), strict=True))
        return [self._appearances[row] for row in rows]

    def clear(self, expected: Iterable[Box]) -> list[int]:
        """Return which of the detections taken show one confident object alone.

        expected: boxes of objects that no detection shows; one over another counts, too.
        """
        taken = list(self.taken.values())
        boxes = [*(self.boxes[index] for index in taken), *expected]
        alone = [True] * len(boxes)
        for first, second in itertools.combinations(range(len(boxes)), 2):
            if iou(boxes[first], boxes[second]) > TUNING.appearance.clear_overlap_max:
                alone[first] = alone[second] = False
        return [
            index
            for index, free in zip(taken, alone, strict=False)
            if free and self.scores[index] >= TUNING.scores.high_score
        ]


class TwoStageMatcher:
    """Decides which detection continues which track, for one frame; the result is in `frame.taken`.

    slow: the frame before was long ago.
    """

    def __init__(self, tracks: Sequence[Track], frame: FrameObservation, *, slow: bool) -> None:
        self._tracks = tracks
        self._frame = frame
        self._slow = slow

    def match(self, held: Sequence[int]) -> None:
        """Match confident detections to confirmed tracks, then doubtful ones to those that are left.

        Before these stages, tracks at rest get the boxes at their places. After them come unconfirmed and hidden tracks
        (the next car has its own track by then), and tentative ones. held: rows of parked tracks that need no box.
        """
        frame, tracks = self._frame, self._tracks
        rows = self._matchable(held)
        hidden = [row for row in rows if tracks[row].number and tracks[row].is_hidden()]
        driving = [row for row in rows if tracks[row].number and tracks[row].is_hidden_vehicle]
        confirmed = [row for row in rows if tracks[row].number and row not in (*hidden, *driving)]
        unconfirmed = [row for row in rows if not tracks[row].number and tracks[row].tentative is None]
        tentative = [row for row in rows if tracks[row].tentative is not None]
        self._match_in_place([row for row in confirmed if tracks[row].at_rest])
        left = [row for row in confirmed if row not in frame.taken]
        self._associate(left, frame.free(TUNING.scores.high_score))
        left = [row for row in confirmed if row not in frame.taken]
        if left:
            self._associate(left, frame.free(0.0, TUNING.scores.high_score), doubtful=True)
        if unconfirmed:
            self._associate(unconfirmed, frame.free(TUNING.scores.high_score))
        self._associate(driving, frame.free(TUNING.scores.high_score))
        if hidden:
            self._associate(hidden, frame.free(0.0), in_place=True)
        if tentative:
            self._associate(tentative, frame.free(0.0))

    def _match_in_place(self, rows: list[int]) -> None:
        """Match tracks at rest to the boxes at their places, the best overlap first.

        In a row of people, the least total cost would otherwise shift each number by one when a box is missing at one
        end and another appears at the other end. A box that fits the expected place of another track better is left to
        that track.
        """
        tracks, frame = self._tracks, self._frame
        pairs = []
        for row in rows:
            track = tracks[row]
            for index, box in enumerate(frame.boxes):
                shared = iou(track.place, box) if frame.groups[index] == track.group else 0.0
                if shared >= TUNING.matching.place_overlap_min and not self._is_stranger(track, index):
                    rivals = (other for other in tracks if other is not track and other.group == track.group)
                    if all(iou(other.filter.box, box) < shared for other in rivals):
                        pairs.append((-shared, row, index))
        for _, row, index in sorted(pairs):
            if row not in frame.taken and index not in frame.taken.values():
                frame.taken[row] = index

    def _is_stranger(self, track: Track, index: int) -> bool:
        """Return True if a confident box looks like another object than the track."""
        if not self._frame.planes or track.appearance is None or self._frame.scores[index] < TUNING.scores.high_score:
            return False
        seen = np.array(self._frame.appearance([index]))
        return bool(similarity(track.appearance[None], seen)[0, 0] < TUNING.appearance.stranger_similarity_max)

    def _matchable(self, held: Sequence[int]) -> list[int]:
        """Return the tracks that a box of this frame may belong to.

        Tracks that are known to stand where nothing was examined are left out.
        """
        rows = [row for row in range(len(self._tracks)) if row not in held]
        regions = self._frame.regions
        if not regions:
            return rows
        tracks = self._tracks
        return [row for row in rows if not (tracks[row].at_rest and outside_regions(tracks[row].filter.box, regions))]

    def _associate(self, rows: list[int], free: list[int], *, doubtful: bool = False, in_place: bool = False) -> None:
        """Assign the detections `free` to the tracks `rows`; adds to `frame.taken`.

        doubtful: the detections are doubtful and must overlap, not only be near. in_place: only at the track's place.
        """
        if not rows or not free:
            return
        boxes = [self._frame.boxes[index] for index in free]
        groups = [self._frame.groups[index] for index in free]
        overlap_min, distance_max = TUNING.matching.overlap_min, TUNING.matching.distance_max
        if doubtful:
            overlap_min, distance_max = TUNING.matching.poor_overlap_min, 0.0
        table = []
        for row in rows:
            track = self._tracks[row]
            # After a gap only a box in the same place is believed to be the same; and who walked may have stopped.
            lost = track.absence.unseen_s > TUNING.losing.lost_s
            expected = track.last if lost and self._slow else track.filter.box
            # The filter's box has drifted meanwhile. Where boxes are all that is known, the next car waits there, too.
            if in_place and not (track.is_vehicle and track.appearance is None):
                expected = track.place
            costs = match_costs(
                expected, track.filter.spread(), boxes, overlap_min=overlap_min, distance_max=distance_max
            )
            if doubtful:
                costs = [
                    cost if _continues(track, expected, box, 1 - cost) else IMPOSSIBLE
                    for cost, box in zip(costs, boxes, strict=True)
                ]
            cost_max = 1 - TUNING.matching.gap_overlap_min if lost else TUNING.cost_max
            possible = (
                cost <= cost_max and group == track.group and not (track.comes_in(box) or track.is_other_vehicle(box))
                for cost, group, box in zip(costs, groups, boxes, strict=True)
            )
            if in_place:
                possible = (
                    each and track.is_place(box, self._frame.planes) for each, box in zip(possible, boxes, strict=True)
                )
            table.append([cost if each else IMPOSSIBLE for cost, each in zip(costs, possible, strict=True)])
        if self._frame.planes:
            self._add_appearance_costs(table, rows, free)
            self._forbid_strangers(table, rows, free)
        self._take_cheapest(table, rows, free)

    def _take_cheapest(self, table: list[list[float]], rows: list[int], free: list[int]) -> None:
        """Assign by least total cost; pairs that cost more than an unmatched track come last.

        Otherwise, if one of several neighbours is not detected, moving all numbers on by one would cost less than one
        track without a box.
        """
        for limit in (TUNING.unmatched_cost, TUNING.cost_max):
            for row, column in assign(table, limit):
                self._frame.taken[rows[row]] = free[column]
                table[row] = [IMPOSSIBLE] * len(free)
                for line in table:
                    line[column] = IMPOSSIBLE

    def _add_appearance_costs(self, table: list[list[float]], rows: list[int], free: list[int]) -> None:
        """Raise the cost of a pair that differs in appearance, where there is a choice."""
        contested = [
            (row, track.appearance, track.appearance_samples)
            for row in contested_rows(table, TUNING.cost_max)
            if (track := self._tracks[rows[row]]).appearance is not None
        ]
        if not contested:
            return
        columns = [
            column for column in range(len(free)) if any(table[row][column] < IMPOSSIBLE for row, _, _ in contested)
        ]
        seen = np.array(self._frame.appearance([free[column] for column in columns]))
        alike = similarity(np.array([appearance for _, appearance, _ in contested]), seen).tolist()
        for (row, _, samples), line in zip(contested, alike, strict=True):
            weight = TUNING.appearance.appearance_weight * min(1.0, samples / TUNING.appearance.appearance_samples_min)
            for column, each in zip(columns, line, strict=True):
                table[row][column] += weight * (1 - each)

    def _forbid_strangers(self, table: list[list[float]], rows: list[int], free: list[int]) -> None:
        """Forbid each pair of a track and a confident box that differs much in appearance.

        Such a box belongs to another object, also if it is the only one near.
        """
        known = [
            (row, appearance)
            for row, each in enumerate(rows)
            if (appearance := self._tracks[each].appearance) is not None
            and any(cost < IMPOSSIBLE for cost in table[row])
        ]
        columns = [column for column, index in enumerate(free) if self._frame.scores[index] >= TUNING.scores.high_score]
        if not known or not columns:
            return
        seen = np.array(self._frame.appearance([free[column] for column in columns]))
        alike = similarity(np.array([appearance for _, appearance in known]), seen).tolist()
        for (row, _), line in zip(known, alike, strict=True):
            hidden = self._tracks[rows[row]].is_hidden_vehicle
            least = TUNING.reid.reid_similarity_min if hidden else TUNING.appearance.stranger_similarity_max
            for column, each in zip(columns, line, strict=True):
                if each < least:
                    table[row][column] = IMPOSSIBLE


def _continues(track: Track, expected: Box, box: Box, shared: float) -> bool:
    """Return True if a doubtful box that overlaps the expected box of `track` by `shared` may belong to it.

    If the track was confident just now, it is more likely hidden, and the doubtful box belongs to another object. A
    standing track is only continued at its place: a doubtful box beside it belongs to a passing object, or covers half
    of both.
    """
    if track.stands and not track.is_in_place(box):
        return False
    if track.scores.last >= TUNING.scores.high_score or shared >= TUNING.matching.low_overlap_min:
        return shared >= TUNING.matching.low_overlap_min
    growth = (box[3] - box[1]) / max(expected[3] - expected[1], 1e-9)
    return 1 / TUNING.matching.poor_growth < growth < TUNING.matching.poor_growth


def inside_regions(box: Box, regions: Iterable[Box]) -> bool:
    """Return True if the part of `box` inside the frame lies completely in one of `regions`.

    An object there would have been detected. A box that an inner edge of a region cuts is not reliable.
    """
    x1, y1, x2, y2 = clipped(box)
    return any(
        x1 >= each[0] - 1e-6 and y1 >= each[1] - 1e-6 and x2 <= each[2] + 1e-6 and y2 <= each[3] + 1e-6
        for each in regions
    )


def outside_regions(box: Box, regions: Iterable[Box]) -> bool:
    """Return True if `box` lies wholly outside all of `regions`."""
    return all(box[2] <= each[0] or box[0] >= each[2] or box[3] <= each[1] or box[1] >= each[3] for each in regions)


def clipped(box: Box) -> Box:
    """Return the part of `box` that is in the frame."""
    x1, y1, x2, y2 = box
    return min(1.0, max(0.0, x1)), min(1.0, max(0.0, y1)), min(1.0, max(0.0, x2)), min(1.0, max(0.0, y2))


def spawn_confident(frame: FrameObservation, held: Iterable[Track], covered: Sequence[Track], room: int) -> list[int]:
    """Return at most `room` detections that begin tracks.

    None begins with a person's other half, a van that is also a truck, or a part of a parked object that is `held` by
    its place. Nor does one begin at the place of a parked object while that place is `covered`.
    """
    known = [(track.group, track.filter.box) for track in held]
    known += [(frame.groups[index], frame.boxes[index]) for index in sorted(frame.taken.values())]
    spawned: list[int] = []
    for index in frame.free(TUNING.scores.spawn_score_min):
        group, box = frame.groups[index], frame.boxes[index]
        double = any(
            group == other and overlap_of_smaller(box, taken) > TUNING.spawning.double_overlap_min
            for other, taken in known
        )
        double = double or any(group == each.group and each.is_in_place(box) for each in covered)
        if len(spawned) < room and not double:
            spawned.append(index)
            known.append((group, box))
    return spawned


def spawn_tentative(frame: FrameObservation, tracks: Sequence[Track], spawned: Sequence[int], room: int) -> list[int]:
    """Return at most `room` detections that are too doubtful to begin tracks, but may be persons, if they walk."""
    doubtful = frame.free(TUNING.scores.tentative_score_min, TUNING.scores.spawn_score_min)
    if not doubtful or room <= 0:
        return []
    known = [each.filter.box for each in tracks] + [frame.boxes[each] for each in (*spawned, *frame.taken.values())]
    found: list[int] = []
    for index in doubtful:
        box = frame.boxes[index]
        if len(found) < room and not any(
            overlap_of_smaller(box, other) > TUNING.spawning.tentative_overlap_max for other in known
        ):
            found.append(index)
            known.append(box)
    return found


def covers_known_track(tentative: Track, tracks: Iterable[Track]) -> bool:
    """Return True if a tentative track overlaps a confirmed one: its box may be that one's, or a part of it."""
    return any(
        each.number and overlap_of_smaller(tentative.last, each.filter.box) > TUNING.spawning.tentative_overlap_max
        for each in tracks
    )


def reidentify(track: Track, lost: Iterable[Track]) -> Track | None:
    """Return the one of the numbered tracks `lost` that the new `track` continues, or None.

    It must have been within reach, of about the same size, of the same appearance, and be the only such one. A vehicle
    does not reappear behind the place where it was last found. Two cases are excluded: an object last seen at the
    frame's border has left, and one first seen there has entered.
    """
    if track.appearance is None or track.came_in:
        return None
    found = [
        (float(similarity(track.appearance[None], each.appearance[None])[0, 0]), each)
        for each in lost
        if each.appearance is not None
        and each.group == track.group
        and not each.at_edge()
        and _in_reach(track, each)
        and not (each.is_vehicle and (each.is_behind(track.first) or not each.is_as_high(track.first)))
    ]
    found.sort(key=lambda pair: -pair[0])
    if not found or found[0][0] < TUNING.reid.reid_similarity_min:
        return None
    if len(found) > 1 and found[0][0] - found[1][0] < TUNING.reid.reid_margin:
        return None
    return found[0][1]


def inherit_identity(track: Track, known: Track) -> None:
    """Let `track` go on as `known`: with its number, votes and appearance."""
    track.number, known.number = known.number, 0
    votes = track.scores.by_class
    for class_id, score in known.scores.by_class.items():
        votes[class_id] = votes.get(class_id, 0.0) + score
    if track.appearance is not None and known.appearance is not None:
        track.appearance = (track.appearance + known.appearance) / 2
        track.appearance_samples = max(track.appearance_samples, known.appearance_samples)


def _in_reach(track: Track, known: Track) -> bool:
    if known.absence.unseen_s > TUNING.reid.reid_s:
        return False
    here, there = to_centre(track.last), to_centre(known.last)
    if not 0.5 < there[3] / max(here[3], 1e-9) < 2.0:
        return False
    step_x, step_y = (
        (at - was) / ((size + other) / 2)
        for at, was, size, other in zip(here[:2], there[:2], sizes(here), sizes(there), strict=True)
    )
    reach = TUNING.reid.reid_distance_max + TUNING.reid.reid_speed * known.absence.unseen_s
    return math.sqrt(step_x * step_x + step_y * step_y) <= reach and not _comes_towards(track, (step_x, step_y))


def _comes_towards(track: Track, step: tuple[float, float]) -> bool:
    """Return True if the new `track` moves towards the place where another track was last seen.

    step: the vector from that place to the new track, in sizes.
    """
    wide, tall = sizes(to_centre(track.last))
    pace_x, pace_y = track.filter.speed[0] / wide, track.filter.speed[1] / tall
    pace = math.sqrt(pace_x * pace_x + pace_y * pace_y)
    away = (step[0] * pace_x + step[1] * pace_y) / max(pace, 1e-9)
    return pace >= TUNING.reid.reid_pace_min and away < -TUNING.reid.reid_towards_max
