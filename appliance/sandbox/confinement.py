"""Gives up what this process does not need, by Landlock (files, ports, signals) and seccomp (system calls).

Both are Linux's own and need no rights (landlock(7), seccomp(2)). The process, and all that it starts, cannot take back
a right that it gave up. Call before any thread is started: Landlock holds for the calling thread and its children.

No process but those it starts itself can be reached: of the calls that name one, `kill`, `tgkill`, `prlimit64`,
`setpriority` and `sched_setaffinity` take this process alone, and all others are refused. Names, sizes
and times of files stay visible (`stat`), as do numbers that the kernel tells everyone.

System calls: a list per processor. A call that is not on it is refused with EPERM, and with ENOSYS where it is newer
than Linux 5.1: the C library then takes the older call (clone instead of clone3, whose flags a filter cannot read).
Where a call could reach another process, a terminal or another protocol, its arguments are compared, too (a filter sees
numbers, not what pointers point at). Numbers: arch/x86/entry/syscalls/syscall_64.tbl and
include/uapi/asm-generic/unistd.h of Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Instruction = tuple[int, int, int, int]
"""code, jump if true, jump if false, value: of <linux/bpf_common.h>."""

# AUDIT_ARCH_* of <linux/audit.h>, by what the kernel calls the machine, and the place of its number in the tables.
ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}
SECCOMP = {"x86_64": 317, "aarch64": 277}
_LOAD, _AND, _EQUALS, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06  # <linux/bpf_common.h>
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # struct seccomp_data: where each lies; arguments have eight bytes
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # the latter with its error number
_NEW = 424  # from here on the numbers are the same everywhere, and of calls that all do without
_X32 = 0x40000000  # a third way to call an x86_64 kernel, with numbers of its own

# name:x86_64:aarch64. Memory, files (those that Landlock lets open), threads, time, and sockets that are there; of the
# last ones arguments are compared (see _conditions).
_COMPUTE = """
    mmap:9:222 munmap:11:215 mremap:25:216 mprotect:10:226 brk:12:214 madvise:28:233 msync:26:227 membarrier:324:283
    get_mempolicy:239:236 set_mempolicy:238:237 mbind:237:235 read:0:63 write:1:64 readv:19:65 writev:20:66
    pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70 lseek:8:62 close:3:57 close_range:436:436 dup:32:23
    dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 eventfd:284:- eventfd2:290:19 memfd_create:319:279 open:2:-
    openat:257:56 stat:4:- lstat:6:- fstat:5:80 newfstatat:262:79 statx:332:291 access:21:- faccessat:269:48
    faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents64:217:61 getcwd:79:17 statfs:137:43 fstatfs:138:44
    umask:95:166 ftruncate:77:46 fallocate:285:47 fadvise64:221:223 fsync:74:82 fdatasync:75:83
    sync_file_range:277:84 sendfile:40:71 copy_file_range:326:285 flock:73:32 mkdir:83:- mkdirat:258:34 rmdir:84:-
    unlink:87:- unlinkat:263:35 rename:82:- renameat:264:38 renameat2:316:276 futex:202:98 futex_waitv:449:449
    set_robust_list:273:99 rseq:334:293 set_tid_address:218:96 sched_yield:24:124 sched_getaffinity:204:123
    sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
    exit:60:93 exit_group:231:94 arch_prctl:158:- rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139
    rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133 sigaltstack:131:132 restart_syscall:219:128
    pause:34:- alarm:37:- setitimer:38:103 getitimer:36:102 timer_create:222:107 timer_settime:223:110
    timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111 timerfd_create:283:85 timerfd_settime:286:86
    timerfd_gettime:287:87 gettid:186:178 getpid:39:172 getppid:110:173 getuid:102:174 geteuid:107:175
    getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150 getgroups:115:158 getpgrp:111:-
    getpgid:121:155 getsid:124:156 getpriority:140:141 getrlimit:97:163 setrlimit:160:164 getrusage:98:165
    times:100:153 clock_gettime:228:113 clock_getres:229:114 clock_nanosleep:230:115 nanosleep:35:101
    gettimeofday:96:169 time:201:- getrandom:318:278 uname:63:160 sysinfo:99:179 getcpu:309:168 poll:7:-
    ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
    epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 recvfrom:45:207 recvmsg:47:212 shutdown:48:210
    getsockname:51:204 getpeername:52:205 getsockopt:55:209 setsockopt:54:208 clone:56:220 prlimit64:302:261
    kill:62:129 tgkill:234:131 setpriority:141:140 sched_setaffinity:203:122 fcntl:72:25 ioctl:16:29 prctl:157:167
    sendto:44:206 sendmsg:46:211
"""
_NETWORK = "connect:42:203 bind:49:200 recvmmsg:299:243 socket:41:198 sendmmsg:307:269"
# As libraries for NVIDIA, VA-API and Hailo call them, by their sources and manuals: not measured.
_DEVICES = """
    mlock:149:228 mlock2:325:284 munlock:150:229 kcmp:312:272 inotify_init1:294:26 inotify_add_watch:254:27
    inotify_rm_watch:255:28 socketpair:53:199
