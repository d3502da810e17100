"""Roll a bundle out: as a shadow on live frames, on some cameras first, on all once it has proven itself there.

`rollout.json` beside the pointers says what is under way. A quarantine, whoever speaks it, ends it: the cameras have
what was before. Each step is one write of the pointers, and is done again where a kill came between it and the file.
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
    """bundle: NAME@VERSION, which examines live frames and decides nothing."""

    bundle: str


class Rollout(ConfigModel):
    """A rollout that is under way. bundle: NAME@VERSION; cameras: that have it first."""

    bundle: str
    cameras: tuple[str, ...]


def rollout_of(store: BundleStore) -> Rollout | None:
    """Return the rollout that is under way; None: none is, or its file is damaged."""
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
    """Do the next step if it is due, and return it in words; '': none is. Raise ModelError, PreconditionError."""
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
    """Have a bundle examine live frames beside what is in force, in place of another one that did.

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
    """Have no bundle examine live frames beside what is in force."""
    (store.root / SHADOW_FILE).unlink(missing_ok=True)


def shadow_of(store: BundleStore) -> BundleRef | None:
    """Return the bundle that examines live frames beside what is in force; None: none, or the file is damaged."""
    try:
        return BundleRef.parse(Shadow.model_validate_json((store.root / SHADOW_FILE).read_bytes()).bundle)
    except (OSError, ValidationError, ModelError):
        return None


def _path(store: BundleStore) -> Path:
    return store.root / ROLLOUT_FILE
