"""A small file of a camera's parked vehicles (stationary objects), so that they are known again after a restart."""

from __future__ import annotations

import base64
import logging
import os
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance.base.clock import Clock
from appliance.track.stationary_objects import (
    PATCH_COLUMNS,
    PATCH_ROWS,
    STATIONARY_MAX,
    Patch,
    StationaryObject,
    StationaryObjects,
)

logger = logging.getLogger(__name__)

FOLDER = "parked"  # in the storage folder
BYTES_MAX = 256 * 1024  # some hundred parked vehicles with their patches
KIND_CHARS_MAX = 256  # networks with free prompts have sentences for names; longer ones are not kept
# Storage may be an SD card: what came or went is written within a minute, that it is still there every ten.
WRITE_EVERY_S = 60.0
RENEW_EVERY_S = 600.0  # an SD card wears out by writing; after a kill patches are as old as this

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
        self._path = root / FOLDER / f"{camera}.json"
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
        temporary = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(content.model_dump_json().encode())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            if not self._refused:
                logger.warning("camera %s: what is parked there cannot be kept: %s", self._camera, error.strerror)
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
