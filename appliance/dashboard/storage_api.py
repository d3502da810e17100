"""`/api/v1/storage`: what recording takes and how long it lasts; `/api/v1/erasures`: spans that a person erases.

The storage is told by camera and class, with what was deleted and why. `/api/v1/cameras/{name}/erase` erases a span of
a camera and answers with a receipt.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Annotated

from fastapi import Depends, Request
from pydantic import Field

from appliance.base.clock import iso_utc
from appliance.base.errors import EvidenceError, PreconditionError
from appliance.dashboard.backup_api import SiteBackups
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import DatabasePart, StorageRoot
from appliance.dashboard.recordings_api import Cuts, Frames, RenditionsPart
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.timeline_api import Moment
from appliance.scenario.scenario_exporter import ScenarioExporter
from appliance.store.deletions import DeletedRow, DeletionReason, StorageClass
from appliance.store.erasure import ErasureReceipt, SpanEraser, Unreached
from appliance.store.quotas import RecordMode
from appliance.store.storage_report import CameraStorage, ForecastKind, SiteStorage, StorageReportCache
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.templating import span
from appliance.web.visitor import visitor

logger = logging.getLogger(__name__)

DAY_S = 86400.0  # seconds
DAYS_MAX = 3650.0  # ten years: further off a forecast says nothing
CLASS_TEXTS: dict[StorageClass, str] = {
    "continuous": "Continuous recording",
    "pre_roll": "Pre-roll rings",
    "alert": "Held for open alerts",
    "evidence": "Evidence of alerts",
}
MODE_TEXTS: dict[RecordMode, str] = {"continuous": "Continuous", "pre_roll": "Pre-roll only", "off": "Off"}
_LIMIT_TEXTS = {
    "camera_quota": "its own quota",
    "quota": "storage.quota.continuous_gb",
    "size": "storage.size_max_gb",
    "disk": "the end of the disk",
}

router = RouteList(prefix=f"{API}/storage", tags=["storage"])
erasure_router = RouteList(prefix=API, tags=["erasures"])


class ForecastItem(ApiModel):
    """The forecast of the storage.

    `outlook`: `unknown` (less than an hour of video was measured), `age` (recording is deleted when its time is up; no
    limit is reached before), `fills` (in `days_left` days `limit` begins to delete it sooner; 0: it does so now),
    `off`. `keeps_s`: how far back the recording will then reach.
    """

    outlook: ForecastKind
    days_left: float | None
    limit: str
    keeps_s: float | None


class CameraStorageItem(ApiModel):
    """The storage of one camera.

    `taken`: bytes by class. `bytes_a_day`: at the rate measured over the last day of video (`measured_s` seconds of
    it); null: not yet known. `quota_bytes` null: no quota of its own. `preroll_s`: seconds that its ring holds.
    """

    camera: str
    mode: RecordMode
    keep_s: float
    quota_bytes: float | None
    evidence_quota_bytes: float | None
    preroll_bytes: int | None
    preroll_s: float | None
    taken: dict[StorageClass, int]
    bytes_a_day: float | None
    evidence_bytes_a_day: float | None
    measured_s: float
    oldest_t: float | None
    forecast: ForecastItem

    @classmethod
    def of(cls, each: CameraStorage) -> CameraStorageItem:
        own = each.limits
        return cls.of_row(
            each,
            keep_s=own.keep_s,
            quota_bytes=own.continuous_bytes,
            evidence_quota_bytes=own.evidence_bytes,
            preroll_bytes=own.preroll_bytes if each.mode == "pre_roll" else None,
            bytes_a_day=_a_day(each.rate),
            evidence_bytes_a_day=_a_day(each.evidence_rate),
            forecast=ForecastItem.of_row(each.forecast),
        )


class DeletedSum(ApiModel):
    """The deletions of a class for a reason, in all (a ledger of 400 days)."""

    what: StorageClass
    reason: DeletionReason
    files: int
    bytes: int


class StorageReport(ApiModel):
    """The storage folder.

    `unreviewed_bytes`: evidence that no limit deletes, only its age. `scenarios_bytes`: deleted by a person only.
    `unknown`: cameras that the forecast leaves out because their rate is not yet known.
    """

    taken: dict[StorageClass, int]
    scenarios_bytes: int
    database_bytes: int
    unreviewed_bytes: int
    size_max_bytes: float
    continuous_quota_bytes: float | None
    evidence_quota_bytes: float | None
    evidence_keep_s: float
    disk_free_bytes: int
    disk_total_bytes: int
    disk_free_min_bytes: float
    ring_in_memory: bool
    evidence_bytes_a_day: float | None
    forecast: ForecastItem
    unknown: tuple[str, ...]
    cameras: list[CameraStorageItem]
    deleted: tuple[DeletedRow, ...]
    deleted_sums: list[DeletedSum]

    @classmethod
    def of(cls, found: SiteStorage) -> StorageReport:
        limits = found.limits
        sums = [
            DeletedSum(what=key[0], reason=key[1], files=files, bytes=found.deleted_bytes.get(key, 0))
            for key, files in sorted(found.deleted_files.items())
        ]
        return cls(
            taken=found.taken, scenarios_bytes=found.scenarios, database_bytes=found.database,
            unreviewed_bytes=found.unreviewed_bytes, size_max_bytes=limits.size_bytes,
            continuous_quota_bytes=limits.continuous_bytes, evidence_quota_bytes=limits.evidence_bytes,
            evidence_keep_s=limits.evidence_s, disk_free_bytes=found.disk_free, disk_total_bytes=found.disk_total,
            disk_free_min_bytes=limits.free_bytes_min, ring_in_memory=found.ring_in_memory,
            evidence_bytes_a_day=_a_day(found.evidence_rate), forecast=ForecastItem.of_row(found.forecast),
            unknown=found.unknown, cameras=[CameraStorageItem.of(each) for each in found.cameras],
            deleted=found.deleted, deleted_sums=sums,
        )  # fmt: skip


StoragePart = Annotated[StorageReportCache, Depends(provided(StorageReportCache))]


@router.get("")
def storage(cache: StoragePart) -> StorageReport:
    """Return what everything takes, per camera and class; how many days that lasts; what was deleted, when and why."""
    return StorageReport.of(cache.read())


def days(left: float) -> str:
    """Days with the digits that a forecast deserves: `5 h`, `1.4 days`, `12 days`."""
    if left < 1:
        return f"{left * 24:.0f} h"
    if left > DAYS_MAX:
        return "more than 10 years"
    return f"{left:.1f} days" if left < 9.95 else f"{left:.0f} days"


def sentence(forecast: ForecastItem) -> str:
    """Return the forecast of the site in words."""
    if forecast.outlook == "unknown":
        return "Not yet known: it takes an hour of recorded video to measure."
    if forecast.outlook == "off":
        return "No camera records continuously."
    if forecast.outlook == "age" or forecast.days_left is None:
        return "Everything is kept as long as it should be: no limit is reached before its time is up."
    limit = _LIMIT_TEXTS[forecast.limit]
    if forecast.days_left <= 0:
        return f"Full: {limit} decides, and the oldest recording goes before its time."
    return f"Then {limit} is reached, and the oldest recording goes before its time."


def lasts(each: CameraStorageItem) -> str:
    """How far back a camera's recording reaches, or will."""
    if each.mode == "off":
        return "–"
    if each.mode == "pre_roll":
        return "not yet known" if each.preroll_s is None else f"{span(each.preroll_s)} in the ring"
    if each.forecast.outlook == "unknown" or each.forecast.keeps_s is None:
        return "not yet known"
    return span(each.forecast.keeps_s)


