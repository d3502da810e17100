"""Remembers the stationary objects of one camera, mainly parked vehicles, over sessions and restarts.

They are kept in a small file a camera, so that they are known again after a restart.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance.base.clock import Clock
from appliance.base.local_files import DiskWriteError, write_file
from appliance.track.appearance import Planes
from appliance.types import Box, iou

logger = logging.getLogger(__name__)

Patch = NDArray[np.float32]
"""(PATCH_ROWS * PATCH_COLUMNS,) brightness of the cells of a place, mean 0, length 1: light that changes everywhere at
once, by clouds or exposure, leaves it as it is."""

PATCH_ROWS, PATCH_COLUMNS = 12, 16  # a car keeps its windows; smaller ones look alike, larger ones follow each leaf
_SIDE_MIN = 12  # pixels: a place that is smaller says too little
_CONTRAST_MIN = 4.0  # grey levels between its cells (standard deviation): below it noise is correlated with noise
STATIONARY_MAX = 64  # per camera
FORGET_S = 12 * 3600.0  # unseen; by then light and shadows have changed, too
# The same car 16 s later, in our rendered car park: 0.98-1.00, 0.83-0.94 with a person walking before it; two cars of
# one street -0.1 to 0.7.
SAME_CORRELATION_MIN = 0.8
PARKED_IOU_MIN = 0.6  # intersection over union of its boxes: detectors place a parked car to a few per cent
_SEEN_GAP_S = 60.0  # seen again within this it has stood there all the time
PARKED_FOLDER = "parked"  # in the storage folder
BYTES_MAX = 256 * 1024  # some hundred parked vehicles with their patches
KIND_CHARS_MAX = 256  # networks with free prompts have sentences for names; longer ones are not kept
# Storage may be an SD card: what came or went is written within a minute, that it is still there every ten.
WRITE_EVERY_S = 60.0
RENEW_EVERY_S = 600.0  # an SD card wears out by writing; after a kill patches are as old as this


@dataclass(slots=True, eq=False)
class StationaryObject:
    """One object that stands still.

    kind: its label, or `vehicle`. t_first, t_last: camera time; stood_s: the time for which it was seen standing.
    patch: the image of the place with it, as of patch_t; None: there was no frame. number: its track number in the
    present session, 0 if none. taken: a track is bound to it now.
    """

    kind: str
    box: Box
    t_first: float
    t_last: float
    stood_s: float = 0.0
    patch: Patch | None = None
    number: int = 0
    taken: bool = False
    patch_t: float = 0.0

    def seen(self, t: float) -> None:
        """Note that the object stands there at `t`."""
        passed = t - self.t_last
        if 0 < passed <= _SEEN_GAP_S:
            self.stood_s += passed
        self.t_last = t

    def unchanged(self, planes: Planes) -> bool | None:
        """Return True if the place looks the same as before; None if that cannot be judged."""
        if self.patch is None:
            return None
        now = cut_patch(planes, self.box)
        return None if now is None else patch_correlation(self.patch, now) >= SAME_CORRELATION_MIN


class StationaryObjects:
    """The stationary objects of one camera. Owner: its tracker; `snapshot` may be called from any thread.

    There are at most STATIONARY_MAX. Beyond that the one not seen for longest is dropped, first among those without a
    track. An object is forgotten when it leaves, or when it was not seen for FORGET_S. `changes` counts additions and
    removals.
    """

    def __init__(self, known: Iterable[StationaryObject] = ()) -> None:
        self._objects = [replace(each, number=0, taken=False) for each in known][-STATIONARY_MAX:]
        self.changes = 0

    def __len__(self) -> int:
        return len(self._objects)

    def knows(self, t: float) -> bool:
        """Return True if any object is known that is not too old at `t`."""
        return any(abs(t - each.t_last) <= FORGET_S for each in self._objects)

    def begin(self) -> None:
        """Begin a session: track numbers of the one before mean nothing."""
        for each in self._objects:
            each.number, each.taken = 0, False

    def forget(self, t: float) -> None:
        """Forget objects that are old at `t`. A clock that was set far back makes everything old."""
        kept = [each for each in self._objects if each.taken or abs(t - each.t_last) <= FORGET_S]
        if len(kept) < len(self._objects):
            self._objects = kept
            self.changes += 1

    def recall(self, kind: str, box: Box, planes: Planes) -> StationaryObject | None:
        """Return the object seen at `box` to which no track is bound at present; None if there is none.

        With planes, the place must look the same as before; a place without a patch is accepted.
        """
        free = [each for each in self._objects if not each.taken and each.kind == kind]
        there = [(iou(each.box, box), each) for each in free]
        for shared, place in sorted(there, key=lambda pair: -pair[0]):
            if shared >= PARKED_IOU_MIN and place.unchanged(planes) is not False:
                return place
        return None

    def park(self, place: StationaryObject) -> None:
        """Add an object that has stopped; forget earlier objects at that place."""
        self._objects = [
            each for each in self._objects if each.taken or each.kind != place.kind or iou(each.box, place.box) < 0.5
        ]
        if len(self._objects) >= STATIONARY_MAX:
            self._objects.remove(min(self._objects, key=lambda each: (each.taken, each.t_last)))
        self._objects.append(place)
        self.changes += 1

    def leave(self, place: StationaryObject) -> None:
        """Note that the object has moved away."""
        if place in self._objects:
            self._objects.remove(place)
            self.changes += 1

    def snapshot(self) -> tuple[StationaryObject, ...]:
        """Return copies of all objects as they are now, oldest first."""
        return tuple(replace(each) for each in list(self._objects))


def cut_patch(planes: Planes, box: Box) -> Patch | None:
    """Return the image in `box` (shares of the frame); None if there is no frame, or too little to see in it.

    Each cell is the mean of its pixels. It takes about 0.02 ms.
    """
    if not planes:
        return None
    height, width = planes[0].shape
    x1, x2 = max(0, round(box[0] * width)), min(width, round(box[2] * width))
    y1, y2 = max(0, round(box[1] * height)), min(height, round(box[3] * height))
    if x2 - x1 < _SIDE_MIN or y2 - y1 < _SIDE_MIN:
        return None
    cells = cv2.resize(planes[0][y1:y2, x1:x2], (PATCH_COLUMNS, PATCH_ROWS), interpolation=cv2.INTER_AREA)
    return normalised_patch(cells.ravel())


def normalised_patch(cells: NDArray[np.generic]) -> Patch | None:
    """Return `cells` with mean 0 and length 1; None if they hardly differ."""
    values = np.asarray(cells, np.float32)
    values = values - values.mean()
    length = float(np.sqrt(np.dot(values, values)))
    if length < _CONTRAST_MIN * PATCH_ROWS**0.5 * PATCH_COLUMNS**0.5:
        return None
    return np.asarray(values / np.float32(length), np.float32)


def patch_correlation(a: Patch, b: Patch) -> float:
    """Return the normalised cross-correlation: 1 the same, 0 nothing in common, below 0 the opposite.

    It is rounded, so that the last bit of a sum decides nothing.
    """
    return round(float(np.dot(a, b)), 4)


def blend_patches(a: Patch, b: Patch, share: float) -> Patch:
    """Return `a` moved towards `b` by `share`."""
    mixed = a + np.float32(share) * (b - a)
    length = float(np.sqrt(np.dot(mixed, mixed)))
    return np.asarray(mixed / np.float32(length), np.float32) if length > 1e-3 else b


_Share = Annotated[float, Field(ge=-1, le=2)]
_Seconds = Annotated[float, Field(ge=-1e12, le=1e12)]


class _ObjectInFile(BaseModel):
    """patch: PATCH_ROWS * PATCH_COLUMNS signed bytes, base64."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    kind: Annotated[str, Field(max_length=KIND_CHARS_MAX)]
    box: tuple[_Share, _Share, _Share, _Share]
    t_first: _Seconds
    t_last: _Seconds
    stood_s: Annotated[float, Field(ge=0, le=1e12)]
    patch: Annotated[str, Field(max_length=1024)] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: Literal[1] = 1
    places: Annotated[list[_ObjectInFile], Field(max_length=STATIONARY_MAX)]


