"""The arithmetic of detection and tracking accuracy: AP at one overlap, CLEAR MOT, IDF1 and HOTA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.track.association import hungarian, overlap

Boxes = NDArray[np.float64]
# What HOTA is averaged over: localisation from lax to strict.
_ALPHAS = np.arange(0.05, 0.99, 0.05)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Labelled:
    """The boxes (N, 4) of one frame and what goes with each: a score or an identity (N,)."""

    boxes: Boxes
    values: NDArray[np.float64]


def average_precision(found: Sequence[Labelled], truth: Sequence[Boxes], overlap_min: float = 0.5) -> float:
    """Area under the precision/recall curve (every point, as COCO/VOC2010+); `found` carries scores."""
    hits: list[tuple[float, bool]] = []
    for each, boxes in zip(found, truth, strict=True):
        free = np.ones(len(boxes), bool)
        shared = overlap(each.boxes, boxes)
        for row in np.argsort(-each.values, kind="stable"):
            candidates = np.where(free, shared[row], -1.0)
            best = int(candidates.argmax()) if len(boxes) else -1
            hit = best >= 0 and candidates[best] >= overlap_min
            if hit:
                free[best] = False
            hits.append((float(each.values[row]), bool(hit)))
    hits.sort(key=lambda pair: -pair[0])
    right = np.cumsum([hit for _, hit in hits])
    recall = right / max(1, sum(len(boxes) for boxes in truth))
    precision = right / np.arange(1, len(hits) + 1)
    steps = np.diff(np.concatenate([[0.0], recall]))
    return float((steps * np.maximum.accumulate(precision[::-1])[::-1]).sum())


@dataclass(frozen=True)
class Tracking:
    """mota = 1 - (missed + false + switches) / boxes; idf1 = 2 IDTP / (boxes + answers); tracks: numbers given out."""

    mota: float
    idf1: float
    switches: int
    missed: int
    false: int
    boxes: int
    answers: int
    tracks: int


def tracking(found: Sequence[Labelled], truth: Sequence[Labelled], overlap_min: float = 0.5) -> Tracking:
    """CLEAR MOT (Bernardin & Stiefelhagen 2008) and IDF1 (Ristani 2016); `values` are identities."""
    missed = false = switches = 0
    last: dict[float, float] = {}
    together: dict[tuple[float, float], int] = {}
    for answer, right in zip(found, truth, strict=True):
        shared = overlap(right.boxes, answer.boxes)
        for row, column in zip(*np.nonzero(shared >= overlap_min), strict=True):
            key = (right.values[row], answer.values[column])
            together[key] = together.get(key, 0) + 1
        pairs = _matches(shared, right.values, answer.values, last, overlap_min)
        for row, column in pairs.items():
            person, track = right.values[row], answer.values[column]
            switches += int(person in last and last[person] != track)
            last[person] = track
        missed += len(right.values) - len(pairs)
        false += len(answer.values) - len(pairs)
    boxes = sum(len(right.values) for right in truth)
    answers = sum(len(answer.values) for answer in found)
    idtp = _best_identities(together)
    return Tracking(
        mota=1 - float(missed + false + switches) / max(1, boxes),
        idf1=2 * idtp / max(1, boxes + answers),
        switches=switches,
        missed=missed,
        false=false,
        boxes=boxes,
        answers=answers,
        tracks=len({track for answer in found for track in answer.values}),
    )


def _matches(
    shared: Boxes,
    persons: NDArray[np.float64],
    tracks: NDArray[np.float64],
    last: Mapping[float, float],
    overlap_min: float,
) -> dict[int, int]:
    """Ground truth row to answer column: who was together last stays so while it can, the rest at least cost."""
    pairs: dict[int, int] = {}
    for row, person in enumerate(persons):
        for column in np.flatnonzero(tracks == last.get(person, -1.0)):
            if shared[row, column] >= overlap_min:
                pairs[row] = int(column)
    rows = [row for row in range(len(persons)) if row not in pairs]
    columns = [column for column in range(len(tracks)) if column not in pairs.values()]
    if rows and columns:
        table = np.where(shared >= overlap_min, 1 - shared, 10.0)[np.ix_(rows, columns)]
        chosen = hungarian(np.concatenate([table, np.full((len(rows), len(rows)), 5.0)], axis=1))
        pairs |= {rows[row]: columns[column] for row, column in enumerate(chosen) if column < len(columns)}
    return pairs


def _best_identities(together: Mapping[tuple[float, float], int]) -> int:
    """The most frames that one fixed pairing of persons and tracks can explain."""
    persons = sorted({person for person, _ in together})
    tracks = sorted({track for _, track in together})
    table = np.zeros((len(persons), len(tracks) + len(persons)))
    for (person, track), count in together.items():
        table[persons.index(person), tracks.index(track)] = -count
    return int(-sum(table[row, column] for row, column in enumerate(hungarian(table)))) if persons else 0


@dataclass(frozen=True)
class Hota:
    """hota = sqrt(det_a * ass_a), each the mean over the overlaps 0.05, 0.10, …, 0.95 (the mean of the roots)."""

    hota: float
    det_a: float
    ass_a: float


def hota(found: Sequence[Labelled], truth: Sequence[Labelled]) -> Hota:
    """Higher order tracking accuracy (Luiten et al. 2021, IJCV 129), as TrackEval computes it.

    In each frame boxes are paired so that identities which belong together over the whole film are preferred; 0
    where there is neither a true box nor an answer.
    """
    persons = _numbers(truth)
    tracks = _numbers(found)
    frames = [
        (
            np.array([persons[each] for each in right.values.tolist()], np.intp),
            np.array([tracks[each] for each in answer.values.tolist()], np.intp),
            overlap(right.boxes, answer.boxes),
        )
        for answer, right in zip(found, truth, strict=True)
    ]
    boxes, answers = sum(len(rows) for rows, _, _ in frames), sum(len(columns) for _, columns, _ in frames)
    if not boxes or not answers:
        return Hota(0.0, 0.0, 0.0)
    alike, person_looks, track_looks = _kinship(frames, len(persons), len(tracks))
    hits = np.zeros((len(_ALPHAS), len(persons), len(tracks)))
    for rows, columns, shared in frames:
        pairs = _pairs(alike[np.ix_(rows, columns)] * shared)
        for row, column in pairs:
            hits[:, rows[row], columns[column]] += shared[row, column] >= _ALPHAS - _ROUNDING
    right = hits.sum(axis=(1, 2))
    det = right / (boxes + answers - right)
    union = person_looks[:, None] + track_looks[None] - hits
    ass = (hits * hits / np.maximum(union, 1)).sum(axis=(1, 2)) / np.maximum(right, 1)
    return Hota(float(np.sqrt(det * ass).mean()), float(det.mean()), float(ass.mean()))


_Frames = list[tuple[NDArray[np.intp], NDArray[np.intp], Boxes]]


def _kinship(frames: _Frames, persons: int, tracks: int) -> tuple[Boxes, Boxes, Boxes]:
    """How much each person and each track were in the same place (persons, tracks), and how often each was seen."""
    shared_looks = np.zeros((persons, tracks))
    person_looks, track_looks = np.zeros(persons), np.zeros(tracks)
    for rows, columns, shared in frames:
        rivals = shared.sum(axis=0)[None] + shared.sum(axis=1)[:, None] - shared
        shared_looks[np.ix_(rows, columns)] += shared / np.maximum(rivals, 1e-12)
        person_looks[rows] += 1
        track_looks[columns] += 1
    union = person_looks[:, None] + track_looks[None] - shared_looks
    return shared_looks / np.maximum(union, 1e-12), person_looks, track_looks


def _pairs(gain: Boxes) -> list[tuple[int, int]]:
    """Rows and columns paired for the greatest sum."""
    if not gain.size:
        return []
    if gain.shape[0] > gain.shape[1]:
        return [(row, column) for column, row in enumerate(hungarian(-gain.T))]
    return list(enumerate(hungarian(-gain)))


def _numbers(looks: Sequence[Labelled]) -> dict[float, int]:
    """Identities to 0, 1, 2, … in order of value."""
    values = {value for look in looks for value in look.values.tolist()}
    return {value: index for index, value in enumerate(sorted(values))}
