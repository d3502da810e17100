"""How long a process and its children waited for a CPU, by the kernel's own count."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from appliance.base.machine import PROC, process_family

STARVED_SHARE = 0.5


@dataclass(frozen=True)
class CpuWaits:
    """Seconds that the threads of this process and its children, as far as they live, ran and waited for a CPU."""

    ran_s: float
    waited_s: float

    @classmethod
    def now(cls) -> CpuWaits:
        ran = waited = 0
        for pid in process_family(os.getpid(), PROC):
            for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    for_it = thread.read_text().split()
                    ran, waited = ran + int(for_it[0]), waited + int(for_it[1])
        return cls(ran / 1e9, waited / 1e9)

    def starved_since(self, before: CpuWaits) -> bool:
        """Whether since then they waited longer than they ran: other work took most of what they wanted."""
        ran_s, waited_s = self.ran_s - before.ran_s, self.waited_s - before.waited_s
        return waited_s > STARVED_SHARE * (ran_s + waited_s)
