"""Roll a bundle out: on some cameras first, then on all cameras once it has proven itself on these.

`rollout.json`, beside the pointers (files that name the bundle in force), names the bundle and its first cameras. When
the bundle is quarantined, the bundle store gives the cameras their earlier network back; `advance_rollout` sees that
and ends the rollout. Each step writes the pointers first and `rollout.json` after them. If the process is killed in
between, the step is done again. A shadow is independent of a rollout: it is a bundle that examines live frames and
decides nothing (`shadow.json`). What the second network will cost is estimated before it begins; without room it is
refused, with the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from appliance.base.config_model import ConfigModel
from appliance.base.errors import ModelError, PreconditionError
from appliance.bundle.bundle_store import BundleStore, replace_file
from appliance.bundle.manifest import BundleRef
from appliance.sensors.linux_sensors import MemoryReading

ROLLOUT_FILE = "rollout.json"
SHADOW_FILE = "shadow.json"
SHADOW_EVERY_S = 5.0  # between two frames: one in 25 at 5 a second, and 17,000 a day
MEMORY_LEFT_BYTES = 64_000_000  # stays free, as beside a switch of networks
PROCESS_BYTES, SHARE_OF_FILE = 40_000_000, 5  # Python with ONNX Runtime; memory of vedette-nano / its file's size


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
    """Put a bundle in force on probation on these cameras; the rest follow. Raise ModelError, PreconditionError.

    Cameras that got it first in the same rollout, and still have it, are released with these.
    """
    if (known := rollout_of(store)) is not None and known.bundle != str(ref):
        raise PreconditionError(f"{known.bundle} is being rolled out; first: vedette models rollback --camera NAME")
    for camera in cameras:
        store.put_in_force(ref, camera, state="probation")
    own = store.in_force().cameras
    earlier = [name for name in known.cameras if name in own and own[name].bundle == ref] if known else []
    rollout = Rollout(bundle=str(ref), cameras=tuple(dict.fromkeys([*earlier, *cameras])))
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


def needed_bytes(file_bytes: int) -> int:
    """Estimate the memory that a network takes in a child, from the size of its file in bytes."""
    return PROCESS_BYTES + SHARE_OF_FILE * file_bytes


def bundle_bytes(store: BundleStore, ref: BundleRef) -> int:
    """Return the bytes of the largest file of an installed bundle. Raise ModelError."""
    return max((each.bytes for each in store.manifest(ref).files.values()), default=0)


def shortage(need: int, memory: MemoryReading) -> str:
    """Return why there is no room for a second network, with the remedy; '' if there is."""
    left = memory.left_bytes
    if left is None or left >= need + MEMORY_LEFT_BYTES:
        return ""
    return (
        f"it needs {need / 1e6:.0f} MB beside {MEMORY_LEFT_BYTES / 1e6:.0f} MB that stay free, and {left / 1e6:.0f} MB "
        "are left: raise the memory of the container or service, or try it on the recording (vedette models prove)"
    )
