"""`/api/v1/cameras/{name}/erase` and `/api/v1/erasures`: erase a span of a camera, with a receipt."""

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
from appliance.dashboard.exports_api import Moment
from appliance.dashboard.recordings_api import Cuts, Frames, RenditionsPart
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.keep.scenario_exporter import ScenarioExporter
from appliance.store.erasure import ErasureReceipt, SpanEraser, UnreachedKind
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

router = RouteList(prefix=API, tags=["erasures"])
logger = logging.getLogger(__name__)


class EraseSpan(RequestModel):
    """begin, end: UTC seconds. typed: the camera's name, typed by whoever wants it erased."""

    begin: Moment
    end: Moment
    typed: Annotated[str, Field(max_length=200)]


class UnreachedItem(ApiModel):
    """Something that an erasure could not reach. t: when it left, UTC seconds."""

    kind: UnreachedKind
    what: str
    t: float


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
    unreached: tuple[UnreachedItem, ...]


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
        receipt = await asyncio.to_thread(self._erase, camera, wanted)
        self._copies.empty()
        return receipt

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


@router.post("/cameras/{name}/erase")
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


@router.get("/erasures")
def list_erasures(eraser: EraserPart) -> list[ErasureItem]:
    """Return the receipts of what was erased, newest first."""
    return [ErasureItem.model_validate(each) for each in eraser.store.receipts()]
