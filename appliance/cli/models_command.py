"""`vedette models`: lists the networks that Vedette knows, downloads them, and verifies what is here."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from appliance.base.console import CommandProgress
from appliance.base.errors import ModelError, UsageError
from appliance.bundle.manifest import BundleManifest, BundleRef, ModelEntry
from appliance.detect.model_download import ModelDownload, ModelStatus, model_status
from appliance.detect.model_files import bundle_store, model_bundles, model_folders, pull_folder

_STATES = {
    "bundled": "comes with Vedette",
    "ready": "here",
    "partial": "download not finished",
    "absent": "not here",
    "damaged": "DAMAGED",
    "hash missing": "hash missing",
}


def list_command(*, as_json: bool) -> int:
    """Print every network with size, licence, state and what was measured of it. Returns 0."""
    found = _status(model_bundles())
    store = bundle_store()
    installed = store.installed()
    if as_json:
        print(json.dumps([{**_json(each), "versions": _versions(each.name, installed)} for each in found], indent=1))
        return 0
    for each in found:
        bundle = each.bundle
        size = f"{bundle.bytes / 1e6:.1f} MB" if bundle.bytes else ""
        print(
            f"{each.name:20} {_STATES[each.state]:22} {size:>8}  {bundle.input[0]}x{bundle.input[1]}  {bundle.licence}"
        )
        if bundle.note:
            print(f"{'':20} {bundle.note}")
    if any(each.state in ("absent", "partial") for each in found):
        print("\nvedette models pull NAME downloads one; detector: {model: NAME} in the site file uses it.")
    if installed:
        print("\nInstalled versions:")
    table = store.in_force()
    slots = {camera or "all cameras": slot for camera, slot in {"": table.everywhere, **table.cameras}.items() if slot}
    for ref, manifest in installed.items():
        uses = [
            f"in force for {who}, {slot.state}{', pinned' if slot.pinned else ''}" if slot.bundle == ref
            else f"before, for {who}" for who, slot in slots.items() if ref in (slot.bundle, slot.before)
        ]  # fmt: skip
        uses += [f"quarantined: {table.quarantined[ref]}"] if ref in table.quarantined else []
        print(f"{ref!s:32} {manifest.total_bytes / 1e6:6.1f} MB  {'; '.join(uses)}")
    return 0


def pull_command(names: Sequence[str], *, to: Path | None, mirror: str, as_json: bool) -> int:
    """Download the named networks. Returns 0. Raises ModelError for an unknown name or a file that cannot be had."""
    bundles = model_bundles()
    unknown = [name for name in names if name not in bundles]
    if unknown:
        raise ModelError(f"there is no model `{unknown[0]}`; `vedette models list` knows: {', '.join(sorted(bundles))}")
    if mirror and urlsplit(mirror).scheme not in {"http", "https"}:
        raise UsageError(f"--mirror {mirror} must begin with http:// or https://")
    folder = to or pull_folder()
    pulled = []
    for name in names:
        bundle = bundles[name]
        (there,) = _status({name: bundle})
        if there.state in ("bundled", "ready") and to is None:
            path = there.path
        else:
            with _download(folder, name, quiet=as_json) as download:
                path = download.pull(bundle, f"{mirror.rstrip('/')}/{bundle.file}" if mirror else "")
        pulled.append({"name": name, "path": str(path), "sha256": bundle.sha256, "licence": bundle.licence})
        if not as_json:
            print(f"{name}: {path} ({bundle.licence}, from {bundle.source or 'Vedette'})")
    if as_json:
        print(json.dumps(pulled, indent=1))
    return 0


def verify_command(names: Sequence[str], *, as_json: bool) -> int:
    """Compare what is here with models.toml. Returns 1 when a file differs or a named one is not here."""
    bundles = model_bundles()
    unknown = set(names) - bundles.keys()
    if unknown:
        raise ModelError(f"there is no model `{min(unknown)}`; `vedette models list` knows them all")
    found = _status({name: bundles[name] for name in names or bundles})
    if not names:
        found = [each for each in found if each.state not in ("absent", "partial")]
    if as_json:
        print(json.dumps([_json(each) for each in found], indent=1))
    else:
        for each in found:
            print(
                f"{each.name:20} {'ok' if each.state in ('bundled', 'ready') else _STATES[each.state]:22} {each.path}"
            )
            if each.state == "damaged":
                print(f"{'':20} delete the file, then: vedette models pull {each.name}")
    return 0 if all(each.state in ("bundled", "ready") for each in found) else 1


def _versions(name: str, installed: Mapping[BundleRef, BundleManifest]) -> list[str]:
    return [ref.version for ref in installed if ref.name == name]


def _status(bundles: Mapping[str, ModelEntry]) -> list[ModelStatus]:
    """Compare every file with its hash; each is read whole."""
    folders, target = model_folders(), pull_folder()
    return [model_status(name, bundle, folders, target) for name, bundle in sorted(bundles.items())]


def _json(each: ModelStatus) -> dict[str, object]:
    bundle: ModelEntry = each.bundle
    return {
        "name": each.name,
        "state": each.state,
        "path": str(each.path),
        "bytes": bundle.bytes,
        "sha256": bundle.sha256,
        "licence": bundle.licence,
        "source": bundle.source,
        "url": bundle.url,
        "input": list(bundle.input),
        "precision": bundle.precision,
        "accuracy": bundle.accuracy,
    }


@contextlib.contextmanager
def _download(folder: Path, name: str, *, quiet: bool) -> Iterator[ModelDownload]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with CommandProgress(*columns, quiet=quiet) as bar:
        task = bar.add_task(name, total=None)
        yield ModelDownload(folder, lambda done, whole: bar.update(task, completed=done, total=whole or None))
