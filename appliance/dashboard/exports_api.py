"""Serves `/api/v1/exports`: clips that may be handed over, and a link to one alert's clip that expires.

`POST /api/v1/alerts/{alert_id}/export` and `POST /api/v1/cameras/{name}/export` order one. `/shared/{token}` is the
address of a link; nobody signs in for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Request
from pydantic import Field, StringConstraints
from starlette.responses import FileResponse, Response

from appliance.base.clock import iso_utc
from appliance.base.errors import ModelError, PreconditionError, UsageError
from appliance.dashboard.alert_reader import AlertsPart
from appliance.dashboard.deps import DatabasePart
from appliance.dashboard.exports import CLIP, ZIP, ClipExporter, ExportOrder, cover_sheet
from appliance.dashboard.openapi import media
from appliance.dashboard.recordings_api import kept_file
from appliance.dashboard.schemas import API, ApiModel, RequestModel
from appliance.dashboard.timeline_api import Moment
from appliance.detect.model_files import model_bundles
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.exports import LINK_HOURS_MAX, ExportRow, ExportState, Hide
from appliance.store.users import AccessLog
from appliance.web.auth import TemplatesPart, address_of
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor

WHY_LENGTH_MAX = 300  # characters: a file number and a sentence

router = RouteList(prefix=API, tags=["exports"])
shared_router = RouteList(include_in_schema=False)
ExporterPart = Annotated[ClipExporter, Depends(provided(ClipExporter))]
Log = Annotated[AccessLog, Depends(provided(AccessLog))]
REFUSALS: Mapping[type[Exception], int] = {UsageError: 422, PreconditionError: 409}


class ExportAlert(RequestModel):
    """why: for the cover sheet and the access log. hide: everything but the alert's objects, or other people only."""

    why: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=WHY_LENGTH_MAX)]
    hide: Hide = "surroundings"


class ExportSpan(ExportAlert):
    """begin, end: UTC seconds, at most five minutes. The objects of the alerts in it stay visible."""

    begin: Moment
    end: Moment


class MakeLink(RequestModel):
    """hours: until the link ends."""

    hours: Annotated[float, Field(gt=0, le=LINK_HOURS_MAX, allow_inf_nan=False)] = 24.0


class ExportItem(ApiModel):
    """An export. Its row outlives its files. progress: 0..1 while it is made; download: '' until it is ready.

    taken: how often it was downloaded. link_until: when its link ends, UTC seconds; null: it has none.
    """

    id: str
    t: float
    who: str
    why: str
    camera: str
    alert: str
    t_start: float
    t_end: float
    hide: Hide
    state: ExportState
    problem: str
    progress: float
    bytes: int
    sha256: str
    download: str
    taken: int
    link_until: float | None
    opened: int


class SharedLinkItem(ApiModel):
    """url: shown this once, without sign-in, for this clip alone. until_t: UTC seconds."""

    url: str
    until_t: float


def export_item(exporter: ClipExporter, row: ExportRow, now: float) -> ExportItem:
    return ExportItem.of_row(
        row, state=row.files.state, problem=row.files.problem, bytes=row.files.bytes, sha256=row.files.sha256,
        taken=row.files.taken, progress=exporter.progress(row),
        download=f"{API}/exports/{row.id}/export.zip" if row.files.state == "ready" else "",
        link_until=row.link.until_t if row.link and now < row.link.until_t else None,
        opened=row.link.opened if row.link else 0,
    )  # fmt: skip


def exports_of(exporter: ClipExporter, now: float) -> list[ExportItem]:
    """Return the exports of the cameras that the visitor may see, newest first."""
    return [export_item(exporter, row, now) for row in exporter.store.all() if visitor().sees(row.camera)]


def missed_people(db: Database, camera: str) -> float | None:
    """Return the share of people whom a camera's network missed on the judging set; None: it is not measured."""
    model = next((row.model for row in CameraStore(db).all() if row.name == camera), "")
    digest = model.rpartition("@")[2]  # of NAME@DIGEST
    try:
        found = next((each for each in model_bundles().values() if digest and each.sha256.startswith(digest)), None)
    except ModelError:
        return None
    recall = None if found is None else found.recall.get("cameras_person")
    return None if recall is None else 1 - recall


class _Ordered:
    """Fields of each order."""

    def __init__(self, request: Request, exporter: ExporterPart, db: DatabasePart, templates: TemplatesPart) -> None:
        self.exporter, self._db, self._templates = exporter, db, templates
        self._request = request

    async def begin(self, order: ExportOrder) -> ExportItem:
        missed = await asyncio.to_thread(missed_people, self._db, order.camera)
        with refused_as(REFUSALS):
            row = await self.exporter.begin(order, partial(cover_sheet, self._templates, missed))
        hidden = "everything but the alert's objects" if order.hide == "surroundings" else "other people"
        self._request.state.camera = row.camera
        self._request.state.about = (
            f"{row.id}: {iso_utc(row.t_start)} to {iso_utc(row.t_end)}, hides {hidden}: {row.why}"
        )
        return export_item(self.exporter, row, row.t)


