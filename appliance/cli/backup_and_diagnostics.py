"""`vedette backup`, `restore` and `diagnostics`: a site as one file, beside a running appliance or without one.

The diagnostics are a bundle for support, without secrets and images, also of a site that does not start.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from appliance import config
from appliance.backup.backup_file import BackupReader, BackupSource, write_backup
from appliance.backup.diagnostics import DiagnosticsSource, machine_state, stream_bundle, versions
from appliance.backup.restore import RestoreTarget, apply_ready, stage
from appliance.base.clock import SystemClock, iso_utc
from appliance.base.command_exit import typed_secret
from appliance.base.errors import ConfigError, PreconditionError, UsageError
from appliance.base.yamlfile import read_text
from appliance.config.site_file import variables
from appliance.settings.secret_scrubber import SecretScrubber
from appliance.settings.settings_service import FOLDER, SiteVersions
from appliance.store.database import StoreInUse, open_read_only
from appliance.store.paths import DATABASE

LOG_BYTES_MAX = 4_000_000  # of a log in diagnostics: some 30,000 lines


def backup_command(site_file: Path, out: Path, *, evidence: bool, secrets: bool) -> int:
    """Write a backup to `out`, which must not be there. Raises UsageError, StoreError, DiskWriteError."""
    if out.exists():
        raise PreconditionError(f"{out} is there already: name another file")
    site = config.load(site_file)
    source = BackupSource(site_file, site.storage.dir.absolute(), SystemClock(), variables(site_file))
    passphrase = typed_secret("Passphrase for the secrets: ") if secrets else ""
    if secrets and not passphrase:
        raise UsageError("no passphrase came: type it at a terminal, or give it as the first line of standard input")
    made = write_backup(source, out, evidence=evidence, passphrase=passphrase)
    print(f"{out}: {out.stat().st_size} bytes, {made.alerts} alerts, {made.users} users")
    if made.hidden:
        print(f"without the secrets at {', '.join(made.hidden)}: --secrets puts them in, sealed with a passphrase")
    if made.missing:
        print(f"{made.missing} files of evidence were gone and are not in it")
    return 0


def restore_command(backup: Path, site_file: Path, storage: Path | None, *, other_site: bool) -> int:
    """Check a backup, and put it in place, or have a running appliance do so at its next start. Raises UsageError."""
    try:
        root = (storage or config.load(site_file).storage.dir).absolute()
    except ConfigError as error:
        raise UsageError(f"where to? The site file does not say it ({error}): name the folder with --storage") from None
    if site_file.is_dir():
        raise UsageError(f"{site_file} is a folder: name the site file in it")
    if root.exists() and not root.is_dir():
        raise UsageError(f"{root} is a file: the storage is a folder")
    with BackupReader(backup) as reader:
        sealed = reader.manifest.secrets == "sealed"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    passphrase = typed_secret("Passphrase of its secrets: ", twice=False) if sealed else ""
    target = RestoreTarget(site_file, root, SystemClock(), {name: value for name, value in os.environ.items() if value})
    ready = stage(target, backup, passphrase=passphrase, other_site=other_site, who="vedette restore")
    print(f"{ready.site} as of {iso_utc(ready.created_t)}: {ready.alerts} alerts, {ready.users} users; it is whole")
    try:
        apply_ready(site_file, root)
    except StoreInUse:
        print("Vedette runs: restart it, and it begins with this; until then nothing has changed")
        return 0
    print(f"restored; what was there before is in {root / ready.aside}")
    return 0


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
