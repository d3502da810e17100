"""AP, CLEAR MOT, IDF1 and HOTA are right on cases done by hand, and AP agrees with COCO's own tool."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from appliance.scenario.ground_truth import TrueObject
from appliance.scenario.metrics import (
    Boxes,
    LabelledBoxes,
    average_precision,
    clear_mot,
    compared_frames,
    hota_figures,
)
from appliance.types import FrameBoxes, TrackedObject


def labelled(*rows: tuple[float, float]) -> LabelledBoxes:
    """Unit boxes at x with an identity each."""
    boxes = np.array([[x, 0, x + 1, 1] for x, _ in rows], float).reshape(-1, 4)
    return LabelledBoxes(boxes, np.array([value for _, value in rows], float))


def test_hota_of_perfect_tracks_is_one() -> None:
    truth = [labelled((0, 1), (5, 2))] * 3
    assert hota_figures(truth, truth) == pytest.approx(hota_figures(truth, truth))
    assert hota_figures(truth, truth).hota == pytest.approx(1)


def test_hota_of_a_track_that_breaks_in_the_middle() -> None:
    """All boxes are found (DetA 1), each half track shares 2 of 4 looks with the person: AssA 1/2, HOTA sqrt(1/2)."""
    found = hota_figures(
        [labelled((0, 10)), labelled((0, 10)), labelled((0, 11)), labelled((0, 11))], [labelled((0, 1))] * 4
    )
    assert (found.det_a, found.ass_a, found.hota) == pytest.approx((1, 0.5, sqrt(0.5)))


def test_hota_of_misses_and_false_boxes() -> None:
    """2 of 4 true boxes, and 2 false ones: DetA 2/6; the track shares 2 looks of 4 with the person: AssA 1/2."""
    answers = [labelled((0, 10)), labelled((0, 10)), labelled((9, 12)), labelled((9, 12))]
    found = hota_figures(answers, [labelled((0, 1))] * 4)
    assert (found.det_a, found.ass_a) == pytest.approx((2 / 6, 2 / 4))


def test_hota_counts_a_loose_box_only_at_the_overlaps_it_reaches() -> None:
    """IoU 0.8/1.2 = 2/3: right at 0.05 .. 0.65, that is 13 of 19 overlaps."""
    found = hota_figures([labelled((0.2, 10))] * 2, [labelled((0, 1))] * 2)
    assert (found.hota, found.det_a) == pytest.approx((13 / 19, 13 / 19))


@pytest.mark.parametrize("shape", [((3, 1), (0, 4)), ((0, 4), (3, 1))])
def test_hota_keeps_identities_together_over_the_whole_clip(shape: Sequence[tuple[int, int]]) -> None:
    """More rows than columns and the other way round; an extra box changes DetA, never who belongs to whom."""
    truth = [labelled((0, 1)), labelled((0, 1), (0.1, 2))]
    found = [labelled((0, 7)), labelled((0.1, 7))]
    assert 0 < hota_figures(found, truth).hota < 1
    assert 0 < hota_figures(truth, found).hota < 1


def test_hota_leaves_a_box_with_the_track_that_follows_the_person_elsewhere() -> None:
    """In the last frame a stray box lies nearer (IoU 2/3) than the person's own track (IoU 7/13 = 0.54).

    Paired with its own track: up to 0.50 (10 of 19 overlaps) all 4 looks agree, AssA 1; above, 3 of 5: AssA 3/5.
    """
    found = [labelled((0, 7))] * 3 + [labelled((0.3, 7), (0.2, 8))]
    assert hota_figures(found, [labelled((0, 1))] * 4).ass_a == pytest.approx((10 * 1 + 9 * 3 / 5) / 19)


def test_hota_of_nothing_is_nothing() -> None:
    assert hota_figures([labelled()], [labelled((0, 1))]).hota == 0
    assert hota_figures([labelled((0, 1))], [labelled()]).hota == 0


def test_the_arithmetic_of_tracking_is_right_on_a_case_done_by_hand() -> None:
    """Two persons in four frames: one swap of numbers, one miss, one false alarm."""
    truth = [labelled((0, 1), (5, 2))] * 4
    found = [
        labelled((0, 11), (5, 12)),
        labelled((0, 11), (5, 12), (9, 13)),
        labelled((0, 12), (5, 11)),
        labelled((0, 12)),
    ]
    result = clear_mot(found, truth)
    assert (result.missed, result.false, result.switches, result.tracks) == (1, 1, 2, 3)
    assert result.mota == pytest.approx(1 - 4 / 8)
    # Best fixed pairing: 1-12 in two frames and 2-11 in one, or 1-11 in two and 2-12 in two: four right answers.
    assert result.idf1 == pytest.approx(2 * 4 / (8 + 8))


def test_earlier_pairs_are_kept_while_they_can() -> None:
    truth = [labelled((0.0, 1)), labelled((0.0, 1))]
    found = [labelled((0.2, 7)), labelled((0.2, 7), (0.0, 8))]
    assert clear_mot(found, truth).switches == 0


def test_two_objects_that_had_the_same_track_are_not_both_paired_with_its_box() -> None:
    truth = [labelled((0.0, 1)), labelled((0.0, 2)), labelled((0.0, 1), (0.1, 2))]
    found = [labelled((0.0, 7))] * 3
    result = clear_mot(found, truth)
    assert (result.missed, result.false, result.mota) == (1, 0, pytest.approx(1 - 1 / 4))


def test_average_precision_is_right_on_a_case_done_by_hand() -> None:
    truth = [labelled((0, 1), (5, 2)).boxes]
    assert average_precision([labelled((0, 0.9), (20, 0.8), (5, 0.7))], truth) == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert average_precision([labelled((0, 0.9), (0.1, 0.8))], truth) == pytest.approx(0.5)
    assert average_precision([labelled()], truth) == 0


HERE, THERE, LABELS = (0.1, 0.1, 0.2, 0.5), (0.6, 0.1, 0.7, 0.5), {"person"}


def frame_boxes(frame: int, *boxes: tuple[float, float, float, float], looked: bool = True) -> FrameBoxes:
    objects = tuple(TrackedObject(track=n, label="person", score=0.9, box=box) for n, box in enumerate(boxes))
    return FrameBoxes(camera="film", seq=frame, frame=frame, t=frame / 5, looked=looked, objects=objects)


def person(identity: int, box: tuple[float, float, float, float], *, counts: bool = True) -> TrueObject:
    return TrueObject(identity, "person", box, counts)


def test_tracks_are_compared_with_the_objects_that_count_in_answered_frames() -> None:
    frames = {0: (person(1, HERE), person(2, THERE)), 1: (person(1, HERE),), 2: (person(1, HERE),)}
    compared = compared_frames(
        [frame_boxes(0, HERE), frame_boxes(1, THERE), frame_boxes(2, looked=False)], frames, LABELS
    )
    counted = clear_mot(compared.tracked, compared.truth)
    assert (counted.boxes, counted.missed, counted.false) == (3, 2, 1)


def test_finding_an_ignored_object_is_neither_right_nor_wrong() -> None:
    compared = compared_frames(
        [frame_boxes(0, HERE, THERE)], {0: (person(1, HERE), person(2, THERE, counts=False))}, LABELS
    )
    assert (len(compared.tracked[0].values), len(compared.truth[0].values)) == (1, 1)


def coco_ap50(found: Sequence[LabelledBoxes], truth: Sequence[Boxes]) -> float:
    """AP at IoU 0.5 as COCO computes it, with precision at 101 recalls instead of every one."""

    def xywh(box: Sequence[float]) -> list[float]:
        return [box[0], box[1], box[2] - box[0], box[3] - box[1]]

    coco = COCO()
    every = [(frame, xywh(box.tolist())) for frame, boxes in enumerate(truth) for box in boxes]
    coco.dataset = {
        "images": [{"id": frame} for frame in range(len(truth))],
        "categories": [{"id": 1}],
        "annotations": [
            {"id": 1 + n, "image_id": frame, "category_id": 1, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
            for n, (frame, box) in enumerate(every)
        ],
    }
    rows = [
        {"image_id": frame, "category_id": 1, "bbox": xywh(box.tolist()), "score": float(score)}
        for frame, each in enumerate(found)
        for box, score in zip(each.boxes, each.values, strict=True)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        evaluation = COCOeval(coco, coco.loadRes(rows), "bbox")
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ["all"]
        evaluation.evaluate()
        evaluation.accumulate()
    return float(evaluation.eval["precision"][0, :, 0, 0, -1].mean())


@pytest.mark.parametrize("seed", range(4))
def test_average_precision_agrees_with_coco(seed: int) -> None:
    """On boxes that are found, missed, doubled and false; COCO samples the curve at 101 recalls."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for _ in range(60):
        corners = rng.uniform(0, 500, (rng.integers(1, 6), 2))
        boxes = np.concatenate([corners, corners + rng.uniform(20, 80, corners.shape)], axis=1)
        shifted = boxes + rng.normal(0, 4, boxes.shape)
        strays = np.concatenate([corners + 600, corners + 640], axis=1)
        answers = np.concatenate([shifted, shifted[:1] + 2, strays[: rng.integers(0, 2)]])
        truth.append(boxes)
        found.append(LabelledBoxes(answers, rng.uniform(0.05, 1, len(answers))))
    ours = average_precision(found, truth)
    assert 0.3 < ours < 0.95
    assert ours == pytest.approx(coco_ap50(found, truth), abs=0.01)
