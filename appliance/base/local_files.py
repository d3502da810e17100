"""Files and folders of this machine: checks before one is read or written over, sha256, what survives a power cut.

`write_file` and `finish_file` make files that appear whole or not at all, and that are on disk before anything refers
to them. Also the folder in memory for live video.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import EvidenceError, UsageError

SHARED_MEMORY = Path("/dev/shm")  # a tmpfs of every Linux; containers have 64 MB of it
SAMPLE_FILE = "sample.bgr"  # there: the pixels of one frame, uint8 BGR, row by row (written by `ingest.networks`)
MEMORY_FREE_BYTES_MIN = 16 * 1024 * 1024  # left of it: others use it, too
_START_BYTES = 512  # the marks of a format stand at the very beginning of a file


def is_special(path: Path) -> bool:
    """Return True for a pipe, a device or a socket, which may have no end or wait for ever. Raises OSError: absent."""
    mode = path.stat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal. Raises OSError."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return sha.hexdigest()


def check_output(path: Path, what: str, begins: re.Pattern[bytes]) -> None:
    """Check that nothing is lost by writing `path`: it is not there, is empty, a pipe or a device, or one of its kind.

    what: what is written, as the message calls it. begins: how every file of that kind begins. Raises UsageError: it
    is a folder, there is no folder for it, it cannot be written, or it is a file of another kind.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no folder {path.parent}") from None
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(f"{path} cannot be written: nothing may be written into {path.parent}") from None
        return
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise UsageError(f"{path} is a folder: name a file in it for {what}")
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path} cannot be written by this user")
    if stat.S_ISREG(mode):
        _refuse_another_kind(path, what, begins)


def _refuse_another_kind(path: Path, what: str, begins: re.Pattern[bytes]) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(_START_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read, so it is not written over: {error.strerror}") from None
    if start and not begins.match(start):
        raise UsageError(f"{path} is there and is not {what}: it is not written over; name another file")


def flush_to_disk(path: Path) -> None:
    """Have a file's bytes, or the names in a folder, on disk. Raise OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def live_memory(root: Path, memory: Path = SHARED_MEMORY) -> Path | None:
    """Return the folder in memory of the storage folder `root`; it is made if it is missing. None: there is none.

    It keeps the last seconds of live video while the disk accepts no writes.

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


class DiskWriteError(EvidenceError):
    """The disk did not take the file (full, no rights). The recording is kept, so a later attempt may succeed."""


_DISK_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.EACCES,
    errno.ENOENT,
    errno.EMFILE,
    errno.ENFILE,
}


def failed_clip(error: Exception, why: str) -> EvidenceError:
    """Return what an error of FFmpeg or of a file system means: a DiskWriteError, or an EvidenceError. why: a sentence.

    PyAV's errors have the errno of the write that failed within FFmpeg.
    """
    is_disk = getattr(error, "errno", None) in _DISK_ERRORS
    return (DiskWriteError if is_disk else EvidenceError)(f"{why}: {getattr(error, 'strerror', None) or error}")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A finished file."""

    bytes: int
    sha256: str


def write_file(path: Path, data: bytes) -> WrittenFile:
    """Put `data` at `path`. Raises DiskWriteError."""
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
    except OSError as error:
        discard_temporary(temporary)
        raise DiskWriteError(f"{path.name} cannot be written: {error.strerror}") from None
    except BaseException:  # Ctrl-C
        discard_temporary(temporary)
        raise
    return finish_file(path)


def temporary_path(path: Path) -> Path:
    """Where `path` is written first; a left-over of a kill is simply written over."""
    return path.with_name(f".{path.name}.part")


def finish_file(path: Path) -> WrittenFile:
    """Flush the temporary file of `path` to disk, give it its name, and say how large it is. Raises DiskWriteError."""
    temporary = temporary_path(path)
    try:
        digest, size = hashlib.sha256(), 0
        with temporary.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_to_disk(path.parent)
    except OSError as error:
        discard_temporary(temporary)
        raise DiskWriteError(f"{path.name} cannot be written: {error.strerror}") from None
    return WrittenFile(size, digest.hexdigest())


def discard_temporary(temporary: Path) -> None:
    """Remove an unfinished file, as far as the disk lets us."""
    with contextlib.suppress(OSError):
        temporary.unlink()
