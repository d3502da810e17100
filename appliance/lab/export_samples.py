"""Chooses what an export takes of an alert: frames, labels and images; writes the `index.jsonl` of `training`.

A line of the index has the fields that `models.train.dataset` reads, `rejected` (boxes that people or models judged
to be no such object) and `provenance`. Only the object of the alert is known. Other tracked objects of the picture
become regions to ignore. A place can hold a right alert and a false one, for example a person in front of a flag: that
region is ignored, too. A frame in which nothing was reported, and which was audited, is a picture without boxes if the
audit missed nothing. If the audit found something, the line has the boxes that the model drew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.base.clock import iso_utc
from appliance.base.errors import EvidenceError, StoreError
from appliance.lab.export_folder import ExportedAlert, ExportFolder, ExportSample, LabelledBox
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import Still, cut_stills, encode_jpeg
from appliance.scenario.scenario_exporter import own_clip, recorded_segments
from appliance.store.alert_rows import AlertRow
from appliance.store.alerts import AlertDetail
from appliance.store.boxes import kept_boxes
from appliance.store.paths import EVIDENCE, inside
from appliance.store.storage_reader import StorageArchive
from appliance.types import TEACHING_KINDS, Box, FrameBoxes, Review, TrackedObject, iou

EXPORT_JPEG_QUALITY = 92  # so that a network does not learn our compression
INDEX_FILE = "index.jsonl"
CLASSES = ("person", "bicycle", "car", "motorcycle", "bus", "truck", "cat", "dog")
"""The classes of `models.train.dataset` in their order: a line names them by number."""
NO_TRACK = -1  # of a box that a model gave
SIDE_MIN = 0.002  # of such a box, as a share of the picture: a pixel or two
SAME_PLACE_IOU = 0.5  # from here on a box of a right alert stands where a false alarm stood
_ANSWERS: Mapping[str, Review] = {"confirmed": "reviewed", "rejected": "false_alarm"}


def examined_frames(archive: StorageArchive, detail: AlertDetail) -> list[FrameBoxes]:
    """Return the examined frames of an alert, oldest first: those kept beside its clip, else from the store."""
    alert = detail.alert
    end = alert.t_start if alert.t_end is None else alert.t_end
    if kept := kept_boxes(archive.root, detail):
        return [frame for frame in kept if alert.t_start <= frame.t <= end]
    return [frame for frame in archive.examined_frames(alert.camera, alert.t_start, end, alert.run) if frame.looked]


def choose_labelled(
    frames: Sequence[FrameBoxes], tracks: Sequence[int], labels: Sequence[str], count: int
) -> list[FrameBoxes]:
    """Choose at most `count` frames for a right alert, spread over its time.

    Each shows one of its tracks. Preferred are those that show all tracks present then, because a person without a
    label teaches that there is none; and of these the ones in which nothing else was found.
    """
    own = set(tracks)
    seen = [frame for frame in frames if any(_is(found, own, labels) for found in frame.objects)]
    spans = _spans(frames, own)
    whole = [frame for frame in seen if _present(spans, frame.t) <= {found.track for found in frame.objects}]
    alone = [frame for frame in whole if _others(frame, own, labels) == 0]
    return _spread(alone or whole or seen, count)


def choose_backgrounds(
    frames: Sequence[FrameBoxes], tracks: Sequence[int], labels: Sequence[str], count: int
) -> list[FrameBoxes]:
    """Return at most `count` frames for a false alarm: those that show what deceived the detector.

    They show nothing else of the labels, as an image without labels must hold nothing that should have one.
    """
    own = set(tracks)
    seen = [frame for frame in frames if any(found.track in own for found in frame.objects)]
    return _spread([frame for frame in seen if _others(frame, own, labels) == 0], count)


def labels_in(frame: FrameBoxes, tracks: Sequence[int], labels: Sequence[str]) -> tuple[LabelledBox, ...]:
    """Return the boxes of a frame that have one of the labels."""
    return tuple(
        LabelledBox(
            label=found.label, track=found.track, score=found.score, box=found.box, flagged=found.track in tracks
        )
        for found in frame.objects
        if found.label in labels and found.box[2] > found.box[0] and found.box[3] > found.box[1]
    )


def _is(found: TrackedObject, own: set[int], labels: Sequence[str]) -> bool:
    return found.track in own and found.label in labels


def _others(frame: FrameBoxes, own: set[int], labels: Sequence[str]) -> int:
    return sum(found.track not in own and found.label in labels for found in frame.objects)


def _spans(frames: Sequence[FrameBoxes], own: set[int]) -> dict[int, tuple[float, float]]:
    """Return when each of the tracks was first and last seen."""
    spans: dict[int, tuple[float, float]] = {}
    for frame in frames:
        for track in own.intersection(found.track for found in frame.objects):
            spans[track] = (spans.get(track, (frame.t,))[0], frame.t)
    return spans


def _present(spans: Mapping[int, tuple[float, float]], t: float) -> set[int]:
    """Return the tracks that were seen before and after `t`."""
    return {track for track, (first, last) in spans.items() if first <= t <= last}


def _spread(frames: Sequence[FrameBoxes], count: int) -> list[FrameBoxes]:
    if len(frames) <= count:
        return list(frames)
    last = len(frames) - 1
    return [frames[round(index * last / max(1, count - 1))] for index in range(count)]


@dataclass(frozen=True, slots=True)
class ExportImage:
    """A JPEG of a moment."""

    data: bytes
    width: int
    height: int


def cut_images(archive: StorageArchive, detail: AlertDetail, times: Sequence[float]) -> Mapping[float, ExportImage]:
    """Return the images of as many of `times` as can be had. Raises StoreError."""
    found: dict[float, ExportImage] = {}
    alert = detail.alert
    end = alert.t_start if alert.t_end is None else alert.t_end
    for source in (recorded_segments(archive, alert.camera, alert.t_start - 1, end + 1), own_clip(archive, detail)):
        missing = [t for t in times if t not in found]
        if missing:
            found |= _from(source, missing)
    return found


def still_image(archive: StorageArchive, detail: AlertDetail) -> tuple[float, ExportImage] | None:
    """Return the alert's still and its moment, if it is there."""
    row = detail.piece("still")
    if row is None or row.state != "ready" or not row.width:
        return None
    try:
        data = inside(archive.root, row.path, EVIDENCE).read_bytes()
    except (OSError, StoreError):
        return None
    return row.t_start, ExportImage(data, row.width, row.height)


