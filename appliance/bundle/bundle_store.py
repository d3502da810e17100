"""Stores the installed bundles, and which of them is in force for which camera.

    ROOT/                          `bundles` in the folder of models ($VEDETTE_MODELS, else the user's)
      NAME/VERSION/manifest.json   an installed bundle with its files; the folder appears whole, by a rename
      .incoming/                   what is being fetched or put together; of no meaning to anything else
      in_force.json                the pointers: one for all cameras, one for each camera with a model of its own
      .lock                        held by whoever changes anything here

A pointer names the bundle, and the one to go back to. Where there is none, the files that come with Vedette are used,
which nothing here can remove. in_force.json is replaced as a whole: after a kill it is the old one or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import ModelError, PreconditionError
from appliance.base.local_files import flush_to_disk
from appliance.bundle.manifest import MANIFEST_FILE, BundleManifest, BundleRef, read_manifest, sha256_of

STORE_FOLDER = "bundles"
POINTER_FILE = "in_force.json"
_INCOMING, _LOCK = ".incoming", ".lock"
State = Literal["probation", "proven"]


class PointersUnreadable(ModelError):
    """The pointers could not be read now, for lack of free files or by a fault of the disk: they may be whole."""


@dataclass(frozen=True, slots=True)
class InForce:
    """Which bundle examines a camera. before: the last one that was proven; None: what comes with Vedette.

    state: on probation until it has proven itself. pinned: nothing but a person's word replaces it.
    """

    bundle: BundleRef
    before: BundleRef | None = None
    state: State = "proven"
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class InForceTable:
    """All pointers. everywhere: of cameras that have none of their own. quarantined: bundle to the reason."""

    everywhere: InForce | None
    cameras: Mapping[str, InForce]
    quarantined: Mapping[BundleRef, str]

    def of(self, camera: str = "") -> InForce | None:
        """Return the pointer that counts for `camera`; None: what comes with Vedette."""
        return self.cameras.get(camera, self.everywhere)

    @property
    def pointers(self) -> dict[str, InForce]:
        """Every pointer that there is by its camera; `""`: that of all cameras without one, which comes first."""
        return ({"": self.everywhere} if self.everywhere else {}) | dict(self.cameras)

    @property
    def slots(self) -> tuple[InForce, ...]:
        """Every pointer that there is, those of cameras first."""
        return (*self.cameras.values(), *((self.everywhere,) if self.everywhere else ()))

    def used(self) -> frozenset[BundleRef]:
        """Every bundle that a pointer names, as the present or as the way back."""
        return frozenset(ref for slot in self.slots for ref in (slot.bundle, slot.before) if ref is not None)

    def on_probation(self) -> tuple[BundleRef, ...]:
        """Every bundle that is on probation somewhere, each once."""
        return tuple(dict.fromkeys(slot.bundle for slot in self.slots if slot.state == "probation"))


class BundleStore:
    """Owns ROOT. Any number of processes may read; whoever changes something holds the lock.

    Invariant: every pointer names a bundle that was installed and checked when it was put in force.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, ref: BundleRef) -> Path:
        """Return where the bundle lies, or would lie."""
        return self.root / ref.name / ref.version

    def installed(self) -> dict[BundleRef, BundleManifest]:
        """Return every bundle that is here with its manifest; one that cannot be read is left out."""
        found = {}
        for path in sorted(self.root.glob(f"[!.]*/[!.]*/{MANIFEST_FILE}")):
            with contextlib.suppress(ModelError):
                manifest = read_manifest(path.parent)
                if self.folder(manifest.ref) == path.parent:
                    found[manifest.ref] = manifest
        return found

    def manifest(self, ref: BundleRef) -> BundleManifest:
        """Return the manifest of an installed bundle. Raise ModelError: it is not here."""
        if not (self.folder(ref) / MANIFEST_FILE).is_file():
            raise ModelError(f"{ref} is not installed; `vedette models list` shows what is")
        return read_manifest(self.folder(ref))

    def check(self, ref: BundleRef) -> BundleManifest:
        """Return the manifest after comparing every file with its sha256. Raise ModelError."""
        manifest, folder = self.manifest(ref), self.folder(ref)
        for name, file in manifest.files.items():
            if sha256_of(folder / name) != file.sha256:
                raise ModelError(f"{folder / name} is damaged (its sha256 differs): vedette models install {ref}")
        return manifest

    def add(self, manifest: BundleManifest, manifest_bytes: bytes, fill: Callable[[Path], None]) -> Path:
        """Install a bundle and return its folder; one that is here and whole stays as it is.

        fill: puts every file of the manifest into the folder it is given. The bytes of the manifest are kept as they
        are, since they are what was signed. Raise ModelError if a file is not what the manifest says, and
        PreconditionError if the disk refuses.
        """
        target = self.folder(manifest.ref)
        with locked(self.root):
            if (target / MANIFEST_FILE).is_file():
                if (target / MANIFEST_FILE).read_bytes() == manifest_bytes:
                    with contextlib.suppress(ModelError):
                        self.check(manifest.ref)
                        return target
                elif manifest.ref in self.in_force().used():
                    raise ModelError(f"{manifest.ref} is in force with another content: a version never changes")
            building = incoming(self.root) / f"{manifest.ref}.building"
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            fill(building)
            for name, file in manifest.files.items():
                if sha256_of(building / name) != file.sha256:
                    raise ModelError(f"{manifest.ref}: {name} is not the file that its manifest promises")
                flush_to_disk(building / name)
            (building / MANIFEST_FILE).write_bytes(manifest_bytes)
            flush_to_disk(building / MANIFEST_FILE)
            flush_to_disk(building)
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)  # what is left of a damaged one
            building.rename(target)
            flush_to_disk(target.parent)
            flush_to_disk(self.root)
        return target

    def remove(self, ref: BundleRef) -> None:
        """Remove an installed bundle. Raise PreconditionError if a pointer names it."""
        with locked(self.root):
            if ref in self.in_force().used():
                raise PreconditionError(f"{ref} is in force, or what is gone back to: put another one in force first")
            leaving = incoming(self.root) / f"{ref}.leaving"
            shutil.rmtree(leaving, ignore_errors=True)
            if self.folder(ref).is_dir():
                self.folder(ref).rename(leaving)
            shutil.rmtree(leaving, ignore_errors=True)

    def in_force(self) -> InForceTable:
        """Return the pointers; none where nothing was ever put in force. Raise ModelError: the file is damaged."""
        return _read_pointers(self.root / POINTER_FILE)

    def put_in_force(self, ref: BundleRef, camera: str = "", *, state: State = "proven") -> InForce:
        """Point `camera` ("": all that have none of their own) at an installed bundle; return the new pointer.

        The way back is the last proven one. Raise ModelError: not installed or damaged; PreconditionError: it is
        quarantined, or the pointer is pinned.
        """
        self.check(ref)
        with locked(self.root):
            table = self.in_force()
            if ref in table.quarantined:
                raise PreconditionError(f"{ref} is in quarantine: {table.quarantined[ref]}")
            own = table.everywhere if not camera else table.cameras.get(camera)
            if own is not None and own.pinned and own.bundle != ref:
                raise PreconditionError(f"{own.bundle} is pinned; first: vedette models pin --off")
            now = table.of(camera)
            before = None if now is None else now.bundle if now.state == "proven" else now.before
            if now is not None and now.bundle == ref:
                before = now.before
            slot = InForce(ref, before, state, own.pinned if own is not None else False)
            _write_pointers(self, _with_slot(table, camera, slot))
        return slot

    def settle(self, camera: str = "", *, pinned: bool | None = None, proven: bool = False) -> InForce:
        """Say that the bundle in force is proven, or pin it or not; return the pointer. Raise PreconditionError."""
        with locked(self.root):
            table = self.in_force()
            slot = _own_slot(table, camera)
            slot = replace(
                slot,
                state="proven" if proven else slot.state,
                pinned=slot.pinned if pinned is None else pinned,
            )
            _write_pointers(self, _with_slot(table, camera, slot))
        return slot

    def roll_back(self, camera: str = "") -> InForce | None:
        """Put in force what was before, and return it; None: what comes with Vedette, or what all cameras have.

        Raise PreconditionError: nothing of this camera is in force.
        """
        with locked(self.root):
            table = self.in_force()
            slot = _own_slot(table, camera)
            _write_pointers(self, _with_slot(table, camera, _way_back(self, slot, table)))
        return self.in_force().of(camera)

    def release(self, cameras: Iterable[str]) -> None:
        """Take the pointers of these cameras away: they have what all cameras have. Raise ModelError."""
        gone = set(cameras)
        with locked(self.root):
            table = self.in_force()
            own = {name: slot for name, slot in table.cameras.items() if name not in gone}
            _write_pointers(self, replace(table, cameras=own))

    def withdraw(self) -> None:
        """Take the pointer of all cameras away: what comes with Vedette, or `detector.model` names, counts again."""
        with locked(self.root):
            _write_pointers(self, replace(self.in_force(), everywhere=None))

    @contextlib.contextmanager
    def undone_on_failure(self, camera: str = "") -> Iterator[None]:
        """Have the pointer of `camera` ("": of all) as it was, if what is done within fails. Raise ModelError."""
        before = self.in_force().pointers.get(camera)
        try:
            yield
        except BaseException:
            with locked(self.root):
                table = self.in_force()
                if table.pointers.get(camera) != before:
                    _write_pointers(self, _with_slot(table, camera, before))
            raise

    def quarantine(self, ref: BundleRef, reason: str) -> None:
        """Never put `ref` in force again, and go back wherever it is. Raise ModelError."""
        with locked(self.root):
            table = self.in_force()
            table = replace(table, quarantined={**table.quarantined, ref: reason})
            for camera, slot in table.pointers.items():
                if slot.bundle == ref:
                    table = _with_slot(table, camera, _way_back(self, slot, table))
                elif slot.before == ref:
                    table = _with_slot(table, camera, replace(slot, before=None))
            _write_pointers(self, table)

    def end_probation(self, reason: str) -> tuple[BundleRef, ...]:
        """Quarantine every bundle on probation, and return them; none: none is, or that fails.

        For who finds that nothing works with them: what was proven before comes back.
        """
        try:
            found = self.in_force().on_probation()
            for ref in found:
                self.quarantine(ref, reason)
        except (ModelError, PreconditionError):
            return ()
        return found


