"""Our tracking metrics compared with py-motmetrics (CLEAR MOT, IDF1) and TrackEval (HOTA), where installed."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Sequence

import numpy as np

from appliance.base.box_arrays import iou_matrix
from appliance.scenario import tracking_metrics
from appliance.scenario.tracking_metrics import LabelledBoxes


def check(found: Sequence[LabelledBoxes], right: Sequence[LabelledBoxes]) -> list[str]:
    """Return one sentence per library: its figures beside ours on the same answers."""
    return [_motmetrics(found, right), _trackeval(found, right)]


def _motmetrics(found: Sequence[LabelledBoxes], right: Sequence[LabelledBoxes]) -> str:
    try:
        module = importlib.import_module("motmetrics")
    except ImportError:
        return "not installed, arithmetic not checked against: motmetrics"
    book = module.MOTAccumulator(auto_id=True)
    for answer, true in zip(found, right, strict=True):
        apart = 1 - iou_matrix(true.boxes, answer.boxes)
        book.update(true.values.tolist(), answer.values.tolist(), np.where(apart > 0.5, np.nan, apart))
    names = ["mota", "idf1", "num_switches", "num_misses", "num_false_positives"]
    row = module.metrics.create().compute(book, metrics=names, name="x").iloc[0]
    ours = tracking_metrics.clear_mot(found, right)
    return (
        f"py-motmetrics: MOTA {row['mota']:.4f} IDF1 {row['idf1']:.4f} switches {row['num_switches']:.0f}; "
        f"ours: {ours.mota:.4f} {ours.idf1:.4f} {ours.switches}"
    )


def _trackeval(found: Sequence[LabelledBoxes], right: Sequence[LabelledBoxes]) -> str:
    try:
        module = importlib.import_module("trackeval")
    except ImportError:
        return "not installed, arithmetic not checked against: trackeval"
    data = {
        "num_timesteps": len(right),
        "num_gt_dets": sum(len(each.values) for each in right),
        "num_tracker_dets": sum(len(each.values) for each in found),
        "similarity_scores": [iou_matrix(true.boxes, answer.boxes) for answer, true in zip(found, right, strict=True)],
    }
    for side, looks in (("gt", right), ("tracker", found)):
        numbers = {value: index for index, value in enumerate(sorted({v for each in looks for v in each.values}))}
        data[f"{side}_ids"] = [np.array([numbers[v] for v in each.values], int) for each in looks]
        data[f"num_{side}_ids"] = len(numbers)
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = module.metrics.HOTA().eval_sequence(data)
    ours = tracking_metrics.hota_figures(found, right).hota
    return f"TrackEval: HOTA {float(np.mean(theirs['HOTA'])):.4f}; ours: {ours:.4f}"
