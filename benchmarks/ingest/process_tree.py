"""Use of CPU seconds, its threads' share, and memory by a process and all its children, read from /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat. cpu_s: its own user and system time and that of the children it has reaped."""

    pid: int
    parent: int
    cpu_s: float


def tree(root: int) -> list[Process]:
    """`root` and what descends from it, ended children that nobody has reaped yet included; empty: it is gone."""
    known = {found.pid: found for found in map(_read, _pids()) if found is not None}
    if root not in known:
        return []
    members = {root}
    while True:
        more = {each.pid for each in known.values() if each.parent in members} - members
        if not more:
            return [known[pid] for pid in sorted(members)]
        members |= more


def cpu_s(root: int) -> float:
    """Return the CPU seconds of the whole tree so far.

    The figure rises while `root` lives: a child that ends is counted by the process that reaps it.
    """
    return sum(each.cpu_s for each in tree(root))


def threads_cpu_s(root: int, names: Iterable[str]) -> float:
    """CPU seconds of the tree's living threads that the kernel knows by one of `names` (15 bytes at most)."""
    wanted = set(names)
    total = 0.0
    for process in tree(root):
        with contextlib.suppress(OSError):
            for task in (PROC / str(process.pid) / "task").iterdir():
                with contextlib.suppress(OSError):
                    if (task / "comm").read_text().strip() in wanted:
                        total += _run_s(task)
    return total


def pss_bytes(root: int) -> int:
    """Return the proportional set size of the tree: what is shared counts once, divided among those who share it."""
    return sum(map(_pss, (each.pid for each in tree(root))))


def own_bytes(root: int) -> dict[str, int]:
    """Return the memory that is mapped from no file, by process: core (`root`), ingest and media (all sandboxes).

    Unlike the proportional set size it does not change with what other processes on the machine map.
    """
    found: dict[str, int] = {}
    for each in tree(root):
        command = b""
        with contextlib.suppress(OSError):
            command = (PROC / str(each.pid) / "cmdline").read_bytes()
        name = "core" if each.pid == root else "ingest" if b"appliance.ingest" in command else "media"
        found[name] = found.get(name, 0) + _pss(each.pid, b"Pss_Anon:")
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def _read(pid: int) -> Process | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything, spaces and brackets too
    return Process(pid, int(fields[1]), sum(map(int, fields[11:15])) / TICKS)


def _run_s(task: Path) -> float:
    """schedstat counts nanoseconds; a kernel without it counts ticks."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    text = (task / "stat").read_text()
    return sum(map(int, text[text.rindex(")") + 2 :].split()[11:13])) / TICKS


def _pss(pid: int, field: bytes = b"Pss:") -> int:
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_bytes().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0
