"""`vedette models` install, rollback, shadow, pin, export, prune, publish: bundles with a version and a signature."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn

from appliance.base.console import CommandProgress
from appliance.base.errors import PreconditionError, UsageError
from appliance.bundle.bundle_fetch import BundleFetch, FetchPlan
from appliance.bundle.bundle_store import BundleStore, InForce
from appliance.bundle.manifest import MANIFEST_FILE, BundleManifest, BundleRef, check_minimum, read_manifest
from appliance.bundle.repositories import OciRepository, open_repository
from appliance.bundle.rollout import begin_rollout, begin_shadow, end_shadow, shadow_of
from appliance.bundle.trust import PUBLISHER, TrustedRepository, newest_version, read_root, trust_folder
from appliance.canary.shadow_cost import EVERY_S, bundle_bytes, needed_bytes, shortage
from appliance.detect.bundle_maker import describe_network
from appliance.detect.model_files import bundle_store
from appliance.sensors.linux_sensors import MemorySensor
from appliance.version import version as own_version

TAKEN = "a running appliance takes it within seconds"


def install_command(name: str, *, address: str, root: Path | None, use: bool, camera: str, as_json: bool) -> int:
    """Install a bundle that a trusted publisher signed. Returns 0. Raises ModelError, PreconditionError, UsageError."""
    if camera and not use:
        raise UsageError("--camera says where a bundle is put in force: add --use")
    store = bundle_store()
    trusted = _trusted(store, address, root)
    ref = BundleRef.parse(name) if "@" in name else newest_version(trusted.offered(), name)
    genuine = trusted.genuine(ref)
    check_minimum(genuine.manifest, own_version())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with CommandProgress(*columns, quiet=as_json) as bar:
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


def rollout_command(bundle: str, *, cameras: Sequence[str], as_json: bool) -> int:
    """Put a bundle in force on some cameras first. Returns 0. Raises ModelError, PreconditionError, UsageError."""
    if not cameras:
        raise UsageError("name the cameras that get it first: --camera gate --camera yard")
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
        print(json.dumps({"bundle": str(ref), "memory_bytes": need, "every_s": EVERY_S}, indent=1))
    else:
        print(f"{ref}: about {need / 1e6:.0f} MB of memory and one inference in {EVERY_S:g} s, at the lowest priority")
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


def prune_command(*, as_json: bool) -> int:
    """Remove the installed bundles that nothing points to, and unfinished downloads. Returns 0."""
    store = bundle_store()
    used = {*store.in_force().used(), shadow_of(store)}
    gone = {ref: manifest.total_bytes for ref, manifest in store.installed().items() if ref not in used}
    for ref in gone:
        store.remove(ref)
    if store.root.is_dir():
        with store.changing():
            shutil.rmtree(store.incoming(), ignore_errors=True)
    if as_json:
        print(json.dumps({"removed": [str(ref) for ref in gone], "bytes": sum(gone.values())}, indent=1))
    else:
        print("\n".join([*(f"removed {ref}" for ref in gone), f"{sum(gone.values()) / 1e6:.1f} MB freed"]))
    return 0


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
    folder = trust_folder(store.root, PUBLISHER)
    if root is not None:
        if not address:
            raise UsageError("--root belongs to an address: add --from")
        open_repository(address)
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
