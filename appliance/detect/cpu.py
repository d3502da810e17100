"""What processor this is, as the kernel tells it."""

from __future__ import annotations

import platform
from pathlib import Path

INFO = Path("/proc/cpuinfo")
_NAMES = ("model name", "Model", "CPU implementer", "CPU part")  # the latter are what arm64 has


def name(info: Path = INFO) -> str:
    """`x86_64 AMD EPYC`: machine and model, of the first core."""
    found = _first(info)
    return " ".join([platform.machine(), *(found[each] for each in _NAMES if each in found)])


def multiplies_bf16(info: Path = INFO, machine: str = "") -> bool:
    """Whether ONNX Runtime may use bfloat16 products here: on arm64 with FEAT_BF16 (`bf16` in Linux' Features)."""
    machine = machine or platform.machine()
    return machine in ("aarch64", "arm64") and "bf16" in _first(info).get("Features", "").split()


def _first(info: Path) -> dict[str, str]:
    """The first value of every key; nothing where there is no such file."""
    found: dict[str, str] = {}
    try:
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return found