"""
_PROGRAMS = "execve:59:221 vfork:58:- fork:57:- wait4:61:260 waitid:247:95 setsid:112:157 setpgid:109:154"

_CLONE_THREAD, _NAMESPACES = 0x00010000, 0x7E020000  # CLONE_NEW* of <linux/sched.h>
_FASTOPEN = 0x20000000  # MSG_FASTOPEN connects without connect, which alone Landlock compares with the ports
_UNIX, _INET, _INET6, _STREAM, _DGRAM, _TCP, _UDP = 1, 2, 10, 1, 2, 6, 17  # <bits/socket.h>, <netinet/in.h>
# fcntl: copies, flags, locks, the size of pipes, seals. F_SETOWN and F_SETSIG would send a signal to any process.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1031, 1032, 1033, 1034)
# TCGETS and TCGETS2 (isatty), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTL = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
_SIOCGIFINDEX = 0x8933  # of fe80::1%eth0
_IOCTL_NEVER = (0x5412, 0x541C, 0x8901, 0x8902)  # types into a terminal (TIOCSTI, TIOCLINUX); FIOSETOWN, SIOCSPGRP
# PR_SET_PDEATHSIG and _NAME, what is set now, the capabilities there are, the names of memory areas.
_PRCTL = (1, 2, 3, 15, 16, 21, 23, 38, 39, 0x53564D41)


@dataclass(frozen=True, slots=True)
class Allowance:
    """The needs of a process beyond computing: sockets to connect with, devices to drive, programs to start."""

    network: bool = False
    devices: bool = False
    programs: bool = False


@dataclass(frozen=True, slots=True)
class _Check:
    """A condition on an argument: its low 32 bits, as the kernel reads an int, after the mask.

    They must be (or with `never` must not be) one of these values.
    """

    argument: int
    values: Sequence[int]
    mask: int = 0xFFFFFFFF
    never: bool = False


def allowed_calls(machine: str, allowance: Allowance) -> dict[str, int]:
    """Return the numbers of the allowed calls, by name. Raise KeyError if this processor has no table."""
    place = ARCHITECTURES[machine][1]
    further = ((allowance.network, _NETWORK), (allowance.devices, _DEVICES), (allowance.programs, _PROGRAMS))
    tables = (_COMPUTE, *(table for is_needed, table in further if is_needed))
    rows = [row.split(":") for table in tables for row in table.split()]
    return {row[0]: int(row[place]) for row in rows if row[place] != "-"}


def filter_program(machine: str, pid: int, allowance: Allowance) -> list[Instruction]:
    """Return the filter for process `pid` on this machine. Raise KeyError if this processor has no table."""
    refuse = (_RETURN, 0, 0, REFUSE | errno.EPERM)
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUALS, 1, 0, ARCHITECTURES[machine][0]), refuse,
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _X32), refuse,
    ]  # fmt: skip
    conditions = _conditions(pid, allowance)
    for name, number in allowed_calls(machine, allowance).items():
        body = [*_compared(conditions.get(name, ())), (_RETURN, 0, 0, ALLOW)]
        code += [(_EQUALS, 0, len(body), number), *body]
    return [*code, (_AT_LEAST, 0, 1, _NEW), (_RETURN, 0, 0, REFUSE | errno.ENOSYS), refuse]


def _conditions(pid: int, allowance: Allowance) -> Mapping[str, Sequence[_Check]]:
    """Return the conditions of each call whose arguments count.

    Programs that were started are ended by `kill`: Landlock's scope keeps it from all others.
    """
    own = [_Check(0, (pid,))]
    socket = [_Check(0, (_UNIX, _INET, _INET6)), _Check(1, (_STREAM, _DGRAM), mask=0xF), _Check(2, (0, _TCP, _UDP))]
    names = (_SIOCGIFINDEX,) if allowance.network else ()
    threads = [] if allowance.programs else [_Check(0, (_CLONE_THREAD,), mask=_CLONE_THREAD)]
    return {
        "clone": [_Check(0, (0,), mask=_NAMESPACES), *threads],
        "prlimit64": [_Check(0, (0,))],
        "kill": [] if allowance.programs else own,
        "tgkill": own,
        "setpriority": [_Check(0, (0,)), _Check(1, (0,))],
        "sched_setaffinity": [_Check(0, (0,))],
        "fcntl": [_Check(1, _FCNTL)],
        "ioctl": [_Check(1, _IOCTL_NEVER, never=True) if allowance.devices else _Check(1, (*_IOCTL, *names))],
        "prctl": [_Check(0, _PRCTL)],
        "sendto": [_Check(3, (0,), mask=_FASTOPEN)],
        "sendmsg": [_Check(2, (0,), mask=_FASTOPEN)],
        "sendmmsg": [_Check(3, (0,), mask=_FASTOPEN)],
        "socket": socket,
    }


def _compared(checks: Sequence[_Check]) -> Iterator[Instruction]:
    """Go on behind these if all hold, else refuse."""
    for check in checks:
        yield _LOAD, 0, 0, _ARGUMENTS + 8 * check.argument  # both processors put the low half first
        yield _AND, 0, 0, check.mask
        last = len(check.values) - 1
        for index, value in enumerate(check.values):
            to_refusal = last - index
            yield (
                (_EQUALS, to_refusal, int(index == last), value) if check.never else (_EQUALS, to_refusal + 1, 0, value)
            )
        yield _RETURN, 0, 0, REFUSE | errno.EPERM


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

# By version of Landlock: what is lacking before it, and what a process that decodes may do without it.
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
