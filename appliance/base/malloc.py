"""Settings of glibc's malloc and Python's collector that keep the memory of a long-lived process small.

Large blocks go back at once, free pages now and then; threads share heaps; the collector leaves out what stays.
"""

from __future__ import annotations

import ctypes
import gc

MMAP_THRESHOLD_BYTES = 512 * 1024  # a brightness plane of 720p is 0.9 MB
CORE_MMAP_THRESHOLD_BYTES = 64 * 1024  # answers, stills and SQLite's buffers: mapped, they leave no holes in the heap
TRIM_THRESHOLD_BYTES = 1024 * 1024  # glibc begins with 128 kB and raises it by itself; larger spares system calls
TRIM_EVERY_S = 20.0  # a page or an inference leaves holes of megabytes; a trim takes milliseconds
ARENAS_MAX = 2  # with one, two threads wait for each other; each more keeps its own holes
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
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS_MAX))


def return_large_blocks(mapped_bytes: int = MMAP_THRESHOLD_BYTES) -> bool:
    """Have every block of `mapped_bytes` or more mapped by itself and given back when freed. False: not glibc.

    glibc raises that threshold to the size of whatever large block was freed last. From then on decoded frames lie
    in the heaps of their cameras' threads, of which there is one each, and what is freed with each lost connection
    leaves holes there that nothing else fits into: with eight cameras 50 MB more in five minutes, and rising.
    Frames come from pools of the decoder, so mapping costs nothing while a connection holds.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
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
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(malloc_trim(0))
