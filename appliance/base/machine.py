"""Readings of the kernel about this machine and its processes: memory, CPU, temperatures, load, clock.

Everything may be absent (another kernel, a container, no rights): then it is None or left out, never an error.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TIMESYNC = Path("/run/systemd/timesync/synchronized")
THERMAL, PROC = Path("/sys/class/thermal"), Path("/proc")
_ZONES_MAX = 32  # boards have about ten; a bound for a kernel that shows more
_PACKAGE_LABELS = {"coretemp": ("Package",), "k10temp": ("Tdie", "Tctl"), "zenpower": ("Tdie", "Tctl")}
_STATUS_BYTES_MAX = 8192  # of /proc/self/status, which has some 1.5 kB
_KB_PER_MIB = 1024  # units of the kernel's figures
_CHILDREN_MAX = 256  # 16 hardware decoders unless set otherwise, sandboxes, helpers
_STA_UNSYNC, _TIME_ERROR = 0x0040, 5  # linux/timex.h


@dataclass(frozen=True, slots=True)
class Temperature:
    """One sensor; name: its type, such as `cpu-thermal`."""

    name: str
    celsius: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUsage:
    """The memory and CPU time of one process.

    memory_bytes: its proportional set size (shared pages by the share) when `proportional`, else what is resident.
    cpu_s: since it started, all threads.
    """

    pid: int
    command: str
    uptime_s: float
    memory_bytes: int
    proportional: bool
    cpu_s: float
    threads: int


@dataclass(frozen=True, slots=True)
class ClockSync:
    """The kernel's belief that a time service (NTP) keeps the clock in step; None: it does not tell."""

    synchronised: bool | None
    error_s_max: float | None = None


class _Timex(ctypes.Structure):
    """struct timex of Linux, as far as it is read; `rest` is more than the kernel writes."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256),
    ]  # fmt: skip


def load_per_core() -> float | None:
    """Return the 1 minute mean of running tasks per core; None: the system does not report it."""
    try:
        return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except OSError:
        return None


def temperatures(thermal: Path = THERMAL) -> list[Temperature]:
    """Read the sensors that Linux shows; []: there is none, or none can be read."""
    found = []
    try:
        zones = sorted(thermal.glob("thermal_zone*"))[:_ZONES_MAX]
        chips = sorted((thermal.parent / "hwmon").glob("hwmon*"))[:_ZONES_MAX]
    except OSError:  # no file descriptor is left to read the folder with
        return []
    for zone in zones:
        try:
            celsius = int((zone / "temp").read_text()) / 1000
        except (OSError, ValueError):  # a sensor that is asleep cannot be read
            continue
        try:
            name = (zone / "type").read_text().strip()
        except OSError:
            name = zone.name
        found.append(Temperature(name, celsius))
    return found + _processor_temperatures(chips)


def _processor_temperatures(chips: Iterable[Path]) -> list[Temperature]:
    """Read the package sensors of Intel's and AMD's processors, which many boards show as hwmon alone.

    Kernel: Documentation/hwmon/coretemp, k10temp. Of AMD's two, Tdie has no offset; Tctl may have one of 27 degrees.
    """
    found = []
    for chip in chips:
        try:
            wanted = _PACKAGE_LABELS[(chip / "name").read_text().strip()]
            labels = {(each.read_text().strip()): each for each in sorted(chip.glob("temp*_label"))}
            name = next(label for known in wanted for label in labels if label.startswith(known))
            celsius = int(labels[name].with_name(labels[name].name.replace("_label", "_input")).read_text()) / 1000
        except (OSError, KeyError, ValueError, StopIteration):  # another chip, or asleep
            continue
        found.append(Temperature(name, celsius))
    return found


def memory_bytes(proc: Path = PROC) -> tuple[int, int] | None:
    """Return the machine's memory and what programs could still get, in bytes; None: the kernel does not report it."""
    try:
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
        return int(lines["MemTotal"].split()[0]) * 1024, int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None


def disk_bytes(folder: Path) -> dict[str, int] | None:
    """Return the total and the free bytes of the disk that a folder is on; None: there is no such folder."""
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return None
    return {"total": found.total, "free": found.free}


