"""Code of libraries that ran once is let go of, and comes back when it runs again."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from appliance.library_pages import _has_text_relocations, _ProgramHeader

# OpenCV is large, and its first call of a kind reads code that the import did not.
LIFE = """
import hashlib, threading
import cv2, numpy as np
from appliance.library_pages import release_idle_code

def mapped_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssFile:")) / 1000

def work():
    image = np.arange(480_000, dtype=np.uint8).reshape(400, 400, 3)
    return hashlib.sha256(cv2.imencode(".jpg", cv2.resize(image, (150, 170)))[1].tobytes()).hexdigest()

expected, before = work(), mapped_mb()
stop, results = threading.Event(), []

def go_on():
    while not stop.is_set():
        results.append(work())

threads = [threading.Thread(target=go_on) for _ in range(2)]
[each.start() for each in threads]
while len(results) < 20:  # it runs while its pages are taken away
    assert release_idle_code() > 0
stop.set()
[each.join() for each in threads]
release_idle_code()
released = before - mapped_mb()
assert set(results) == {expected} == {work()}
print(released)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's loader tells of its libraries so")
def test_pages_of_code_are_let_go_of_while_it_runs() -> None:
    told = subprocess.run([sys.executable, "-c", LIFE], capture_output=True, text=True, check=True)
    assert float(told.stdout) > 15


@pytest.mark.parametrize(
    ("entries", "wrote"),
    [((1, 7, 0, 0, 22, 0), False), ((22, 0, 0, 0), True), ((30, 4, 0, 0), True), ((30, 8, 0, 0), False)],
)  # fmt: skip
def test_a_library_into_whose_code_the_linker_wrote_is_left_alone(entries: tuple[int, ...], wrote: bool) -> None:
    dynamic = (ctypes.c_uint64 * len(entries))(*entries)
    header = _ProgramHeader(kind=2, at=64, in_memory=ctypes.sizeof(dynamic))
    assert _has_text_relocations(ctypes.addressof(dynamic) - 64, [header]) is wrote
