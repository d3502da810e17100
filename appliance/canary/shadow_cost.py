"""Estimates what a second network beside the one in force will cost, before it begins, and refuses with the remedy."""

from __future__ import annotations

from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.sensors.linux_sensors import MemoryReading

EVERY_S = 5.0  # between two frames: one in 25 at 5 a second, and 17,000 a day
MEMORY_LEFT_BYTES = 64_000_000  # stays free, as beside a switch of networks
PROCESS_BYTES, SHARE_OF_FILE = 40_000_000, 5  # Python and ONNX Runtime; the network against its file: vedette-nano's


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
