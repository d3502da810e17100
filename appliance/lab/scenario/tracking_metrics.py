"""Accuracy of boxes and tracks against true ones: AP50, CLEAR MOT, IDF1 and HOTA."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.lab.scenario.ground_truth import TrueFrames, TrueObject, has_identities
from appliance.lab.scenario.scenario_result import TrackFigures
from appliance.track.association import hungarian, iou_matrix
from appliance.types import FrameBoxes, TrackedObject

Boxes = NDArray[np.float64]
# What HOTA is averaged over: localisation from lax to strict.
_ALPHAS = np.arange(0.05, 0.99, 0.05)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class LabelledBoxes:
    """The boxes (N, 4) of one frame and what goes with each: a score or an identity (N,)."""

    boxes: Boxes
    values: NDArray[np.float64]


def average_precision(found: Sequence[LabelledBoxes], truth: Sequence[Boxes], overlap_min: float = 0.5) -> float:
    """Area under the precision/recall curve (every point, as COCO/VOC2010+); `found` carries scores."""
    hits: list[tuple[float, bool]] = []
    for each, boxes in zip(found, truth, strict=True):
        free = np.ones(len(boxes), bool)
        shared = iou_matrix(each.boxes, boxes)
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
class ClearMotFigures:
    """mota = 1 - (missed + false + switches) / boxes; idf1 = 2 IDTP / (boxes + answers); tracks: numbers given out."""

    mota: float
    idf1: float
    switches: int
    missed: int
    false: int
    boxes: int
    detections: int
    tracks: int


def clear_mot(
    found: Sequence[LabelledBoxes], truth: Sequence[LabelledBoxes], overlap_min: float = 0.5
) -> ClearMotFigures:
    """CLEAR MOT (Bernardin & Stiefelhagen 2008) and IDF1 (Ristani 2016); `values` are identities."""
    missed = false = switches = 0
    last: dict[float, float] = {}
    together: dict[tuple[float, float], int] = {}
    for answer, right in zip(found, truth, strict=True):
        shared = iou_matrix(right.boxes, answer.boxes)
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
    return ClearMotFigures(
        mota=1 - float(missed + false + switches) / max(1, boxes),
        idf1=2 * idtp / max(1, boxes + answers),
        switches=switches,
        missed=missed,
        false=false,
        boxes=boxes,
        detections=answers,
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
class HotaFigures:
    """hota = sqrt(det_a * ass_a), each the mean over the overlaps 0.05, 0.10, …, 0.95 (the mean of the roots)."""

    hota: float
    det_a: float
    ass_a: float


def hota_figures(found: Sequence[LabelledBoxes], truth: Sequence[LabelledBoxes]) -> HotaFigures:
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
            iou_matrix(right.boxes, answer.boxes),
        )
        for answer, right in zip(found, truth, strict=True)
    ]
    boxes, answers = sum(len(rows) for rows, _, _ in frames), sum(len(columns) for _, columns, _ in frames)
    if not boxes or not answers:
        return HotaFigures(0.0, 0.0, 0.0)
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
    return HotaFigures(float(np.sqrt(det * ass).mean()), float(det.mean()), float(ass.mean()))


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


def _numbers(looks: Sequence[LabelledBoxes]) -> dict[float, int]:
    """Identities to 0, 1, 2, … in order of value."""
    values = {value for look in looks for value in look.values.tolist()}
    return {value: index for index, value in enumerate(sorted(values))}


OVERLAP_MIN = 0.5
_Boxes = NDArray[np.float64]


def compare_with_truth(looks: Iterable[FrameBoxes], truth: TrueFrames, labels: Collection[str]) -> TrackFigures:
    """Every look that the detector answered against the true boxes of its frame; all `labels` count as one class.

    What is compared is what the tracker reports: only tracks that it confirmed, with the scores of the looks. An
    answer on a true box that does not count is left out.
    """
    found: list[LabelledBoxes] = []
    scored: list[LabelledBoxes] = []
    right: list[LabelledBoxes] = []
    for look in looks:
        if not look.looked:
            continue
        objects = truth.get(look.frame, ())
        wanted = [each for each in objects if each.counts]
        answers = _fair([each for each in look.objects if each.label in labels], objects)
        boxes = _boxes(answers)
        found.append(LabelledBoxes(boxes, np.array([each.track for each in answers], float)))
        scored.append(LabelledBoxes(boxes, np.array([each.score for each in answers], float)))
        right.append(LabelledBoxes(_boxes(wanted), np.array([each.id for each in wanted], float)))
    followed = has_identities(truth)
    tracking = clear_mot(found, right) if followed else None
    return TrackFigures(
        ap50=average_precision(scored, [each.boxes for each in right], OVERLAP_MIN),
        hota=hota_figures(found, right).hota if followed else None,
        idf1=tracking.idf1 if tracking else None,
        mota=tracking.mota if tracking else None,
        switches=tracking.switches if tracking else None,
        boxes=sum(len(each.values) for each in right),
        looks=len(right),
    )


def _fair(answers: list[TrackedObject], objects: Sequence[TrueObject]) -> list[TrackedObject]:
    """The answers without those that fall on a true box which does not count, and on none that does."""
    void = [each for each in objects if not each.counts]
    if not void or not answers:
        return answers
    boxes = _boxes(answers)
    on_void = iou_matrix(boxes, _boxes(void)).max(axis=1, initial=0.0) >= OVERLAP_MIN
    on_right = (
        iou_matrix(boxes, _boxes([each for each in objects if each.counts])).max(axis=1, initial=0.0) >= OVERLAP_MIN
    )
    return [each for each, spare in zip(answers, on_void & ~on_right, strict=True) if not spare]


def _boxes(objects: Sequence[TrackedObject] | Sequence[TrueObject]) -> _Boxes:
    return np.array([each.box for each in objects], float).reshape(-1, 4)
