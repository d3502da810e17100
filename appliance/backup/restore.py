"""Restores a backup in two steps: checks it and stores it beside the present state; puts it in place at a start.

After a kill the second step runs again: each of its parts is a rename that was done or was not. The earlier state is
kept.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance import config
from appliance.backup.backup_file import (
    SEALED,
    SITE,
    BackupReader,
    check_room,
    fill_secrets,
)
from appliance.base import yamlfile
from appliance.base.clock import Clock, iso_utc
from appliance.base.credentials import unseal
from appliance.base.errors import ConfigError, PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError, flush_to_disk, write_file
from appliance.config import DashboardConfig
from appliance.config.site_file import read_secrets, secrets_path
from appliance.settings.settings_service import FOLDER as VERSIONS
from appliance.settings.site_editor import SiteText, check_file_keys, digest_of, replace_text
from appliance.settings.yaml_edit import SiteChange, edit
from appliance.store.database import writer_lock
from appliance.store.database_copy import check_copy, note_restore, prepare_copy
from appliance.store.paths import DATABASE, EVIDENCE, KEYS

logger = logging.getLogger(__name__)

FOLDER, STAGED, READY, SECRETS = "restore", "staged", "ready.json", "site.secrets"
ASIDE = "before-restore-"
ASIDE_KEPT = 2  # the way back and the one before it
_DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")
_KEY_NAME = re.compile(r"[a-z]{1,20}\.[a-z]{1,8}")
_SMALL_BYTES_MAX = 32 * 1024 * 1024  # a site file and 20 versions of 1 MB each, with secrets


class ReadyRestore(BaseModel):
    """A backup that lies ready: of which site and when, what it brings, and where what is there now will be kept."""

    model_config = ConfigDict(frozen=True)

    site: str
    created_t: float
    vedette: str
    alerts: int
    users: int
    evidence: bool
    secrets: bool
    aside: str


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Where a backup is restored to: the site file (which need not be there) and the storage folder.

    held: settings whose FILE_KEYS it must leave as they are, as it comes through a browser; None: it may bring any.
    """

    site_file: Path
    root: Path
    clock: Clock
    variables: dict[str, str]
    held: SiteText | None = None


def stage(
    target: RestoreTarget, backup: Path, *, passphrase: str = "", other_site: bool = False, who: str = ""
) -> ReadyRestore:
    """Check a backup wholly and lay it ready. Nothing of what runs is touched.

    other_site: it may be of a site of another name. who: restores it, for the access log of what is restored. Raises
    PreconditionError and ConfigError, in words, and DiskWriteError; then nothing lies ready, no earlier restore either.
    """
    discard(target.root)
    folder = target.root / FOLDER / STAGED
    try:
        with BackupReader(backup) as reader:
            found, present = reader.manifest, _present_site(target)
            if (
                present is not None
                and present.config.cameras
                and present.config.site.name != found.site
                and not other_site
            ):
                raise PreconditionError(
                    f"it is of the site {found.site!r}, and this one is {present.config.site.name!r}: say that another "
                    "site is meant, if it is"
                )
            sealed = _unsealed(reader, passphrase)
            check_room(target.root, reader.size_bytes)
            folder.mkdir(mode=0o700, parents=True)
            reader.extract(folder)
        facts = check_copy(folder / DATABASE)
        prepare_copy(folder / DATABASE, target.root / DATABASE)
        about = f"{found.site} as of {iso_utc(found.created_t)}"
        note_restore(folder / DATABASE, target.clock.now(), who, about)
        dashboard = _stage_site(target, folder, sealed, present.text if present else "")
        if not facts.users and (fault := dashboard.open_to_all):
            raise PreconditionError(f"it has no users, and so Vedette would not start with it: {fault}")
        ready = ReadyRestore(
            site=found.site, created_t=found.created_t, vedette=found.vedette, alerts=facts.alerts, users=facts.users,
            evidence=(folder / EVIDENCE).is_dir(), secrets=bool(sealed),
            aside=_new_aside(target),
        )  # fmt: skip
        for path in (folder, *folder.rglob("*")):
            flush_to_disk(path)
        write_file(target.root / FOLDER / READY, ready.model_dump_json().encode())
        return ready
    except BaseException:
        discard(target.root)
        raise


