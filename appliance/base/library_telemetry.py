"""Removes the identifiers that telemetry of libraries left in the home folder before it was switched off."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from pathlib import Path

_DATABASE = "onnxruntime.db"
# Beneath the folder for caches (ONNX Runtime) and the home folder (OpenVINO): where, and which files.
_ONNX_RUNTIME = (
    ("Microsoft", "DeveloperTools", ".onnxruntime"),
    ("deviceid", "deviceid.lock", _DATABASE, *(f"{_DATABASE}{end}" for end in ("-journal", "-wal", "-shm", ".ses"))),
)
_OPENVINO = (("intel",), ("openvino_ga_cid", "openvino_ga_uid", "stats"))
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

logger = logging.getLogger(__name__)


def remove_identifiers() -> None:
    """Remove what ONNX Runtime and OpenVINO left in the home folder of this user, and the folders that are empty then.

    Only regular files of these names go, and no link is followed. Leave a file that cannot be removed, without an
    error.
    """
    home = Path(os.path.expanduser("~"))
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    for base, (folders, names) in ((caches, _ONNX_RUNTIME), (home, _OPENVINO)):
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            removed = _remove(base, folders, names, opened)
            if removed:
                place = base.joinpath(*folders)
                logger.info("removed what a library's telemetry had left in %s: %s", place, ", ".join(removed))


def _remove(base: Path, folders: tuple[str, ...], names: tuple[str, ...], opened: contextlib.ExitStack) -> list[str]:
    """Remove the files and return their names. opened: closes the folders. Raises OSError."""
    parents = [os.open(base, _FOLDER)]
    opened.callback(os.close, parents[0])
    for name in folders:
        parents.append(os.open(name, _FOLDER, dir_fd=parents[-1]))
        opened.callback(os.close, parents[-1])
    removed = [name for name in names if _unlink(name, parents[-1])]
    if removed:
        with contextlib.suppress(OSError):  # something else is in it
            for name, parent in zip(reversed(folders), reversed(parents[:-1]), strict=True):
                os.rmdir(name, dir_fd=parent)
    return removed


def _unlink(name: str, folder: int) -> bool:
    with contextlib.suppress(OSError):
        if stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            return True
    return False
