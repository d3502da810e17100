"""Gives up what this process does not need, by Landlock (files, ports, signals) and seccomp (system calls).

Both are Linux's own and need no rights (landlock(7), seccomp(2)). What is given up is given up for good, for this
process and all that it starts. Call before any thread is started: Landlock holds for the calling thread and its
children.

No process but those it starts itself can be reached: of the calls that name one, `kill`, `tgkill`, `prlimit64`,
`setpriority` and `sched_setaffinity` take this process alone, and all others are refused (`system_calls`). Names, sizes
and times of files stay visible (`stat`), as do numbers that the kernel tells everyone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.sandbox.system_calls import SECCOMP, Allowance, filter_program

# <linux/landlock.h>: the rights of each version of the interface, added up.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15  # linux/landlock.h, LANDLOCK_ACCESS_FS_*
_ALL_FIRST = (1 << 13) - 1  # all 13 rights of Landlock's first version
_CONNECT_TCP, _ALL_NETWORK = 1 << 1, 0b11  # linux/landlock.h, LANDLOCK_ACCESS_NET_*
_ALL_SCOPES = 0b11  # abstract UNIX sockets and signals: of this process and its children alone
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH, _RULE_PORT = 1, 2  # <linux/landlock.h>
_READ = _READ_FILE | _READ_DIR
# A folder that may be written: files made, replaced, cut off and removed; no devices, sockets or links in it.
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_WRITE = _READ | _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_DEVICE = _READ | _WRITE_FILE | _IOCTL_DEVICE
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE

_PR_GET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 21, 38  # <linux/prctl.h>
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1  # <linux/seccomp.h>
_SYSTEM_FILES = ("/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/dev/urandom")
_PACKAGE_FOLDERS, _MODULES = {"site-packages", "dist-packages"}, {".py", ".so"}
_LOADERS = ("/lib*/ld-linux*.so.*", "/lib/ld-musl-*.so.1", "/lib/*/ld-linux*.so.*")

# What each version of Landlock brought, and what a process that decodes may do without it.
LACKS: tuple[tuple[int, str], ...] = (
    (1, "this kernel has no Landlock (Linux 5.13, and `landlock` among lsm=): what decodes video can use this user's "
        "files, and what decodes live video any TCP port"),
    (3, "Landlock of this kernel is older than Linux 6.2: what decodes video can empty files that it may read"),
    (4, "Landlock of this kernel is older than Linux 6.7: what decodes live video can connect to any TCP port"),
    (5, "Landlock of this kernel is older than Linux 6.10: devices that are opened can be given any command"),
    (6, "Landlock of this kernel is older than Linux 6.12: signals and abstract sockets are kept from others by "
        "seccomp alone"),
)  # fmt: skip
NO_SECCOMP = (
    "seccomp does not filter system calls here (x86-64 and 64-bit ARM, CONFIG_SECCOMP_FILTER): what decodes video can "
    "connect, start programs and signal others"
)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


@dataclass(frozen=True, slots=True)
class ConfinementPolicy:
    """The limits of what a process may reach.

    Folders stand for all that is beneath them; what is not there is left out.
    """

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    listed: tuple[Path, ...] = ()
    """Folders of which the names may be read, and nothing else."""
    made_in: tuple[Path, ...] = ()
    """Folders in which folders may be made."""
    devices: tuple[Path, ...] = ()
    """Devices that are read, written and given commands."""
    programs: tuple[Path, ...] = ()
    """Files that may be started."""
    ports: frozenset[int] | None = None
    """TCP ports to connect to, on any host; None: no socket is made at all. With ports UDP is free, since host names
    are resolved over it."""


def confine(policy: ConfinementPolicy) -> tuple[str, ...]:
    """From now on reach only what is within the policy: no other file, port, program or process.

    Returns what the kernel enforces of it: "landlock", "seccomp".
    """
    if _libc_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return ()
    held = ["landlock"] if _landlock(policy) else []
    if _seccomp(Allowance(policy.ports is not None, bool(policy.devices), bool(policy.programs))):
        held.append("seccomp")
    return tuple(held)


def missing_confinement() -> tuple[str, ...]:
    """Return what this kernel does not enforce, a sentence each with what follows; change nothing."""
    version = _landlock_version()
    lacks = [text for since, text in LACKS if version < since]
    if version < 1:
        lacks = lacks[:1]
    if platform.machine() not in SECCOMP or _libc_call("prctl", _PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        lacks.append(NO_SECCOMP)
    return tuple(lacks)


def library_policy() -> ConfinementPolicy:
    """Return the policy for what Python, its packages and the C library read.

    In a folder on the search path that is no part of an installation, such as a checkout, only packages and modules may
    be read: other files lie there, too.
    """
    readable = [Path(each) for each in (sys.prefix, sys.base_prefix, *_SYSTEM_FILES)]
    listed = []
    for entry in map(Path, filter(None, sys.path)):
        is_installation = entry.name in _PACKAGE_FOLDERS or any(entry.is_relative_to(each) for each in readable)
        if is_installation or not entry.is_dir():  # the latter an archive
            readable.append(entry)
            continue
        listed.append(entry)
        with contextlib.suppress(OSError):
            found = list(entry.iterdir())
            readable += [each for each in found if each.suffix in _MODULES or os.path.exists(each / "__init__.py")]
    return ConfinementPolicy(readable=tuple(readable), listed=tuple(listed), writable=(Path(os.devnull),))


def program_files(program: Path) -> Iterator[Path]:
    """Yield what the kernel starts for a program: its file, what a script's first line names, and the loader."""
    yield program
    try:
        with program.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return
    if first.startswith(b"#!"):
        yield Path(os.fsdecode(first[2:].split()[0]))
    for pattern in _LOADERS:
        yield from Path("/").glob(pattern[1:])