def ready_restore(root: Path) -> ReadyRestore | None:
    """Return the restore that lies ready for the next start; None: there is none."""
    try:
        return ReadyRestore.model_validate_json((root / FOLDER / READY).read_bytes())
    except (OSError, ValidationError):
        return None


def discard(root: Path) -> None:
    """Take back what lies ready, and what a kill left half."""
    with contextlib.suppress(FileNotFoundError):
        (root / FOLDER / READY).unlink()
    shutil.rmtree(root / FOLDER / STAGED, ignore_errors=True)


def apply_ready(site_file: Path, root: Path) -> ReadyRestore | None:
    """Put what lies ready in its place; call it before anything is opened, with no appliance on this folder.

    None: nothing lies ready. Raises StoreInUse: an appliance runs; DiskWriteError, after which the next call goes on.
    """
    ready = ready_restore(root)
    if ready is None:
        if (root / FOLDER).is_dir() and not (root / FOLDER / READY).exists():
            shutil.rmtree(root / FOLDER, ignore_errors=True)  # half of one that was never ready
        return None
    with writer_lock(root / DATABASE):
        try:
            _take_place(ready, site_file, root)
        except OSError as error:
            raise DiskWriteError(
                f"the restore cannot go on ({error.strerror or error}): free some space, or mend the rights of {root} "
                f"and of {site_file.parent}, and start again"
            ) from None
    logger.warning(
        "restored the site %s as of %s; what was there before is kept in %s", ready.site, iso_utc(ready.created_t),
        root / ready.aside,
    )  # fmt: skip
    return ready


def _take_place(ready: ReadyRestore, site_file: Path, root: Path) -> None:
    """Put each part in its place. Every line may be the last one, and may be done again."""
    staged, aside = root / FOLDER / STAGED, root / ready.aside
    aside.mkdir(mode=0o700, exist_ok=True)
    if (staged / DATABASE).exists():
        for name in _DATABASE_FILES:  # an old log beside the new file would be read into it
            _move(root / name, aside / name)
        flush_to_disk(root)
        _move(staged / DATABASE, root / DATABASE)
    for name in (EVIDENCE, VERSIONS, KEYS):
        if (staged / name).exists():
            _move(root / name, aside / name)
            _move(staged / name, root / name)
    for name, path in ((SECRETS, secrets_path(site_file)), (SITE, site_file)):  # which a start reads before it goes on
        if (staged / name).exists():
            if path.exists() and not (aside / name).exists():
                write_file(aside / name, path.read_bytes())
            replace_text(path, (staged / name).read_text(encoding="utf-8"))
            (staged / name).unlink()
    flush_to_disk(root)
    _forget_old(root, ready.aside)
    (root / FOLDER / READY).unlink()
    shutil.rmtree(root / FOLDER, ignore_errors=True)


def _move(path: Path, to: Path) -> None:
    if path.exists():
        path.rename(to)


def _new_aside(target: RestoreTarget) -> str:
    """Return a name that is not there yet, in the order of time."""
    stem = f"{ASIDE}{datetime.fromtimestamp(target.clock.now(), timezone.utc):%Y%m%dT%H%M%SZ}"
    names = [stem, *(f"{stem}-{n}" for n in range(1, 100))]
    return next((name for name in names if not (target.root / name).exists()), stem)


def _forget_old(root: Path, newest: str) -> None:
    kept = sorted(path for path in root.glob(f"{ASIDE}*") if path.name != newest)
    for path in kept[: max(0, len(kept) - (ASIDE_KEPT - 1))]:
        shutil.rmtree(path, ignore_errors=True)


def _present_site(target: RestoreTarget) -> SiteText | None:
    """Return the site file of now; None if it is not valid, which may be why a backup is restored."""
    try:
        text = yamlfile.read_text(target.site_file)
        return SiteText(text, digest_of(text), config.loads(text, str(target.site_file), _variables(target, {})))
    except ConfigError:
        return None


