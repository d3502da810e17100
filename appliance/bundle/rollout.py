"""Roll a bundle out: on some cameras first, then on all cameras once it has proven itself on these.

`rollout.json`, beside the pointers, names the bundle and its first cameras. When the bundle is quarantined, the bundle
store gives the cameras their earlier network back; `advance_rollout` sees that and ends the rollout. Each step writes
the pointers first and `rollout.json` after them. If the process is killed in between, the step is done again.

A shadow is independent of a rollout: it is a bundle that examines live frames and decides nothing (`shadow.json`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.bundle_store import BundleStore, replace_file
from appliance.bundle.manifest import BundleRef

ROLLOUT_FILE = "rollout.json"
SHADOW_FILE = "shadow.json"


class Shadow(ConfigModel):
    """Names the shadow. bundle: NAME@VERSION."""

    bundle: str


class Rollout(ConfigModel):
    """A rollout that is under way. bundle: NAME@VERSION; cameras: those that get it first."""

    bundle: str
    cameras: tuple[str, ...]


def rollout_of(store: BundleStore) -> Rollout | None:
    """Return the rollout that is under way; None: there is none, or its file is damaged."""
    try:
        return Rollout.model_validate_json(_path(store).read_bytes())
    except (OSError, ValidationError):
        return None


def begin_rollout(store: BundleStore, ref: BundleRef, cameras: Sequence[str]) -> Rollout:
    """Put a bundle in force on probation on these cameras; the rest follow. Raise ModelError, PreconditionError."""
    if (known := rollout_of(store)) is not None and known.bundle != str(ref):
        raise PreconditionError(f"{known.bundle} is being rolled out; first: vedette models rollback --camera NAME")
    rollout = Rollout(bundle=str(ref), cameras=tuple(cameras))
    for camera in cameras:
        store.put_in_force(ref, camera, state="probation")
    replace_file(store, ROLLOUT_FILE, rollout)
    return rollout


def advance_rollout(store: BundleStore) -> str:
    """Do the next step if one is due; return it in words, '' if none is due. Raise ModelError, PreconditionError."""
    rollout = rollout_of(store)
    if rollout is None:
        return ""
    ref, table = BundleRef.parse(rollout.bundle), store.in_force()
    slots = [slot for name in rollout.cameras if (slot := table.cameras.get(name)) and slot.bundle == ref]
    everywhere = table.everywhere is not None and table.everywhere.bundle == ref
    if not everywhere and len(slots) < len(rollout.cameras):
        _path(store).unlink(missing_ok=True)
        return f"the rollout of {ref} has ended: a camera has another network"
    if not everywhere and any(slot.state != "proven" for slot in slots):
        return ""
    if not everywhere:
        store.put_in_force(ref, state="probation")
    store.release(rollout.cameras)
    _path(store).unlink(missing_ok=True)
    return f"{ref} has proven itself on {', '.join(rollout.cameras)}, and all cameras get it"


def begin_shadow(store: BundleStore, ref: BundleRef) -> None:
    """Make a bundle the shadow: it examines live frames beside the network in force. It replaces an earlier shadow.

    Raise ModelError: it is not installed or damaged; PreconditionError: it is in quarantine, or in force.
    """
    store.check(ref)
    table = store.in_force()
    if ref in table.quarantined:
        raise PreconditionError(f"{ref} is in quarantine: {table.quarantined[ref]}")
    if any(slot.bundle == ref for slot in table.slots):
        raise PreconditionError(f"{ref} is in force: on probation it is compared with the one before as it is")
    replace_file(store, SHADOW_FILE, Shadow(bundle=str(ref)))


def end_shadow(store: BundleStore) -> None:
    """End the shadow, if there is one."""
    (store.root / SHADOW_FILE).unlink(missing_ok=True)


def shadow_of(store: BundleStore) -> BundleRef | None:
    """Return the shadow; None: there is none, or its file is damaged."""
    try:
        return BundleRef.parse(Shadow.model_validate_json((store.root / SHADOW_FILE).read_bytes()).bundle)
    except (OSError, ValidationError, ModelError):
        return None


def _path(store: BundleStore) -> Path:
    return store.root / ROLLOUT_FILE
