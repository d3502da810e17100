"""Sets the precision of the network's arithmetic during training."""

from __future__ import annotations

from pathlib import Path

import torch

CPU_FLAGS = ("avx512_bf16", "amx_bf16")


def reduced(wanted: str, device: torch.device, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether to train in bfloat16.

    With `auto` this is so on every GPU, and on CPUs that multiply it in hardware. Elsewhere a CPU converts it to
    float32 and back, which is slower than float32 itself.
    """
    if wanted != "auto":
        return wanted == "bf16"
    if device.type != "cpu":
        return True
    try:
        words = set(cpuinfo.read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return False
    return any(flag in words for flag in CPU_FLAGS)
