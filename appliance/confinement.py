"""Gives up what this process does not need, by Landlock (files) and seccomp (sockets, programs, other processes).

Both are Linux's own and need no rights (landlock(7), seccomp(2)). What is given up is given up for good, for this
process and all that it starts. Call before any thread is started: Landlock holds for the calling thread and its
children.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

# <linux/landlock.h>: the rights of each version of the interface, added up.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_ALL_FIRST = (1 << 13) - 1
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH = 1
_READ = _READ_FILE | _READ_DIR
# A folder that may be written: files made, replaced, cut off and removed; no devices, sockets or links in it.
_REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 5, 1 << 7, 1 << 8
_WRITE = _READ | _WRITE_FILE | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _TRUNCATE
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE

_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1
_SECCOMP_RET_ALLOW, _SECCOMP_RET_ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LD_WORD, _JEQ, _JGE, _RET = 0x20, 0x15, 0x35, 0x06  # <linux/bpf_common.h>
_X32_BIT = 0x40000000

# What a process that only computes never calls. socketpair and clone (threads) are not among them.
_REFUSED = {
    "x86_64": {
        "arch": 0xC000003E, "seccomp": 317, "clone3": 435, "socket": 41, "connect": 42, "accept": 43, "bind": 49,
        "listen": 50, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "ptrace": 101, "pivot_root": 155,
        "chroot": 161, "mount": 165, "umount2": 166, "init_module": 175, "delete_module": 176, "tkill": 200,
        "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "accept4": 288,
        "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "finit_module": 313, "bpf": 321, "execveat": 322, "userfaultfd": 323,
        "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "pidfd_getfd": 438,
    },
    "aarch64": {
        "arch": 0xC00000B7, "seccomp": 277, "clone3": 435, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51,
        "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "ptrace": 117, "kill": 129,
        "tkill": 130, "socket": 198, "bind": 200, "listen": 201, "accept": 202, "connect": 203, "add_key": 217,
        "request_key": 218, "keyctl": 219, "execve": 221, "perf_event_open": 241, "accept4": 242,
        "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
        "finit_module": 273, "bpf": 280, "execveat": 281, "userfaultfd": 282, "pidfd_send_signal": 424,
        "io_uring_setup": 425, "pidfd_open": 434, "pidfd_getfd": 438,
    },
}  # fmt: skip


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction))]


def confine(readable: Iterable[Path], writable: Iterable[Path]) -> tuple[str, ...]:
    """From now on open only files beneath these folders, no socket, no program, no other process.

    Returns what the kernel enforces of it: "landlock", "seccomp". Folders that are not there are left out.
    """
    if _libc_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return ()
    held = ["landlock"] if _landlock(readable, writable) else []
    if _seccomp():
        held.append("seccomp")
    return tuple(held)


def _landlock(readable: Iterable[Path], writable: Iterable[Path]) -> bool:
    version = _syscall(_LANDLOCK_CREATE, None, 0, 1)
    if version < 1:
        return False
    handled = _ALL_FIRST | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attribute = struct.pack("=Q", handled)
    ruleset = _syscall(_LANDLOCK_CREATE, attribute, len(attribute), 0)
    if ruleset < 0:
        return False
    try:
        for rights, folders in ((_READ, readable), (_WRITE, writable)):
            for folder in folders:
                _allow(ruleset, folder, rights & handled)
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


def _seccomp() -> bool:
    numbers = dict(_REFUSED.get(platform.machine(), {}))
    if not numbers:
        return False
    arch, seccomp, clone3 = numbers.pop("arch"), numbers.pop("seccomp"), numbers.pop("clone3")
    refuse = _SECCOMP_RET_ERRNO | _EPERM
    code = [
        (_LD_WORD, 0, 0, 4), (_JEQ, 1, 0, arch), (_RET, 0, 0, refuse),
        (_LD_WORD, 0, 0, 0), (_JGE, 0, 1, _X32_BIT), (_RET, 0, 0, refuse),
        # glibc falls back to clone, by which threads are made.
        (_JEQ, 0, 1, clone3), (_RET, 0, 0, _SECCOMP_RET_ERRNO | _ENOSYS),
    ]  # fmt: skip
    for number in sorted(numbers.values()):
        code += [(_JEQ, 0, 1, number), (_RET, 0, 0, refuse)]
    code.append((_RET, 0, 0, _SECCOMP_RET_ALLOW))
    instructions = (_Instruction * len(code))(*(_Instruction(*each) for each in code))
    program = _Program(len(code), instructions)
    return _syscall(seccomp, _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC, ctypes.byref(program)) == 0


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