def _landlock_version() -> int:
    return _syscall(_LANDLOCK_CREATE, None, 0, 1)


def _landlock(policy: ConfinementPolicy) -> bool:
    version = _landlock_version()
    if version < 1:
        return False
    since = ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE))
    handled = _ALL_FIRST | sum(right for first, right in since if version >= first)
    network = _ALL_NETWORK if version >= 4 else 0
    attribute = struct.pack("=QQQ", handled, network, _ALL_SCOPES if version >= 6 else 0)
    ruleset = _syscall(_LANDLOCK_CREATE, attribute, len(attribute), 0)
    if ruleset < 0:
        return False
    try:
        for rights, paths in (
            (_READ, policy.readable), (_WRITE, policy.writable), (_READ_DIR, policy.listed),
            (_MAKE_DIR, policy.made_in), (_DEVICE, policy.devices), (_EXECUTE | _READ_FILE, policy.programs),
        ):  # fmt: skip
            for path in paths:
                _allow(ruleset, path, rights & handled)
        for port in (policy.ports or ()) if network else ():
            _syscall(_LANDLOCK_ADD, ruleset, _RULE_PORT, struct.pack("=QQ", _CONNECT_TCP, port), 0)
        return _syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = struct.pack("=Qi", rights if path.is_dir() else rights & _FILE_RIGHTS, handle)
        _syscall(_LANDLOCK_ADD, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(handle)


def _seccomp(allowance: Allowance) -> bool:
    machine = platform.machine()
    if machine not in SECCOMP:
        return False
    code = filter_program(machine, os.getpid(), allowance)
    instructions = (_Instruction * len(code))(*(_Instruction(*each) for each in code))
    program = _Program(len(code), instructions)
    flags = _SECCOMP_FILTER_FLAG_TSYNC  # for threads that libraries have started, too
    return _syscall(SECCOMP[machine], _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program)) == 0


def _syscall(number: int, *values: object) -> int:
    return _libc_call("syscall", number, *values)


def _libc_call(name: str, *values: object) -> int:
    """-1: it failed, or there is no such function here (not Linux)."""
    try:
        called = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return -1
    called.restype = ctypes.c_long
    return int(called(*(ctypes.c_long(value) if isinstance(value, int) else value for value in values)))
