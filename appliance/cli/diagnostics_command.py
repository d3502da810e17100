"""`vedette diagnostics`: a bundle for support, without secrets and images, also of a site that does not start."""

from __future__ import annotations

import sys
from pathlib import Path

from appliance import config
from appliance.backup.diagnostics import DiagnosticsSource, machine_state, stream_bundle
from appliance.base.clock import SystemClock
from appliance.base.errors import ConfigError, PreconditionError, UsageError
from appliance.base.yamlfile import read_text
from appliance.dashboard.system_api import versions
from appliance.settings.secret_scrubber import SecretScrubber
from appliance.settings.settings_service import FOLDER, SiteVersions
from appliance.store.database import open_read_only
from appliance.store.paths import DATABASE

LOG_BYTES_MAX = 4_000_000  # some 30,000 lines


def diagnostics_command(site_file: Path, out: Path, log: str, storage: Path | None) -> int:
    """Write the bundle to `out`. Raises UsageError.

    log: a file, `-` for standard input, '' for none. storage: the storage folder, if the site file is too broken to
    name it.
    """
    if out.exists():
        raise PreconditionError(f"{out} is there already: name another file")
    text, site = "", None
    try:
        text = read_text(site_file)
        site = config.load(site_file)
    except ConfigError:
        if storage is None:
            raise
    root = (storage or site.storage.dir if site else storage or Path()).absolute()
    kept = SiteVersions(root / FOLDER, SystemClock())
    known = kept.all()
    scrubber = SecretScrubber.of_site(site_file, [text, *(kept.text(each.number) for each in known)], site)
    lines = _log_text(log)
    source = DiagnosticsSource(
        site_file, scrubber, lambda: open_read_only(root / DATABASE), versions, known,
        {"machine.json": lambda: machine_state(root), **({"log.txt": lambda: lines} if log else {})},
    )  # fmt: skip
    try:
        with out.open("xb") as file:
            try:
                for piece in stream_bundle(source):
                    file.write(piece)
            except BaseException:
                out.unlink(missing_ok=True)  # half a bundle looks like a whole one
                raise
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}") from None
    print(f"{out}: {out.stat().st_size} bytes, without secrets and images; look through it before it goes to others")
    return 0


def _log_text(log: str) -> str:
    """Return the end of the log."""
    if not log:
        return ""
    try:
        data = sys.stdin.buffer.read() if log == "-" else Path(log).read_bytes()
    except OSError as error:
        raise UsageError(f"{log} cannot be read: {error.strerror}") from None
    return data[-LOG_BYTES_MAX:].decode(errors="replace")