Ordered = Annotated[_Ordered, Depends()]


@router.post("/alerts/{alert_id}/export", status_code=201)
async def export_alert(ordered: Ordered, alerts: AlertsPart, alert_id: str, wanted: ExportAlert) -> ExportItem:
    """Begin an export of an alert: a zip with its clip, in which a mosaic hides the rest, and a cover sheet.

    The clip is H.264 without sound. Ask `/exports/{id}` until it is ready; it is kept for a day.
    """
    detail = await asyncio.to_thread(alerts.detail, alert_id)
    order = ExportOrder(detail.alert.camera, detail, 0.0, 0.0, visitor().name, wanted.why, wanted.hide)
    return await ordered.begin(order)


@router.post("/cameras/{name}/export", status_code=201)
async def export_span(ordered: Ordered, name: str, wanted: ExportSpan) -> ExportItem:
    """Begin an export of a span of a camera's recording. The objects of the alerts in it stay visible."""
    order = ExportOrder(name, None, wanted.begin, wanted.end, visitor().name, wanted.why, wanted.hide)
    return await ordered.begin(order)


@router.get("/exports")
def list_exports(exporter: ExporterPart, log: Log) -> list[ExportItem]:
    """List exports, newest first, also those whose files are deleted."""
    return exports_of(exporter, log.now)


@router.get("/exports/{export}")
def one_export(exporter: ExporterPart, log: Log, export: str) -> ExportItem:
    """Return one export: whether it is ready, and where."""
    return export_item(exporter, _known(exporter, export), log.now)


@router.get("/exports/{export}/export.zip", response_class=FileResponse, responses=media("application/zip"))
def export_file(request: Request, exporter: ExporterPart, export: str) -> Response:
    """Return the zip: clip, cover sheet, SHA256SUMS."""
    row = _known(exporter, export)
    path = exporter.file(row, ZIP)
    if path is None:
        raise Problem(404, "The files of this export are not there.")
    exporter.store.count(row.id, "taken")
    request.state.camera = row.camera
    name = f"{row.camera}-{iso_utc(row.t_start)[:19].replace('-', '').replace(':', '')}Z.zip"
    return kept_file(request, path, f'"{row.files.sha256}"', "application/zip", filename=name)


@router.delete("/exports/{export}")
def remove_export(request: Request, exporter: ExporterPart, log: Log, export: str) -> ExportItem:
    """Delete the files of an export, and end its link; its row stays."""
    row = _known(exporter, export)
    exporter.delete(row)
    request.state.camera = row.camera
    return export_item(exporter, _known(exporter, export), log.now)


@router.post("/exports/{export}/link", status_code=201)
def make_link(request: Request, exporter: ExporterPart, log: Log, export: str, wanted: MakeLink) -> SharedLinkItem:
    """Make a link to an alert's exported clip that ends. It is in this response and nowhere else.

    Whoever has it sees this clip, and nothing else, without signing in. A new one replaces it. 409: it is no alert's.
    """
    row = _known(exporter, export)
    if not row.alert or exporter.file(row, CLIP) is None:
        raise Problem(409, "A link leads to the finished export of one alert; this is none.")
    until_t = log.now + wanted.hours * 3600
    token = exporter.store.make_link(row.id, until_t)
    request.state.camera = row.camera
    request.state.about = f"{row.id}, until {iso_utc(until_t)}"
    base = exporter.public_url or str(request.base_url).rstrip("/")
    return SharedLinkItem(url=f"{base}/shared/{quote(token)}", until_t=until_t)


@router.delete("/exports/{export}/link")
def end_link(request: Request, exporter: ExporterPart, log: Log, export: str) -> ExportItem:
    """End the link of an export now."""
    row = _known(exporter, export)
    exporter.store.end_link(row.id)
    request.state.camera = row.camera
    return export_item(exporter, _known(exporter, export), log.now)


@shared_router.get("/shared/{token}/clip.mp4", response_class=FileResponse)
def shared_clip(request: Request, exporter: ExporterPart, token: str) -> Response:
    """Return the clip of a link, with ranges."""
    row = shared_export(request, exporter, token)
    path = exporter.file(row, CLIP)
    if path is None:
        raise Problem(404, "This link leads nowhere, or it has ended.")
    return kept_file(request, path, f'"{row.files.sha256}"')


def shared_export(request: Request, exporter: ClipExporter, token: str) -> ExportRow:
    """Return what a link leads to. Raise Problem: there were too many requests, or it leads nowhere."""
    if not exporter.may_open(address_of(request.scope)):
        raise Problem(429, "Too many requests; try again in a minute.", {"Retry-After": "60"})
    row = exporter.store.by_link(token)
    if row is None:
        raise Problem(404, "This link leads nowhere, or it has ended.")
    return row


def _known(exporter: ClipExporter, export: str) -> ExportRow:
    row = exporter.store.get(export)
    if row is None or not visitor().sees(row.camera):
        raise Problem(404, "There is no such export.")
    return row
