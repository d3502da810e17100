"""Runs a module as `python -m` does, and tells the kernel the names of its threads.

    python -m benchmarks.ingest.named appliance.ingest

Python before 3.14 keeps them to itself; with them /proc says which thread has used what. Nothing else is changed.
"""

from __future__ import annotations

import contextlib
import runpy
import sys
import threading
from pathlib import Path

NAME_BYTES_MAX = 15


def tell_names() -> None:
    """From now on each thread that begins writes its name into its `comm`."""
    run = threading.Thread.run

    def named_run(self: threading.Thread) -> None:
        with contextlib.suppress(OSError):
            comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            comm.write_bytes(self.name.encode()[:NAME_BYTES_MAX])
        run(self)

    threading.Thread.run = named_run  # type: ignore[method-assign]


if __name__ == "__main__":
    tell_names()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
