"""`/api/v1/alerts`: the list, one alert with its notices and evidence files, and its review."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import FileResponse, Response

from appliance.base.clock import Clock, day_bounds, parse_moment
from appliance.base.errors import StoreError, UsageError
from appliance.dashboard.deps import CoreProbes, provided
from appliance.dashboard.openapi import media
from appliance.dashboard.problems import Problem
from appliance.dashboard.schemas import (
    API,
    EVIDENCE_NAMES,
    AlertFull,
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
from appliance.dashboard.visitor import visitor
from appliance.notify.delivery import TargetStatus
from appliance.store.alert_search import AlertQuery, ReviewFilter, VerdictFilter
from appliance.store.alerts import AlertCounts, AlertCursor, AlertStore
from appliance.store.database import Database
from appliance.store.notices import NoticeRow, NoticeState, NoticeStore
from appliance.store.paths import EVIDENCE, inside
from appliance.store.review_writes import ReviewStore
from appliance.store.rows import AlertDetail, AlertRow, EvidenceKind, EvidenceRow, Standing
from appliance.types import Severity

PAGE_LENGTH = 50
FAILING_S = 60.0  # a target that fails for shorter than this is tried again without a word to a person
COUNT_REST = 20.0  # a count is read again after this many times the time that it took: at most 5 % of a core
COUNT_AGE_S_MAX = 5.0

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
_TYPES = {"still.jpg": "image/jpeg", "clip.mp4": "video/mp4", "boxes.json": "application/json"}
_KINDS: dict[str, EvidenceKind] = {"still.jpg": "still", "clip.mp4": "clip", "boxes.json": "boxes"}
assert set(_KINDS) == set(EVIDENCE_NAMES.values())

_TIME_WORDS = "a day (2026-01-31), a moment (2026-01-31T18:00) in the appliance's time zone, or UTC seconds"

router = APIRouter(prefix=f"{API}/alerts", tags=["alerts"])


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


class AlertFilter:
    """Which alerts are wanted; an empty choice means any, as an HTML form sends it. Raises Problem for a wrong time."""

    def __init__(
        self,
        *,
        camera: Annotated[str, Query(max_length=64)] = "",
        severity: Severity | Literal[""] = "",
        review: ReviewFilter | Literal[""] = "",
        verdict: VerdictFilter | Literal[""] = "",
        begin: Annotated[str, Query(alias="from", max_length=40, description=_TIME_WORDS)] = "",
        end: Annotated[str, Query(alias="to", max_length=40, description=_TIME_WORDS + "; a day is meant whole")] = "",
        zone: Annotated[str, Query(max_length=64, description="a zone or line of an event")] = "",
        label: Annotated[str, Query(max_length=64)] = "",
        rule: Annotated[str, Query(max_length=64)] = "",
        text: Annotated[str, Query(max_length=100, description="beginnings of words in the note or a verdict")] = "",
    ) -> None:
        self.chosen: dict[str, str] = {
            "camera": camera, "severity": severity, "review": review, "verdict": verdict,
            "from": begin, "to": end, "zone": zone, "label": label, "rule": rule, "text": text.strip(),
        }  # fmt: skip
        self.wanted = AlertQuery(
            camera=camera or None, severity=severity or None, review=review or None, verdict=verdict or None,
            from_t=_time_of("from", begin, 0), to_t=_time_of("to", end, 1),
            zone=zone or None, label=label or None, rule=rule or None, text=text.strip() or None,
        )  # fmt: skip

    @property
    def query(self) -> dict[str, str]:
        """The fields that choose something."""
        return {name: value for name, value in self.chosen.items() if value}

    @property
    def listed(self) -> AlertQuery:
        """As the list on the page has it: what a verdict rejected and nobody has reviewed only when it is searched
        for."""
        asked = self.wanted.verdict == "rejected" or self.wanted.review == "deleted" or self.wanted.text is not None
        return replace(self.wanted, set_aside=asked)

    @property
    def is_for_alerts(self) -> bool:
        """Whether something is chosen that only alerts have."""
        return bool(self.query.keys() - {"camera", "from", "to"})


def _time_of(name: str, text: str, end: int) -> float | None:
    """UTC seconds; end: 0 the beginning of a day, 1 its end. None: any. Raises Problem."""
    if not text:
        return None
    try:
        return day_bounds(text)[end]
    except (ValueError, OverflowError):
        pass
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_moment(text)
    except (ValueError, UsageError):
        seconds = math.inf
    if not math.isfinite(seconds):
        raise Problem(422, f"`{name}` is a day (2026-01-31), a moment (2026-01-31T18:00) or UTC seconds.")
    return seconds


Filtered = Annotated[AlertFilter, Depends()]
Before = Annotated[str, Query(max_length=128, description="`next` of the page before")]


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
        """Whether the list on the page has this alert."""
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
        """The notices of an alert, by the name of the target."""
        now = self._clock.now()
        return [NoticeItem.of(row, now) for row in self._notices.of(alert_id)]

    def neighbours(self, row: AlertRow) -> tuple[str | None, str | None]:
        """The pages of the next newer and the next older alert; None: there is none."""
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
        """The file of an alert's clip. Raises Problem when there is none."""
        row = self.detail(alert_id).piece("clip")
        if row is None or row.state != "ready":
            raise Problem(404, _why_not(row))
        return self.file(row)

    def file(self, row: EvidenceRow) -> Path:
        """The file of a ready piece of evidence. Raises Problem when it is not there."""
        try:
            path = inside(self._root, row.path, EVIDENCE)
        except StoreError:
            raise Problem(404, "This file is not where evidence is kept.") from None
        if not path.is_file():
            raise Problem(404, "The file is gone from the disk.")
        return path


