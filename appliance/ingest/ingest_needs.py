"""What cameras need that the ingest process cannot be given later: its confinement cannot be widened once it is on.

Compared by the supervisor before cameras are handed to a process that runs (see `supervisor`), and by that process when
it confines itself (`ingest_policy`).
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from appliance.config import IngestConfig

PORTS = {"rtsp": 554, "rtsps": 322}
# Cameras listen on these, so that most of those that are added need no new start of the process.
USUAL_PORTS = frozenset({*PORTS.values(), 8554})


@dataclass(frozen=True, slots=True)
class IngestNeeds:
    """TCP ports of cameras, addresses of files that stand for cameras, and whether hardware decodes anything."""

    ports: frozenset[int]
    files: frozenset[str]
    hardware: bool

    @classmethod
    def of(cls, config: IngestConfig) -> IngestNeeds:
        """Of all cameras, also of those that are switched off: they may be switched on."""
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
    """The TCP port of an RTSP address; None: it has none, or is no address."""
    try:
        parts = urlsplit(url)
        return parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
