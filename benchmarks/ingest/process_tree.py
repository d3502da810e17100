"""What a process and all its children take, read from /proc (Linux): memory by kind, and CPU seconds by thread.

    python -m benchmarks.ingest.process_tree appliance.ingest

runs a module as `python -m` does, with the names of its threads set in the kernel: Python before 3.14 does not set
them, and with them /proc shows the CPU time of each thread. Nothing else is changed. `machine.family_cpu_s` has the CPU
seconds of the whole tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from appliance.base import machine
from appliance.base.machine import PROC

TICKS = os.sysconf("SC_CLK_TCK")
KINDS = ("heap", "anonymous", "files", "shared memory")
SHARED_MEMORY = ("/dev/shm", "/memfd", "/dev/zero", "/SYSV")
NAME_BYTES_MAX = 15  # of a thread, for the kernel
PR_SET_NAME = 15  # linux/prctl.h


def name_threads() -> None:
    """From now on each thread that begins sets its name in the kernel."""
    run, libc = threading.Thread.run, ctypes.CDLL(None)

    def named_run(self: threading.Thread) -> None:
        libc.prctl(PR_SET_NAME, self.name.encode()[:NAME_BYTES_MAX], 0, 0, 0)  # ingest may write no file in /proc
        run(self)

    threading.Thread.run = named_run  # type: ignore[method-assign]


def threads_cpu_s(root: int, names: Iterable[str]) -> float:
    """CPU seconds of the tree's living threads that the kernel knows by one of `names` (15 bytes at most)."""
    wanted = set(names)
    total = 0.0
    for pid in machine.process_family(root):
        with contextlib.suppress(OSError):
            for task in (PROC / str(pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    if (task / "comm").read_text().strip() in wanted:
                        total += _run_s(task)
    return total


def pss_bytes(root: int) -> int:
    """Return the proportional set size of the tree: what is shared counts once, divided among those who share it."""
    return sum(each.memory_bytes for each in machine.usages(machine.process_family(root)))


def memory_kinds(root: int) -> dict[str, dict[str, int]]:
    """Return the resident bytes by process (core is `root`, ingest, and media: all sandboxes) and by KINDS.

    Unlike the proportional set size they do not change with what other processes on the machine map: pages of files
    count whole, and once where several sandboxes map the same.
    """
    found: dict[str, dict[str, int]] = {}
    for each in machine.usages(machine.process_family(root)):
        name = "core" if each.pid == root else "ingest" if "appliance.ingest" in each.command else "media"
        kinds = found.setdefault(name, dict.fromkeys(KINDS, 0))
        for kind, size in _kinds(each.pid).items():
            kinds[kind] = max(kinds[kind], size) if kind == "files" else kinds[kind] + size
    return found


def _kinds(pid: int) -> Counter[str]:
    """Private pages of a mapped file, as a library's data, are anonymous; no kind holds a page twice."""
    found: Counter[str] = Counter()
    name, sizes = "", {}
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps").read_text().splitlines():
            key, *rest = line.split(maxsplit=5)
            if not key.endswith(":"):
                name = rest[4] if len(rest) > 4 else ""
            elif key in ("Rss:", "Pss:", "Anonymous:"):
                sizes[key] = int(rest[0]) * 1024
                if key == "Anonymous:":  # the last of the three
                    found["heap" if name == "[heap]" else "anonymous"] += sizes[key]
                    if name.startswith(SHARED_MEMORY):
                        found["shared memory"] += sizes["Pss:"] - sizes[key]
                    elif name.startswith("/"):
                        found["files"] += sizes["Rss:"] - sizes[key]
    return found


def _run_s(task: Path) -> float:
    """schedstat counts nanoseconds; a kernel without it counts ticks."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    text = (task / "stat").read_text()
    return sum(map(int, text[text.rindex(")") + 2 :].split()[11:13])) / TICKS


if __name__ == "__main__":
    name_threads()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