Reader = Annotated[AlertReader, Depends(provided(AlertReader))]


@dataclass(frozen=True, slots=True)
class CountedAlerts:
    """behind: something has changed since they were counted; within `COUNT_AGE_S_MAX` they are counted again."""

    counts: AlertCounts
    behind: bool = False


@dataclass(frozen=True, slots=True)
class _Count:
    counts: AlertCounts
    rev: int
    good_until: float


class AlertCountCache:
    """The alert counts, read again only when something changed, and at most a twentieth of the time.

    State: the last counts, their change number, and until when they are good. With 100 000 alerts a count takes some
    40 ms, so it may then be a second old; with few alerts it is always of this moment. Any thread may read.
    """

    def __init__(self, db: Database, alerts: AlertStore) -> None:
        self._db = db
        self._alerts = alerts
        self._last: _Count | None = None

    def read(self) -> CountedAlerts:
        """Total, open, to review, by verdict, and undelivered, of the cameras that the visitor may see."""
        if visitor().cameras is not None:
            return CountedAlerts(self._alerts.counts(visitor().cameras))
        last, rev, began = self._last, self._db.rev(), self._db.clock.monotonic()
        if last is not None and (rev == last.rev or began < last.good_until):
            return CountedAlerts(last.counts, behind=rev != last.rev)
        counts, ended = self._alerts.counts(), self._db.clock.monotonic()
        self._last = _Count(counts, rev, ended + min(COUNT_AGE_S_MAX, COUNT_REST * (ended - began)))
        return CountedAlerts(counts)


def cursor_of(before: str) -> AlertCursor | None:
    """The cursor that `before` spells; "" is the newest page. Raises Problem."""
    if not before:
        return None
    t_start, _, alert = before.partition("~")
    try:
        return AlertCursor(float(t_start), alert)
    except ValueError:
        raise Problem(422, "`before` is the `next` of another page, such as 1700000000.5~id.") from None


def failing_targets(targets: Sequence[TargetStatus], now: float) -> list[str]:
    """A sentence for each notification target that has not taken a message for long."""
    return [
        f"notify: {each.name} cannot be told for {(now - each.failing_since) / 60:.0f} min, {each.waiting} waiting: "
        f"{each.error}"
        for each in targets
        if each.failing_since is not None and now - each.failing_since >= FAILING_S
    ]


@router.get("")
def list_alerts(
    alerts: Reader, wanted: Filtered, before: Before = "", limit: Annotated[int, Query(ge=1, le=200)] = PAGE_LENGTH
) -> AlertPage:
    """Alerts, newest first, page by page."""
    items, older = alerts.page(wanted, before, limit)
    return AlertPage(alerts=items, next=None if older is None else urlencode({**older, "limit": limit}))


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


@router.get("/{alert_id}")
def one_alert(alerts: Reader, alert_id: str) -> AlertWithNotices:
    """One alert with its events, evidence, delivery and verdict, and its notices."""
    return alerts.full(alert_id)


@router.post("/{alert_id}/review")
def review_alert(alerts: Reader, alert_id: str, change: ReviewChange) -> AlertItem:
    """Say what you think of it: `reviewed`, `false_alarm`, or null to take it back."""
    return alerts.review(alert_id, change)


@router.post("/{alert_id}/escalate")
def escalate_alert(
    alerts: Reader, probes: Annotated[CoreProbes, Depends(provided(CoreProbes))], alert_id: str, change: NothingMore
) -> AlertItem:
    """Ask the cloud about this alert, whatever the router thinks of it; privacy and budget hold. 409 says why not."""
    alerts.detail(alert_id)
    if probes.escalate is None:
        raise Problem(409, "It is not escalated: this site has no uplink.")
    answer = probes.escalate(alert_id)
    if not answer.accepted:
        raise Problem(409, f"It is not escalated: {answer.reason}.")
    return alerts.escalated(alert_id, answer.reason)


@router.post("/{alert_id}/note")
def note_alert(alerts: Reader, alert_id: str, change: NoteChange) -> AlertItem:
    """Replace the note of an alert; an empty one removes it. It can be searched for."""
    return alerts.note(alert_id, change)


@router.get(
    "/{alert_id}/evidence/{name}", response_class=FileResponse,
    responses=media("image/jpeg", "video/mp4", "application/json", ranges=True),
)  # fmt: skip
@router.head("/{alert_id}/evidence/{name}", include_in_schema=False)
def evidence_file(
    alerts: Reader, request: Request, alert_id: str, name: Literal["still.jpg", "clip.mp4", "boxes.json"]
) -> Response:
    """The still, the clip (with HTTP ranges) or the boxes of an alert."""
    detail = alerts.detail(alert_id)
    row = detail.piece(_KINDS[name])
    if row is None or row.state != "ready":
        raise Problem(404, _why_not(row))
    # A browser asks each time whether it may show what it has kept: after signing out it may not.
    etag = f'"{row.sha256 or f"{row.bytes}-{row.t_end}"}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return FileResponse(alerts.file(row), headers=headers, media_type=_TYPES[name])


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


def _why_not(row: EvidenceRow | None) -> str:
    if row is None:
        return "This alert has no such evidence."
    return "It is being cut; it will be there soon." if row.state == "waiting" else row.reason or "It could not be cut."


def _page_of(alert_id: str) -> str:
    return f"/alerts/{quote(alert_id, safe='')}"
