"""Chooses the frames of an alert for an export, labels them, and cuts their images from recording, clip or still."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.base.errors import EvidenceError, StoreError
from appliance.keep.scenario_exporter import own_clip, recorded_segments
from appliance.lab.export_folder import LabelledBox
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import Still, cut_stills, encode_jpeg
from appliance.store.archive import StorageArchive
from appliance.store.boxes import kept_boxes
from appliance.store.paths import EVIDENCE, inside
from appliance.store.rows import AlertDetail
from appliance.types import FrameBoxes, TrackedObject


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


EXPORT_JPEG_QUALITY = 92  # so that a network does not learn our compression


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
