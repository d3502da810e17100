"""Brings a genuine bundle here: only the blobs that are nowhere here yet, resumed, and put together byte by byte."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.bundle_store import BundleStore, incoming, locked
from appliance.bundle.manifest import Blob, BundleFile
from appliance.bundle.repositories import LinkLost, Repository, Unreachable

if TYPE_CHECKING:  # TUF is loaded where somebody asks a publisher
    from appliance.bundle.trust import Genuine

TRIES_MAX = 5  # without a byte in between; with the default back-off about 15 s; a later command goes on from there
ROOM_BYTES = 64 << 20  # to leave free on the disk
FETCHING = "blobs"
Progress = Callable[[int, int], None]
"""Called with the bytes that are here of what had to be fetched, and the size of all of it."""


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """missing: the blobs to fetch, each once. bytes_total: of the whole bundle; bytes_missing: of those blobs."""

    missing: tuple[Blob, ...]
    bytes_total: int
    bytes_missing: int


class BundleFetch:
    """Fetches into the store. Owns the parts under `.incoming/blobs`, each named by the hash that it will have."""

    def __init__(
        self,
        store: BundleStore,
        repository: Repository,
        progress: Progress = lambda done, whole: None,
        clock: Clock | None = None,
    ) -> None:
        self._store = store
        self._repository = repository
        self._progress = progress
        self._clock = clock or SystemClock()

    def plan(self, genuine: Genuine) -> FetchPlan:
        """Say what of a bundle would be fetched; what installed bundles hold would not."""
        here = _blobs_here(self._store)
        wanted = {blob.sha256: blob for file in genuine.manifest.files.values() for blob in file.blobs}
        missing = tuple(blob for sha256, blob in wanted.items() if sha256 not in here)
        return FetchPlan(missing, genuine.manifest.total_bytes, sum(blob.bytes for blob in missing))

    def install(self, genuine: Genuine) -> Path:
        """Fetch what is missing and return the folder of the installed bundle.

        Raise ModelError: what came is not what was signed; LinkLost after several attempts; PreconditionError: no room.
        Blobs that were fetched are kept for the next attempt.
        """
        folder = incoming(self._store.root) / FETCHING
        with locked(folder, wait=False):
            plan = self.plan(genuine)
            _check_room(folder, plan.bytes_missing + plan.bytes_total)
            done = 0
            for blob in plan.missing:
                self._blob(folder / blob.sha256, blob, done, plan.bytes_missing)
                done += blob.bytes
            here = _blobs_here(self._store)

            def fill(building: Path) -> None:
                for name, file in genuine.manifest.files.items():
                    _join(building / name, file, [_blob_bytes(folder, here, each) for each in file.blobs])

            installed = self._store.add(genuine.manifest, genuine.data, fill)
            for path in folder.iterdir():
                if not path.name.startswith("."):
                    path.unlink()
        return installed

    def _blob(self, path: Path, blob: Blob, before: int, whole: int) -> None:
        def read(offset: int) -> Iterator[bytes]:
            return self._repository.read(f"blobs/sha256/{blob.sha256}", offset)

        def tell(done: int) -> None:
            self._progress(before + done, whole)

        with path.open("a+b") as part:
            while True:
                begin = fetch_rest(
                    read,
                    part,
                    blob.bytes,
                    self._repository.address,
                    f"blob {blob.sha256[:12]}…",
                    tell,
                    clock=self._clock,
                )
                part.flush()
                part.seek(0)
                if hashlib.sha256(part.read()).hexdigest() == blob.sha256:
                    return
                part.truncate(0)
                if begin == 0:
                    raise ModelError(
                        f"{self._repository.address}: the blob {blob.sha256[:12]}… is not what was signed; "
                        "nothing was installed"
                    )


def fetch_rest(
    read: Callable[[int], Iterator[bytes]],
    part: BinaryIO,
    size: int,
    source: str,
    name: str,
    progress: Callable[[int], None],
    *,
    clock: Clock,
    unreachable_tries_max: int = TRIES_MAX,
) -> int:
    """Append to `part` what it lacks of a file of `size` bytes; return how many it had when the last attempt began.

    read: the file from an offset on. A link that brings something each time may break as often as it likes. Raise
    ModelError: the file is longer; LinkLost after TRIES_MAX attempts that brought nothing.
    """
    backoff, tries = Backoff(), 0
    while True:
        begin = done = part.seek(0, os.SEEK_END)
        try:
            for block in read(begin) if begin < size else ():
                done += len(block)
                if done > size:
                    part.truncate(0)
                    raise ModelError(f"{source}: sends more than the {size} bytes of {name}")
                part.write(block)
                progress(done)
            if done < size:
                raise LinkLost(f"{source}: {name} ended after {done} of {size} bytes")
            return begin
        except LinkLost as error:
            if done > begin:
                tries = 0
                backoff.reset()
            tries += 1
            if tries >= (unreachable_tries_max if isinstance(error, Unreachable) else TRIES_MAX):
                raise
            clock.sleep(backoff.next_s(), threading.Event())


def cut(file: BundleFile, data: bytes) -> dict[str, bytes]:
    """Return the blobs of a file by their sha256. data: the whole file."""
    parts: list[list[bytes]] = [[] for _ in file.blobs]
    at = 0
    for blob, count in file.pieces:
        parts[blob].append(data[at : at + count])
        at += count
    return {blob.sha256: b"".join(part) for blob, part in zip(file.blobs, parts, strict=True)}


def _blobs_here(store: BundleStore) -> dict[str, tuple[Path, BundleFile]]:
    """Return by sha256 where an installed file holds a blob; files that were damaged since then do not count."""
    found: dict[str, tuple[Path, BundleFile]] = {}
    for ref, manifest in store.installed().items():
        for name, file in manifest.files.items():
            path = store.folder(ref) / name
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256:
                found |= {blob.sha256: (path, file) for blob in file.blobs}
    return found


def _blob_bytes(folder: Path, here: dict[str, tuple[Path, BundleFile]], blob: Blob) -> bytes:
    if blob.sha256 in here:
        path, file = here[blob.sha256]
        return cut(file, path.read_bytes())[blob.sha256]
    return (folder / blob.sha256).read_bytes()


def _join(path: Path, file: BundleFile, blobs: list[bytes]) -> None:
    at = [0] * len(blobs)
    with path.open("wb") as target:
        for blob, count in file.pieces:
            target.write(blobs[blob][at[blob] : at[blob] + count])
            at[blob] += count


def _check_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted + ROOM_BYTES:
        raise PreconditionError(
            f"{folder} has {free >> 20} MiB left, the bundle and a reserve need {(wanted + ROOM_BYTES) >> 20} MiB"
        )
