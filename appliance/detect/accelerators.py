"""Which accelerators this appliance has, as its kernel tells: no library is loaded for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

Kind = Literal["cuda", "gpu", "npu", "hailo"]
KINDS: dict[Kind, str] = {
    "cuda": "an NVIDIA GPU",
    "gpu": "an Intel GPU",
    "npu": "an Intel NPU",
    "hailo": "a Hailo device",
}
INTEL = "0x8086"  # its PCI vendor id
NVIDIA_FILES = ("proc/driver/nvidia/version", "dev/nvhost-gpu", "dev/nvidia0")  # the second is a Jetson's


class Accelerator(NamedTuple):
    """kind: as `detector.device` or, of Hailo, `detector.backend` names it. node: the file by which it is known."""

    kind: Kind
    node: str


def accelerators(root: Path = Path("/")) -> tuple[Accelerator, ...]:
    """One of each kind. root: where /proc, /dev and /sys are."""
    return tuple(_found(root))


def _found(root: Path) -> Iterator[Accelerator]:
    nvidia = next((each for each in NVIDIA_FILES if (root / each).exists()), None)
    if nvidia is not None:
        yield Accelerator("cuda", f"/{nvidia}")
    for kind, folder, nodes, name in (
        ("gpu", "sys/class/drm", "dev/dri", "renderD*"),
        ("npu", "sys/class/accel", "dev/accel", "accel*"),
    ):
        for each in sorted((root / folder).glob(name)):
            if _text(each / "device" / "vendor") == INTEL:
                yield Accelerator("gpu" if kind == "gpu" else "npu", f"/{nodes}/{each.name}")
                break
    for each in sorted((root / "dev").glob("hailo[0-9]*")):
        yield Accelerator("hailo", f"/dev/{each.name}")
        break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
