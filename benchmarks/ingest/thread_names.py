"""Runs a module as `python -m` does, with the names of its threads set in the kernel.

    python -m benchmarks.ingest.thread_names appliance.ingest

Python before 3.14 does not set them; with them /proc shows the CPU time of each thread. Nothing else is changed.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
from pathlib import Path

NAME_BYTES_MAX = 15


def name_threads() -> None:
    """From now on each thread that begins writes its name into its `comm`."""
    run = threading.Thread.run

    def named_run(self: threading.Thread) -> None:
        with contextlib.suppress(OSError):
            comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            comm.write_bytes(self.name.encode()[:NAME_BYTES_MAX])
        run(self)

    threading.Thread.run = named_run  # type: ignore[method-assign]


if __name__ == "__main__":
    name_threads()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
