"""How tracks begin: detections that spawn confident or tentative tracks, and re-identification of lost tracks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from appliance.track.appearance import similarity
from appliance.track.association import overlap_of_smaller
from appliance.track.kalman import sizes, to_centre
from appliance.track.matching import FrameObservation
from appliance.track.track_state import Track
from appliance.track.tracker_tuning import TUNING


def spawn_confident(frame: FrameObservation, held: Iterable[Track], room: int) -> list[int]:
    """Return at most `room` detections that begin tracks.

    None begins with a person's other half, a van that is also a truck, or a part of a parked object that is `held` by
    its place.
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
    """Return True if a tentative track has met a confirmed one: its box may be that one's, or a part of it."""
    return any(
        each.number and overlap_of_smaller(tentative.last, each.filter.box) > TUNING.spawning.tentative_overlap_max
        for each in tracks
    )


def reidentify(track: Track, lost: Iterable[Track]) -> Track | None:
    """Return the one of the numbered tracks `lost` that the new `track` continues, or None.

    It must have been within reach, of about the same size, of the same appearance, and be the only such one. An object
    that was last seen at the frame's border has left, and one that is first seen there has come in: both are excluded.
    """
    if track.appearance is None or track.came_in:
        return None
    found = [
        (float(similarity(track.appearance[None], each.appearance[None])[0, 0]), each)
        for each in lost
        if each.appearance is not None and each.group == track.group and not each.at_edge() and _in_reach(track, each)
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
    for class_id, score in known.votes.items():
        track.votes[class_id] = track.votes.get(class_id, 0.0) + score
    if track.appearance is not None and known.appearance is not None:
        track.appearance = (track.appearance + known.appearance) / 2
        track.appearance_samples = max(track.appearance_samples, known.appearance_samples)


def _in_reach(track: Track, known: Track) -> bool:
    if known.unseen_s > TUNING.reid.reid_s:
        return False
    here, there = to_centre(track.last), to_centre(known.last)
    if not 0.5 < there[3] / max(here[3], 1e-9) < 2.0:
        return False
    step_x, step_y = (
        (at - was) / ((size + other) / 2)
        for at, was, size, other in zip(here[:2], there[:2], sizes(here), sizes(there), strict=True)
    )
    reach = TUNING.reid.reid_distance_max + TUNING.reid.reid_speed * known.unseen_s
    return math.sqrt(step_x * step_x + step_y * step_y) <= reach and not _comes_towards(track, (step_x, step_y))


def _comes_towards(track: Track, step: tuple[float, float]) -> bool:
    """Return True if the new `track` moves towards the place where another track was last seen.

    step: the way from that place to the new track, in sizes.
    """
    wide, tall = sizes(to_centre(track.last))
    pace_x, pace_y = track.filter.speed[0] / wide, track.filter.speed[1] / tall
    pace = math.sqrt(pace_x * pace_x + pace_y * pace_y)
    away = (step[0] * pace_x + step[1] * pace_y) / max(pace, 1e-9)
    return pace >= TUNING.reid.reid_pace_min and away < -TUNING.reid.reid_towards_max