def incoming(root: Path) -> Path:
    """Return the folder of what is not installed yet; it is made. root: of a store."""
    path = root / _INCOMING
    path.mkdir(parents=True, exist_ok=True)
    return path


def _own_slot(table: InForceTable, camera: str) -> InForce:
    """Return the pointer of `camera`, "": of all without one. Raise PreconditionError: there is none."""
    if (slot := table.pointers.get(camera)) is None:
        raise PreconditionError(f"{camera or 'this appliance'} has no bundle of its own in force")
    return slot


def _way_back(store: BundleStore, slot: InForce, table: InForceTable) -> InForce | None:
    before, shared = slot.before, table.everywhere
    if shared is not None and before == shared.bundle:  # a pointer of its own would keep the camera from the next one
        return None
    if before is None or before in table.quarantined or not (store.folder(before) / MANIFEST_FILE).is_file():
        return None
    return InForce(before)


def _write_pointers(store: BundleStore, table: InForceTable) -> None:
    replace_file(store, POINTER_FILE, _PointerFile.of(table))


class _Slot(ConfigModel):
    bundle: str
    before: str | None = None
    state: State = "proven"
    pinned: bool = False

    @classmethod
    def of(cls, slot: InForce) -> _Slot:
        before = None if slot.before is None else str(slot.before)
        return cls(bundle=str(slot.bundle), before=before, state=slot.state, pinned=slot.pinned)

    def slot(self) -> InForce:
        before = None if self.before is None else BundleRef.parse(self.before)
        return InForce(BundleRef.parse(self.bundle), before, self.state, self.pinned)


