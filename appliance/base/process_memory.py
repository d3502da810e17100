"""Keeps the memory of a long-lived process small: settings of glibc's malloc and Python's collector, and of imports.

Large blocks go back at once, free pages now and then; threads share heaps; the collector leaves out what stays.

What imports leave behind and a started process does not read again is freed. Annotations that only editors and type
checkers read: 1.3 MB of the core, 0.8 of ingest. Methods that `dataclass` writes for each class anew, which then share
one: 24,000 Python objects of the core. Only what is rarely called is shared: a representation, and the refusals of a
frozen class. Comparison and hash stay as written.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
import typing
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from functools import lru_cache
from pathlib import Path
from reprlib import recursive_repr
from types import FunctionType

MMAP_THRESHOLD_BYTES = 512 * 1024  # a brightness plane of 720p is 0.9 MB
CORE_MMAP_THRESHOLD_BYTES = 64 * 1024  # answers, stills and SQLite's buffers: mapped, they leave no holes in the heap
TRIM_THRESHOLD_BYTES = 1024 * 1024  # glibc begins with 128 kB and raises it by itself; larger spares system calls
TRIM_EVERY_S = 20.0  # a page or an inference leaves holes of megabytes; a trim takes milliseconds
ARENAS_MAX = 2  # with one, two threads wait for each other; each more keeps its own holes
UNMAP_TRIMS = 16  # 5 minutes: then its 9 ms are 0.003 % of a core
LIBRARY_BYTES_MIN = 1024 * 1024  # smaller ones hold little, and some of those can be unloaded (character sets)
_MADV_DONTNEED = 4  # asm-generic/mman-common.h
_LIBRARY_MAPPING = re.compile(
    r"^(\w+-\w+ r-[x-]p \w+ \S+ [1-9]\d* +/.+\.so[.\d]*)$", re.MULTILINE
)  # private, read-only
_ANONYMOUS_NONE = r"(?:\n(?!\w+-\w+ )[^\n]*)*?\nAnonymous: +0 kB"  # in the lines of that mapping in smaps
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc


def hold_little(mapped_bytes: int = MMAP_THRESHOLD_BYTES) -> bool:
    """Set malloc up for a long-lived process, before threads are started. False: not glibc.

    mapped_bytes: blocks of this size or more are mapped by themselves. Each costs two system calls and page faults: too
    much for what each frame needs, and little for what a page or an alert does.
    """
    return return_large_blocks(mapped_bytes) and share_heaps()


def share_heaps() -> bool:
    """Have all threads of the process share ARENAS_MAX heaps. False: not glibc.

    glibc gives each thread one, up to eight a core. Then memory that a camera's thread frees fits no other thread, and
    each heap keeps its own holes: with one camera 5 MB of core and ingest. Threads seldom meet in malloc here: frames
    come from pools, and Python's objects have an allocator of their own.
    """
    mallopt = _glibc("mallopt")
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))


def return_large_blocks(mapped_bytes: int = MMAP_THRESHOLD_BYTES) -> bool:
    """Have every block of `mapped_bytes` or more mapped by itself and given back when freed. False: not glibc.

    glibc raises that threshold to the size of whatever large block was freed last. From then on decoded frames lie
    in the heaps of their cameras' threads, of which there is one each, and what is freed with each lost connection
    leaves holes there that nothing else fits into: with eight cameras 50 MB more in five minutes, and rising.
    Frames come from pools of the decoder, so mapping costs nothing while a connection holds.
    """
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, mapped_bytes) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))


def spare_what_stays() -> None:
    """Leave what is in memory now, modules and settings and services, out of later collections; call it once started.

    A full collection looks at every object while all threads wait: 85 ms of a core, in the middle of some request.
    Python puts the next one off until a quarter as many objects are new as outlived the last, so garbage in cycles
    would wait for tens of thousands of them, which takes hours. The second collection has next to nothing to count.
    """
    gc.collect()
    gc.freeze()
    gc.collect()


def trim_heaps() -> bool:
    """Give the free pages of all heaps back; call it about each TRIM_EVERY_S. False: nothing was free, or not glibc.

    glibc shrinks a heap only from its end. The colour planes of a 720p frame have
    230 kB, so they lie there, between what outlives them: with each lost connection the heap of a camera's thread kept
    more that was free (from 6 to 14 MB of each in ten minutes of faults, half of it in use), and so did the core's.
    """
    malloc_trim = _glibc("malloc_trim")
    return malloc_trim is not None and bool(malloc_trim(0))


class MemoryTrimmer:
    """Gives back what a process does not use: call it each TRIM_EVERY_S.

    Library pages are unmapped at its calls 1, 2, 4, 8 and 16, and every 16th after that: most are left over from
    starting, and unmapping costs ten times what trimming does.
    """

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self) -> None:
        trim_heaps()
        self._calls += 1
        if self._calls % UNMAP_TRIMS == 0 or self._calls in (1, 2, 4, 8):
            unmap_idle_library_pages()


def unmap_idle_library_pages() -> int:
    """Unmap the pages of large libraries; return the bytes of their mappings.

    Starting reads far more of a library than running does: 27 MB of ingest are not read again. The pages stay in the
    page cache; what is used is mapped again in blocks of 64 kB, in a millisecond or two all together. Linux only.
    """
    madvise = _glibc("madvise")
    if madvise is None:
        return 0
    try:
        idle = _never_written(tuple(_LIBRARY_MAPPING.findall(Path("/proc/self/maps").read_text())))
    except OSError:
        return 0
    return sum(
        size for start, size in idle if madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED) == 0
    )


@lru_cache(maxsize=1)
def _never_written(_mappings: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return start and size in bytes of those whose pages are as in the file; read again when mappings change."""
    found = []
    for mapping in re.findall(_LIBRARY_MAPPING.pattern + _ANONYMOUS_NONE, Path("/proc/self/smaps").read_text(), re.M):
        start, end = (int(each, 16) for each in mapping.split()[0].split("-"))
        if end - start >= LIBRARY_BYTES_MIN:
            found.append((start, end - start))
    return found


