"""`/api/v1/alerts/…/review`, `note`, `delete`, `restore`: what a person says of alerts."""

from __future__ import annotations

from fastapi import APIRouter

from appliance.dashboard.alert_reader import Reader
from appliance.dashboard.schemas import (
    API,
    AlertItem,
    BulkDeletion,
    BulkRestore,
    BulkResult,
    BulkReview,
    NoteChange,
    ReviewChange,
)

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])


@router.post("/review")
def review_alerts(alerts: Reader, change: BulkReview) -> BulkResult:
    """Review several alerts at once: all of them or, on an error, none. What does not exist is in `missing`."""
    return alerts.review_many(change)


@router.post("/delete")
def delete_alerts(alerts: Reader, change: BulkDeletion) -> BulkResult:
    """Delete several alerts: no list shows them from now on, and after `storage.undo_delete_hours` their evidence is
    deleted from the disk. Until then `restore` takes it back."""
    return alerts.delete_many(change)


@router.post("/restore")
def restore_alerts(alerts: Reader, change: BulkRestore) -> BulkResult:
    """Take back that alerts were deleted."""
    return alerts.restore_many(change)


@router.post("/{alert_id}/review")
def review_alert(alerts: Reader, alert_id: str, change: ReviewChange) -> AlertItem:
    """Say what you think of it: `reviewed`, `false_alarm`, or null to take it back."""
    return alerts.review(alert_id, change)


@router.post("/{alert_id}/note")
def note_alert(alerts: Reader, alert_id: str, change: NoteChange) -> AlertItem:
    """Replace the note of an alert; an empty one removes it. It can be searched for."""
    return alerts.note(alert_id, change)
