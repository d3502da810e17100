"""`vedette run`, and the first run: a small site file where there is none."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import yaml

from appliance import config
from appliance.backup.restore import apply_ready
from appliance.base.errors import UsageError
from appliance.core.app import run
from appliance.settings.site_editor import replace_text

_LISTEN = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^:\s\[\]]+)(?::(\d{1,5}))?")


def run_command(site_file: Path | None, listen: str | None) -> int:
    """Run the appliance; put a restored backup in place first. Returns the exit code."""
    path = site_file or first_site_file(Path("site.yaml").absolute(), listen)
    site = config.load(path)
    if apply_ready(path, site.storage.dir.absolute()):
        site = config.load(path)
    return run(site, path)


def first_site_file(path: Path, listen: str | None) -> Path:
    """Return `path`, with a site file without cameras written to it if there was none.

    listen: HOST or HOST:PORT of the dashboard. Raises UsageError: it is neither, or there is a file already, which
    says where; DiskWriteError.
    """
    if path.exists():
        if listen is not None:
            raise UsageError(f"--listen is for the first run, and there is {path} already: set dashboard.host there")
        return path
    dashboard: dict[str, str | int] = {}
    if listen is not None:
        found = _LISTEN.fullmatch(listen)
        if found is None:
            raise UsageError(f"`{listen}` is no HOST or HOST:PORT such as 0.0.0.0:8080 or [::]:8080")
        dashboard = {"host": found[1].strip("[]")} | ({"port": int(found[2])} if found[2] else {})
        _must_be_own(listen, str(dashboard["host"]), int(dashboard.get("port", 0)))
    sections = {
        "site": {"name": "site"},
        "storage": {"dir": str(path.parent / "vedette-data")},
        **({"dashboard": dashboard} if dashboard else {}),
        "cameras": {},
    }
    head = "# Written at the first run. The dashboard changes it, and you may: `vedette check` says what is wrong.\n"
    replace_text(path, head + yaml.safe_dump(sections, sort_keys=False, allow_unicode=True))
    return path


def _must_be_own(listen: str, host: str, port: int) -> None:
    """Check the address before it stands in a file that stops every later start. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind((address[0], 0, *address[2:]))
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--listen {listen} is no address of this machine ({reason}): nothing was written") from None
    if port > 65535:
        raise UsageError(f"--listen {listen}: a port is from 1 to 65535; nothing was written")
