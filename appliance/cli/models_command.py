"""`vedette models`: the networks that Vedette knows, and bundles with a version and a signature."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from appliance import config
from appliance import version as own_version
from appliance.base.console import DOWNLOADED, CommandProgress
from appliance.base.errors import ModelError, PreconditionError, UsageError
from appliance.bundle.bundle_fetch import BundleFetch, FetchPlan
from appliance.bundle.bundle_store import BundleStore, InForce, incoming, locked
from appliance.bundle.manifest import MANIFEST_FILE, BundleManifest, BundleRef, ModelEntry, check_minimum, read_manifest
from appliance.bundle.repositories import FolderRepository, OciRepository, open_repository
from appliance.bundle.rollout import (
    SHADOW_EVERY_S,
    begin_rollout,
    begin_shadow,
    bundle_bytes,
    end_shadow,
    needed_bytes,
    shadow_of,
    shortage,
)
from appliance.bundle.trust import TrustedRepository, newest_version, read_root, trust_folder
from appliance.detect.bundle_maker import describe_network
from appliance.detect.model_download import ModelDownload, ModelStatus, model_status
from appliance.detect.model_files import bundle_store, model_bundles, model_folders, pull_folder
from appliance.sensors.linux_sensors import MemorySensor

_STATES = {
    "bundled": "comes with Vedette",
    "ready": "here",
    "partial": "download not finished",
    "absent": "not here",
    "damaged": "DAMAGED",
    "hash missing": "hash missing",
}
SITE_FILE = "site.yaml"  # where no other is named
TAKEN = "a running appliance takes it within seconds"


def list_command(*, as_json: bool) -> int:
    """Print every network with size, licence, state and what was measured of it. Returns 0."""
    found = _status(model_bundles())
    store = bundle_store()
    installed = store.installed()
    if as_json:
        versions = {each.name: [ref.version for ref in installed if ref.name == each.name] for each in found}
        print(json.dumps([{**_json(each), "versions": versions[each.name]} for each in found], indent=1))
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
    with CommandProgress(*DOWNLOADED, quiet=quiet) as bar:
        task = bar.add_task(name, total=None)
        yield ModelDownload(folder, lambda done, whole: bar.update(task, completed=done, total=whole or None))


def install_command(
    name: str, *, address: str, root: Path | None, use: bool, camera: str, site_file: Path | None, as_json: bool
) -> int:
    """Install a bundle that a trusted publisher signed. Returns 0. Raises ModelError, PreconditionError, UsageError."""
    if camera and not use:
        raise UsageError("--camera says where a bundle is put in force: add --use")
    _check_cameras([camera] if camera else [], site_file)
    store = bundle_store()
    trusted = _trusted(store, address, root)
    ref = BundleRef.parse(name) if "@" in name else newest_version(trusted.offered(), name)
    genuine = trusted.genuine(ref)
    check_minimum(genuine.manifest, own_version())
    with CommandProgress(*DOWNLOADED, quiet=as_json) as bar:
        task = bar.add_task(str(ref), total=None)
        fetch = BundleFetch(
            store, trusted.repository, lambda done, whole: bar.update(task, completed=done, total=whole or None)
        )
        plan = fetch.plan(genuine)
        folder = fetch.install(genuine)
    slot = store.put_in_force(ref, camera, state="probation") if use else None
    if as_json:
        print(json.dumps(_installed(ref, folder, plan, slot), indent=1))
        return 0
    saved = plan.bytes_total - plan.bytes_missing
    here = f"; {saved / 1e6:.1f} MB were here already" if plan.bytes_missing and saved > 0 else ""
    print(f"{ref}: {folder} ({plan.bytes_missing / 1e6:.1f} of {plan.bytes_total / 1e6:.1f} MB fetched{here})")
    print(f"{_where(camera)}: {ref}, {TAKEN}" if slot else f"not in force yet: vedette models install {ref} --use")
    return 0


def rollout_command(bundle: str, *, cameras: Sequence[str], site_file: Path | None, as_json: bool) -> int:
    """Put a bundle in force on some cameras first. Returns 0. Raises ModelError, PreconditionError, UsageError."""
    if not cameras:
        raise UsageError("name the cameras that get it first: --camera gate --camera yard")
    _check_cameras(cameras, site_file)
    rollout = begin_rollout(bundle_store(), BundleRef.parse(bundle), cameras)
    if as_json:
        print(rollout.model_dump_json(indent=1))
    else:
        print(f"{bundle}: {', '.join(cameras)} first, {TAKEN}; all cameras once it has proven itself there")
    return 0


def shadow_command(bundle: str, *, off: bool, as_json: bool) -> int:
    """Have a bundle examine live frames beside what is in force, or end it. Returns 0.

    Raises ModelError, PreconditionError: it is quarantined or in force, or there is no memory for it; UsageError.
    """
    store = bundle_store()
    if off == bool(bundle):
        raise UsageError("name a bundle, or --off: vedette models shadow NAME@VERSION")
    if off:
        end_shadow(store)
        print("{}" if as_json else "no bundle examines live frames beside the one in force")
        return 0
    ref = BundleRef.parse(bundle)
    need = needed_bytes(bundle_bytes(store, ref))
    if why := shortage(need, MemorySensor(Path("/")).read()):
        raise PreconditionError(f"{ref} does not examine live frames: {why}")
    begin_shadow(store, ref)
    if as_json:
        print(json.dumps({"bundle": str(ref), "memory_bytes": need, "every_s": SHADOW_EVERY_S}, indent=1))
    else:
        print(
            f"{ref}: about {need / 1e6:.0f} MB of memory and one inference in {SHADOW_EVERY_S:g} s, "
            "at the lowest priority"
        )
        print(f"{TAKEN}, measures both first, and shows it on the pages Models and /proofs")
    return 0


def rollback_command(*, camera: str, as_json: bool) -> int:
    """Put in force what was before. Returns 0. Raises PreconditionError: nothing was put in force."""
    slot = bundle_store().roll_back(camera)
    if as_json:
        print(json.dumps(_slot(slot), indent=1))
    else:
        print(f"{_where(camera)}: {slot.bundle if slot else 'what comes with Vedette'}, {TAKEN}")
    return 0


def pin_command(*, off: bool, camera: str, as_json: bool) -> int:
    """Let nothing but this command replace what is in force, or --off. Returns 0. Raises PreconditionError."""
    slot = bundle_store().settle(camera, pinned=not off)
    if as_json:
        print(json.dumps(_slot(slot), indent=1))
    else:
        print(f"{_where(camera)}: {slot.bundle} {'is not pinned any more' if off else 'is pinned'}")
    return 0


def export_command(name: str, folder: Path, *, version: str, as_json: bool) -> int:
    """Write a network that is here as the folder of a bundle. Returns 0. Raises ModelError, UsageError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there and not empty: name a new folder")
    manifest, files = describe_network(name, version)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    if as_json:
        print(json.dumps({"bundle": str(manifest.ref), "folder": str(folder), "bytes": manifest.total_bytes}, indent=1))
    else:
        print(f"{manifest.ref}: {folder} ({manifest.total_bytes / 1e6:.1f} MB)")
    return 0


