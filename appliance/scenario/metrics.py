"""Measures how well a replay meets the truth: the events that it reports, and its boxes and tracks.

Events have recall, precision, delay and alerts per hour, each with its 95 % interval. Boxes and tracks have AP50, CLEAR
MOT, IDF1 and HOTA, by hand because no library qualifies (decision 59): TrackEval and its forks install opencv-python
over our headless build, py-motmetrics has no release with NumPy 2 or HOTA. `python -m benchmarks.tracking` compares
these figures with both, where installed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.base import box_arrays
from appliance.base.box_arrays import iou_matrix, take_best
from appliance.scenario.ground_truth import TrueFrames, TrueObject, has_identities
from appliance.track.association import hungarian
from appliance.types import FrameBoxes, TrackedObject

RESAMPLES = 2000  # bootstrap draws: the ends of an interval are then stable to about 0.01
LEVEL = (2.5, 97.5)  # percentiles of a 95 % interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure from `of` observations with its 95 % interval (low, high). value None: nothing was observed."""

    value: float | None
    low: float | None
    high: float | None
    of: int


NO_ESTIMATE = Estimate(None, None, None, 0)


def format_estimate(figure: Estimate) -> str:
    """`0.83 (0.61 to 0.97)`, or `-` where nothing was observed."""
    if figure.value is None:
        return "-"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} ({figure.low:.2f} to {figure.high:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFigures:
    """recall: of the required events; precision: of the judged ones; delay_s: the median; delay_p90_s: 90 %."""

    recall: Estimate
    precision: Estimate
    delay_s: Estimate
    delay_p90_s: float | None
    alerts: int
    footage_s: float

    @property
    def alerts_per_hour(self) -> float | None:
        return None if self.footage_s <= 0 else self.alerts * 3600 / self.footage_s


def event_figures(
    required: Sequence[bool], judged: Sequence[bool], delays: Sequence[float], *, alerts: int, footage_s: float
) -> EventFigures:
    """Return the figures of a scenario's events.

    required: for each required event, whether it was reported; judged: for each judged event, whether it was right;
    delays: seconds.
    """
    return EventFigures(
        recall=estimate_share(required),
        precision=estimate_share(judged),
        delay_s=estimate_median(delays),
        delay_p90_s=round(float(np.percentile(delays, 90)), 3) if delays else None,
        alerts=alerts,
        footage_s=footage_s,
    )


def estimate_share(outcomes: Sequence[bool]) -> Estimate:
    """Return the share that is True with its percentile-bootstrap interval over the observations (incidents).

    Resampling n yes/no observations is drawing from a binomial. Where all observations agree the bootstrap would claim
    certainty; there the far end is the exact one-sided bound of 97.5 % (Clopper & Pearson 1934).
    """
    count, right = len(outcomes), sum(outcomes)
    if count == 0:
        return NO_ESTIMATE
    if right in (0, count):
        far = 0.025 ** (1 / count)
        return Estimate(float(right == count), far if right else 0.0, 1.0 if right else 1 - far, count)
    drawn = np.random.default_rng(0).binomial(count, right / count, RESAMPLES) / count
    low, high = np.percentile(drawn, LEVEL)
    return Estimate(right / count, float(low), float(high), count)


def estimate_median(values: Sequence[float]) -> Estimate:
    """Return the median with its percentile-bootstrap interval; of a single value there is no interval."""
    if not values:
        return NO_ESTIMATE
    every = np.asarray(values, float)
    if len(every) == 1:
        return Estimate(float(every[0]), None, None, 1)
    drawn = np.median(np.random.default_rng(0).choice(every, (RESAMPLES, len(every))), axis=1)
    low, high = np.percentile(drawn, LEVEL)
    return Estimate(float(np.median(every)), float(low), float(high), len(every))


Boxes = NDArray[np.float64]
IOU_MIN = 0.5  # MOTChallenge's rule
# The IoU thresholds that HOTA is averaged over: localisation from lax to strict.
_ALPHAS = np.arange(0.05, 0.99, 0.05)
_ROUNDING = 1e-9  # of a sum of floats


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackFigures:
    """Boxes and tracks against true ones; None where the truth has no track ids. looks: number of frames compared."""

    ap50: float
    hota: float | None
    idf1: float | None
    mota: float | None
    switches: int | None
    boxes: int
    looks: int


@dataclass(frozen=True)
class LabelledBoxes:
    """The boxes (N, 4) of one frame with a value each (N,): a score or an identity."""

    boxes: Boxes
    values: NDArray[np.float64]


def average_precision(found: Sequence[LabelledBoxes], truth: Sequence[Boxes], iou_min: float = IOU_MIN) -> float:
    """Area under the precision/recall curve (every point, as VOC 2010 and later); `found` carries scores."""
    scores, hits = [], []
    for each, boxes in zip(found, truth, strict=True):
        order = np.argsort(-each.values, kind="stable")
        scores.append(each.values[order])
        hits.append(take_best(iou_matrix(each.boxes[order], boxes), iou_min) >= 0)
    if not scores:
        return 0.0
    rank = np.argsort(-np.concatenate(scores), kind="stable")
    right = np.cumsum(np.concatenate(hits)[rank].astype(float))
    boxes_all = max(1, sum(len(boxes) for boxes in truth))
    return box_arrays.average_precision(right, np.arange(1.0, len(right) + 1), boxes_all, "voc")


@dataclass(frozen=True)
class ClearMotFigures:
    """mota: 1 - (missed + false + switches) / boxes; idf1: 2 IDTP / (boxes + detections); tracks: how many."""

    mota: float
    idf1: float
    switches: int
    missed: int
    false: int
    boxes: int
    detections: int
    tracks: int


def clear_mot(found: Sequence[LabelledBoxes], truth: Sequence[LabelledBoxes]) -> ClearMotFigures:
    """CLEAR MOT (Bernardin & Stiefelhagen 2008) and IDF1 (Ristani 2016); `values` are identities."""
    missed = false = switches = 0
    last_track: dict[float, float] = {}
    joint_frames: dict[tuple[float, float], int] = {}
    for detected, true in zip(found, truth, strict=True):
        iou = iou_matrix(true.boxes, detected.boxes)
        for row, column in zip(*np.nonzero(iou >= IOU_MIN), strict=True):
            key = (true.values[row], detected.values[column])
            joint_frames[key] = joint_frames.get(key, 0) + 1
        pairs = _clear_mot_pairs(iou, true.values, detected.values, last_track)
        for row, column in pairs.items():
            identity, track = true.values[row], detected.values[column]
            switches += int(identity in last_track and last_track[identity] != track)
            last_track[identity] = track
        missed += len(true.values) - len(pairs)
        false += len(detected.values) - len(pairs)
    boxes = sum(len(true.values) for true in truth)
    detections = sum(len(detected.values) for detected in found)
    return ClearMotFigures(
        mota=1 - float(missed + false + switches) / max(1, boxes),
        idf1=2 * _identity_true_positives(joint_frames) / max(1, boxes + detections),
        switches=switches,
        missed=missed,
        false=false,
        boxes=boxes,
        detections=detections,
        tracks=len({track for detected in found for track in detected.values}),
    )


def _clear_mot_pairs(
    iou: Boxes,
    identities: NDArray[np.float64],
    tracks: NDArray[np.float64],
    last_track: Mapping[float, float],
) -> dict[int, int]:
    """Row of the truth to column of the detections: earlier pairs are kept while they can, the rest at least cost."""
    pairs: dict[int, int] = {}
    for row, identity in enumerate(identities):
        for column in np.flatnonzero(tracks == last_track.get(identity, -1.0)):
            if iou[row, column] >= IOU_MIN and column not in pairs.values():
                pairs[row] = int(column)
    rows = [row for row in range(len(identities)) if row not in pairs]
    columns = [column for column in range(len(tracks)) if column not in pairs.values()]
    if rows and columns:
        costs = np.where(iou >= IOU_MIN, 1 - iou, 10.0)[np.ix_(rows, columns)]
        chosen = hungarian(np.concatenate([costs, np.full((len(rows), len(rows)), 5.0)], axis=1))
        pairs |= {rows[row]: columns[column] for row, column in enumerate(chosen) if column < len(columns)}
    return pairs


def _identity_true_positives(joint_frames: Mapping[tuple[float, float], int]) -> int:
    """IDTP: the most frames that one fixed pairing of identities and tracks can explain."""
    identities = sorted({identity for identity, _ in joint_frames})
    tracks = sorted({track for _, track in joint_frames})
    costs = np.zeros((len(identities), len(tracks) + len(identities)))
    for (identity, track), count in joint_frames.items():
        costs[identities.index(identity), tracks.index(track)] = -count
    return int(-sum(costs[row, column] for row, column in enumerate(hungarian(costs)))) if identities else 0


@dataclass(frozen=True)
class HotaFigures:
    """hota = sqrt(det_a * ass_a), each the mean over the IoU thresholds 0.05, 0.10, …, 0.95 (the mean of the roots)."""

    hota: float
    det_a: float
    ass_a: float


def hota_figures(found: Sequence[LabelledBoxes], truth: Sequence[LabelledBoxes]) -> HotaFigures:
    """Higher order tracking accuracy (Luiten et al. 2021, IJCV 129), as TrackEval computes it.

    In each frame boxes are paired so that identities that belong together over the whole footage are preferred; 0
    without true boxes or without detections.
    """
    identity_index, track_index = _indices(truth), _indices(found)
    frames = [
        (
            np.array([identity_index[each] for each in true.values.tolist()], np.intp),
            np.array([track_index[each] for each in detected.values.tolist()], np.intp),
            iou_matrix(true.boxes, detected.boxes),
        )
        for detected, true in zip(found, truth, strict=True)
    ]
    boxes, detections = sum(len(rows) for rows, _, _ in frames), sum(len(columns) for _, columns, _ in frames)
    if not boxes or not detections:
        return HotaFigures(0.0, 0.0, 0.0)
    alignment, identity_frames, track_frames = _alignment(frames, len(identity_index), len(track_index))
    hits = np.zeros((len(_ALPHAS), len(identity_index), len(track_index)))
    for rows, columns, iou in frames:
        for row, column in _pairs_of_greatest_sum(alignment[np.ix_(rows, columns)] * iou):
            hits[:, rows[row], columns[column]] += iou[row, column] >= _ALPHAS - _ROUNDING
    right = hits.sum(axis=(1, 2))
    det = right / (boxes + detections - right)
    union = identity_frames[:, None] + track_frames[None] - hits
    ass = (hits * hits / np.maximum(union, 1)).sum(axis=(1, 2)) / np.maximum(right, 1)
    return HotaFigures(float(np.sqrt(det * ass).mean()), float(det.mean()), float(ass.mean()))


def _alignment(
    frames: Sequence[tuple[NDArray[np.intp], NDArray[np.intp], Boxes]], identities: int, tracks: int
) -> tuple[Boxes, Boxes, Boxes]:
    """How much each identity and each track overlap over all frames (identities, tracks), and the frames of each."""
    joint = np.zeros((identities, tracks))
    identity_frames, track_frames = np.zeros(identities), np.zeros(tracks)
    for rows, columns, iou in frames:
        competing = iou.sum(axis=0)[None] + iou.sum(axis=1)[:, None] - iou
        joint[np.ix_(rows, columns)] += iou / np.maximum(competing, 1e-12)
        identity_frames[rows] += 1
        track_frames[columns] += 1
    union = identity_frames[:, None] + track_frames[None] - joint
    return joint / np.maximum(union, 1e-12), identity_frames, track_frames


def _pairs_of_greatest_sum(gain: Boxes) -> list[tuple[int, int]]:
    if not gain.size:
        return []
    if gain.shape[0] > gain.shape[1]:
        return [(row, column) for column, row in enumerate(hungarian(-gain.T))]
    return list(enumerate(hungarian(-gain)))


def _indices(frames: Sequence[LabelledBoxes]) -> dict[float, int]:
    """Identities to 0, 1, 2, … in rising order."""
    values = {value for frame in frames for value in frame.values.tolist()}
    return {value: index for index, value in enumerate(sorted(values))}


@dataclass(frozen=True, slots=True)
class ComparedFrames:
    """Examined frames in order: the reported boxes with their tracks and with their scores, and the true ones."""

    tracked: list[LabelledBoxes]
    scored: list[LabelledBoxes]
    truth: list[LabelledBoxes]


def compared_frames(frames: Iterable[FrameBoxes], truth: TrueFrames, labels: Collection[str]) -> ComparedFrames:
    """Every frame that the detector answered, with its true boxes; all `labels` count as one class.

    Compared is what the tracker reports: confirmed tracks. A box on an ignored true box is left out.
    """
    compared = ComparedFrames([], [], [])
    for frame in frames:
        if not frame.looked:
            continue
        objects = truth.get(frame.frame, ())
        counted = [each for each in objects if each.counts]
        reported = _without_ignored([each for each in frame.objects if each.label in labels], objects)
        boxes = _boxes(reported)
        compared.tracked.append(LabelledBoxes(boxes, np.array([each.track for each in reported], float)))
        compared.scored.append(LabelledBoxes(boxes, np.array([each.score for each in reported], float)))
        compared.truth.append(LabelledBoxes(_boxes(counted), np.array([each.id for each in counted], float)))
    return compared


def compare_with_truth(frames: Iterable[FrameBoxes], truth: TrueFrames, labels: Collection[str]) -> TrackFigures:
    """Return the figures of `compared_frames`; those of tracks only where true boxes with identities were compared."""
    compared = compared_frames(frames, truth, labels)
    tracked = has_identities(truth) and any(len(each.values) for each in compared.truth)
    clear = clear_mot(compared.tracked, compared.truth) if tracked else None
    return TrackFigures(
        ap50=average_precision(compared.scored, [each.boxes for each in compared.truth]),
        hota=hota_figures(compared.tracked, compared.truth).hota if tracked else None,
        idf1=clear.idf1 if clear else None,
        mota=clear.mota if clear else None,
        switches=clear.switches if clear else None,
        boxes=sum(len(each.values) for each in compared.truth),
        looks=len(compared.truth),
    )


def _without_ignored(reported: list[TrackedObject], objects: Sequence[TrueObject]) -> list[TrackedObject]:
    """Without boxes that lie on an ignored true box and on no counted one."""
    ignored = [each for each in objects if not each.counts]
    if not ignored or not reported:
        return reported
    boxes = _boxes(reported)
    on_ignored = iou_matrix(boxes, _boxes(ignored)).max(axis=1, initial=0.0) >= IOU_MIN
    counted = _boxes([each for each in objects if each.counts])
    on_counted = iou_matrix(boxes, counted).max(axis=1, initial=0.0) >= IOU_MIN
    return [each for each, left_out in zip(reported, on_ignored & ~on_counted, strict=True) if not left_out]


def _boxes(objects: Sequence[TrackedObject] | Sequence[TrueObject]) -> Boxes:
    return np.array([each.box for each in objects], float).reshape(-1, 4)
