"""The peak of this process's memory, also where it may open no file any more.

The kernel's own figure (`ru_maxrss`) begins with what the parent had when it started this process, so a network of 200
MB in the child of a process of 400 MB took nothing by it. VmHWM of /proc begins anew.
"""

from __future__ import annotations

import os
import resource

_STATUS_BYTES_MAX = 8192  # some 1.5 kB as it is
_KB_PER_MIB = 1024  # units of the kernel's figures
_handles: list[int] = []


def keep_open() -> None:
    """Open what is read later: before a sandbox closes."""
    try:
        _handles[:] = [os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)]
    except OSError:
        _handles.clear()


def let_go() -> None:
    """Close what `keep_open` opened, in a child whose functions ask for no peak."""
    while _handles:
        os.close(_handles.pop())


def peak_mb() -> float:
    """Return the largest amount of memory in use so far, MiB."""
    if not _handles:
        keep_open()
    for handle in _handles:
        for line in os.pread(handle, _STATUS_BYTES_MAX, 0).decode().splitlines():
            name, _, value = line.partition(":")
            if name == "VmHWM":
                return int(value.split()[0]) / _KB_PER_MIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KB_PER_MIB
