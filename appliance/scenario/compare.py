"""What the looks found held against true boxes: AP50, HOTA, IDF1, MOTA."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.scenario import score
from appliance.scenario.score import Labelled
from appliance.scenario.truth import TrueFrames, TrueObject, identified
from appliance.scenario.verdict import TrackFigures
from appliance.track.association import overlap
from appliance.types import FrameBoxes, TrackedObject

OVERLAP_MIN = 0.5
_Boxes = NDArray[np.float64]


def compare(looks: Iterable[FrameBoxes], truth: TrueFrames, labels: Collection[str]) -> TrackFigures:
    """Every look that the detector answered against the true boxes of its frame; all `labels` count as one class.

    What is compared is what the tracker reports: only tracks that it confirmed, with the scores of the looks. An
    answer on a true box that does not count is left out.
    """
    found: list[Labelled] = []
    scored: list[Labelled] = []
    right: list[Labelled] = []
    for look in looks:
        if not look.looked:
            continue
        objects = truth.get(look.frame, ())
        wanted = [each for each in objects if each.counts]
        answers = _fair([each for each in look.objects if each.label in labels], objects)
        boxes = _boxes(answers)
        found.append(Labelled(boxes, np.array([each.track for each in answers], float)))
        scored.append(Labelled(boxes, np.array([each.score for each in answers], float)))
        right.append(Labelled(_boxes(wanted), np.array([each.id for each in wanted], float)))
    followed = identified(truth)
    tracking = score.tracking(found, right) if followed else None
    return TrackFigures(
        ap50=score.average_precision(scored, [each.boxes for each in right], OVERLAP_MIN),
        hota=score.hota(found, right).hota if followed else None,
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
    on_void = overlap(boxes, _boxes(void)).max(axis=1, initial=0.0) >= OVERLAP_MIN
    on_right = overlap(boxes, _boxes([each for each in objects if each.counts])).max(axis=1, initial=0.0) >= OVERLAP_MIN
    return [each for each, spare in zip(answers, on_void & ~on_right, strict=True) if not spare]


def _boxes(objects: Sequence[TrackedObject] | Sequence[TrueObject]) -> _Boxes:
    return np.array([each.box for each in objects], float).reshape(-1, 4)
