"""Stores kept scenarios in a folder: each is written completely or not at all; only a person deletes one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.clock import Clock
from appliance.base.errors import PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError, flush_to_disk, write_file
from appliance.scenario.scenario_file import ReviewedAs

NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"
NOTE_LENGTH_MAX = 500  # characters, a paragraph in the report
PROOF_LENGTH_MAX = 2000  # characters, some ten sentences about what failed
KEPT_MAX = 500  # each listing reads all folders
FILES_MAX = 100  # of one scenario, which has three; a bound for a folder that a person filled
CARD = "kept.json"
_CARD_BYTES_MAX = 64 * 1024  # note and proof take 15 kB at most, every character escaped
_PART = ".part"
_PART_S_MAX = 3600.0  # an hour: no clip takes as long to copy


class ScenarioCard(BaseModel):
    """A kept scenario, as `kept.json` in its folder describes it. Times are UTC seconds.

    truth: how the alert was reviewed; complete: that nothing else happened; expect, never: how many entries; lacks:
    what the clip lacks against what was wanted, in words. proof: whether it passed when it was kept ("": that is not
    known yet), proof_text: what did not, in words.
    """

    model_config = ConfigDict(frozen=True)

    version: Literal[1] = 1
    name: str
    alert: str
    camera: str
    truth: ReviewedAs
    complete: bool
    note: str
    kept_t: float
    t_start: float
    t_end: float
    expect: int
    never: int
    lacks: str = ""
    proof: str = ""
    proof_text: str = ""


@dataclass(frozen=True, slots=True)
class StoredScenario:
    """One folder with a scenario. card None: it was put there by hand."""

    name: str
    folder: Path
    bytes: int
    card: ScenarioCard | None


class ScenarioStore:
    """The scenarios in one folder. Holds no state but the folder's path.

    Invariant: a folder under its own name is whole and on disk; what is being written or deleted has a hidden name.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    def all(self) -> list[StoredScenario]:
        """Return the kept ones, newest first, then those that Vedette did not keep; at most KEPT_MAX."""
        try:
            folders = sorted(each for each in self.folder.iterdir() if not each.name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = [stored for each in folders if (stored := _stored(each)) is not None]
        return sorted(found, key=lambda each: -each.card.kept_t if each.card else 0.0)[:KEPT_MAX]

    def must_be_free(self, name: str) -> None:
        """Raise UsageError for an invalid name, PreconditionError for one that is taken or if there are too many."""
        if not re.fullmatch(NAME, name):
            raise UsageError(
                f"`{name}` is no name for a scenario: use small letters, digits, - and _, at most 64, "
                "a letter or digit first"
            )
        if os.path.lexists(self.folder / name):
            raise PreconditionError(
                f"there is a scenario `{name}` in {self.folder} already: choose another name, or delete it"
            )
        if len(self.all()) >= KEPT_MAX:
            raise PreconditionError(f"{KEPT_MAX} scenarios are kept in {self.folder}: delete those that are not needed")

    @contextlib.contextmanager
    def placing(self, name: str) -> Iterator[Path]:
        """Yield a hidden folder to fill; on the way out it is flushed to disk and gets its name.

        Its files are flushed by those who write them. Raises DiskWriteError, and what `must_be_free` raises; nothing is
        left then.
        """
        self.must_be_free(name)
        part = self.folder / f".{name}.{secrets.token_hex(4)}{_PART}"
        try:
            with _translated(name):
                self.folder.mkdir(parents=True, exist_ok=True)
                self.sweep()
                part.mkdir()
            yield part
            with _translated(name):
                flush_to_disk(part)
                part.rename(self.folder / name)
                flush_to_disk(self.folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def delete(self, name: str) -> bool:
        """Delete what was kept; False when there is nothing of that name. Raises PreconditionError, DiskWriteError."""
        stored = next((each for each in self.all() if each.name == name), None)
        if stored is None:
            return False
        if stored.card is None:
            raise PreconditionError(f"{stored.folder} was not kept by Vedette: delete it by hand")
        self.sweep()
        part = self.folder / f".{name}.{secrets.token_hex(4)}{_PART}"
        with _translated(name):
            stored.folder.rename(part)
            flush_to_disk(self.folder)
            shutil.rmtree(part)
        return True

    def note_proof(self, stored: StoredScenario, proof: str, text: str) -> None:
        """Write the result of running it; do nothing if it was deleted meanwhile. Raises DiskWriteError."""
        if stored.card is not None and _read_card(stored.folder / CARD) == stored.card:
            card = stored.card.model_copy(update={"proof": proof, "proof_text": text[:PROOF_LENGTH_MAX]})
            write_file(stored.folder / CARD, card.model_dump_json(indent=2).encode())

    def sweep(self) -> None:
        """Remove what a kill left half done, once it is too old to be under way."""
        for part in self.folder.glob(f".*{_PART}"):
            with contextlib.suppress(OSError):
                if self._clock.now() - part.lstat().st_mtime > _PART_S_MAX and not part.is_symlink():
                    shutil.rmtree(part)


def _stored(folder: Path) -> StoredScenario | None:
    """Return the scenario in a folder; None: it is none, or was deleted just now."""
    if folder.is_symlink() or not folder.is_dir():
        return None
    try:
        if not any(folder.glob("*.scenario.yaml")):
            return None
        files = [each for each in itertools.islice(folder.rglob("*"), FILES_MAX) if each.is_file()]
        size = sum(each.lstat().st_size for each in files)
    except FileNotFoundError:
        return None
    return StoredScenario(folder.name, folder, size, _read_card(folder / CARD))


def _read_card(card: Path) -> ScenarioCard | None:
    try:
        if card.stat().st_size > _CARD_BYTES_MAX:
            return None
        return ScenarioCard.model_validate_json(card.read_bytes())
    except (OSError, ValidationError):
        return None


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise PreconditionError(
                f"there is a scenario `{name}` already: choose another name, or delete it"
            ) from None
        raise DiskWriteError(f"the scenario {name} cannot be written: {error.strerror}") from None