def _a_day(rate: float | None) -> float | None:
    return None if rate is None else rate * DAY_S


class EraseSpan(RequestModel):
    """begin, end: UTC seconds. typed: the camera's name, typed by whoever wants it erased."""

    begin: Moment
    end: Moment
    typed: Annotated[str, Field(max_length=200)]


class ErasureItem(ApiModel):
    """The receipt of an erasure: what went, and what could not be reached. frames: examined ones, with their boxes."""

    id: int
    t: float
    who: str
    camera: str
    t_start: float
    t_end: float
    segments: int
    segment_bytes: int
    alerts: tuple[str, ...]
    evidence_files: int
    frames: int
    exports: int
    scenarios: tuple[str, ...]
    unreached: tuple[Unreached, ...]


class Eraser:
    """Erases what the appliance keeps of a span: rows, files, kept scenarios, and copies made to look at."""

    def __init__(
        self,
        db: DatabasePart,
        root: Annotated[StorageRoot, Depends(provided(StorageRoot))],
        backups: Annotated[SiteBackups, Depends(provided(SiteBackups))],
        scenarios: Annotated[ScenarioExporter, Depends(provided(ScenarioExporter))],
        copies: Annotated[_Copies, Depends()],
    ) -> None:
        self.store = SpanEraser(db, root.path)
        self._backups = backups
        self._scenarios = scenarios
        self._copies = copies

    async def erase(self, camera: str, wanted: EraseSpan) -> ErasureReceipt:
        """Erase a span, and keep the receipt. Raises StoreError."""
        try:
            return await asyncio.to_thread(self._erase, camera, wanted)
        finally:  # also where the receipt could not be kept
            self._copies.empty()

    def _erase(self, camera: str, wanted: EraseSpan) -> ErasureReceipt:
        backups = [(each.name, each.made_t) for each in self._backups.report().backups]
        found = self.store.erase(camera, wanted.begin, wanted.end, visitor().name, backups)
        kept = [
            each.name
            for each in self._scenarios.store.all()
            if each.card is not None and each.card.alert in found.alerts
        ]
        gone = []
        for name in kept:
            try:
                self._scenarios.store.delete(name)
                gone.append(name)
            except (EvidenceError, PreconditionError) as error:
                logger.warning("the scenario %s of an erased alert stays: %s", name, error)
        receipt = replace(found, scenarios=tuple(gone))
        self.store.keep(receipt)
        return receipt


