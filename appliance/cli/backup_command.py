"""`vedette backup` and `restore`: a site as one file, beside a running appliance or without one."""

from __future__ import annotations

import os
from pathlib import Path

from appliance import config
from appliance.backup.backup_file import BackupReader, BackupSource, write_backup
from appliance.backup.restore import RestoreTarget, apply_ready, stage
from appliance.base.clock import SystemClock, iso_utc
from appliance.base.command_exit import typed_secret
from appliance.base.errors import ConfigError, PreconditionError, UsageError
from appliance.config.site_file import variables
from appliance.store.database import StoreInUse


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