class ParkedVehiclesStore:
    """The stationary objects of one camera and their file, `parked/<camera>.json`. `tick()` is called once a second.

    The file is read once. A malformed one is logged, and no object is known then. The file is replaced
    atomically, at most once in WRITE_EVERY_S and only after a change; later changes are lost in a power cut. After a
    refusal of the disk the next attempt has the same interval.
    """

    def __init__(self, root: Path, camera: str, clock: Clock) -> None:
        self._path = root / PARKED_FOLDER / f"{camera}.json"
        self._camera = camera
        self._clock = clock
        self._refused = False
        self.objects = StationaryObjects(self._read())
        self._written = (self.objects.changes, self._newest())
        self._tried_at = clock.monotonic()

    def tick(self) -> None:
        """Write the file if it is due."""
        waited = self._clock.monotonic() - self._tried_at
        changed = self.objects.changes != self._written[0]
        if waited >= WRITE_EVERY_S and (changed or (waited >= RENEW_EVERY_S and self._newest() != self._written[1])):
            self._write()

    def close(self) -> None:
        """Write what is not yet written; the process ends."""
        if (self.objects.changes, self._newest()) != self._written:
            self._write()

    def _newest(self) -> float:
        return max((each.t_last for each in self.objects.snapshot()), default=0.0)

    def _write(self) -> None:
        self._tried_at = self._clock.monotonic()
        written = (self.objects.changes, self._newest())
        kept = [each for each in self.objects.snapshot() if len(each.kind) <= KIND_CHARS_MAX]
        content = _File(places=[_to_file(each) for each in kept])
        try:
            write_file(self._path, content.model_dump_json().encode())
        except DiskWriteError as error:
            if not self._refused:
                logger.warning("camera %s: what is parked there cannot be kept: %s", self._camera, error)
            self._refused = True
            return
        self._refused = False
        self._written = written

    def _read(self) -> list[StationaryObject]:
        try:
            return read_stationary_objects(self._path)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            logger.warning("camera %s: %s is not understood (%s); beginning anew", self._camera, self._path.name, error)
            return []