def uptime_s(proc: Path = PROC) -> float | None:
    """Return the seconds since the machine started."""
    try:
        return float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def kernel() -> str:
    """Return name, release and machine, such as `Linux 6.12.25 aarch64`."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def process_family(pid: int, proc: Path = PROC) -> list[int]:
    """Return `pid` and all that it started, directly or not, parents before children."""
    parents: dict[int, list[int]] = {}
    try:
        names = [int(each.name) for each in proc.iterdir() if each.name.isdigit()]
    except OSError:
        return [pid]
    for each in sorted(names):
        fields = _stat_fields(each, proc)
        if fields:
            parents.setdefault(int(fields[1]), []).append(each)
    found = [pid]
    for each in found:
        found += parents.get(each, [])[: max(0, _CHILDREN_MAX - len(found))]
    return found


def process_usage(pid: int, proc: Path = PROC) -> ProcessUsage | None:
    """Return what a process takes; None: it has ended."""
    fields, up = _stat_fields(pid, proc), uptime_s(proc)
    if not fields or up is None:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    proportional = _pss_bytes(pid, proc)
    resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    try:
        command = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = ""
    return ProcessUsage(
        pid=pid,
        command=command,
        uptime_s=max(0.0, up - int(fields[19]) / ticks),
        memory_bytes=resident if proportional is None else proportional,
        proportional=proportional is not None,
        cpu_s=(int(fields[11]) + int(fields[12])) / ticks,
        threads=int(fields[17]),
    )


def clock_sync() -> ClockSync:
    """Read the kernel's state as set by chrony, ntpd or systemd-timesyncd. Nothing is changed."""
    asked = _Timex(modes=0)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(asked))
    except (OSError, AttributeError):
        return ClockSync(None)
    if state < 0:  # forbidden by the container, or by the unit's ProtectClock; timesyncd leaves a mark as well
        return ClockSync(True if TIMESYNC.exists() else None)
    synchronised = state != _TIME_ERROR and not asked.status & _STA_UNSYNC
    return ClockSync(synchronised, asked.maxerror / 1e6 if synchronised else None)


def usages(pids: Iterable[int], proc: Path = PROC) -> list[ProcessUsage]:
    """Return what the processes that still live take."""
    return [each for each in (process_usage(pid, proc) for pid in pids) if each is not None]


def family_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and all that it started, also of those that it has waited for."""
    fields = [each for each in (_stat_fields(one, PROC) for one in process_family(pid, PROC)) if each]
    return sum(sum(map(int, each[11:15])) for each in fields) / os.sysconf("SC_CLK_TCK")


def _stat_fields(pid: int, proc: Path) -> list[str]:
    """Return the fields after the name in /proc/PID/stat: state, parent, …; []: the process has ended.

    The name may hold anything, also spaces and brackets.
    """
    try:
        return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _pss_bytes(pid: int, proc: Path) -> int | None:
    try:
        for line in (proc / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):  # of another user, or of an older kernel
        pass
    return None


_peak_handles: list[int] = []


def open_peak() -> None:
    """Open what `peak_mb` reads, before a sandbox closes and this process may open no file any more."""
    try:
        _peak_handles[:] = [os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)]
    except OSError:
        _peak_handles.clear()


def close_peak() -> None:
    """Close what `open_peak` opened, in a child whose functions ask for no peak."""
    while _peak_handles:
        os.close(_peak_handles.pop())


def peak_mb() -> float:
    """Return the largest amount of memory that this process had in use so far, MiB.

    The kernel's own figure (`ru_maxrss`) begins with what the parent had when it started this process, so a network of
    200 MB in the child of a process of 400 MB took nothing by it. VmHWM of /proc begins anew.
    """
    if not _peak_handles:
        open_peak()
    for handle in _peak_handles:
        for line in os.pread(handle, _STATUS_BYTES_MAX, 0).decode().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) / _KB_PER_MIB
    import resource  # loaded in every sandbox, and needed in no other process

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KB_PER_MIB