def _variables(target: RestoreTarget, sealed: dict[str, str]) -> dict[str, str]:
    """Return the variables for the site file; the environment counts most, as for a site file that runs."""
    try:
        own = read_secrets(target.site_file)
    except ConfigError:
        own = {}
    return {**own, **sealed, **target.variables}


def _unsealed(reader: BackupReader, passphrase: str) -> dict[str, Any]:
    if reader.manifest.secrets == "hidden":
        return {}
    if not passphrase:
        raise PreconditionError("its secrets are sealed: give the passphrase that it was made with")
    found = json.loads(unseal(reader.read(SEALED, _SMALL_BYTES_MAX), passphrase))
    if not isinstance(found, dict) or not {"site", "secrets", "versions"} <= set(found):
        raise PreconditionError("its sealed secrets are damaged")
    return found


def _stage_site(target: RestoreTarget, folder: Path, sealed: dict[str, Any], present: str) -> DashboardConfig:
    """Write the site file as it will be, with its secrets and the folders of this machine; return its `dashboard`."""
    found = {str(name): str(value) for name, value in sealed.get("secrets", {}).items()}
    # The secrets file holds plain lines: what cannot be one (a PEM) is wanted in the environment.
    secrets = {name: value for name, value in found.items() if value.splitlines() == [value.strip()]}
    text = str(sealed["site"]) if sealed else fill_secrets((folder / SITE).read_text(encoding="utf-8"), present)
    variables = _variables(target, secrets)
    here = config.loads(present, "", variables).storage if present else None
    restored = config.loads(text, SITE, variables)
    changes = []
    if restored.storage.dir.absolute() != target.root.absolute() or (here and restored.storage.dir != here.dir):
        changes.append(SiteChange(("storage", "dir"), str(here.dir if here else target.root)))
    if here and here.preroll_dir != restored.storage.preroll_dir and here.preroll_dir is not None:
        changes.append(SiteChange(("storage", "preroll_dir"), str(here.preroll_dir)))
    text = edit(text, changes)
    restored = config.loads(text, SITE, variables)
    if target.held is not None:
        check_file_keys(target.held.config, restored)
    (folder / SITE).write_text(text, encoding="utf-8")
    (folder / SEALED).unlink(missing_ok=True)
    if sealed:
        own = {name: value for name, value in _variables(target, {}).items() if name not in target.variables}
        lines = [f"{name}={value}" for name, value in sorted({**own, **secrets}.items())]
        (folder / SECRETS).write_text("\n".join([*lines, ""]), encoding="utf-8")
        _stage_versions(folder, sealed["versions"])
        _stage_keys(folder, sealed.get("keys", {}))
    for path in (target.site_file.parent, target.root):
        if not os.access(path, os.W_OK | os.X_OK):
            raise UsageError(f"{path} may not be written by this user: nothing could be restored there")
    return restored.dashboard


def _stage_keys(folder: Path, keys: Any) -> None:
    """Write the keys that browsers have subscribed to; a backup of an older version has none."""
    for name, text in keys.items() if isinstance(keys, dict) else ():
        if _KEY_NAME.fullmatch(str(name)):
            try:
                key = base64.b64decode(str(text))
            except ValueError:
                raise PreconditionError("its sealed secrets are damaged") from None
            (folder / KEYS).mkdir(mode=0o700, exist_ok=True)
            (folder / KEYS / name).touch(mode=0o600)
            (folder / KEYS / name).write_bytes(key)


def _stage_versions(folder: Path, versions: Any) -> None:
    for name, text in versions.items() if isinstance(versions, dict) else ():
        if Path(str(name)).name == name and str(name)[:6].isdigit() and str(name)[6:] == ".json":
            (folder / VERSIONS).mkdir(mode=0o700, exist_ok=True)
            (folder / VERSIONS / str(name)).write_text(str(text), encoding="utf-8")