def prune_command(site_file: Path | None, *, as_json: bool) -> int:
    """Remove the installed bundles that nothing uses, and unfinished downloads. Returns 0. Raises ConfigError.

    site_file: what it names stays; None: ./site.yaml, if it is there.
    """
    store = bundle_store()
    used = {*map(str, store.in_force().used()), str(shadow_of(store)), *_named_in(site_file)}
    gone = {ref: manifest.total_bytes for ref, manifest in store.installed().items() if str(ref) not in used}
    for ref in gone:
        store.remove(ref)
    if store.root.is_dir():
        with locked(store.root):
            shutil.rmtree(incoming(store.root), ignore_errors=True)
    if as_json:
        print(json.dumps({"removed": [str(ref) for ref in gone], "bytes": sum(gone.values())}, indent=1))
    else:
        print("\n".join([*(f"removed {ref}" for ref in gone), f"{sum(gone.values()) / 1e6:.1f} MB freed"]))
    return 0


def _named_in(site_file: Path | None) -> set[str]:
    """Return the networks that a site file names for all cameras or for one. Raise ConfigError."""
    site = _site(site_file)
    if site is None:
        return set()
    return {
        site.detector.model,
        site.second_look.model or "",
        *(camera.model for camera in site.cameras.values() if camera.model),
    }


