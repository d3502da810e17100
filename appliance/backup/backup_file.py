"""Writes and reads the backup of a site: one zip with a manifest, the site file, the database, versions and evidence.

The secrets of the site file are replaced by ***, or sealed under a passphrase; a restore takes hidden ones from the
present site file.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from appliance import config, version
from appliance.base import yamlfile
from appliance.base.clock import Clock
from appliance.base.credentials import seal
from appliance.base.errors import ConfigError, PreconditionError, StoreError
from appliance.base.local_files import DiskWriteError, discard_temporary, finish_file, temporary_path
from appliance.config.site_file import read_secrets
from appliance.settings.secret_scrubber import HIDDEN, SecretScrubber, is_secret, texts_in
from appliance.settings.settings_service import FOLDER as VERSIONS
from appliance.settings.yaml_edit import KeyPath, SiteChange, edit
from appliance.store.database_copy import copy_database, evidence_paths
from appliance.store.paths import DATABASE, EVIDENCE, KEYS, inside


def hide_secrets(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text without secrets, comments included, and the keys that were hidden.

    A text that only names a variable (`${NAME}`) stays. Raise ConfigError if an alias makes one text stand for two
    places.
    """
    paths = [path[1:] for path, value in texts_in(_data(text)) if is_secret(path, value)]
    hidden = edit(text, [SiteChange(path, HIDDEN) for path in paths])
    scrubber, lines, held = SecretScrubber(()), hidden.splitlines(keepends=True), _data(hidden)
    for n, line in enumerate(lines):
        shown = _COMMENT.sub(lambda comment: scrubber.scrub_site(comment[0]), line)
        if shown != line and _holds("".join([*lines[:n], shown, *lines[n + 1 :]]), held):  # else it is in a value
            lines[n] = shown
    return "".join(lines), tuple(_dotted(path) for path in paths)


def fill_secrets(text: str, present: str) -> str:
    """Return `text` with each hidden value taken from the same key of `present`.

    Raises PreconditionError with the keys that are not there.
    """
    paths = [path[1:] for path, value in texts_in(_data(text)) if value == HIDDEN]
    known = {path[1:]: value for path, value in texts_in(_data(present)) if value != HIDDEN}
    if missing := [_dotted(path) for path in paths if path not in known]:
        raise PreconditionError(
            f"it was made without secrets, and the site file of now has none for {', '.join(missing)}: restore one "
            "that was made with a passphrase, or write these keys into the site file first"
        )
    return edit(text, [SiteChange(path, known[path]) for path in paths])


