"""The folder of an export: known as our own, with what each alert gave, so that a run that was stopped goes on."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.alerts.evidence_files import DiskRefused, temporary_of, write_file
from appliance.errors import NotYet, UsageError
from appliance.export.sample import Exported

MARK = "export.json"
_STATE = ".alerts"
Format = Literal["coco", "yolo"]


class Settings(BaseModel):
    """What decides which pictures an export holds; an export goes on only with the same."""

    model_config = ConfigDict(frozen=True)

    schema_version: Literal[1] = 1
    made_by: Literal["vedette export"] = "vedette export"
    site: str
    format: Format
    labels: tuple[str, ...]
    cameras: tuple[str, ...] | None
    t_from: float | None
    t_to: float | None
    split: float
    per_alert: int


class Folder:
    """One export on disk. Invariant: what an alert gave is noted after all its files are whole and on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def begin(self, settings: Settings) -> None:
        """Claim the folder. Raises UsageError when it holds anything else, NotYet when an export with other settings,
        DiskRefused."""
        if self.root.exists() and not self.root.is_dir():
            raise UsageError(f"{self.root} is a file; an export needs a folder")
        mark = self.root / MARK
        if mark.is_file():
            self._must_be_the_same(mark, settings)
        elif self.root.is_dir() and any(each.name != temporary_of(mark).name for each in self.root.iterdir()):
            raise UsageError(f"{self.root} holds something that is no export of Vedette: choose a new or empty folder")
        self._write(MARK, _json({**settings.model_dump(mode="json"), "complete": False}))

    def complete(self, settings: Settings) -> None:
        """Say that all is there."""
        self._write(MARK, _json({**settings.model_dump(mode="json"), "complete": True}))

    def noted(self, name: str) -> Exported | None:
        """What the alert gave in an earlier run, if every file of it is still there."""
        try:
            found = Exported.model_validate_json((self.root / _STATE / f"{name}.json").read_bytes())
        except (OSError, ValidationError):
            return None
        there = all((self.root / self.image(found, sample.file)).is_file() for sample in found.samples)
        return found if there else None

    def note(self, name: str, exported: Exported) -> None:
        """Remember what an alert gave."""
        self._write(f"{_STATE}/{name}.json", exported.model_dump_json().encode())

    @staticmethod
    def image(exported: Exported, file: str) -> str:
        """Where a picture lies, relative to the folder."""
        return f"images/{exported.split}/{file}"

    def write(self, relative: str, data: bytes) -> None:
        """Put a file there, whole and on disk. Raises DiskRefused."""
        self._write(relative, data)

    def prune(self, names: Iterable[str], files: Iterable[str]) -> None:
        """Remove what belongs to no alert any more: a review was changed, or a kill left half an alert."""
        wanted = {f"{_STATE}/{name}.json" for name in names} | set(files)
        for file in self._own():
            if file.relative_to(self.root).as_posix() not in wanted:
                with contextlib.suppress(OSError):
                    file.unlink()

    def files(self) -> Iterator[Path]:
        """What a person is to have of it, sorted by name."""
        for file in sorted(self.root.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(self.root).parts)
            if file.is_file() and not file.is_symlink() and not hidden:
                yield file

    def _own(self) -> Iterator[Path]:
        for name in ("images", "labels", _STATE):
            yield from (each for each in sorted((self.root / name).rglob("*")) if each.is_file())

    def _must_be_the_same(self, mark: Path, settings: Settings) -> None:
        try:
            before = Settings.model_validate(
                {k: v for k, v in json.loads(mark.read_bytes()).items() if k != "complete"}
            )
        except (OSError, ValueError, AttributeError):
            raise UsageError(
                f"{self.root} holds something that is no export of Vedette: choose another folder"
            ) from None
        if before != settings:
            was, now = before.model_dump(mode="json"), settings.model_dump(mode="json")
            changed = ", ".join(f"{key} was {was[key]}, is {now[key]}" for key in was if was[key] != now[key])
            raise NotYet(f"{self.root} holds an export with other settings ({changed}): choose another folder")

    def _write(self, relative: str, data: bytes) -> None:
        try:
            write_file(self.root / relative, data)
        except DiskRefused as error:
            raise DiskRefused(f"{error}; make room and run the same command again: it goes on where it was") from None


def _json(content: object) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
