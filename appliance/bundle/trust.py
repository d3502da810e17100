"""Check that a bundle is genuine: a client of The Update Framework (TUF 1.0, python-tuf) over any repository.

The publisher signs what is genuine: its targets are manifests, and a manifest names the hash of every file.

TUF refuses what is not signed by enough keys, is older than what was seen, does not belong together or has expired. A
clock that stands before the time of the last refresh would let what has expired pass, and is refused, too. Whatever is
refused changes nothing: the bundles in force stay.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Targets
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.bundle_store import locked
from appliance.bundle.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    BundleManifest,
    BundleRef,
    parse_manifest,
    version_order,
)  # fmt: skip
from appliance.bundle.repositories import FileMissing, Repository, open_repository

CLOCK_SLACK_S = 86_400.0  # a real-time clock without a battery may lose hours, and nothing expires within a day
_ANCHOR, _ADDRESS, _SEEN, _METADATA = "root.json", "address", "seen_utc", "metadata"


@dataclass(frozen=True, slots=True)
class Genuine:
    """A manifest that the publisher signed, with the bytes that were signed."""

    manifest: BundleManifest
    data: bytes


class TrustedRepository:
    """One repository with the root that a person gave for it. Owns its folder; one process at a time refreshes.

    root.json: the anchor. address: where the repository is. metadata/: what was last accepted. seen_utc: when.
    """

    def __init__(self, folder: Path, repository: Repository | None = None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        try:
            self._anchor = (folder / _ANCHOR).read_bytes()
            address = (folder / _ADDRESS).read_text(encoding="utf-8")
        except OSError:
            raise PreconditionError(
                "no source of models is trusted yet: vedette models install NAME --from ADDRESS --root root.json, "
                "with the root.json that its publisher gave you"
            ) from None
        self.repository = repository or open_repository(address)

    @staticmethod
    def trust(folder: Path, root: bytes, address: str) -> None:
        """Take `root` as the anchor of the repository at `address`; another one is forgotten. Raise ModelError."""
        try:
            parsed = Metadata[Root].from_bytes(root)
            parsed.signed.verify_delegate(Root.type, parsed.signed_bytes, parsed.signatures)
        except (exceptions.RepositoryError, ValueError, KeyError, AttributeError) as error:
            raise ModelError(f"this is no root of TUF that its own keys have signed: {error}") from None
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if (folder / _ANCHOR).is_file() and (folder / _ANCHOR).read_bytes() != root:
                for path in (folder / _METADATA).rglob("*.json"):
                    path.unlink()
            (folder / _ADDRESS).write_text(address, encoding="utf-8")
            (folder / _ANCHOR).write_bytes(root)

    def target(self, path: str, bytes_max: int) -> bytes:
        """Return the bytes of a target after a refresh. Raise ModelError: refused, or not there; LinkLost."""
        with self._refreshed() as (updater, fetcher):
            info = updater.get_targetinfo(path)
            if info is None:
                raise FileMissing(f"{self.repository.address} has no {path}")
            if info.length > bytes_max:
                raise ModelError(f"{path} has {info.length} bytes, more than {bytes_max}")
            data = fetcher.download_bytes(f"targets/{path}", info.length)
            info.verify_length_and_hashes(data)
        return data

    @contextlib.contextmanager
    def _refreshed(self) -> Iterator[tuple[Updater, FetcherInterface]]:
        """Hold the folder's lock and yield an updater that has refreshed; translate what TUF refuses."""
        with locked(self._folder):
            self._check_clock()
            (self._folder / _METADATA).mkdir(exist_ok=True)
            fetcher = _Fetcher(self.repository)
            try:
                updater = Updater(
                    str(self._folder / _METADATA), "metadata/", str(self._folder), "targets/", fetcher,
                    UpdaterConfig(prefix_targets_with_hash=False), bootstrap=self._anchor,
                )  # fmt: skip
                updater.refresh()
                (self._folder / _SEEN).write_text(str(self._clock.now()), encoding="utf-8")
                yield updater, fetcher
            except exceptions.RepositoryError as error:
                raise ModelError(f"{self.repository.address}: {_refusal(error)}; nothing was changed") from None
            except exceptions.DownloadError as error:
                cause = error.__cause__ or error
                if isinstance(cause, ModelError):
                    raise cause from None
                raise ModelError(f"{self.repository.address}: {cause}; nothing was changed") from None

    def offered(self) -> tuple[BundleRef, ...]:
        """Return the bundles that are on offer now. Raise ModelError, LinkLost."""
        with self._refreshed():
            return self.known()

    def known(self) -> tuple[BundleRef, ...]:
        """Return the bundles that were on offer at the last refresh."""
        path = self._folder / _METADATA / "targets.json"
        try:
            targets: Mapping[str, object] = Metadata[Targets].from_file(str(path)).signed.targets
        except (OSError, exceptions.StorageError, exceptions.RepositoryError, ValueError):
            return ()
        found = []
        for target in targets:
            name, _, rest = target.partition("/")
            version, _, file = rest.partition("/")
            if file == MANIFEST_FILE:
                found.append(BundleRef(name, version))
        return tuple(found)

    def genuine(self, ref: BundleRef) -> Genuine:
        """Return the signed manifest of `ref`. Raise ModelError."""
        data = self.target(f"{ref.name}/{ref.version}/{MANIFEST_FILE}", MANIFEST_BYTES_MAX)
        manifest = parse_manifest(data, f"{self.repository.address}: {ref}")
        if manifest.ref != ref:
            raise ModelError(f"{self.repository.address}: the manifest of {ref} calls itself {manifest.ref}")
        return Genuine(manifest, data)

    def _check_clock(self) -> None:
        try:
            seen = float((self._folder / _SEEN).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if self._clock.now() < seen - CLOCK_SLACK_S:
            when = datetime.fromtimestamp(seen, timezone.utc)
            raise PreconditionError(
                f"the clock of this appliance stands before {when:%Y-%m-%d %H:%M} UTC, when models were last looked "
                "for: set it (timedatectl), since what has expired cannot be told from what has not"
            )


class _Fetcher(FetcherInterface):
    """The network of python-tuf's client: the same repositories that blobs come from."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    def _fetch(self, url: str) -> Iterator[bytes]:
        try:
            blocks = self._repository.read(url)
            first = next(blocks, b"")
        except FileMissing as error:
            raise exceptions.DownloadHTTPError(str(error), 404) from error
        return _chain(first, blocks)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    try:
        yield from rest
    except ModelError as error:
        raise exceptions.DownloadError(str(error)) from error


def _refusal(error: exceptions.RepositoryError) -> str:
    if isinstance(error, exceptions.ExpiredMetadataError):
        return f"{error}: its publisher has not signed anew, or the clock here is ahead"
    if isinstance(error, exceptions.BadVersionNumberError):
        return f"it offers what is older than what was seen here ({error})"
    if isinstance(error, exceptions.UnsignedMetadataError):
        return f"it is not signed by those whom this appliance trusts ({error})"
    if isinstance(error, exceptions.LengthOrHashMismatchError):
        return f"its parts do not belong together ({error})"
    return str(error)


def trust_folder(root: Path) -> Path:
    """Return where the store at `root` keeps the publisher that it trusts."""
    return root / ".trust" / "publisher"


def newest_version(offered: Iterable[BundleRef], name: str) -> BundleRef:
    """Return the highest version of `name`: `10` is above `9`, and `1.2` above `1.1`. Raise ModelError: none."""
    found = [ref for ref in offered if ref.name == name]
    if not found:
        raise ModelError(f"no `{name}` is on offer; there are: {', '.join(map(str, sorted(offered))) or 'none'}")
    return max(found, key=lambda ref: version_order(ref.version))


def read_root(path: Path) -> bytes:
    """Return the bytes of a root.json that a person named. Raise ModelError."""
    try:
        data = path.read_bytes()
        json.loads(data)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ModelError(f"{path} is no root.json of a publisher") from None
    return data