def _data(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise PreconditionError("the site file is not YAML") from None


def _holds(text: str, data: Any) -> bool:
    try:
        return bool(yaml.safe_load(text) == data)
    except yaml.YAMLError:
        return False


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


MANIFEST, SITE, SEALED = "manifest.json", "site.yaml", "sealed.json"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024  # FILES_MAX entries of 200 bytes
DIRECTORY_BYTES_MAX = 64 * 1024 * 1024  # FILES_MAX entries of 46 bytes and a name of up to 160
FILES_MAX = 300_000  # three of evidence for each of 100,000 alerts
BYTES_MAX = 1 << 40  # 1 TiB: a size beyond it is damage or an attack
FREE_BYTES_MIN = 200_000_000  # that the disk keeps
_NAMES = re.compile(
    rf"{SITE}|{re.escape(SEALED)}|{re.escape(DATABASE)}|{VERSIONS}/\d{{6}}\.json|{EVIDENCE}/[\w-]{{1,80}}/\w[\w.-]{{0,79}}"
)
_BLOCK = 1 << 20  # bytes read at once
# Errors of zipfile on data that is no archive; RuntimeError has RecursionError and NotImplementedError under it.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*")


class BackupFileItem(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(max_length=200)]
    bytes: Annotated[int, Field(ge=0, le=BYTES_MAX)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class BackupManifest(BaseModel):
    """The contents of a backup.

    hidden: keys of the site file whose values are *** in it. missing: files of evidence that the database names and
    that were gone.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal["vedette.backup"] = "vedette.backup"
    version: Literal[1] = 1
    site: Annotated[str, Field(max_length=64)]
    created_t: float
    vedette: Annotated[str, Field(max_length=64)]
    schema_version: int
    alerts: int
    users: int
    secrets: Literal["hidden", "sealed"]
    hidden: tuple[str, ...] = ()
    evidence: bool
    missing: int = 0
    files: Annotated[tuple[BackupFileItem, ...], Field(max_length=FILES_MAX)]


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The site that is backed up: its file, and the storage folder."""

    site_file: Path
    root: Path
    clock: Clock
    variables: Mapping[str, str]


def write_backup(source: BackupSource, out: Path, *, evidence: bool, passphrase: str = "") -> BackupManifest:
    """Make `out`, whole or not at all, beside a running appliance or without one.

    passphrase '': without secrets. Raises UsageError (a passphrase that is too short, a site file that cannot be
    read), StoreError, DiskWriteError (no room).
    """
    text = yamlfile.read_text(source.site_file)
    site = config.loads(text, str(source.site_file), source.variables)
    shown, hidden = _hide(text, with_secrets=bool(passphrase))
    sealed = seal(_secrets_of(source, text), passphrase) if passphrase else b""
    copy, temporary = out.with_name(f".{out.name}.db"), temporary_path(out)
    try:
        out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_room(out.parent, 2 * (source.root / DATABASE).stat().st_size if (source.root / DATABASE).is_file() else 0)
        facts = copy_database(source.root / DATABASE, copy)
        wanted = evidence_paths(copy) if evidence else []
        found = [(name, path) for name in wanted if _NAMES.fullmatch(name) and (path := _evidence(source.root, name))]
        check_room(out.parent, sum(_size(path) for _, path in found) + copy.stat().st_size)
        temporary.touch(mode=0o600)
        with zipfile.ZipFile(temporary, "w", allowZip64=True) as archive:
            files = [_add(archive, SITE, shown.encode())]
            if sealed:
                files.append(_add(archive, SEALED, sealed))
            else:
                files += [_add(archive, f"{VERSIONS}/{path.name}", data) for path, data in _plain_versions(source.root)]
            files.append(_add_file(archive, DATABASE, copy, zipfile.ZIP_DEFLATED))
            kept = 0
            for name, path in found:
                with contextlib.suppress(FileNotFoundError):  # retention was faster, or a person
                    files.append(_add_file(archive, name, path, zipfile.ZIP_STORED))
                    kept += 1
            manifest = BackupManifest(
                site=site.site.name, created_t=source.clock.now(), vedette=version(), schema_version=facts.schema,
                alerts=facts.alerts, users=facts.users, secrets="sealed" if sealed else "hidden",
                hidden=() if sealed else hidden, evidence=evidence, missing=len(wanted) - kept,
                files=tuple(files),
            )  # fmt: skip
            _add(archive, MANIFEST, manifest.model_dump_json(indent=1).encode())
        finish_file(out)
        return manifest
    except OSError as error:
        raise DiskWriteError(f"{out} cannot be written: {error.strerror or error}") from None
    finally:
        discard_temporary(temporary)
        discard_temporary(copy)


class BackupReader:
    """A backup that was opened and whose list of files holds together; the files are checked as they are read.

    Invariant: only names of the list, no more bytes than it says, and only with the sha256 that it says.
    """

    def __init__(self, path: Path) -> None:
        """Open it. Raise PreconditionError if it is no backup, cut short, or made to do harm."""
        self.path = path
        try:
            if not path.is_file():
                raise PreconditionError(f"{path} is not there, or is not a file")
            _check_directory(path)
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise PreconditionError(f"{path.name} is no backup, or was cut short: {error}") from None
        try:
            self.manifest = self._read_manifest()
            self._check_names()
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> BackupReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    @property
    def size_bytes(self) -> int:
        """Size of all files unpacked."""
        return sum(each.bytes for each in self.manifest.files)

    def read(self, name: str, bytes_max: int) -> bytes:
        """Return one small file. Raises PreconditionError."""
        item = next((each for each in self.manifest.files if each.path == name), None)
        if item is None or item.bytes > bytes_max:
            raise PreconditionError(f"there is no {name} in it" if item is None else f"its {name} is too long")
        return b"".join(self._pieces(item))

    def extract(self, folder: Path) -> None:
        """Write every file under `folder`, which is empty. Raises PreconditionError, DiskWriteError."""
        for item in self.manifest.files:
            path = folder / item.path
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with path.open("xb") as file:
                    for piece in self._pieces(item):
                        file.write(piece)
            except OSError as error:
                raise DiskWriteError(f"{item.path} cannot be written: {error.strerror}") from None

    def _read_manifest(self) -> BackupManifest:
        try:
            info = self._archive.getinfo(MANIFEST)
        except KeyError:
            raise PreconditionError("it is no backup of Vedette: there is no manifest in it") from None
        if info.file_size > MANIFEST_BYTES_MAX:
            raise PreconditionError("its manifest is too long")
        try:
            with self._archive.open(info) as file:
                data = json.loads(file.read(MANIFEST_BYTES_MAX))
        except _UNREADABLE:
            raise PreconditionError("its manifest cannot be read: it was cut short or changed") from None
        if isinstance(data, dict) and data.get("format") == "vedette.backup" and data.get("version") != 1:
            raise PreconditionError("it was made by a newer Vedette; install that version first")
        try:
            return BackupManifest.model_validate(data)
        except ValidationError as error:
            raise PreconditionError(f"its manifest is wrong: {error.errors()[0]['msg']}") from None

    def _check_names(self) -> None:
        listed = [each.path for each in self.manifest.files]
        there = [each.filename for each in self._archive.infolist()]
        if len(set(listed)) != len(listed) or sorted([*listed, MANIFEST]) != sorted(there):
            raise PreconditionError("what is in it is not what its manifest lists: it was changed")
        if not {SITE, DATABASE} <= set(listed):
            raise PreconditionError("there is no site file or no database in it")
        for info in self._archive.infolist():
            mode = info.external_attr >> 16
            if info.filename != MANIFEST and not _NAMES.fullmatch(info.filename):
                raise PreconditionError(f"it holds {info.filename[:80]!r}, which is no part of a backup")
            if (mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode)) or info.flag_bits & 0x1:
                raise PreconditionError(f"its {info.filename[:80]} is no plain file")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise PreconditionError(f"its {info.filename[:80]} is packed in a way that a backup is not")

    def _pieces(self, item: BackupFileItem) -> Iterator[bytes]:
        digest, size = hashlib.sha256(), 0
        try:
            with self._archive.open(item.path) as file:
                while piece := file.read(_BLOCK):
                    size += len(piece)
                    if size > item.bytes:
                        raise PreconditionError(f"its {item.path} is longer than its manifest says")
                    digest.update(piece)
                    yield piece
        except _UNREADABLE as error:
            raise PreconditionError(f"its {item.path} cannot be read: it was cut short or changed") from error
        if size != item.bytes or digest.hexdigest() != item.sha256:
            raise PreconditionError(f"its {item.path} is not what its manifest says: it was cut short or changed")


def _hide(text: str, *, with_secrets: bool) -> tuple[str, tuple[str, ...]]:
    try:
        return hide_secrets(text)
    except ConfigError as error:
        if with_secrets:
            return "# This site file is in the sealed part alone: its secrets cannot be hidden one by one.\n", ()
        raise PreconditionError(
            f"its secrets cannot be left out ({error}); make the backup with a passphrase"
        ) from None


def _secrets_of(source: BackupSource, text: str) -> bytes:
    """Return the site file as it is, the values that it names as `${NAME}`, its secrets file, its versions and keys."""
    named = {name: source.variables[name] for name in _VARIABLE.findall(text) if name in source.variables}
    versions = {}
    for path in _version_files(source.root):
        with contextlib.suppress(FileNotFoundError):  # the oldest goes when another is made
            versions[path.name] = path.read_text(encoding="utf-8")
    secrets = {**read_secrets(source.site_file), **named}
    found = [path for path in (source.root / KEYS).glob("*") if path.suffix in {".pem", ".key"}]
    keys = {path.name: base64.b64encode(path.read_bytes()).decode() for path in found}
    return json.dumps({"site": text, "secrets": secrets, "versions": versions, "keys": keys}).encode()


def _version_files(root: Path) -> list[Path]:
    return [path for path in sorted((root / VERSIONS).glob("*.json")) if _NAMES.fullmatch(f"{VERSIONS}/{path.name}")]


def _plain_versions(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the versions without a secret in them."""
    for path in _version_files(root):
        try:
            data = path.read_bytes()
            text = str(json.loads(data)["text"])
            if hide_secrets(text) == (text, ()):
                yield path, data
        except (OSError, ValueError, KeyError, TypeError, ConfigError, PreconditionError):
            continue


def _evidence(root: Path, name: str) -> Path | None:
    try:
        path = inside(root, name, EVIDENCE)
    except StoreError:
        return None
    return path if path.is_file() else None


def _size(path: Path) -> int:
    """Return the size in bytes; 0: the file is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> BackupFileItem:
    archive.writestr(name, data, zipfile.ZIP_DEFLATED)
    return BackupFileItem(path=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _add_file(archive: zipfile.ZipFile, name: str, path: Path, kind: int) -> BackupFileItem:
    info = zipfile.ZipInfo(name)
    info.compress_type = kind
    info.external_attr = 0o600 << 16
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file, archive.open(info, "w", force_zip64=True) as target:
        while piece := file.read(_BLOCK):
            digest.update(piece)
            size += len(piece)
            target.write(piece)
    return BackupFileItem(path=name, bytes=size, sha256=digest.hexdigest())


def check_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted + FREE_BYTES_MIN:
        raise DiskWriteError(
            f"there is no room in {folder}: {wanted / 1e6:.0f} MB are needed, {FREE_BYTES_MIN / 1e6:.0f} MB stay free, "
            f"and {free / 1e6:.0f} MB are there"
        )


def _check_directory(path: Path) -> None:
    """Raise ValueError if the zip's own list, which is read into memory whole, is longer than ours may be."""
    with path.open("rb") as file:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined]  # as ZipFile reads it, with ZIP64's record
    if end is None:
        raise ValueError("its end is not there")
    if end[zipfile._ECD_SIZE] > DIRECTORY_BYTES_MAX:  # type: ignore[attr-defined]
        raise ValueError("its list of files is too long")
