"""The configuration of the demo: two cameras with zones that fit the bundled clips, or what the user brought."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from appliance.demo.parts import CLIP_NAMES

SITE = "demo"
DETECTOR = "auto"
_LOOKS_PER_S = 3

_ABOUT = """\
# Written by `vedette demo`, and overwritten by the next one. Copy it to begin a site file of your own:
# all keys with comments are in deploy/vedette.example.yaml; `vedette check FILE` tells what is wrong with yours.
"""
_ABOUT_WORKER = """\
# Written by `vedette demo`, and overwritten by the next one: the cloud side, `vedette-worker run --config FILE`.
# The engine here looks at the evidence again with a detector; `kind: openai` asks a vision language model instead.
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
    def places(self) -> Mapping[str, Any]:
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
    """A camera name made of a file's name."""
    name = re.sub("[^a-z0-9_-]+", "-", path.stem.lower()).strip("-_")[:32]
    return name if name and name not in CLIP_NAMES else "clip"


def site_file(data: Path, cameras: tuple[DemoCamera, ...], nats: str, port: int, model: str | None) -> str:
    """The text of the site file; `data` is the demo's folder, absolute."""
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
            camera.name: {"url": camera.url, "detect": {"fps": _LOOKS_PER_S}, **camera.places} for camera in cameras
        },
        "alerts": {"merge_s": 6, "pre_roll_s": 3, "post_roll_s": 3},
        "uplink": {"url": nats},
        "dashboard": {"host": "127.0.0.1", "port": port},
    }
    return _ABOUT + _dump(content)


def worker_file(nats: str, model: str | None) -> str:
    """The text of the worker file. The streams are small: a laptop need not set 12 GB aside for a demo."""
    content = {
        "nats": {"url": nats},
        "streams": {"escalation_gb": 0.1, "media_gb": 0.5, "verdict_gb": 0.1},
        "engine": {"kind": "redetect", "model": model or DETECTOR},
    }
    return _ABOUT_WORKER + _dump(content)


def nats_file(data: Path, port: int) -> str:
    """The text of nats-server's configuration: loopback only, JetStream in the demo's folder."""
    store = _quoted(str(data / "nats"))
    return (
        'server_name: "vedette-demo"\n'
        f'listen: "127.0.0.1:{port}"\n'
        f"jetstream {{\n  store_dir: {store}\n  max_memory_store: 64MB\n  max_file_store: 2GB\n}}\n"
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
