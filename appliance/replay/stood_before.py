"""Objects that stood before a camera when its footage began: from an appliance's memory or an earlier replay log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from appliance.base.errors import UsageError
from appliance.replay.replay_result import read_log
from appliance.track.parked_vehicle_file import FOLDER, read_stationary_objects
from appliance.track.standstill import is_unmoved
from appliance.track.stationary_objects import StationaryObject
from appliance.track.tracker import VEHICLE, VEHICLES
from appliance.track.tracker_tuning import TUNING
from appliance.types import Box, FrameBoxes, StreamHeader

StoodBefore = Mapping[str, tuple[StationaryObject, ...]]
"""By camera; a camera that is not in it: nothing is known of before."""
SEEN_LAST_S = 5.0  # what a log shows within so long before its end still stood there then


def read_stood_before(path: Path, cameras: Sequence[str]) -> StoodBefore:
    """Read the objects that stood before `cameras`, as of the first frame (t = 0).

    path: a replay log (`.jsonl`); an appliance's `parked/<camera>.json`, for one camera; or the storage folder that
    holds such files. Raise UsageError.
    """
    if path.is_dir():
        folder = path / FOLDER if (path / FOLDER).is_dir() else path
        files = {camera: folder / f"{camera}.json" for camera in cameras}
        found = {camera: _from_file(file) for camera, file in files.items() if file.is_file()}
        if not found:
            raise UsageError(f"--stood-before: {folder} has no {' or '.join(file.name for file in files.values())}")
        return found
    if path.suffix == ".json":
        if len(cameras) != 1:
            raise UsageError(f"--stood-before: {path} is of one camera; for several give the folder that it lies in")
        return {cameras[0]: _from_file(path)}
    log = read_log(path)
    known = {camera: _standing(camera, log.lines) for camera in cameras if camera in log.header.settings.cameras}
    if not known:
        raise UsageError(
            f"--stood-before: {path} is of {', '.join(log.header.settings.cameras)}, none of them replayed"
        )
    return known


def standing(label: str, box: Box, stood_s: float) -> StationaryObject:
    """Return an object that has stood at `box` for so long when the footage begins (t = 0)."""
    return StationaryObject(VEHICLE if label in VEHICLES else label, box, -stood_s, 0.0, stood_s)


def digest_of(known: StoodBefore) -> str:
    """Return 16 hex digits of what is known; "" if it is nothing."""
    if not known:
        return ""
    content = [
        (
            camera,
            each.kind,
            each.box,
            round(each.stood_s, 3),
            None if each.patch is None else each.patch.tobytes().hex(),
        )
        for camera in sorted(known)
        for each in known[camera]
    ]
    return hashlib.sha256(repr((sorted(known), content)).encode()).hexdigest()[:16]


def _from_file(file: Path) -> tuple[StationaryObject, ...]:
    try:
        return tuple(
            replace(each, t_first=-each.stood_s, t_last=0.0, patch_t=0.0) for each in read_stationary_objects(file)
        )
    except OSError as error:
        raise UsageError(f"--stood-before: {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--stood-before: {file} is no memory of parked vehicles: {error}") from None


def _standing(camera: str, lines: Iterable[object]) -> tuple[StationaryObject, ...]:
    """Return the objects that stood at the log's end, by their boxes.

    They stood for as long as the tracker would have wanted, and in one place.
    """
    stays: dict[int, StationaryObject] = {}
    end = 0.0
    for line in lines:
        if isinstance(line, StreamHeader) and line.camera == camera:
            stays.clear()
        if not isinstance(line, FrameBoxes) or line.camera != camera:
            continue
        end = line.t
        for each in line.objects:
            stay = stays.get(each.track)
            if stay is None or not is_unmoved(stay.box, each.box):
                kind = VEHICLE if each.label in VEHICLES else each.label
                stay = stays[each.track] = StationaryObject(kind, each.box, line.t, line.t, each.stood_s or 0.0)
            stay.t_last = line.t
    found = []
    for stay in stays.values():
        stood_s = stay.stood_s + stay.t_last - stay.t_first
        needed_s = TUNING.parking.parked_s if stay.kind == VEHICLE else TUNING.parking.furniture_s
        if stood_s >= needed_s and end - stay.t_last <= SEEN_LAST_S:
            found.append(replace(stay, stood_s=stood_s, t_first=-stood_s, t_last=0.0))
    return tuple(found)
