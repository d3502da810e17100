"""The layout `training` of an export: pictures with `index.jsonl`, as `models.train.index` reads it.

A line has the fields of that index, `rejected` (boxes that were answered to be no such object) and `provenance`. Beside
what the alert was about, nothing is known of a picture: other tracked objects are regions to ignore. So is what an
alert that was right shows where another one of its camera was false: an alert may have both, the person and the flag.
A frame in which nothing was reported, and that was audited, is a picture without boxes if nothing was missed; if
something was, it teaches where a model said where.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.base.clock import iso_utc
from appliance.base.geometry import iou
from appliance.lab.export_folder import ExportedAlert, ExportFolder, ExportSample, LabelledBox
from appliance.store.rows import AlertDetail, AlertRow
from appliance.types import TEACHING_KINDS, Box, Review

INDEX_FILE = "index.jsonl"
CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog")
"""The classes of `models.train.index` in their order: a line names them by number."""
NO_TRACK = -1  # of a box that a model gave
SIDE_MIN = 0.002  # of such a box, as a share of the picture: a pixel or two
SAME_PLACE_IOU = 0.5  # from here on a box of a right alert stands where a false alarm stood
_ANSWERS: Mapping[str, Review] = {"confirmed": "reviewed", "rejected": "false_alarm"}


def answer_of(alert: AlertRow) -> Review | None:
    """Return a person's review, else the verdict of a vision-language model or of an operator, as one; None: neither.

    An answer of a detector or a stand-in teaches nothing to its own kind.
    """
    if alert.review is not None or alert.judge not in TEACHING_KINDS:
        return alert.review
    return _ANSWERS.get(alert.verdict or "")


def answerer_of(alert: AlertRow) -> str:
    """Return `review`, or the kind of judge whose verdict it is."""
    return "review" if alert.review is not None else alert.judge or ""


def missed_boxes(detail: AlertDetail, labels: Sequence[str]) -> tuple[LabelledBox, ...]:
    """Return the boxes that a model gave for what was missed in an audited frame."""
    support = () if detail.verdict is None else detail.verdict.body.support
    found = []
    for each in (box for image in support for box in image.boxes):
        x1, y1, x2, y2 = (min(max(side, 0.0), 1.0) for side in each.box)
        if min(x2 - x1, y2 - y1) >= SIDE_MIN and each.label in labels and each.label in detail.alert.labels:
            found.append(LabelledBox(label=each.label, track=NO_TRACK, score=1.0, box=(x1, y1, x2, y2), flagged=True))
    return tuple(found)


def answered_by(detail: AlertDetail) -> dict[str, Any]:
    """Return who gave that answer, and when, as fields of an ExportedAlert."""
    alert, verdict = detail.alert, detail.verdict
    who, t = ("", None) if verdict is None else (verdict.body.model, verdict.applied_t)
    if alert.review is not None:
        who = next((each.who for each in detail.changes if each.what == "review" and each.new), "")
        t = alert.review_t
    return {"answered_by": answerer_of(alert), "who": who, "answered_t": t}


def index_file(exported: Sequence[ExportedAlert], folder: Path, site: str, read_t: float) -> bytes:
    """Return `index.jsonl`. read_t: UTC seconds at which the site file was read that allows the cameras' pictures."""
    false_places: dict[str, list[Box]] = {}
    for each in exported:
        if each.background:
            boxes = (drawn.box for sample in each.samples for drawn in sample.drawn if drawn.flagged)
            false_places.setdefault(each.camera, []).extend(boxes)
    lines = []
    for each in exported:
        for sample in each.samples:
            image = ExportFolder.image(each, sample.file)
            digest = hashlib.sha256((folder / image).read_bytes()).hexdigest()
            row = {
                "image": image, "sha256": digest, "phash": "", "width": sample.width, "height": sample.height,
                **_boxes(each, sample, false_places.get(each.camera, ())), "source": "site", "split": each.split,
                "licence": "", "group": each.alert, "provenance": _provenance(each, sample, site, read_t),
            }  # fmt: skip
            lines.append(json.dumps(row, separators=(",", ":"), ensure_ascii=False))
    return "".join(f"{line}\n" for line in lines).encode()


def _boxes(each: ExportedAlert, sample: ExportSample, false_places: Sequence[Box]) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {"boxes": [], "ignore": [], "rejected": []}
    for drawn in sample.drawn:
        if not drawn.flagged:
            kind = "ignore"
        elif each.background:
            kind = "rejected"
        else:
            doubtful = any(iou(drawn.box, place) >= SAME_PLACE_IOU for place in false_places)
            kind = "ignore" if doubtful else "boxes"
        found[kind].append(_row(drawn))
    return found


def _row(drawn: LabelledBox) -> list[float]:
    return [CLASSES.index(drawn.label), *(round(min(max(side, 0.0), 1.0), 4) for side in drawn.box), 1.0]


def _provenance(each: ExportedAlert, sample: ExportSample, site: str, read_t: float) -> dict[str, Any]:
    answered = None if each.answered_t is None else iso_utc(each.answered_t)
    by_model = any(drawn.track == NO_TRACK for drawn in sample.drawn)
    return {
        "of": "audited frame" if each.audited else "alert", "boxes_by": "model" if by_model else "tracker",
        "site": site, "camera": each.camera, "alert": each.alert, "time": iso_utc(sample.t), "answer": each.review,
        "answered_by": each.answered_by, "who": each.who, "answered": answered,
        "consent": f"cameras.{each.camera}.training", "consent_read": iso_utc(read_t),
    }  # fmt: skip
