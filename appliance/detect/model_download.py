"""Downloads the networks of models.toml: resumed, checked by sha256, and never installed by half."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ModelError, PreconditionError
from appliance.base.local_files import flush_to_disk
from appliance.bundle.bundle_fetch import ROOM_BYTES, TRIES_MAX, Progress, fetch_rest
from appliance.bundle.manifest import ModelEntry, sha256_of
from appliance.bundle.repositories import LinkLost, Unreachable, read_url, web_client

UNREACHABLE_TRIES_MAX = 2  # where not even a connection is made

FileState = Literal["bundled", "ready", "partial", "absent", "damaged", "hash missing"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One network of the catalogue on this machine. path: where it is, or where `pull` would put it."""

    name: str
    bundle: ModelEntry
    state: FileState
    path: Path


def model_status(name: str, bundle: ModelEntry, folders: tuple[Path, ...], target: Path) -> ModelStatus:
    """Where the file of `bundle` is and whether it is the right one. Reads the whole file."""
    if not bundle.sha256:
        return ModelStatus(name, bundle, "hash missing", target / bundle.file)
    found = next((folder / bundle.file for folder in folders if (folder / bundle.file).is_file()), None)
    if found is None:
        partial = part_file(target, bundle).is_file()
        return ModelStatus(name, bundle, "partial" if partial else "absent", target / bundle.file)
    if sha256_of(found) != bundle.sha256:
        return ModelStatus(name, bundle, "damaged", found)
    return ModelStatus(name, bundle, "ready" if bundle.url else "bundled", found)


def part_file(folder: Path, bundle: ModelEntry) -> Path:
    """Where a download grows: its name holds the hash, so that the part of another version is never continued."""
    return folder / f".{bundle.file}.{bundle.sha256[:12]}.part"


class ModelDownload:
    """Fetches one file over HTTP into a folder.

    State: none between calls but the part file. Invariant: the file appears under its name only when every byte is on
    disk and the sha256 is right; two pulls of one file at a time are refused.
    """

    def __init__(self, folder: Path, progress: Progress = lambda done, whole: None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._progress = progress
        self._clock = clock or SystemClock()

    def pull(self, bundle: ModelEntry, url: str = "") -> Path:
        """Return the path of the file, downloaded from `url` (default: that of models.toml) if it is not there.

        Raise ModelError when it cannot be had or is not the file that was promised, PreconditionError when the folder
        cannot be written, has no room, or another process is pulling the same file.
        """
        target = self._folder / bundle.file
        if target.is_file() and sha256_of(target) == bundle.sha256:
            return target
        if not bundle.sha256:
            raise ModelError(
                f"{bundle.file} is not pulled: hash missing, since nobody could check one against the file"
            )

        source = url or bundle.url
        if not source:
            raise ModelError(f"{bundle.file} comes with Vedette and is nowhere to be downloaded: install Vedette again")
        with self._part(bundle) as part:
            self._fetch(source, part, bundle)
            part.flush()
            os.fsync(part.fileno())
            self._install(part_file(self._folder, bundle), target, bundle, source)
        return target

    def _fetch(self, source: str, part: BinaryIO, bundle: ModelEntry) -> None:
        self._check_room(bundle.bytes - part.seek(0, os.SEEK_END), bundle)
        try:
            with web_client() as client:
                fetch_rest(
                    lambda offset: read_url(client, source, offset, {}), part, bundle.bytes, source, bundle.file,
                    lambda done: self._progress(done, bundle.bytes),
                    clock=self._clock, unreachable_tries_max=UNREACHABLE_TRIES_MAX,
                )  # fmt: skip
        except Unreachable as error:
            raise ModelError(
                f"{error}: is there a network? From a server that has the file: --mirror https://…"
            ) from None
        except LinkLost as error:
            raise ModelError(
                f"{error} ({TRIES_MAX} tries); {part.tell()} bytes are kept, the same command goes on from there"
            ) from None

    def _install(self, part: Path, target: Path, bundle: ModelEntry, source: str) -> None:
        found = sha256_of(part)
        if found != bundle.sha256:
            part.unlink(missing_ok=True)
            raise ModelError(
                f"{source}: the file has sha256 {found[:12]}…, models.toml promises {bundle.sha256[:12]}…; "
                "nothing was installed"
            )
        part.chmod(0o644)  # no secret, and pulled by one user for another at times
        part.replace(target)
        flush_to_disk(target.parent)

    @contextmanager
    def _part(self, bundle: ModelEntry) -> Iterator[BinaryIO]:
        path = part_file(self._folder, bundle)
        try:
            if not self._folder.is_dir():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._folder.chmod(0o755)
            file = path.open("a+b")
        except OSError as error:
            raise PreconditionError(
                f"{self._folder} cannot be written: {error.strerror}; give another folder with --to or $VEDETTE_MODELS"
            ) from None
        with file:
            if not _lock(file, path):
                raise PreconditionError(f"{bundle.file} is being pulled by another process into {self._folder}")
            try:
                yield file
            finally:
                if not os.fstat(file.fileno()).st_size:  # nothing to go on from
                    path.unlink(missing_ok=True)

    def _check_room(self, wanted: int, bundle: ModelEntry) -> None:
        free = shutil.disk_usage(self._folder).free
        if free < wanted + ROOM_BYTES:
            raise PreconditionError(
                f"{self._folder} has {free >> 20} MiB left, {bundle.file} and a reserve need "
                f"{(wanted + ROOM_BYTES) >> 20} MiB; make room or give another folder with --to"
            )


def _lock(file: BinaryIO, path: Path) -> bool:
    """Lock the part file; False: another process has it, or installed or removed it since it was opened."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False