class _Copies:
    """Pictures in memory and files that were made for somebody who looks."""

    def __init__(self, frames: Frames, cuts: Cuts, renditions: RenditionsPart) -> None:
        self._parts = (frames, cuts, renditions)

    def empty(self) -> None:
        for each in self._parts:
            each.empty()


EraserPart = Annotated[Eraser, Depends()]


@erasure_router.post("/cameras/{name}/erase")
async def erase_span(
    request: Request, cameras: Cameras, eraser: EraserPart, name: str, wanted: EraseSpan
) -> ErasureItem:
    """Erase what is kept of a span of a camera: recording, alerts with evidence, boxes, exports, kept scenarios.

    It cannot be taken back. The receipt names what it could not reach: backups, downloads, what was sent to the cloud
    and its archive, messages, and alerts that still last. 422: the camera's name was not typed.
    """
    camera = cameras.configured.get(name)
    if wanted.typed.strip() not in {name, camera.title if camera else ""} - {""}:
        raise Problem(422, "Type the camera's name to erase a span of it.")
    if not wanted.begin < wanted.end:
        raise Problem(422, "`end` must come after `begin`.")
    receipt = await eraser.erase(name, wanted)
    request.state.about = f"{iso_utc(wanted.begin)} to {iso_utc(wanted.end)}, {len(receipt.alerts)} alerts"
    return ErasureItem.model_validate(receipt)


@erasure_router.get("/erasures")
def list_erasures(eraser: EraserPart) -> list[ErasureItem]:
    """Return the receipts of what was erased, newest first."""
    return [ErasureItem.model_validate(each) for each in eraser.store.receipts()]
