"""The steps of an upgrade that deploy/install.sh leaves to the old or the new version: `python -m appliance.upgrade`.

An upgrade is undone by the version that was there before, with its own knowledge of the schema: the shell moves links
and units, and everything that touches the site's data is here.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import shutil
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from appliance.backup.backup_file import check_room
from appliance.base import yamlfile
from appliance.base.clock import Clock, SystemClock
from appliance.base.config_model import ConfigModel
from appliance.base.errors import ConfigError, MissingDependency, StoreError, VedetteError
from appliance.base.local_files import flush_to_disk, write_file
from appliance.config import DashboardConfig, StorageConfig, loads
from appliance.config.site_file import variables
from appliance.settings.site_editor import replace_text
from appliance.store.database import writer_lock
from appliance.store.database_copy import SCHEMA_KNOWN, copy_database, prepare_copy, schema_of
from appliance.store.paths import DATABASE

KEPT, ASIDE = "before-upgrade-", "after-upgrade-"
KEPT_MAX = 2  # of each: the way back and the one before it
SITE = "site.yaml"
_PACKAGE = Path(__file__).parent
_DATABASE_FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm")
_UNKNOWN = "unknown-variable"
_ANSWER_S = 5.0  # an appliance that is well answers earlier, also on a slow card
_EVERY_S = 1.0  # between two requests while a version starts
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
_RANK = ("silent", "alive", "ready")

State = Literal["silent", "alive", "ready"]
"""silent: nobody answers. alive: it serves, and something is not as promised. ready: /readyz says so."""


class _Variables(Mapping[str, str]):
    """The environment and the secrets beside the site file.

    Whatever else it names only the service's environment has: a secret changes neither folder nor port.
    """

    def __init__(self, site_file: Path) -> None:
        self._known: Mapping[str, str] = os.environ
        with contextlib.suppress(ConfigError):  # wrong secrets may be why an upgrade is undone
            self._known = variables(site_file)

    def __getitem__(self, name: str) -> str:
        return self._known.get(name) or _UNKNOWN

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _Sections(ConfigModel):
    """The sections of a site file that an upgrade reads; others may be wrong, since that may be why it is undone."""

    model_config = ConfigDict(extra="ignore")

    storage: StorageConfig = StorageConfig()
    dashboard: DashboardConfig = DashboardConfig()


def files_folder(package: Path = _PACKAGE) -> Path:
    """Return the folder of units, rules and examples: the wheel's, else the repository's. Raises MissingDependency."""
    for folder in (package / "deploy", package.parent / "deploy"):
        if (folder / "systemd" / "vedette.service").is_file():
            return folder
    raise MissingDependency(f"the units are not in this installation ({package / 'deploy'}): install the wheel again")


def keep(site_file: Path, tag: str) -> Path | None:
    """Copy database and site file into `before-upgrade-TAG` of the storage folder, with no appliance running.

    None: there is no database yet. Raises StoreInUse, StoreError, ConfigError; DiskWriteError: there is no room.
    """
    root = _storage(site_file)
    database = root / DATABASE
    if not database.is_file():
        return None
    folder = root / f"{KEPT}{tag}"
    with writer_lock(database):
        check_room(root, sum((root / name).stat().st_size for name in _DATABASE_FILES if (root / name).exists()))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        copy_database(database, folder / DATABASE)
        write_file(folder / SITE, site_file.read_bytes())
        flush_to_disk(folder)
        _forget_old(root, KEPT, folder)
    return folder


def put_back(site_file: Path, kept: Path) -> list[str]:
    """Undo, for this version, what a newer one made of the data; what was done, in sentences.

    A database that this version can read stays, with all that has happened since; one that it cannot goes aside, and
    the copy takes its place. So does a site file that this version refuses. A kill is made good by calling again.
    Raises StoreInUse, StoreError, DiskWriteError.
    """
    root, done = kept.parent, []
    aside = root / kept.name.replace(KEPT, ASIDE, 1)
    with writer_lock(root / DATABASE):
        if (kept / DATABASE).is_file() and not _readable(root / DATABASE):
            _replace_database(root, kept, aside)
            done.append(f"the database is that of before the upgrade; the newer one is in {aside}")
        if (kept / SITE).is_file() and not _accepted(site_file, site_file) and _accepted(kept / SITE, site_file):
            aside.mkdir(mode=0o700, exist_ok=True)
            if site_file.exists():
                write_file(aside / SITE, site_file.read_bytes())
            replace_text(site_file, yamlfile.read_text(kept / SITE))
            done.append(f"the site file is that of before the upgrade; the newer one is in {aside}")
        _forget_old(root, ASIDE, aside)
    return done


def state(site_file: Path) -> State:
    """Return what the dashboard of this site answers now. Raises ConfigError."""
    dashboard = _sections(site_file).dashboard
    if not dashboard.enabled:
        raise ConfigError(str(site_file), ["dashboard.enabled is off, so nobody can ask whether it is ready"])
    if _status(dashboard, "/readyz") == http.client.OK:
        return "ready"
    return "alive" if _status(dashboard, "/healthz") == http.client.OK else "silent"


def wait_until(site_file: Path, wanted: State, wait_s: float, clock: Clock) -> State:
    """Ask until it is as `wanted` or better, or the time is over; the last answer."""
    end = clock.monotonic() + wait_s
    while True:
        found = state(site_file)
        if _RANK.index(found) >= _RANK.index(wanted) or clock.monotonic() >= end:
            return found
        clock.sleep(_EVERY_S)


def main(arguments: list[str] | None = None) -> int:
    """Run one verb. 0: done. 1: it is not (yet) as wanted. 2: it cannot be done, with the reason."""
    parser = argparse.ArgumentParser(prog="python -m appliance.upgrade", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("files")
    for verb, more in (("keep", "tag"), ("put-back", "kept")):
        form = verbs.add_parser(verb)
        form.add_argument("site", type=Path)
        form.add_argument(more, type=Path if more == "kept" else str)
    form = verbs.add_parser("state")
    form.add_argument("site", type=Path)
    form.add_argument("--wait", type=float, default=0.0, metavar="SECONDS")
    form.add_argument("--until", choices=_RANK, default="ready")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except (VedetteError, OSError) as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    if options.verb == "files":
        print(files_folder())
    elif options.verb == "keep":
        print(keep(options.site, options.tag) or "")
    elif options.verb == "put-back":
        print("\n".join(put_back(options.site, options.kept)))
    else:
        found = wait_until(options.site, options.until, options.wait, SystemClock())
        print(found)
        return 0 if _RANK.index(found) >= _RANK.index(options.until) else 1
    return 0


def _sections(site_file: Path) -> _Sections:
    return yamlfile.load(site_file, _Sections, _Variables(site_file))


def _storage(site_file: Path) -> Path:
    folder = _sections(site_file).storage.dir.absolute()
    if _UNKNOWN in str(folder):
        raise ConfigError(
            str(site_file), ["storage.dir: stands in a variable that only the service has; write the folder out"]
        )
    return folder


def _readable(database: Path) -> bool:
    """Return True if it is there, whole enough, and of a known schema; in the middle of a way back it is not there."""
    try:
        return database.is_file() and schema_of(database) <= SCHEMA_KNOWN
    except StoreError:
        return False


def _replace_database(root: Path, kept: Path, aside: Path) -> None:
    try:
        prepare_copy(kept / DATABASE, root / DATABASE)
    except StoreError:  # the newer one is damaged, and tells nothing
        prepare_copy(kept / DATABASE, kept / "nothing")
    aside.mkdir(mode=0o700, exist_ok=True)
    for name in _DATABASE_FILES:  # an old log beside the other file would be read into it
        if (root / name).exists():
            (root / name).rename(aside / name)
    flush_to_disk(root)
    (kept / DATABASE).rename(root / DATABASE)
    flush_to_disk(root)


def _accepted(text: Path, site_file: Path) -> bool:
    """Return True if this version takes the text of `text` as that site file, whose secrets lie beside it."""
    try:
        loads(yamlfile.read_text(text), str(text), _Variables(site_file))
    except ConfigError:
        return False
    return True


def _forget_old(root: Path, stem: str, newest: Path) -> None:
    others = sorted((each for each in root.glob(f"{stem}*") if each != newest), key=lambda each: each.stat().st_mtime)
    for path in others[: max(0, len(others) - (KEPT_MAX - 1))]:
        shutil.rmtree(path, ignore_errors=True)


def _status(dashboard: DashboardConfig, path: str) -> int:
    """Return the HTTP status; 0: no answer. Any certificate is accepted: the address is this machine's own."""
    host = _EVERYWHERE.get(dashboard.host, dashboard.host)
    connection = (
        http.client.HTTPSConnection(host, dashboard.port, timeout=_ANSWER_S, context=ssl._create_unverified_context())
        if dashboard.speaks_https
        else http.client.HTTPConnection(host, dashboard.port, timeout=_ANSWER_S)
    )
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(65536)
        return answer.status if isinstance(json.loads(body), dict) else 0
    except (OSError, http.client.HTTPException, ValueError):
        return 0
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(main())
