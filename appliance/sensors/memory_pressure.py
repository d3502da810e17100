"""Memory pressure: what the kernel could still give, how long tasks wait for it, the limit of our control group."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from appliance.base import machine
from appliance.sensors.sysfs import number_of, text_of


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """The memory of the machine and of our control group. None: the kernel does not report it.

    available_bytes, total_bytes: of the machine. stalled: the share of the last ten seconds in which some task waited
    for memory, 0..1. group_bytes: what the control group holds that cannot be dropped at once; group_max_bytes: from
    where on the kernel throttles or kills it.
    """

    available_bytes: int | None = None
    total_bytes: int | None = None
    stalled: float | None = None
    group_bytes: int | None = None
    group_max_bytes: int | None = None


class MemorySensor:
    """Reads the memory of the machine and of our control group (version 2).

    Files: /proc/meminfo, /proc/pressure/memory (kernel: Documentation/accounting/psi); of the group memory.current,
    memory.stat, memory.high, memory.max and memory.pressure.
    """

    def __init__(self, root: Path) -> None:
        self._proc = root / "proc"
        group = re.search(r"^0::(/.*)$", text_of(self._proc / "self/cgroup") or "", re.MULTILINE)
        self._group = root / "sys/fs/cgroup" / group[1].lstrip("/") if group else None

    def read(self) -> MemoryReading:
        known = machine.memory_bytes(self._proc)
        total, available = known if known is not None else (None, None)
        held, limit = self._group_bytes()
        stalled = _stalled(self._proc / "pressure/memory")
        if limit is not None and self._group is not None:
            own = _stalled(self._group / "memory.pressure")
            stalled = max((each for each in (stalled, own) if each is not None), default=None)
        return MemoryReading(available, total, stalled, held, limit)

    def _group_bytes(self) -> tuple[int | None, int | None]:
        """Return the bytes held and the bytes allowed; both None without a limit."""
        if self._group is None:
            return None, None
        limits = [number_of(self._group / f"memory.{name}") for name in ("high", "max")]  # "max" is no number
        limit = min((each for each in limits if each is not None), default=None)
        current = number_of(self._group / "memory.current")
        if limit is None or current is None:
            return None, None
        cache = re.search(r"^inactive_file (\d+)$", text_of(self._group / "memory.stat") or "", re.MULTILINE)
        return max(0, current - int(cache[1] if cache else 0)), limit


def _stalled(path: Path) -> float | None:
    """Return `some avg10` of a pressure file, 0..1."""
    found = re.search(r"^some avg10=([0-9.]+)", text_of(path) or "", re.MULTILINE)
    return float(found[1]) / 100 if found else None
