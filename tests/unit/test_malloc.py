"""Memory that is freed goes back to the system, also after a camera has come and gone many times."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base import process_memory
from appliance.base.process_memory import spare_what_stays

# As a camera's decoder does it: pictures, and between them small things that outlive them.
LIFE = """
import os, threading
from appliance.base.process_memory import return_large_blocks

if {on}:
    assert return_large_blocks()

def resident_mb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

bytearray(30_000_000)  # freed at once: glibc takes note of the size
kept = []

def connection():
    pictures = []
    for _ in range(60):
        pictures.append(bytearray(921_600))
        kept.append(bytearray(20_000))

before = resident_mb()
thread = threading.Thread(target=connection)
thread.start()
thread.join()
print(resident_mb() - before)
"""


def kept_mb(*, on: bool) -> float:
    told = subprocess.run([sys.executable, "-c", LIFE.format(on=on)], capture_output=True, text=True, check=True)
    return float(told.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this to choose")
def test_pictures_that_were_freed_leave_no_holes() -> None:
    assert kept_mb(on=False) > 20, "55 MB of pictures, and 1.2 MB that stay"
    assert kept_mb(on=True) < 10


# Each thread that waits holds something of its heap.
HEAPS = """
import ctypes, threading
from appliance.base.process_memory import hold_little

if {on}:
    assert hold_little()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
malloc, together = libc.malloc, threading.Barrier(7)

def allocate():
    malloc(1000)
    together.wait()

for _ in range(6):
    threading.Thread(target=allocate).start()
together.wait()
told = ctypes.c_void_p(libc.fopen(b"/proc/self/fd/1", b"w"))
libc.malloc_info(0, told)
libc.fclose(told)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this to choose")
def test_threads_share_two_heaps() -> None:
    def heaps(*, on: bool) -> int:
        code = HEAPS.format(on=on)
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.count(
            "<heap nr="
        )

    assert heaps(on=False) > 4
    assert heaps(on=True) == 2


# As the colour planes of a decoder do it: too small to be mapped, and between them small things that outlive them.
PLANES = """
import os, threading
from appliance.base.process_memory import return_large_blocks, trim_heaps

return_large_blocks()

def resident_mb():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

kept = []

def connection():
    planes = []
    for _ in range(200):
        planes.append(bytearray(230_000))
        kept.append(bytearray(2_000))
    planes.clear()
    before = resident_mb()
    assert trim_heaps()
    print(before - resident_mb())

thread = threading.Thread(target=connection)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this to choose")
def test_holes_in_the_heap_of_a_thread_are_given_back() -> None:
    told = subprocess.run([sys.executable, "-c", PLANES], capture_output=True, text=True, check=True)
    assert float(told.stdout) > 30, "46 MB of planes, and 0.4 MB that stay"


# One library whose start the loader wrote to before it forbade writing, and one as it is in its file; both are read.
LIBRARIES = """
import ctypes, mmap, sys
from pathlib import Path
from appliance.base import process_memory

libc, size = ctypes.CDLL(None), 2 * process_memory.LIBRARY_BYTES_MIN
kept = []

def mapped(name, written):
    path = Path(sys.argv[1], name)
    path.write_bytes(b"." * size)
    with open(path, "r+b") as file:
        kept.append(mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    if written:
        kept[-1][:7] = written
    start = ctypes.addressof(ctypes.c_char.from_buffer(kept[-1]))
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.PROT_READ) == 0
    return lambda: ctypes.string_at(start, size)

def resident_mb():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Rss:")) / 1024

relocated, plain = mapped("relocated.so", b"written"), mapped("plain.so", b"")
assert relocated()[:8] == b"written." and plain() == b"." * size
before = resident_mb()
process_memory.unmap_idle_library_pages()
print(before - resident_mb())
assert relocated()[:8] == b"written." and plain() == b"." * size
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells a process its mappings")
def test_pages_of_libraries_leave_but_what_the_loader_wrote_stays(tmp_path: Path) -> None:
    """Of each two MB; Python's own pages leave, too."""
    told = subprocess.run([sys.executable, "-c", LIBRARIES, str(tmp_path)], capture_output=True, text=True, check=True)
    assert float(told.stdout) > 2


def test_library_pages_are_unmapped_often_after_the_start_and_then_every_five_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trims: list[int] = []
    unmapped_at: list[int] = []
    monkeypatch.setattr(process_memory, "trim_heaps", lambda: trims.append(len(trims) + 1))
    monkeypatch.setattr(process_memory, "unmap_idle_library_pages", lambda: unmapped_at.append(trims[-1]))
    trim = process_memory.MemoryTrimmer()
    while len(trims) < 50:
        trim()
    assert unmapped_at == [1, 2, 4, 8, 16, 32, 48]
    assert 300 <= 16 * process_memory.TRIM_EVERY_S <= 330


# As answers and connections do it: each lives a while, and is held by nothing but itself when it is over.
CYCLES = """
import gc
from collections import deque
from appliance.base.process_memory import spare_what_stays

stays = [[n] for n in range(400_000)]
gc.collect()
if {on}:
    spare_what_stays()
class Answer:
    living = 0
    def __init__(self):
        Answer.living += 1
        self.itself = self
    def __del__(self):
        Answer.living -= 1
recent, most = deque(maxlen=2_000), 0
for n in range(200_000):
    recent.append(Answer())
    most = max(most, Answer.living)
print(most)
"""


def test_garbage_in_cycles_does_not_wait_for_a_quarter_of_what_stays() -> None:
    def most(*, on: bool) -> int:
        code = CYCLES.format(on=on)
        return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    assert most(on=False) > 40_000
    assert most(on=True) < 40_000, "one collection in ten of those that lived a while, 2,000 each, is a full one"


def test_what_is_in_memory_once_started_is_not_looked_at_again() -> None:
    kept: list[list[object]] = [[]]
    try:
        spare_what_stays()
        assert gc.get_freeze_count() > 1000
        assert not any(each is kept for each in gc.get_objects(generation=2))
    finally:
        gc.unfreeze()
