"""Makes the diagnostics bundle: one zip for support, without secrets and images, bounded, made as it is sent."""

from __future__ import annotations

import io
import json
import platform
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as of_package
from pathlib import Path
from typing import Any

from appliance import version
from appliance.base import machine
from appliance.base.errors import ConfigError, VedetteError
from appliance.base.yamlfile import read_text
from appliance.settings.secret_scrubber import SecretScrubber
from appliance.settings.settings_service import SiteVersion
from appliance.store.database import database_versions
from appliance.store.storage_reader import gap_rows, health_rows, schema_of

PACKAGES = (
    "numpy", "opencv-python-headless", "av", "onnxruntime", "pydantic", "fastapi", "uvicorn", "nats-py", "httpx",
    "cryptography", "paho-mqtt", "apprise",
)  # fmt: skip
PART_CHARACTERS_MAX = 4_000_000  # of one file; the log in memory has less
_README = """\
Diagnostics of a Vedette appliance. Text and numbers only: no images, no recording, no accounts.

site.yaml            the site file; secrets stand as ***
site-versions.json   when it was changed, by whom, why
versions.json        of Vedette, Python, the kernel, packages
system.json          processes, detector, frames not examined, machine, links (only from the dashboard)
machine.json         the machine (only from the command line)
log.txt              the last lines of the log
health-events.json   faults, newest first
gaps.json            when nothing came from a camera, and why
metrics.txt          counters since the start (only from the dashboard)
schema.json          the tables of the database and how much is in them

Passwords, tokens and queries of addresses were taken out wherever they stood. Names of cameras, zones, rules, hosts,
and of those who changed the site file are in it: look through it before it goes to others.
"""


@dataclass(frozen=True, slots=True)
class DiagnosticsSource:
    """The sources of a bundle's parts.

    live: further files by name, each made when it is written (text, or JSON values).
    """

    site_file: Path | None
    scrubber: SecretScrubber
    read: Callable[[], AbstractContextManager[Any]]
    versions: Callable[[], dict[str, str]]
    site_versions: Sequence[SiteVersion] = ()
    live: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def parts(self) -> dict[str, Callable[[], Any]]:
        """Return all files by name."""

        def rows(make: Callable[[Any], Any]) -> Callable[[], Any]:
            def read() -> Any:
                with self.read() as connection:
                    return make(connection)

            return read

        return {
            "README.txt": lambda: _README,
            "site.yaml": self._site_text,
            "site-versions.json": lambda: [asdict(each) for each in self.site_versions],
            "versions.json": self.versions,
            **self.live,
            "health-events.json": rows(health_rows),
            "gaps.json": rows(gap_rows),
            "schema.json": rows(schema_of),
        }

    def _site_text(self) -> str:
        if self.site_file is None:
            return "# there is none\n"
        try:
            return self.scrubber.scrub_site(read_text(self.site_file))
        except ConfigError as error:
            return f"# it cannot be read: {error}\n"


def stream_bundle(source: DiagnosticsSource) -> Iterator[bytes]:
    """Yield the zip in pieces, one file in memory at a time. A part that cannot be read is a file with the reason."""
    sink = _ZipSink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, make in source.parts().items():
            try:
                bundle.writestr(name, _text(make(), source.scrubber))
            except VedetteError as error:
                bundle.writestr(f"{name}.missing.txt", source.scrubber.scrub(f"It could not be had: {error}\n"))
            yield sink.take()
    yield sink.take()


def machine_state(storage: Path) -> dict[str, Any]:
    """Return what the kernel reports, for a bundle that is made beside a running appliance or without one."""
    memory = machine.memory_bytes()
    return {
        "load_per_core": machine.load_per_core(),
        "memory_bytes": memory[0] if memory else None,
        "memory_available_bytes": memory[1] if memory else None,
        "uptime_s": machine.uptime_s(),
        "temperatures": {each.name: each.celsius for each in machine.temperatures()},
        "clock_synchronised": machine.clock_sync().synchronised,
        "disk": machine.disk_bytes(storage),
    }


def _text(data: Any, scrubber: SecretScrubber) -> str:
    text = (
        scrubber.scrub(data) if isinstance(data, str) else json.dumps(scrubber.scrub_data(data), indent=1, default=str)
    )
    if len(text) <= PART_CHARACTERS_MAX:
        return text
    return text[:PART_CHARACTERS_MAX] + "\n… cut here: the rest was too long\n"


class _ZipSink(io.RawIOBase):
    """Takes what the zip writes, until it is sent."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        found = b"".join(self._pieces)
        self._pieces.clear()
        return found


@cache
def versions() -> dict[str, str]:
    """Return the versions of Vedette, Python, the kernel, SQLite, the schema, and the packages that are installed."""
    found = {
        "vedette": version() or "not installed", "python": platform.python_version(), "kernel": machine.kernel(),
        **database_versions(),
    }  # fmt: skip
    for name in PACKAGES:
        try:
            found[name] = of_package(name)
        except PackageNotFoundError:
            continue
    return found
