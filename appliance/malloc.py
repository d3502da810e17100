"""Has glibc's malloc give freed memory back to the operating system: large blocks at once, small ones now and then."""

from __future__ import annotations

import ctypes

MMAP_THRESHOLD_BYTES = 512 * 1024  # a brightness plane of 720p is 0.9 MB
TRIM_THRESHOLD_BYTES = 1024 * 1024
TRIM_EVERY_S = 60.0
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc


def return_large_blocks() -> bool:
    """Have every block of MMAP_THRESHOLD_BYTES or more mapped by itself and given back when freed. False: not glibc.

    glibc raises that threshold to the size of whatever large block was freed last. From then on decoded frames lie
    in the heaps of their cameras' threads, of which there is one each, and what is freed with each lost connection
    leaves holes there that nothing else fits into: with eight cameras 50 MB more in five minutes, and rising.
    Frames come from pools of the decoder, so mapping costs nothing while a connection holds.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES))


def trim_heaps() -> bool:
    """Give the free pages of all heaps back; call it about each TRIM_EVERY_S. False: nothing was free, or not glibc.

    Each thread has a heap of its own, and glibc shrinks one only from its end. The colour planes of a 720p frame have
    230 kB, so they lie there, between what outlives them: with each lost connection the heap of a camera's thread kept
    more that was free (from 6 to 14 MB of each in ten minutes of faults, half of it in use), and so did the core's.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(malloc_trim(0))