def read_stationary_objects(path: Path) -> list[StationaryObject]:
    """Return the objects that `parked/<camera>.json` holds; raise OSError or ValueError."""
    with path.open("rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise ValueError(f"it is larger than {BYTES_MAX} bytes")
    try:
        return [_from_file(stored) for stored in _File.model_validate_json(data).places]
    except ValidationError as error:
        raise ValueError(f"{error.error_count()} faults") from None


def _to_file(parked: StationaryObject) -> _ObjectInFile:
    return _ObjectInFile(
        kind=parked.kind,
        box=parked.box,
        t_first=round(parked.t_first, 3),
        t_last=round(parked.t_last, 3),
        stood_s=round(parked.stood_s, 3),
        patch=None if parked.patch is None else _packed(parked.patch),
    )


def _from_file(stored: _ObjectInFile) -> StationaryObject:
    """Convert a stored object; raise ValueError."""
    patch = None if stored.patch is None else _unpacked(stored.patch)
    return StationaryObject(
        stored.kind, stored.box, stored.t_first, stored.t_last, stored.stood_s, patch, patch_t=stored.t_last
    )


def _packed(patch: Patch) -> str:
    return base64.b64encode(np.round(patch / np.abs(patch).max() * 127).astype(np.int8).tobytes()).decode()


def _unpacked(text: str) -> Patch:
    """Unpack a stored patch; raise ValueError."""
    values = np.frombuffer(base64.b64decode(text, validate=True), np.int8).astype(np.float32)
    length = float(np.sqrt(np.dot(values, values)))
    if len(values) != PATCH_ROWS * PATCH_COLUMNS or length == 0:
        raise ValueError("a picture of a place has another size")
    return np.asarray(values / np.float32(length), np.float32)
