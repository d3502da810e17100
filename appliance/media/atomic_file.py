"""Writes files that appear whole or not at all, and that are on disk before anything refers to them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from appliance.base.errors import EvidenceError
from appliance.base.local_files import flush_to_disk


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
