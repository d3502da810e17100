"""Runs in the child process of a sandbox: gives up all access that it does not need, then serves its parent's calls."""

from __future__ import annotations

import errno
import importlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from appliance.base.clock import SystemClock, process_cpu_s
from appliance.base.machine import close_peak, open_peak
from appliance.base.process_memory import spare_what_stays, trim_heaps
from appliance.sandbox.confinement import confine, library_policy
from appliance.sandbox.sandbox import SandboxLimits, Value, receive, send


def main(argument: str) -> int:
    """Serve calls until the parent closes the socket, or does not call for `idle_s`."""
    _leave_ending_to_parent()
    task = json.loads(argument)
    limits = SandboxLimits(**task["limits"])
    channel = socket.socket(fileno=task["fd"])
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits.files_max),
        (resource.RLIMIT_FSIZE, limits.file_bytes_max),
    ):
        resource.setrlimit(kind, (most, most))
    silence = os.open(os.devnull, os.O_WRONLY)
    libraries = library_policy()
    policy = replace(
        libraries,
        readable=(*libraries.readable, *map(Path, task["readable"])),
        writable=(*libraries.writable, *map(Path, task["writable"])),
    )
    with _AddressSpace() as space:
        open_peak()
        confined = confine(policy)
        module = importlib.import_module(task["module"])
        if not hasattr(module, "peak_mb"):
            close_peak()
        spare_what_stays()
        space.limit(limits.memory_bytes)
    try:
        send(channel, {"confined": list(confined)})
    except ConnectionError:  # the parent was killed while this was loading
        return 0
    os.dup2(silence, 2)  # libraries write there what is in the data
    os.close(silence)
    return _serve_calls(channel, module, limits)


def _leave_ending_to_parent() -> None:
    """Pass over Ctrl-C and `systemctl stop`, which reach the whole group: the parent may still need the call.

    Once the parent is gone, end at once: systemd starts the appliance again when nothing of it is left.
    """
    parent = os.getppid()

    def end_if_alone(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_if_alone)


def _serve_calls(channel: socket.socket, module: ModuleType, limits: SandboxLimits) -> int:
    """Return the exit code. Between calls, free pages go back: frames and images of all sizes leave holes."""
    ready = select.poll()  # not select.select: the parent's number of the channel may be above 1023
    ready.register(channel, select.POLLIN)
    clock = SystemClock()
    trimmed, is_trimmed = clock.monotonic(), True
    calls = 0
    while True:
        if not ready.poll(1000 * (limits.idle_s if is_trimmed else limits.rest_s)):
            if is_trimmed or (limits.calls_max is not None and calls >= limits.calls_max):
                return 0
            trim_heaps()
            trimmed, is_trimmed = clock.monotonic(), True
            continue
        try:
            asked = receive(channel, sys.maxsize, lambda: None)
        except (EOFError, OSError):
            return 0
        if not _serve(channel, module, asked):
            return 1
        calls += 1
        is_trimmed = clock.monotonic() - trimmed >= limits.trim_s
        if is_trimmed:
            trim_heaps()
            trimmed = clock.monotonic()


class _AddressSpace:
    """This process's size, from a file that is opened before it may open no more."""

    def __init__(self) -> None:
        try:
            self._handle = os.open("/proc/self/statm", os.O_RDONLY)
        except OSError:
            self._handle = -1

    def __enter__(self) -> _AddressSpace:
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def limit(self, more_bytes: int) -> None:
        """Let it grow by `more_bytes` from here on."""
        if self._handle >= 0:
            held = int(os.pread(self._handle, 100, 0).split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (held + more_bytes, held + more_bytes))


def _report_progress(channel: socket.socket, work: Generator[Value, None, Value]) -> Value:
    """Send the parent what the generator yields, and return what it returns."""
    while True:
        try:
            progress = next(work)
        except StopIteration as end:
            return end.value
        send(channel, {"progress": progress})


def _serve(channel: socket.socket, module: object, asked: dict[str, Value]) -> bool:
    """Answer one call; False: there is no memory left to go on with."""
    # Should the parent be stopped or gone, nobody else would end a loop without end.
    cpu_s = math.ceil(process_cpu_s() + 2 * asked["cpu_s"]) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
    try:
        found = getattr(module, asked["function"])(*asked["values"])
        if isinstance(found, Generator):
            found = _report_progress(channel, found)
        send(channel, {"result": found})
    except MemoryError:
        send(channel, {"error": "MemoryError", "text": "it needs more memory than it may have", "ends": True})
        return False
    except OSError as error:
        if isinstance(error, ConnectionError):
            return False
        spent = error.errno in {errno.EMFILE, errno.ENOMEM}  # the next call begins with an empty table of files
        send(channel, {"error": type(error).__name__, "text": str(error), "ends": spent})
        return not spent
    except Exception as error:  # noqa: BLE001 (whatever hostile data makes a library raise is reported)
        send(channel, {"error": type(error).__name__, "text": str(error)})
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
