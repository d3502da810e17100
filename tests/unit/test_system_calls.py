"""The filter of system calls does what its list says: in this kernel for every number, and for both processors."""

from __future__ import annotations

import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Sequence

import pytest

from appliance.sandbox.confinement import (
    ALLOW,
    ARCHITECTURES,
    Allowance,
    Instruction,
    allowed_calls,
    filter_program,
    missing_confinement,
)

LAST = 470
NEW = 424
PID = 4321
MAGIC = 0x5EED5EED
UPROBES = (335, 336)  # of x86_64, which the kernel lets pass every filter: they serve a trampoline of its own alone
# Every number, without doing it: a filter below ours answers ENOSYS to a call with MAGIC as its last argument where
# ours lets it pass (SECCOMP_RET_TRACE ranks behind ERRNO). Beyond NEW ours says ENOSYS itself, so there the calls are
# made, with arguments that no call takes.
WALK = f"""
import ctypes, errno, json, struct, sys
from appliance.sandbox.confinement import confine, library_policy
from appliance.sandbox.confinement import SECCOMP
import platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *values):
    done = libc.syscall(*map(ctypes.c_long, (number, *values)))
    return 0 if done >= 0 else ctypes.get_errno()
code = [(0x20, 0, 0, 16 + 8 * 5), (0x15, 0, 1, {MAGIC}), (0x06, 0, 0, 0x7FF00000), (0x06, 0, 0, 0x7FFF0000)]
held = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(held)))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.syscall(SECCOMP[platform.machine()], 1, 0, program) == 0
assert "seccomp" in confine(library_policy())
asked = {{n: call(n, 0, 0, 0, 0, 0, {MAGIC}) for n in range({NEW}) if n not in {UPROBES}}}
asked |= {{n: call(n, -1, -1, -1, -1, -1, -1) for n in range({NEW}, {LAST + 1})}}
passed = [n for n, why in asked.items() if (why == errno.ENOSYS if n < {NEW} else why != errno.ENOSYS)]
print(json.dumps([passed, sorted({{asked[n] for n in asked if n not in passed}})]))
"""


