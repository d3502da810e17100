"""Which looks of an alert are worth a picture, and which boxes are its labels. Pure but for reading `boxes.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from appliance.errors import EvidenceError, StoreError
from appliance.export.sample import Drawn
from appliance.store.archive import Archive
from appliance.store.paths import EVIDENCE, inside
from appliance.store.rows import AlertDetail
from appliance.types import FrameBoxes, TrackedObject

_FILE_BYTES_MAX = 64 * 1024 * 1024


def looks_of(archive: Archive, detail: AlertDetail) -> list[FrameBoxes]:
    """What was seen while the alert lasted, oldest first: as it was frozen beside the clip, else from the store."""
    alert = detail.alert
    end = alert.t_start if alert.t_end is None else alert.t_end
    row = detail.piece("boxes")
    if row is not None and row.state == "ready":
        try:
            frozen = _read(inside(archive.root, row.path, EVIDENCE), alert.camera)
        except (EvidenceError, StoreError):
            frozen = []
        if frozen:
            return [look for look in frozen if alert.t_start <= look.t <= end]
    return [look for look in archive.looks(alert.camera, alert.t_start, end, alert.run) if look.looked]


def labelled(looks: Sequence[FrameBoxes], tracks: Sequence[int], labels: Sequence[str], count: int) -> list[FrameBoxes]:
    """At most `count` looks for a right alert, spread over its time.

    Each shows one of its tracks. Preferred are those that show all that were about then, for who is in the picture
    without a label teaches that nobody is; and of these the ones in which nothing else was found.
    """
    own = set(tracks)
    seen = [look for look in looks if any(_is(found, own, labels) for found in look.objects)]
    lives = _lives(looks, own)
    whole = [look for look in seen if _about(lives, look.t) <= {found.track for found in look.objects}]
    alone = [look for look in whole if _others(look, own, labels) == 0]
    return _spread(alone or whole or seen, count)


def backgrounds(
    looks: Sequence[FrameBoxes], tracks: Sequence[int], labels: Sequence[str], count: int
) -> list[FrameBoxes]:
    """At most `count` looks for a false alarm: those that show what deceived the detector, and nothing else of the
    labels, as a picture without labels must hold nothing that should have one."""
    own = set(tracks)
    seen = [look for look in looks if any(found.track in own for found in look.objects)]
    return _spread([look for look in seen if _others(look, own, labels) == 0], count)


def drawn(look: FrameBoxes, tracks: Sequence[int], labels: Sequence[str]) -> tuple[Drawn, ...]:
    """The boxes of a look that have one of the labels."""
    return tuple(
        Drawn(label=found.label, track=found.track, score=found.score, box=found.box, flagged=found.track in tracks)
        for found in look.objects
        if found.label in labels and found.box[2] > found.box[0] and found.box[3] > found.box[1]
    )


def _is(found: TrackedObject, own: set[int], labels: Sequence[str]) -> bool:
    return found.track in own and found.label in labels


def _others(look: FrameBoxes, own: set[int], labels: Sequence[str]) -> int:
    return sum(found.track not in own and found.label in labels for found in look.objects)


def _lives(looks: Sequence[FrameBoxes], own: set[int]) -> dict[int, tuple[float, float]]:
    """When each of the tracks was first and last seen."""
    lives: dict[int, tuple[float, float]] = {}
    for look in looks:
        for track in own.intersection(found.track for found in look.objects):
            lives[track] = (lives.get(track, (look.t,))[0], look.t)
    return lives


def _about(lives: Mapping[int, tuple[float, float]], t: float) -> set[int]:
    """The tracks that were seen before and after `t`."""
    return {track for track, (first, last) in lives.items() if first <= t <= last}


def _spread(looks: Sequence[FrameBoxes], count: int) -> list[FrameBoxes]:
    if len(looks) <= count:
        return list(looks)
    last = len(looks) - 1
    return [looks[round(index * last / max(1, count - 1))] for index in range(count)]


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
