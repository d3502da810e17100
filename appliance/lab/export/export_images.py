"""Chooses the frames of an alert to export and their labels; cuts the images from recording, clip or still."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import EvidenceError, StoreError
from appliance.lab.export.export_folder import LabelledBox
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import Still, cut_stills, encode_jpeg
from appliance.store.archive import StorageArchive
from appliance.store.paths import EVIDENCE, SEGMENTS, inside
from appliance.store.rows import AlertDetail
from appliance.types import FrameBoxes, TrackedObject

_FILE_BYTES_MAX = 64 * 1024 * 1024  # a still has under 2 MB; a larger file is damaged


def examined_frames(archive: StorageArchive, detail: AlertDetail) -> list[FrameBoxes]:
    """Return the examined frames of an alert, oldest first: those kept beside its clip, else from the store."""
    alert = detail.alert
    end = alert.t_start if alert.t_end is None else alert.t_end
    row = detail.piece("boxes")
    if row is not None and row.state == "ready":
        try:
            frozen = _read(inside(archive.root, row.path, EVIDENCE), alert.camera)
        except (EvidenceError, StoreError):
            frozen = []
        if frozen:
            return [frame for frame in frozen if alert.t_start <= frame.t <= end]
    return [frame for frame in archive.examined_frames(alert.camera, alert.t_start, end, alert.run) if frame.looked]


def choose_labelled(
    frames: Sequence[FrameBoxes], tracks: Sequence[int], labels: Sequence[str], count: int
) -> list[FrameBoxes]:
    """At most `count` frames for a right alert, spread over its time.

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
    """When each of the tracks was first and last seen."""
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


def _read(path: Path, camera: str) -> list[FrameBoxes]:
    try:
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise EvidenceError(f"{path.name} is over {_FILE_BYTES_MAX} bytes")
        frames = json.loads(path.read_bytes())["frames"]
        return [
            FrameBoxes(
                camera=camera,
                seq=seq,
                frame=seq,
                t=float(frame["t"]),
                looked=True,
                objects=tuple(
                    TrackedObject(track=each["track"], label=each["label"], score=each["score"], box=tuple(each["box"]))
                    for each in frame["objects"]
                ),
            )
            for seq, frame in enumerate(frames)
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{path.name} cannot be read: {error}") from None


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
    for source in (_segments, _own_clip):
        missing = [t for t in times if t not in found]
        if missing:
            found |= _from(source(archive, detail), missing)
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


def _segments(archive: StorageArchive, detail: AlertDetail) -> list[RecordedSegment]:
    alert = detail.alert
    end = alert.t_start if alert.t_end is None else alert.t_end
    found = []
    for row in archive.segments(alert.camera, alert.t_start - 1, end + 1):
        with contextlib.suppress(StoreError):
            found.append(RecordedSegment(inside(archive.root, row.path, SEGMENTS), row.t_start, row.t_end))
    return [each for each in found if each.path.is_file()]


def _own_clip(archive: StorageArchive, detail: AlertDetail) -> list[RecordedSegment]:
    row = detail.piece("clip")
    if row is None or row.state != "ready":
        return []
    path: Path = inside(archive.root, row.path, EVIDENCE)
    return [RecordedSegment(path, row.t_start, row.t_end)] if path.is_file() else []


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
