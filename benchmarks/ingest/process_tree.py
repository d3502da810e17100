"""Use of CPU seconds, its threads' share, and memory by a process and all its children, read from /proc (Linux)."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
KINDS = ("heap", "anonymous", "files", "shared memory")
SHARED_MEMORY = ("/dev/shm", "/memfd", "/dev/zero", "/SYSV")


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


def memory_kinds(root: int) -> dict[str, dict[str, int]]:
    """Return the resident bytes by process (core is `root`, ingest, and media: all sandboxes) and by KINDS.

    Unlike the proportional set size they do not change with what other processes on the machine map: pages of files
    count whole, and once where several sandboxes map the same.
    """
    found: dict[str, dict[str, int]] = {}
    for each in tree(root):
        command = b""
        with contextlib.suppress(OSError):
            command = (PROC / str(each.pid) / "cmdline").read_bytes()
        name = "core" if each.pid == root else "ingest" if b"appliance.ingest" in command else "media"
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


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in (PROC / str(pid) / "smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return 0