class _PointerFile(ConfigModel):
    schema_version: Literal[1] = 1
    everywhere: _Slot | None = None
    cameras: dict[str, _Slot] = {}
    quarantined: dict[str, str] = {}

    @classmethod
    def of(cls, table: InForceTable) -> _PointerFile:
        return cls(
            everywhere=None if table.everywhere is None else _Slot.of(table.everywhere),
            cameras={camera: _Slot.of(slot) for camera, slot in sorted(table.cameras.items())},
            quarantined={str(ref): reason for ref, reason in sorted(table.quarantined.items())},
        )


def _read_pointers(path: Path) -> InForceTable:
    try:
        file = _PointerFile.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        file = _PointerFile()
    except (OSError, ValidationError) as error:
        kind, reason = (
            (PointersUnreadable, error.strerror) if isinstance(error, OSError) else (ModelError, "it is damaged")
        )
        raise kind(f"{path} cannot be read: {reason}; without it, what comes with Vedette is used") from None
    return InForceTable(
        None if file.everywhere is None else file.everywhere.slot(),
        {camera: slot.slot() for camera, slot in file.cameras.items()},
        {BundleRef.parse(ref): reason for ref, reason in file.quarantined.items()},
    )


def replace_file(store: BundleStore, name: str, content: ConfigModel) -> None:
    """Replace a file of the store's folder as a whole: after a kill it is the old one or the new one. Raise OSError."""
    path = incoming(store.root) / name
    path.write_text(content.model_dump_json(indent=1) + "\n", encoding="utf-8")
    flush_to_disk(path)
    path.replace(store.root / name)
    flush_to_disk(store.root)


def _with_slot(table: InForceTable, camera: str, slot: InForce | None) -> InForceTable:
    if not camera:
        return replace(table, everywhere=slot)
    cameras = {name: each for name, each in table.cameras.items() if name != camera}
    return replace(table, cameras=cameras if slot is None else {**cameras, camera: slot})


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of `folder`, which is made. Raise PreconditionError: the disk refuses, or another one holds it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PreconditionError(f"{folder} cannot be written: {error.strerror}; see $VEDETTE_MODELS") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    except BlockingIOError:
        raise PreconditionError(f"another process is at work in {folder}: wait for it") from None
    except OSError as error:
        raise PreconditionError(f"{folder}: {error.strerror or error}") from None
    finally:
        os.close(handle)
