"""`/api/v1/backups` and `/api/v1/restore`: the site as one file to download, and one that is brought back."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from contextlib import AbstractContextManager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic import Field, SecretStr
from starlette.responses import FileResponse

from appliance.backup.backup_file import BYTES_MAX, FREE_BYTES_MIN, BackupSource, write_backup
from appliance.backup.restore import FOLDER, ReadyRestore, RestoreTarget, discard, ready_restore, stage
from appliance.base.clock import Clock
from appliance.base.errors import UsageError
from appliance.base.local_files import DiskWriteError
from appliance.config.site_file import variables
from appliance.dashboard.schemas import API, ApiModel, Flag, RequestModel
from appliance.dashboard.settings_api import SettingsPart
from appliance.dashboard.users_api import refuse_token
from appliance.web.auth import AccessPart
from appliance.web.problems import Problem, alone, refused_as
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

BACKUPS = "backups"
BACKUPS_KEPT = 2  # the newest and the one before it, in case the newest is cut short
_NAME = re.compile(r"[\w-]{1,64}-\d{8}T\d{6}Z\.vedette\.zip")

REFUSALS: dict[type[Exception], int] = {UsageError: 422, DiskWriteError: 507}  # a backup, a passphrase, the disk

router = RouteList(prefix=API, tags=["system"])


class BackupItem(ApiModel):
    """A backup that was made here. url: where it is downloaded."""

    name: str
    bytes: int
    made_t: float
    url: str


class BackupReport(ApiModel):
    """The newest first, two are kept. ready: what the next start restores; null: nothing."""

    backups: list[BackupItem]
    ready: ReadyRestore | None


class MakeBackup(RequestModel, strict=True):
    """passphrase: the secrets are in it, sealed with this; '': they are not in it."""

    evidence: Flag = False
    passphrase: Annotated[SecretStr, Field(max_length=200)] = SecretStr("")


class StartRestore(RequestModel):
    """other_site: it may be of a site of another name."""

    passphrase: Annotated[SecretStr, Field(max_length=200)] = SecretStr("")
    other_site: Flag = False


class UploadReport(ApiModel):
    """bytes: so many are here; send the next with `at` = this."""

    bytes: int


class SiteBackups:
    """Makes backups in the storage folder and takes them in, one at a time. Any thread may call."""

    def __init__(self, root: Path, settings: SettingsPart, clock: Clock) -> None:
        self._root = root
        self._settings = settings
        self._clock = clock
        self._busy = threading.Lock()

    def report(self) -> BackupReport:
        found = []
        for path in sorted((self._root / BACKUPS).glob("*.zip"), key=lambda path: path.name[-26:], reverse=True):
            if _NAME.fullmatch(path.name):
                try:
                    about = path.stat()
                except FileNotFoundError:  # it was deleted just now
                    continue
                url = f"{API}/backups/{path.name}"
                found.append(BackupItem(name=path.name, bytes=about.st_size, made_t=about.st_mtime, url=url))
        return BackupReport(backups=found, ready=ready_restore(self._root))

    def make(self, wanted: MakeBackup) -> BackupReport:
        """Make a backup and return what it holds. Raise Problem if it cannot be made."""
        with self._alone(), refused_as(REFUSALS):
            path, now = self._settings.service.path, self._clock.now()
            site = self._settings.service.running.config.site.name
            name = f"{site}-{datetime.fromtimestamp(now, timezone.utc):%Y%m%dT%H%M%SZ}.vedette.zip"
            for old in self.report().backups[BACKUPS_KEPT - 1 :]:
                (self._root / BACKUPS / old.name).unlink(missing_ok=True)
            for half in (self._root / BACKUPS).glob(".*.vedette.zip.*"):  # a kill left it
                half.unlink(missing_ok=True)
            source = BackupSource(path, self._root, self._clock, variables(path))
            write_backup(
                source, self._root / BACKUPS / name, evidence=wanted.evidence,
                passphrase=wanted.passphrase.get_secret_value(),
            )  # fmt: skip
        return self.report()

    def path(self, name: str) -> Path:
        """Return the path of a backup. Raise Problem if there is none of that name."""
        path = self._root / BACKUPS / name
        if not _NAME.fullmatch(name) or not path.is_file():
            raise Problem(404, "There is no such backup.")
        return path

    def remove(self, name: str) -> BackupReport:
        self.path(name).unlink(missing_ok=True)
        return self.report()

    def receive(self, at: int, data: bytes) -> int:
        """Take a piece of an upload; at 0 it begins anew. Returns how much is here. Raises Problem."""
        with self._alone():
            path = self._upload
            try:
                path.parent.mkdir(mode=0o700, exist_ok=True)
                here = path.stat().st_size if at and path.exists() else 0
                if at != here:
                    raise Problem(409, f"{here} bytes of it are here: go on there, or begin anew at 0.")
                if shutil.disk_usage(self._root).free < len(data) + FREE_BYTES_MIN:
                    raise Problem(507, "There is no room for it on the disk.")
                flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if at else os.O_TRUNC)
                with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                    file.write(data)
            except OSError as error:
                raise Problem(507, f"The disk does not take it: {error.strerror}.") from None
            return at + len(data)

    def restore(self, wanted: StartRestore) -> BackupReport:
        """Check what was uploaded, wholly, and lay it ready for the next start. Raises Problem."""
        with self._alone(), refused_as(REFUSALS):
            service, upload = self._settings.service, self._upload
            if not upload.is_file():
                raise Problem(409, "Upload a backup first.")
            given = {name: value for name, value in os.environ.items() if value}
            target = RestoreTarget(service.path, self._root, self._clock, given, service.running)
            passphrase = wanted.passphrase.get_secret_value()
            stage(target, upload, passphrase=passphrase, other_site=wanted.other_site, who=visitor().name)
            upload.unlink(missing_ok=True)
        return self.report()

    def discard(self) -> BackupReport:
        """Nothing is restored."""
        with self._alone():
            discard(self._root)
            self._upload.unlink(missing_ok=True)
        return self.report()

    @property
    def _upload(self) -> Path:
        return self._root / FOLDER / "upload.part"

    def _alone(self) -> AbstractContextManager[None]:
        return alone(self._busy, Problem(409, "A backup or a restore is being made; try again when it is done."))


Backups = Annotated[SiteBackups, Depends(provided(SiteBackups))]


@router.get("/backups")
def backups(part: Backups) -> BackupReport:
    """Backups that were made here, and what the next start restores."""
    return part.report()


@router.post("/backups", status_code=201)
def make_backup(part: Backups, wanted: MakeBackup) -> BackupReport:
    """Make one; it takes as long as the database and the evidence are large."""
    return part.make(wanted)


@router.get("/backups/{backup}", response_class=FileResponse, responses={200: {"content": {"application/zip": {}}}})
def download_backup(part: Backups, backup: str) -> FileResponse:
    """Download one; ranges are answered."""
    return FileResponse(part.path(backup), media_type="application/zip", filename=backup)


@router.delete("/backups/{backup}")
def delete_backup(part: Backups, backup: str) -> BackupReport:
    """Delete one from this machine."""
    return part.remove(backup)


@router.post(
    "/restore/upload",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)  # fmt: skip
async def upload_backup(
    request: Request, part: Backups, at: Annotated[int, Query(ge=0, le=BYTES_MAX)] = 0
) -> UploadReport:
    """Take a piece of a backup, at most 1 MiB of `application/octet-stream`, that belongs at byte `at`."""
    data = await request.body()
    return UploadReport(bytes=await asyncio.to_thread(part.receive, at, data))


@router.post("/restore")
def restore_backup(part: Backups, access: AccessPart, wanted: StartRestore) -> BackupReport:
    """Check the whole upload; it takes its place at the next start.

    422 states what is wrong with it. It brings users: 403 for a token.
    """
    refuse_token(access)
    return part.restore(wanted)


@router.delete("/restore")
def discard_restore(part: Backups) -> BackupReport:
    """Take back what lies ready."""
    return part.discard()