def _check_cameras(cameras: Sequence[str], site_file: Path | None) -> None:
    """Raise UsageError for a camera that the site file does not have, and ConfigError."""
    site = _site(site_file) if cameras else None
    if site is not None and (unknown := set(cameras) - site.cameras.keys()):
        raise UsageError(f"there is no camera `{min(unknown)}` in the site file (there is: {', '.join(site.cameras)})")


def _site(site_file: Path | None) -> config.IngestConfig | None:
    """Return the site file that was named, else ./site.yaml; None: it is not there. Raise ConfigError."""
    if site_file is None and not Path(SITE_FILE).is_file():
        return None
    return config.load(site_file or Path(SITE_FILE)).for_ingest()


def publish_command(
    bundles: Sequence[str], *, repository: Path, keys: Path, new: bool, rotate: str | None, push: str, as_json: bool
) -> int:
    """Sign bundles into a repository. Returns 0. Raises ModelError, PreconditionError, UsageError.

    bundles: folders of bundles. Without any, all is signed anew before it expires.
    """
    from appliance.bundle import publisher as publishing  # it signs: nobody else pays for its import

    registry = open_repository(push) if push else None
    if registry is not None and not isinstance(registry, OciRepository):
        raise UsageError(f"--push {push} must be a registry, oci://HOST/NAME; any other is a copy of {repository}")
    signer = publishing.Publisher(repository, keys)
    done: dict[str, object] = {}
    if new:
        done["root"] = str(signer.create())
    if rotate:
        signer.rotate(rotate)
    for each in bundles:
        manifest, data, files = _read_bundle(Path(each))
        done[str(manifest.ref)] = signer.publish(manifest, data, files)
    if not (new or rotate or bundles):
        signer.refresh()
    if registry is not None:
        done["pushed_bytes"] = publishing.push(repository, registry)
    if as_json:
        print(json.dumps(done, indent=1))
        return 0
    for name, value in done.items():
        print(f"{name}: {value}" if name == "root" else f"{name}: {int(str(value)) / 1e6:.1f} MB new")
    if new:
        print(f"give root.json to who shall trust you; keep two of the three root keys in {keys} off this machine")
    return 0


def _trusted(store: BundleStore, address: str, root: Path | None) -> TrustedRepository:
    folder = trust_folder(store.root)
    if root is not None:
        if not address:
            raise UsageError("--root belongs to an address: add --from")
        if isinstance(open_repository(address), FolderRepository):
            address = str(Path(address).absolute())  # the next one may be asked for from another folder
        TrustedRepository.trust(folder, read_root(root), address)
    return TrustedRepository(folder, open_repository(address) if address else None)


def _read_bundle(folder: Path) -> tuple[BundleManifest, bytes, dict[str, bytes]]:
    manifest = read_manifest(folder)
    try:
        files = {name: (folder / name).read_bytes() for name in manifest.files}
        return manifest, (folder / MANIFEST_FILE).read_bytes(), files
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None


def _installed(ref: BundleRef, folder: Path, plan: FetchPlan, slot: InForce | None) -> dict[str, object]:
    return {
        "bundle": str(ref), "path": str(folder), "bytes": plan.bytes_total, "bytes_fetched": plan.bytes_missing,
        "in_force": _slot(slot),
    }  # fmt: skip


def _slot(slot: InForce | None) -> dict[str, object] | None:
    if slot is None:
        return None
    before = None if slot.before is None else str(slot.before)
    return {"bundle": str(slot.bundle), "before": before, "state": slot.state, "pinned": slot.pinned}


def _where(camera: str) -> str:
    return camera or "all cameras"
