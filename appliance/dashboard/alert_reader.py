"""Read and review alerts for the API and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Depends

from appliance.base.clock import Clock
from appliance.base.errors import StoreError
from appliance.dashboard.alert_filter import AlertFilter, cursor_of
from appliance.dashboard.schemas import (
    AlertFull,
    AlertItem,
    ApiModel,
    BulkDeletion,
    BulkRestore,
    BulkResult,
    BulkReview,
    NoteChange,
    ReviewChange,
)
from appliance.store.alert_search import AlertQuery
from appliance.store.alerts import AlertCursor, AlertStore
from appliance.store.notices import NoticeRow, NoticeState, NoticeStore
from appliance.store.paths import EVIDENCE, inside
from appliance.store.review_writes import ReviewStore
from appliance.store.rows import AlertDetail, AlertRow, EvidenceRow, Standing
from appliance.web.dependencies import provided
from appliance.web.problems import Problem
from appliance.web.visitor import visitor

_STANDING_TEXTS: dict[Standing | Literal[""], str] = {
    "": "",
    "edge": "as the box saw it",
    "unverified": "as unverified",
    "confirmed": "as confirmed",
    "rechecked": "as seen again by a detector",
    "doubted": "as doubted",
    "withdrawn": "that it was nothing",
    "unsure": "that the cloud is not sure",
}


class NoticeItem(ApiModel):
    """A target of an alert. held_until: the notice waits for a verdict until then at the latest; null: it does not.

    told_t: when the first message arrived, last_t: the last, standing: what that one reported, messages: how many did.
    reason: the last problem, or why nothing (more) is sent. words: all this as a sentence for a person.
    """

    target: str
    state: NoticeState
    held_until: float | None
    told_t: float | None
    last_t: float | None
    standing: Standing | Literal[""]
    messages: int
    attempts: int
    reason: str
    words: str

    @classmethod
    def of(cls, row: NoticeRow, now: float) -> NoticeItem:
        held = row.state == "waiting" and not row.attempts and now < row.due_t
        return cls(
            target=row.target,
            state=row.state,
            held_until=row.due_t if held else None,
            told_t=row.told_t,
            last_t=row.last_t,
            standing=row.standing,
            messages=row.messages,
            attempts=row.attempts,
            reason=row.reason,
            words=_notice_text(row, held),
        )


class AlertWithNotices(AlertFull):
    """Everything about one alert, and its notices by target."""

    notices: list[NoticeItem]


class AlertReader:
    """Alerts, their notices and their evidence files as the API and the pages show them. Any thread may call."""

    def __init__(
        self,
        alerts: AlertStore,
        reviews: ReviewStore,
        notices: NoticeStore,
        root: Path,
        clock: Clock,
        *,
        undo_s: float = 0.0,
    ) -> None:
        """root: the storage folder. undo_s: how long a deletion can be taken back."""
        self.undo_s = undo_s
        self._alerts = alerts
        self._notices = notices
        self._reviews = reviews
        self._root = root
        self._clock = clock

    def page(
        self, wanted: AlertFilter, before: str, limit: int, *, listed: bool = False
    ) -> tuple[list[AlertItem], dict[str, str] | None]:
        """One page, newest first, and the query of the next (None: this is the last). Raises Problem.

        listed: as the list on the page has it.
        """
        query = replace(wanted.listed if listed else wanted.wanted, cameras=visitor().cameras)
        rows = self._alerts.page(cursor_of(before), limit + 1, query)
        older = None
        if len(rows) > limit:
            last = rows[limit - 1]
            older = {**wanted.query, "before": f"{last.t_start!r}~{last.id}"}
        return [AlertItem.of(row) for row in rows[:limit]], older

    def is_listed(self, alert_id: str, wanted: AlertFilter) -> bool:
        """Return whether the list on the page has this alert."""
        return self._alerts.is_wanted(alert_id, wanted.listed)

    def detail(self, alert_id: str) -> AlertDetail:
        """One alert. Raises Problem when there is none."""
        detail = self._alerts.get(alert_id)
        if detail is None:
            raise Problem(404, "There is no such alert; it may have been removed with its evidence.")
        return detail

    def full(self, alert_id: str) -> AlertWithNotices:
        """One alert with all that belongs to it. Raises Problem when there is none."""
        return AlertWithNotices(**dict(AlertFull.of(self.detail(alert_id))), notices=self.notices(alert_id))

    def notices(self, alert_id: str) -> list[NoticeItem]:
        """Return the notices of an alert, by the name of the target."""
        now = self._clock.now()
        return [NoticeItem.of(row, now) for row in self._notices.of(alert_id)]

    def neighbours(self, row: AlertRow) -> tuple[str | None, str | None]:
        """Return the pages of the next newer and the next older alert; None: there is none."""
        mine = visitor().cameras
        older = self._alerts.page(AlertCursor.after(row), 1, AlertQuery(cameras=mine))
        newer = self._alerts.newer_id(row, mine)
        return newer and _page_of(newer), _page_of(older[0].id) if older else None

    def review(self, alert_id: str, change: ReviewChange) -> AlertItem:
        """Write a person's review of an alert. Raises Problem when there is none."""
        self._reviews.review([alert_id], change.review, self._clock.now(), visitor().name)
        return AlertItem.of(self.detail(alert_id).alert)

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
        found, refused = self._reviews.restore(self._mine(change.ids), now - self.undo_s, now, visitor().name)
        return self._result(change.ids, found, refused)

    def note(self, alert_id: str, change: NoteChange) -> AlertItem:
        """Replace the note of an alert. Raises Problem when there is none."""
        self._reviews.note(alert_id, change.note.strip(), self._clock.now(), visitor().name)
        return AlertItem.of(self.detail(alert_id).alert)

    def _mine(self, ids: Sequence[str]) -> Sequence[str]:
        """Those of the cameras that the visitor may see."""
        who = visitor()
        return [each for each in ids if who.cameras is None or who.sees(self._alerts.camera_of(each) or "-")]

    def escalated(self, alert_id: str, why: str) -> AlertItem:
        """Note that a person had an alert escalated. Raises Problem when there is none."""
        self._reviews.escalated(alert_id, why, self._clock.now(), visitor().name)
        return AlertItem.of(self.detail(alert_id).alert)

    def _result(self, wanted: Sequence[str], found: Sequence[str], refused: Sequence[str] = ()) -> BulkResult:
        rows = [self.detail(each).alert for each in found]
        return BulkResult(
            alerts=[AlertItem.of(row) for row in rows],
            missing=[each for each in dict.fromkeys(wanted) if each not in {*found, *refused}],
            refused=list(refused),
        )

    def clip(self, alert_id: str) -> Path:
        """Return the file of an alert's clip. Raise Problem if there is none."""
        row = self.detail(alert_id).piece("clip")
        if row is None or row.state != "ready":
            raise Problem(404, why_not(row))
        return self.file(row)

    def file(self, row: EvidenceRow) -> Path:
        """Return the file of a ready piece of evidence. Raise Problem if it is missing."""
        try:
            path = inside(self._root, row.path, EVIDENCE)
        except StoreError:
            raise Problem(404, "This file is not where evidence is kept.") from None
        if not path.is_file():
            raise Problem(404, "The file is gone from the disk.")
        return path


Reader = Annotated[AlertReader, Depends(provided(AlertReader))]


def _notice_text(row: NoticeRow, held: bool) -> str:
    if row.messages:
        told = f"Told {_STANDING_TEXTS[row.standing]}" + (f" ({row.messages} messages)" if row.messages > 1 else "")
        if row.state == "changed":
            return f"{told}; an update is on its way" + (f": {row.reason}" if row.reason else "")
        return told + (f"; {row.reason}" if row.reason else "")
    if row.state == "waiting":
        if held:
            return "Held for the cloud's verdict"
        return f"Being sent; {row.reason}" if row.reason else "Being sent"
    return row.reason[:1].upper() + row.reason[1:]


def why_not(row: EvidenceRow | None) -> str:
    if row is None:
        return "This alert has no such evidence."
    return "It is being cut; it will be there soon." if row.state == "waiting" else row.reason or "It could not be cut."


def _page_of(alert_id: str) -> str:
    return f"/alerts/{quote(alert_id, safe='')}"