def run(program: Sequence[Instruction], machine: str, number: int, *values: int) -> int:
    """What the kernel makes of a filter (Documentation/networking/filter.rst), as far as ours needs it."""
    arguments = [each & 0xFFFFFFFFFFFFFFFF for each in (*values, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<IIQ6Q", number, ARCHITECTURES[machine][0], 0, *arguments)
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            accumulator &= value
        elif code in {0x15, 0x35}:
            at += if_true if (accumulator == value if code == 0x15 else accumulator >= value) else if_false
        else:
            assert code == 0x06
            return value


@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no table for this processor")
def test_of_all_numbers_this_kernel_lets_pass_what_is_listed_and_nothing_else() -> None:
    if any("seccomp does not" in text for text in missing_confinement()):
        pytest.skip("this kernel has no seccomp filters")
    done = subprocess.run([sys.executable, "-c", WALK], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    passed, refusals = json.loads(done.stdout)
    listed = allowed_calls(platform.machine(), Allowance())
    names = {number: name for name, number in listed.items()}
    assert sorted(set(passed) - set(names)) == []
    # Of these the arguments count, and none takes zeros but fcntl (a copy), the limits of oneself and plain sending.
    zeros_are_refused = {"clone", "kill", "tgkill", "ioctl", "prctl"}
    assert {names[number] for number in set(names) - set(passed)} == zeros_are_refused
    assert refusals == [1, 38]


def test_both_processors_have_the_same_calls_but_for_those_that_only_one_has() -> None:
    everything = Allowance(network=True, devices=True, programs=True)
    x86, arm = (set(allowed_calls(machine, everything)) for machine in ("x86_64", "aarch64"))
    assert arm < x86
    old = "dup2 pipe eventfd open stat lstat access readlink mkdir rmdir unlink rename pause alarm getpgrp time poll"
    assert x86 - arm == {*old.split(), "select", "epoll_create", "epoll_wait", "arch_prctl", "vfork", "fork"}
    for machine in ARCHITECTURES:
        numbers = allowed_calls(machine, everything)
        assert len(set(numbers.values())) == len(numbers), "each number once"


THREAD = 0x3D0F00  # what glibc gives to clone for a thread
BOTH = ("x86_64", "aarch64")
BARE, LIVE = Allowance(), Allowance(network=True)
GPU, DECODER = Allowance(network=True, devices=True), Allowance(network=True, programs=True)


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize(
    ("name", "allowance", "values", "passes"),
    [
        ("clone", BARE, (THREAD,), True),
        ("clone", BARE, (17,), False),
        ("clone", BARE, (THREAD | 0x10000000,), False),
        ("clone", DECODER, (17,), True),
        ("clone", DECODER, (0x40000000 | 17,), False),
        ("tgkill", BARE, (PID, 7, 6), True),
        ("tgkill", BARE, (1, 1, 9), False),
        ("kill", BARE, (PID, 6), True),
        ("kill", BARE, (-1, 9), False),
        ("kill", BARE, (0, 9), False),
        ("kill", DECODER, (5, 9), True),
        ("prlimit64", BARE, (0, 7, 0, 0), True),
        ("prlimit64", BARE, (PID, 7, 0, 0), False),
        ("setpriority", BARE, (0, 0, 10), True),
        ("setpriority", BARE, (0, 1, 10), False),
        ("setpriority", BARE, (2, 0, 10), False),
        ("fcntl", BARE, (3, 1030, 0), True),
        ("fcntl", BARE, (3, 10, 9), False),
        ("fcntl", BARE, (3, 15, 0), False),
        ("ioctl", BARE, (0, 0x802C542A), True),
        ("ioctl", BARE, (0, 0x8933), False),
        ("ioctl", LIVE, (0, 0x8933), True),
        ("ioctl", LIVE, (0, 0xC0084600), False),
        ("ioctl", GPU, (0, 0xC0084600), True),
        ("ioctl", GPU, (0, 0x5412), False),
        ("ioctl", GPU, (0, 0x8902), False),
        ("prctl", BARE, (15, 0), True),
        ("prctl", BARE, (22, 2), False),
        ("socket", LIVE, (2, 0x80801, 6), True),
        ("socket", LIVE, (10, 0x80802, 17), True),
        ("socket", LIVE, (2, 1, 262), False),  # MPTCP, which Landlock's rule for TCP does not know
        ("socket", LIVE, (2, 1, 132), False),  # SCTP
        ("socket", LIVE, (2, 3, 6), False),  # raw
        ("socket", LIVE, (17, 3, 0), False),  # packets of the line
        ("socket", LIVE, (16, 3, 0), False),  # netlink
        ("socket", LIVE, (40, 1, 0), False),  # VSOCK
        ("sendto", LIVE, (3, 0, 0, 0x4000, 0, 0), True),
        ("sendto", LIVE, (3, 0, 0, 0x20000000, 0, 0), False),
        ("sendmsg", LIVE, (3, 0, 0x20004000), False),
        ("sendmmsg", LIVE, (3, 0, 1, 0x20000000), False),
        ("sched_setaffinity", BARE, (7, 8, 0), False),
    ],
)
def test_arguments_are_compared(
    machine: str, name: str, allowance: Allowance, values: tuple[int, ...], passes: bool
) -> None:
    number = allowed_calls(machine, Allowance(network=True, devices=True, programs=True))[name]
    answer = run(filter_program(machine, PID, allowance), machine, number, *values)
    assert (answer == ALLOW) is passes


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize("allowance", [BARE, LIVE, GPU, DECODER])
def test_what_is_not_listed_is_refused_and_what_is_new_is_not_there(machine: str, allowance: Allowance) -> None:
    program = filter_program(machine, PID, allowance)
    listed = set(allowed_calls(machine, allowance).values())
    for number in set(range(LAST + 1)) - listed:
        assert run(program, machine, number) == 0x50000 | (38 if number >= NEW else 1), number
    assert run(program, machine, 0x40000000 | 1) == 0x50001, "the third way to call an x86 kernel"
    other = next(each for each in BOTH if each != machine)
    assert run(program, other, 1) == 0x50001, "the numbers of another processor"


def test_what_needs_no_socket_or_program_has_none() -> None:
    bare, live = (allowed_calls("x86_64", each) for each in (BARE, LIVE))
    assert set(live) - set(bare) == {"connect", "bind", "recvmmsg", "socket", "sendmmsg"}
    assert not {"listen", "accept", "accept4", "execve", "fork", "vfork", "chmod", "ptrace"} & set(live)


@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no table for this processor")
def test_numbers_are_those_of_this_processor() -> None:
    """By the system's headers, where they are installed."""
    header = f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h"
    if not os.path.exists(header):
        pytest.skip("no linux-libc-dev")
    with open(header, encoding="ascii") as file:
        lines = [line.split() for line in file if line.startswith("#define __NR_")]
    known = {line[1].removeprefix("__NR_"): int(line[2]) for line in lines if line[2].isdigit()}
    for name, number in allowed_calls(platform.machine(), Allowance(network=True, devices=True, programs=True)).items():
        assert known[name] == number, name
