"""`/api/v1/alerts`: the list, one alert, its evidence, its clip in H.264, and what a person says of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import Depends, Query, Request
from starlette.responses import FileResponse, Response

from appliance.base.clock import Clock
from appliance.dashboard.access_rights import SAW_STILLS, tell_view
from appliance.dashboard.alert_reader import (
    PAGE_LENGTH,
    AlertFilterPart,
    AlertReader,
    AlertsPart,
    AlertWithNotices,
    Before,
    why_not,
)
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.openapi import media
from appliance.dashboard.recordings_api import RENDITION_RESPONSES, RenditionsPart, as_problems, in_progress, kept_file
from appliance.dashboard.schemas import (
    API,
    EVIDENCE_NAMES,
    AlertItem,
    AlertPage,
    ApiModel,
    BulkDeletion,
    BulkRestore,
    BulkResult,
    BulkReview,
    NoteChange,
    NothingMore,
    ReviewChange,
)
from appliance.store.alert_rows import EvidenceKind
from appliance.store.alerts import AlertStore
from appliance.store.reviews import ReviewStore
from appliance.web.problems import Problem
from appliance.web.routes import RouteList, provided
from appliance.web.visitor import visitor


class AlertReviewer:
    """Changes alerts in the name of the visitor, and only those of cameras that they may see. Any thread may call."""

    def __init__(self, reader: AlertReader, alerts: AlertStore, reviews: ReviewStore, clock: Clock) -> None:
        self._reader = reader
        self._alerts = alerts
        self._reviews = reviews
        self._clock = clock

    def review(self, alert_id: str, change: ReviewChange) -> AlertItem:
        """Write a person's review of an alert. Raises Problem when there is none."""
        self._reviews.review(self._mine([alert_id]), change.review, self._clock.now(), visitor().name)
        return AlertItem.of(self._reader.detail(alert_id).row)

    def review_many(self, change: BulkReview) -> BulkResult:
        """Write a person's review of several alerts, all at once; those of cameras that are not theirs are missing."""
        found = self._reviews.review(self._mine(change.ids), change.review, self._clock.now(), visitor().name)
        return self._result(change.ids, found)

    def delete_many(self, change: BulkDeletion) -> BulkResult:
        """Take alerts out of all lists; their evidence goes when that can no longer be taken back."""
        found = self._reviews.delete(self._mine(change.ids), change.reason.strip(), self._clock.now(), visitor().name)
        return self._result(change.ids, found)

    def restore_many(self, change: BulkRestore) -> BulkResult:
        """Take deletions back that are recent enough."""
        now = self._clock.now()
        found, refused = self._reviews.restore(self._mine(change.ids), now - self._reader.undo_s, now, visitor().name)
        return self._result(change.ids, found, refused)

    def note(self, alert_id: str, change: NoteChange) -> AlertItem:
        """Replace the note of an alert. Raises Problem when there is none."""
        self._reviews.note(alert_id, change.note.strip(), self._clock.now(), visitor().name)
        return AlertItem.of(self._reader.detail(alert_id).row)

    def _mine(self, ids: Sequence[str]) -> Sequence[str]:
        """Those of the cameras that the visitor may see, with the rest of their incidents."""
        who, whole = visitor(), self._reviews.whole(ids)
        return [each for each in whole if who.cameras is None or who.sees(self._alerts.camera_of(each) or "-")]

    def escalated(self, alert_id: str, why: str) -> AlertItem:
        """Note that a person had an alert escalated. Raises Problem when there is none."""
        self._reviews.escalated(alert_id, why, self._clock.now(), visitor().name)
        return AlertItem.of(self._reader.detail(alert_id).row)

    def _result(self, wanted: Sequence[str], found: Sequence[str], refused: Sequence[str] = ()) -> BulkResult:
        rows = [self._reader.detail(each).row for each in found if each in wanted]
        return BulkResult(
            alerts=[AlertItem.of(row) for row in rows],
            missing=[each for each in dict.fromkeys(wanted) if each not in {*found, *refused}],
            refused=[each for each in refused if each in wanted],
        )


Reviewer = Annotated[AlertReviewer, Depends(provided(AlertReviewer))]


router = RouteList(prefix=f"{API}/alerts", tags=["alerts"])


@router.get("")
def list_alerts(
    alerts: AlertsPart,
    wanted: AlertFilterPart,
    before: Before = "",
    limit: Annotated[int, Query(ge=1, le=200)] = PAGE_LENGTH,
) -> AlertPage:
    """Alerts, newest first, page by page."""
    items, older = alerts.page(wanted, before, limit)
    return AlertPage(alerts=items, next=None if older is None else urlencode({**older, "limit": limit}))


@router.get("/{alert_id}")
def one_alert(alerts: AlertsPart, alert_id: str) -> AlertWithNotices:
    """One alert with its events, evidence, delivery and verdict, and its notices."""
    return alerts.full(alert_id)


