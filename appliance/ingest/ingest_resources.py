"""Lists the ports and files that cameras need. A running ingest process cannot get more: its confinement is fixed.

The supervisor compares them before it hands cameras to a process that runs (see `supervisor`). That process uses them
when it confines itself (`ingest_policy`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from appliance.sandbox.confinement import ConfinementPolicy, library_policy

if TYPE_CHECKING:  # the settings of a whole site are too much for who tries one camera
    from appliance.config import IngestConfig

PORTS = {"rtsp": 554, "rtsps": 322}
# Cameras listen on these, so that most of those that are added need no new start of the process.
USUAL_PORTS = frozenset({*PORTS.values(), 8554})

DNS_PORT = 53  # RFC 1035
RESOLVER_FILES = tuple(map(Path, ("/etc/resolv.conf", "/etc/hosts")))
_READ = (
    "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf", "/etc/localtime", "/etc/ssl/openssl.cnf", "/etc/ssl/certs",
    "/etc/pki/tls", "/etc/crypto-policies", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/sys/bus/pci", "/sys/class/drm", "/sys/devices", "/sys/fs/cgroup",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class IngestNeeds:
    """TCP ports of cameras, addresses of files that stand for cameras, and whether hardware decodes anything."""

    ports: frozenset[int]
    files: frozenset[str]
    hardware: bool

    @classmethod
    def of(cls, config: IngestConfig) -> IngestNeeds:
        """Return the needs of all cameras, also of those that are switched off: they may be switched on."""
        cameras = config.cameras.values()
        urls = [url for camera in cameras for url in (camera.url, camera.detect_url) if url is not None]
        return cls(
            ports=USUAL_PORTS | {port for url in urls if (port := port_of(url))},
            files=frozenset(url for url in urls if url.startswith("file:")),
            hardware=any(config.decode.hardware_of(camera.decode) != "off" for camera in cameras),
        )

    def covers(self, other: IngestNeeds) -> bool:
        return self.ports >= other.ports and self.files >= other.files and self.hardware >= other.hardware


def port_of(url: str) -> int | None:
    """Return the TCP port of an RTSP address; None if it has none, or is no address."""
    try:
        parts = urlsplit(url)
        return parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None


def camera_policy(files: Iterable[Path], ports: Iterable[int]) -> ConfinementPolicy:
    """Return the rights that a process needs to read cameras on these ports, or these files for cameras.

    The process writes nothing.
    """
    libraries = library_policy()
    return replace(
        libraries,
        readable=(*libraries.readable, *map(Path, _READ), *_resolver(), *files),
        ports=frozenset({*ports, DNS_PORT}),
    )


def _resolver() -> Iterator[Path]:
    """Yield each file of the resolver, or the folder that it links to.

    Such a folder belongs to a program that replaces the file: the folder stays.
    """
    for path in RESOLVER_FILES:
        target = Path(os.path.realpath(path))
        yield target if target.parent == path.parent else target.parent
