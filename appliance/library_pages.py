"""Lets go of the pages of libraries' code that were needed to start and for little else."""

from __future__ import annotations

import ctypes
import mmap
import sys

_PT_LOAD, _PT_DYNAMIC, _PF_W = 1, 2, 2  # elf.h
_DT_NULL, _DT_TEXTREL, _DT_FLAGS, _DF_TEXTREL = 0, 22, 30, 4
_DYNAMIC_MAX = 256  # entries; libraries have some 30
_MADV_DONTNEED = 4


class _ProgramHeader(ctypes.Structure):
    """Elf64_Phdr."""

    _fields_ = (
        ("kind", ctypes.c_uint32), ("flags", ctypes.c_uint32), ("offset", ctypes.c_uint64), ("at", ctypes.c_uint64),
        ("physical", ctypes.c_uint64), ("in_file", ctypes.c_uint64), ("in_memory", ctypes.c_uint64),
        ("align", ctypes.c_uint64),
    )  # fmt: skip


class _LoadedObject(ctypes.Structure):
    """The part of dl_phdr_info that is the same everywhere."""

    _fields_ = (
        ("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("headers", ctypes.POINTER(_ProgramHeader)),
        ("count", ctypes.c_uint16),
    )  # fmt: skip


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)


def release_idle_code() -> int:
    """Unmap the pages of all loaded libraries that hold code and constants; what runs is mapped again at its next step.

    Returns how many bytes were asked for; 0: not Linux with 64 bits. Any thread, at any time.

    Loading a network runs 20 MB of code once: kernels are registered, a graph is parsed and optimised. Those pages stay
    mapped for years, and executable ones the kernel takes back last. They are pages of files, unchanged, so nothing is
    lost with them: what is used again comes out of the page cache, 64 kB a fault. Only segments that the file itself
    calls read-only are touched, never the data that the linker made read-only after it wrote there; the linker's lock
    is held, so that none is half loaded.
    """
    if not sys.platform.startswith("linux") or ctypes.sizeof(ctypes.c_void_p) != 8:
        return 0
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    asked = 0

    def visit(found: ctypes._Pointer[_LoadedObject], size: int, nothing: int | None) -> int:
        nonlocal asked
        loaded = found.contents
        headers = [loaded.headers[n] for n in range(loaded.count)]
        if b"linux-vdso" in (loaded.name or b"") or _has_text_relocations(loaded.base, headers):
            return 0
        for each in headers:
            if each.kind == _PT_LOAD and not each.flags & _PF_W:
                begin = (loaded.base + each.at) // mmap.PAGESIZE * mmap.PAGESIZE
                end = -(-(loaded.base + each.at + each.in_file) // mmap.PAGESIZE) * mmap.PAGESIZE
                if libc.madvise(begin, end - begin, _MADV_DONTNEED) == 0:
                    asked += end - begin
        return 0

    libc.dl_iterate_phdr(_Visit(visit), None)
    return asked


def _has_text_relocations(base: int, headers: list[_ProgramHeader]) -> bool:
    """The linker wrote into its code: such pages are no longer the file's."""
    for each in headers:
        if each.kind == _PT_DYNAMIC:
            entries = (ctypes.c_uint64 * (2 * min(_DYNAMIC_MAX, each.in_memory // 16))).from_address(base + each.at)
            for tag, value in zip(entries[::2], entries[1::2], strict=True):
                if tag == _DT_NULL:
                    break
                if tag == _DT_TEXTREL or (tag == _DT_FLAGS and value & _DF_TEXTREL):
                    return True
    return False
