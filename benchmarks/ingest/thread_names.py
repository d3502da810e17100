"""Runs a module as `python -m` does, with the names of its threads set in the kernel.

    python -m benchmarks.ingest.thread_names appliance.ingest

Python before 3.14 does not set them; with them /proc shows the CPU time of each thread. Nothing else is changed.
"""

from __future__ import annotations

import ctypes
import runpy
import sys
import threading

NAME_BYTES_MAX = 15
PR_SET_NAME = 15  # linux/prctl.h


def name_threads() -> None:
    """From now on each thread that begins sets its name in the kernel."""
    run, libc = threading.Thread.run, ctypes.CDLL(None)

    def named_run(self: threading.Thread) -> None:
        libc.prctl(PR_SET_NAME, self.name.encode()[:NAME_BYTES_MAX], 0, 0, 0)  # ingest may write no file in /proc
        run(self)

    threading.Thread.run = named_run  # type: ignore[method-assign]


if __name__ == "__main__":
    name_threads()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
