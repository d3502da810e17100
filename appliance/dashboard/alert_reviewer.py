"""Writes what people do with alerts: reviews, notes, deletions, and escalations that they asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends

from appliance.base.clock import Clock
from appliance.dashboard.alert_reader import AlertReader
from appliance.dashboard.schemas import (
    AlertItem,
    BulkDeletion,
    BulkRestore,
    BulkResult,
    BulkReview,
    NoteChange,
    ReviewChange,
)
from appliance.store.alerts import AlertStore
from appliance.store.review_writes import ReviewStore
from appliance.web.dependencies import provided
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
        return AlertItem.of(self._reader.detail(alert_id).alert)

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
        return AlertItem.of(self._reader.detail(alert_id).alert)

    def _mine(self, ids: Sequence[str]) -> Sequence[str]:
        """Those of the cameras that the visitor may see, with the rest of their incidents."""
        who, whole = visitor(), self._reviews.whole(ids)
        return [each for each in whole if who.cameras is None or who.sees(self._alerts.camera_of(each) or "-")]

    def escalated(self, alert_id: str, why: str) -> AlertItem:
        """Note that a person had an alert escalated. Raises Problem when there is none."""
        self._reviews.escalated(alert_id, why, self._clock.now(), visitor().name)
        return AlertItem.of(self._reader.detail(alert_id).alert)

    def _result(self, wanted: Sequence[str], found: Sequence[str], refused: Sequence[str] = ()) -> BulkResult:
        rows = [self._reader.detail(each).alert for each in found if each in wanted]
        return BulkResult(
            alerts=[AlertItem.of(row) for row in rows],
            missing=[each for each in dict.fromkeys(wanted) if each not in {*found, *refused}],
            refused=[each for each in refused if each in wanted],
        )


Reviewer = Annotated[AlertReviewer, Depends(provided(AlertReviewer))]
