"""Keeps the last seconds of live video in a folder in memory while the disk accepts no writes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

MEMORY = Path("/dev/shm")  # a tmpfs of every Linux; containers have 64 MB of it
SAMPLE_FILE = "sample.bgr"  # there: the pixels of one frame, uint8 BGR, row by row (`ingest.networks`)
FREE_BYTES_MIN = 16 * 1024 * 1024  # left of it: others use it, too


def live_memory(root: Path, memory: Path = MEMORY) -> Path | None:
    """Return the folder that belongs to the storage folder `root`; it is made if it is missing. None: there is none.

    The place is open to all programs of the machine, so a folder of somebody else's, or a link, is not used.
    """
    name = hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:16]
    place = memory / f"vedette-live-{name}"
    try:
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        found = place.lstat()
    except OSError:
        return None
    return place if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() else None