def _glibc(name: str) -> Callable[..., int] | None:
    """Return a function of glibc; None where the C library is another one."""
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return None
    return found


# Functions of FastAPI and classes of pydantic have their documentation in annotations, which only editors and type
# checkers read. Those of FastAPI's forms and security classes are read, as are all of ours.
_FUNCTIONS_OF = ("fastapi.applications", "fastapi.param_functions", "fastapi.params", "fastapi.routing")
_TYPED_DICTS_OF = ("pydantic_core.core_schema",)


def free_import_leftovers() -> None:
    """Free them; call it after the imports and before anything that stays is made, which then takes the memory.

    Modules can still be imported: then their folders are listed again.
    """
    sys.path_importer_cache.clear()
    for forget_types in getattr(typing, "_cleanups", ()):
        forget_types()
    for name in _TYPED_DICTS_OF:
        for kind in _of(name, type):
            if hasattr(kind, "__total__"):  # a TypedDict, be it of typing or of typing_extensions
                kind.__annotations__.clear()
    for name in _FUNCTIONS_OF:
        functions = [*_of(name, FunctionType), *(each for kind in _of(name, type) for each in vars(kind).values())]
        for function in functions:
            if isinstance(function, FunctionType):
                del function.__annotations__


def _of(module: str, kind: type) -> list[typing.Any]:
    """Return what a module defines itself of a kind; nothing if it is not loaded."""
    values = vars(sys.modules[module]).values() if module in sys.modules else ()
    return [each for each in values if isinstance(each, kind) and getattr(each, "__module__", "") == module]


_WRITTEN = "<string>"  # the file that code made by dataclasses names


@recursive_repr()
def _represent(self: object) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)  # type: ignore[arg-type]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    if _is_frozen(type(self), name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_deletion(self: object, name: str) -> None:
    if _is_frozen(type(self), name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen(kind: type, name: str) -> bool:
    """Tell whether it is a field or the class a dataclass itself; a plain subclass may have attributes of its own."""
    return "__dataclass_params__" in vars(kind) or name in kind.__dataclass_fields__  # type: ignore[attr-defined]


_SHARED = {"__repr__": _represent, "__setattr__": _refuse_assignment, "__delattr__": _refuse_deletion}


def share_methods(package: str = "appliance") -> int:
    """Have the dataclasses of a package loaded so far share what was written for each; return how many methods.

    Call it after the imports and before anything that stays is made, which then takes the memory.
    """
    replaced = 0
    for kind in _subclasses(object):
        if "__dataclass_params__" not in vars(kind) or not f"{kind.__module__}.".startswith(f"{package}."):
            continue
        for name, shared in _SHARED.items():
            if _is_written(vars(kind).get(name)):
                setattr(kind, name, shared)
                replaced += 1
    return replaced


def _is_written(method: object) -> bool:
    """Tell whether dataclasses made the method; its representation is wrapped."""
    method = getattr(method, "__wrapped__", method)
    return isinstance(method, FunctionType) and method.__code__.co_filename == _WRITTEN


def _subclasses(kind: type) -> set[type]:
    found: set[type] = set()
    waiting = [kind]
    while waiting:
        new: set[type] = set(type.__subclasses__(waiting.pop())) - found
        found |= new
        waiting += new
    return found
