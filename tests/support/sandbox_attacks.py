"""What a decoder that was taken over might try, as functions for a sandbox (tests/unit/test_sandbox.py)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import subprocess
from collections.abc import Generator
from pathlib import Path

from appliance.base.errors import EvidenceError


def echo(value: object) -> object:
    return value


def take_memory(size: int) -> int:
    return len(bytearray(size))


def spin() -> None:
    while True:
        pass


def begin_and_spin() -> Generator[str, None, None]:
    yield "begun"
    spin()


def cpu_limit_s() -> int:
    return resource.getrlimit(resource.RLIMIT_CPU)[0]


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def write(path: str, data: bytes) -> int:
    return Path(path).write_bytes(data)


def connect() -> None:
    socket.socket()


def run_program() -> None:
    subprocess.run(["id"], check=True)


def signal_parent() -> None:
    os.kill(os.getppid(), 0)


def environment() -> dict[str, str]:
    return dict(os.environ)


def crash() -> None:
    os.abort()


def renice() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, 10)


def lower_limits() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))


def open_files(count: int) -> int:
    return len([os.open("/dev/null", os.O_RDONLY) for _ in range(count)])


def count_open() -> int:
    """Files and sockets that are open in this process."""
    found = 0
    for number in range(1024):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found += 1
    return found


def fail(text: str) -> None:
    raise EvidenceError(text)


def send_no_answer() -> None:
    for each in range(3, 1024):
        with contextlib.suppress(OSError):
            os.write(each, b"\xff" * 64)


def count(most: int, dies: bool = False) -> Generator[float, None, str]:
    """Says how far it is, and returns."""
    for n in range(most):
        yield n / most
        if dies:
            os._exit(3)
    return "done"


def call(number: int, *values: object) -> int:
    """0, or why the kernel refused this system call. Of values: texts are paths, a list is memory of so many bytes."""
    made = [
        os.fsencode(each) if isinstance(each, str) else bytes(each[0]) if isinstance(each, list) else each
        for each in values
    ]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(*(ctypes.c_long(each) if isinstance(each, int) else each for each in (number, *made)))
    return 0 if done >= 0 else ctypes.get_errno()


_KEPT: list[bytearray] = []


def leave_holes(megabytes: int) -> None:
    """Fill the heap with blocks that malloc does not map apart, and free all but every hundredth."""
    blocks = [bytearray(b"x" * 100_000) for _ in range(10 * megabytes)]
    _KEPT.extend(blocks[99::100])