@router.post("/{alert_id}/escalate")
def escalate_alert(
    alerts: AlertsPart,
    reviewer: Reviewer,
    probes: Annotated[CoreProbes, Depends(provided(CoreProbes))],
    alert_id: str,
    change: NothingMore,
) -> AlertItem:
    """Ask the cloud about this alert, whatever the router thinks of it; privacy and budget hold. 409 says why not."""
    alerts.detail(alert_id)
    if probes.escalate is None:
        raise Problem(409, "It is not escalated: this site has no uplink.")
    answer = probes.escalate(alert_id)
    if not answer.accepted:
        raise Problem(409, f"It is not escalated: {answer.reason}.")
    return reviewer.escalated(alert_id, answer.reason)


_TYPES = {"still.jpg": "image/jpeg", "clip.mp4": "video/mp4", "boxes.json": "application/json"}
_KINDS: dict[str, EvidenceKind] = {"still.jpg": "still", "clip.mp4": "clip", "boxes.json": "boxes"}
assert set(_KINDS) == set(EVIDENCE_NAMES.values())


@router.get(
    "/{alert_id}/evidence/{name}", response_class=FileResponse,
    responses=media("image/jpeg", "video/mp4", "application/json", ranges=True),
)  # fmt: skip
@router.head("/{alert_id}/evidence/{name}", include_in_schema=False)
def evidence_file(
    alerts: AlertsPart, request: Request, alert_id: str, name: Literal["still.jpg", "clip.mp4", "boxes.json"]
) -> Response:
    """Return the still, the clip (with HTTP ranges) or the boxes of an alert."""
    detail = alerts.detail(alert_id)
    row = detail.piece(_KINDS[name])
    if row is None or row.state != "ready":
        raise Problem(404, why_not(row))
    if name != "clip.mp4":  # a list shows many pictures: they are one look at the camera
        tell_view(request, what=SAW_STILLS if name == "still.jpg" else "", about="")
    etag = f'"{row.sha256 or f"{row.bytes}-{row.t_end}"}"'
    return kept_file(request, alerts.file(row), etag, _TYPES[name])


@router.post("/review")
def review_alerts(reviewer: Reviewer, change: BulkReview) -> BulkResult:
    """Review several alerts at once: all of them or, on an error, none. What does not exist is in `missing`."""
    return reviewer.review_many(change)


@router.post("/delete")
def delete_alerts(reviewer: Reviewer, change: BulkDeletion) -> BulkResult:
    """Delete several alerts.

    No list shows them from now on, and after `storage.undo_delete_hours` their evidence is deleted from the disk. Until
    then `restore` takes it back.
    """
    return reviewer.delete_many(change)


@router.post("/restore")
def restore_alerts(reviewer: Reviewer, change: BulkRestore) -> BulkResult:
    """Take back that alerts were deleted."""
    return reviewer.restore_many(change)


@router.post("/{alert_id}/review")
def review_alert(reviewer: Reviewer, alert_id: str, change: ReviewChange) -> AlertItem:
    """Say what you think of it: `reviewed`, `false_alarm`, or null to take it back."""
    return reviewer.review(alert_id, change)


@router.post("/{alert_id}/note")
def note_alert(reviewer: Reviewer, alert_id: str, change: NoteChange) -> AlertItem:
    """Replace the note of an alert; an empty one removes it. It can be searched for."""
    return reviewer.note(alert_id, change)


class ClipRenditionItem(ApiModel):
    """An H.264 copy of an alert's clip, ready at `url`; its times are the clip's."""

    url: str
    bytes: int


@router.get("/{alert_id}/rendition", response_model=ClipRenditionItem, responses=RENDITION_RESPONSES)
async def clip_rendition(alerts: AlertsPart, renditions: RenditionsPart, alert_id: str) -> ClipRenditionItem | Response:
    """Make a smaller copy of the alert's clip in H.264, for browsers that cannot play the camera's codec.

    202 with `progress` while it is made. It is made only while it is requested.
    """
    path = await asyncio.to_thread(alerts.clip, alert_id)

    async def source() -> Path:
        return path

    async with as_problems():
        found = await renditions.ask(("alert", alert_id), source)
    if isinstance(found, float):
        return in_progress(found)
    return ClipRenditionItem(url=f"{API}/alerts/{quote(alert_id, safe='')}/rendition.mp4", bytes=found.written.bytes)


@router.get("/{alert_id}/rendition.mp4", response_class=FileResponse, responses=media("video/mp4", ranges=True))
async def clip_rendition_file(
    request: Request, alerts: AlertsPart, renditions: RenditionsPart, alert_id: str
) -> Response:
    """Return the copy that `rendition` has made, with ranges; 404 if it was not requested."""
    await asyncio.to_thread(alerts.clip, alert_id)
    made = renditions.kept(("alert", alert_id))
    if made is None:
        raise Problem(404, "This clip is not converted; ask for it by /rendition first.")
    return kept_file(request, made.path, made.etag)
