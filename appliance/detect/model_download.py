"""Downloads the networks of models.toml: resumed, checked by sha256, and never installed by half."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ModelError, PreconditionError
from appliance.base.local_files import flush_to_disk
from appliance.bundle.manifest import ModelEntry, sha256_of

if TYPE_CHECKING:
    import httpx

UNREACHABLE_TRIES_MAX = 2  # where not even a connection is made
TRIES_MAX = 5  # with the default back-off: about 15 s of a broken link; a later `pull` goes on from there
TIMEOUT_S = 20.0  # without a byte
BYTES_MAX = 1 << 30  # a server that sends more than that sends no detector
ROOM_BYTES = 64 << 20  # to leave free on the disk

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the size of the whole (0: unknown)."""
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
        import httpx  # with TLS it takes 0.2 s to import, which every command would pay

        backoff, tries = Backoff(), 0
        with httpx.Client(follow_redirects=True, timeout=TIMEOUT_S) as client:
            while True:
                before = part.seek(0, os.SEEK_END)
                try:
                    self._fetch_rest(client, source, part, bundle)
                    return
                except httpx.TransportError as error:
                    # A link that brings something each time may break as often as it likes.
                    tries = 1 if part.seek(0, os.SEEK_END) > before else tries + 1
                    if isinstance(error, httpx.ConnectError) and tries >= UNREACHABLE_TRIES_MAX:
                        raise ModelError(
                            f"{source}: {httpx.URL(source).host} cannot be reached ({error}): is there a network? "
                            "From a server that has the file: --mirror https://…"
                        ) from None
                    if tries >= TRIES_MAX:
                        raise ModelError(
                            f"{source}: {error or type(error).__name__} ({TRIES_MAX} tries); "
                            f"{part.tell()} bytes are kept, the same command goes on from there"
                        ) from None
                    if tries == 1:
                        backoff.reset()
                    self._clock.sleep(backoff.next_s(), threading.Event())

    def _fetch_rest(self, client: httpx.Client, source: str, part: BinaryIO, bundle: ModelEntry) -> None:
        done = part.seek(0, os.SEEK_END)
        if bundle.bytes and done == bundle.bytes:
            return
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
        with client.stream("GET", source, headers=headers) as response:
            if response.status_code == 416:  # nothing is left, or the file has changed: the hash decides
                return
            if response.status_code not in (200, 206):
                raise ModelError(f"{source}: the server answered {response.status_code} {response.reason_phrase}")
            if response.status_code == 200 or not _continues(response.headers.get("Content-Range", ""), done):
                done = 0
                part.seek(0)
                part.truncate()
            length = response.headers.get("Content-Length", "")
            whole = done + (int(length) if length.isdigit() else 0)
            self._check_room(max(whole, bundle.bytes) - done, bundle)
            for block in response.iter_raw():
                part.write(block)
                done += len(block)
                if done > (bundle.bytes or BYTES_MAX):
                    part.truncate(0)
                    raise ModelError(
                        f"{source}: sends more than the {bundle.bytes or BYTES_MAX} bytes of {bundle.file}"
                    )
                self._progress(done, whole if whole >= done else bundle.bytes)

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
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PreconditionError(
                    f"{bundle.file} is being pulled by another process into {self._folder}"
                ) from None
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


def _continues(content_range: str, done: int) -> bool:
    """Return whether `bytes 100-199/200` goes on at `done` (RFC 9110, 14.4)."""
    unit, _, rest = content_range.partition(" ")
    return unit == "bytes" and rest.partition("-")[0] == str(done)