def _from(source: Sequence[RecordedSegment], times: Sequence[float]) -> dict[float, ExportImage]:
    if not source:
        return {}
    with contextlib.suppress(EvidenceError):
        return dict(zip(times, map(_export_image, cut_stills(source, times)), strict=True))
    found = {}
    for t in times:  # one bad frame fails the batch: take them one by one
        with contextlib.suppress(EvidenceError):
            found[t] = _export_image(cut_stills(source, [t])[0])
    return found


def _export_image(cut: Still) -> ExportImage:
    return ExportImage(encode_jpeg(cut.image, quality=EXPORT_JPEG_QUALITY), *cut.size)


def answer_of(row: AlertRow) -> Review | None:
    """Return a person's review, else the verdict of a vision-language model or of an operator, as one; None: neither.

    An answer of a detector or a stand-in teaches nothing to its own kind.
    """
    if row.reviewed.review is not None or row.judged.judge not in TEACHING_KINDS:
        return row.reviewed.review
    return _ANSWERS.get(row.judged.verdict or "")


def answerer_of(row: AlertRow) -> str:
    """Return `review`, or the kind of judge whose verdict it is."""
    return "review" if row.reviewed.review is not None else row.judged.judge or ""


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
    row, verdict = detail.row, detail.verdict
    who, t = ("", None) if verdict is None else (verdict.body.model, verdict.applied_t)
    if row.reviewed.review is not None:
        who = next((each.who for each in detail.changes if each.what == "review" and each.new), "")
        t = row.reviewed.review_t
    return {"answered_by": answerer_of(row), "who": who, "answered_t": t}


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
