"""An exported data set on disk: its samples, the folder that an interrupted run continues, and the zip file."""

from __future__ import annotations

import contextlib
import errno
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.errors import PreconditionError, UsageError
from appliance.media.atomic_file import DiskWriteError, discard_temporary, finish_file, temporary_path, write_file
from appliance.types import Box, Review

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = ("train", "val")


class LabelledBox(BaseModel):
    """A bounding box as the detector drew it."""

    model_config = ConfigDict(frozen=True)

    label: str
    track: int
    score: float
    box: Box  # shares of the image
    flagged: bool  # its track was what the alert was about


class ExportSample(BaseModel):
    """One image of the data set."""

    model_config = ConfigDict(frozen=True)

    file: str  # its name
    t: float  # the camera's time, UTC seconds
    width: int
    height: int
    drawn: tuple[LabelledBox, ...] = ()  # empty for a background


class ExportedAlert(BaseModel):
    """The samples of one alert."""

    model_config = ConfigDict(frozen=True)

    alert: str
    camera: str
    t_start: float
    review: Review  # at the time of the export
    split: Split
    samples: tuple[ExportSample, ...] = ()
    left_out: str = ""  # why there are no samples

    @property
    def background(self) -> bool:
        return self.review == "false_alarm"


MARK = "export.json"
_STATE = ".alerts"
ExportFormat = Literal["coco", "yolo"]


class ExportSettings(BaseModel):
    """The choices that decide which images an export holds; an interrupted export is continued only with the same."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1] = 1
    made_by: Literal["vedette export"] = "vedette export"
    site: str
    format: ExportFormat
    labels: tuple[str, ...]
    cameras: tuple[str, ...] | None
    t_from: float | None
    t_to: float | None
    split: float
    per_alert: int


class ExportFolder:
    """One export on disk. Invariant: the samples of an alert are noted after all its files are whole and on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, settings: ExportSettings) -> None:
        """Claim the folder.

        Raises UsageError when it holds anything else, PreconditionError when it holds an export with other settings,
        DiskWriteError.
        """
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is a file; an export needs a folder")
        mark = self.root / MARK
        if mark.is_file():
            self._refuse_other_settings(mark, settings)
        elif self.root.is_dir() and any(each.name != temporary_path(mark).name for each in self.root.iterdir()):
            raise UsageError(f"{self.root} holds something that is no export of Vedette: choose a new or empty folder")
        self._write(MARK, _json({**settings.model_dump(mode="json"), "complete": False}))

    def complete(self, settings: ExportSettings) -> None:
        """Mark the export as complete."""
        self._write(MARK, _json({**settings.model_dump(mode="json"), "complete": True}))

    def noted(self, name: str) -> ExportedAlert | None:
        """Return the samples of the alert from an earlier run, if every file of them is still there."""
        try:
            found = ExportedAlert.model_validate_json((self.root / _STATE / f"{name}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        there = all((self.root / self.image(found, sample.file)).is_file() for sample in found.samples)
        return found if there else None

    def note(self, name: str, exported: ExportedAlert) -> None:
        """Remember the samples of an alert."""
        self._write(f"{_STATE}/{name}.json", exported.model_dump_json().encode())

    @staticmethod
    def image(exported: ExportedAlert, file: str) -> str:
        """Return the path of an image, relative to the folder."""
        return f"images/{exported.split}/{file}"

    def write(self, relative: str, data: bytes) -> None:
        """Put a file there, whole and on disk. Raises DiskWriteError."""
        self._write(relative, data)

    def prune(self, names: Iterable[str], files: Iterable[str]) -> None:
        """Remove what belongs to no alert any more: a review was changed, or a kill left half an alert."""
        wanted = {f"{_STATE}/{name}.json" for name in names} | set(files)
        for file in self._own():
            if file.relative_to(self.root).as_posix() not in wanted:
                with contextlib.suppress(OSError):
                    file.unlink()

    def files(self) -> Iterator[Path]:
        """Return the files that belong to the data set, sorted by name."""
        for file in sorted(self.root.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(self.root).parts)
            if file.is_file() and not file.is_symlink() and not hidden:
                yield file

    def _own(self) -> Iterator[Path]:
        for name in ("images", "labels", _STATE):
            yield from (each for each in sorted((self.root / name).rglob("*")) if each.is_file())

    def _refuse_other_settings(self, mark: Path, settings: ExportSettings) -> None:
        try:
            before = ExportSettings.model_validate(
                {k: v for k, v in json.loads(mark.read_bytes()).items() if k != "complete"}
            )
        except (OSError, ValueError, AttributeError):
            raise UsageError(
                f"{self.root} holds something that is no export of Vedette: choose another folder"
            ) from None
        if before != settings:
            was, now = before.model_dump(mode="json"), settings.model_dump(mode="json")
            changed = ", ".join(f"{key} was {was[key]}, is {now[key]}" for key in was if was[key] != now[key])
            raise PreconditionError(
                f"{self.root} holds an export with other settings ({changed}): choose another folder"
            )

    def _write(self, relative: str, data: bytes) -> None:
        try:
            write_file(self.root / relative, data)
        except DiskWriteError as error:
            raise DiskWriteError(
                f"{error}; make room and run the same command again: it goes on where it was"
            ) from None


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that ZIP can hold: the same content gives the same bytes
_STORED_SUFFIXES = {".jpg"}


def zip_folder(folder: ExportFolder) -> Path:
    """Write `FOLDER.zip`, whole or not at all. Raises DiskWriteError."""
    target = folder.root.with_name(f"{folder.root.name}.zip")
    temporary = temporary_path(target)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as out:
            for file in folder.files():
                _add(out, file, file.relative_to(folder.root).as_posix())
    except OSError as error:
        discard_temporary(temporary)
        cause = error.strerror or errno.errorcode.get(error.errno or 0, "the disk refused it")
        raise DiskWriteError(f"{target.name} cannot be written: {cause}") from None
    except BaseException:
        discard_temporary(temporary)
        raise
    finish_file(target)
    return target


def _add(out: zipfile.ZipFile, file: Path, name: str) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.external_attr = 0o644 << 16
    entry.compress_type = zipfile.ZIP_STORED if file.suffix in _STORED_SUFFIXES else zipfile.ZIP_DEFLATED
    out.writestr(entry, file.read_bytes())
