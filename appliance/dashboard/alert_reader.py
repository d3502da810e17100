"""Read, filter and count alerts for the API and the pages."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Depends, Query
from pydantic import BaseModel, Field

from appliance.base.clock import Clock, day_bounds, parse_moment
from appliance.base.errors import StoreError, UsageError
from appliance.dashboard.schemas import AlertFull, AlertItem, ApiModel
from appliance.store.alert_rows import EvidenceRow, Standing
from appliance.store.alert_search import AlertQuery, ReviewFilter, VerdictFilter
from appliance.store.alerts import AlertCounts, AlertCursor, AlertDetail, AlertStore
from appliance.store.database import Database
from appliance.store.notices import NoticeRow, NoticeState, NoticeStore
from appliance.store.paths import EVIDENCE, inside
from appliance.store.users import USERS_MAX
from appliance.types import Alert, Severity
from appliance.web.problems import Problem
from appliance.web.routes import provided
from appliance.web.visitor import visitor

COUNT_REST = 20.0  # times as long as a count took, it is kept: so counting takes at most 5 % of a core
COUNT_AGE_S_MAX = 5.0  # a page needs no fresher number, and counting walks the table


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

    State: the last counts, their change number, and until when they are good, for each set of cameras that visitors
    may see. With 100 000 alerts a count takes some 40 ms, so it may then be a second old; with few alerts it is always
    of this moment. Any thread may read.
    """

    def __init__(self, db: Database, alerts: AlertStore) -> None:
        self._db = db
        self._alerts = alerts
        self._last: dict[frozenset[str] | None, _Count] = {}

    def read(self) -> CountedAlerts:
        """Total, open, to review, by verdict, and undelivered, of the cameras that the visitor may see."""
        mine = visitor().cameras
        last, rev, began = self._last.get(mine), self._db.rev(), self._db.clock.monotonic()
        if last is not None and (rev == last.rev or began < last.good_until):
            return CountedAlerts(last.counts, behind=rev != last.rev)
        counts, ended = self._alerts.counts(mine), self._db.clock.monotonic()
        if len(self._last) > USERS_MAX:  # those of people who are no more
            self._last.clear()
        self._last[mine] = _Count(counts, rev, ended + min(COUNT_AGE_S_MAX, COUNT_REST * (ended - began)))
        return CountedAlerts(counts)


PAGE_LENGTH = 50  # cards with pictures: some 2 MB of stills
_TIME_WORDS = "a day (2026-01-31), a moment (2026-01-31T18:00) in the appliance's time zone, or UTC seconds"


class AlertFilterQuery(BaseModel):
    """The choices as an HTML form sends them; an empty one means any."""

    camera: Annotated[str, Field(max_length=64)] = ""
    severity: Severity | Literal[""] = ""
    review: ReviewFilter | Literal[""] = ""
    verdict: VerdictFilter | Literal[""] = ""
    begin: Annotated[str, Field(alias="from", max_length=40, description=_TIME_WORDS)] = ""
    end: Annotated[str, Field(alias="to", max_length=40, description=_TIME_WORDS + "; a day is meant whole")] = ""
    zone: Annotated[str, Field(max_length=64, description="a zone or line of an event")] = ""
    label: Annotated[str, Field(max_length=64)] = ""
    rule: Annotated[str, Field(max_length=64)] = ""
    text: Annotated[str, Field(max_length=100, description="beginnings of words in the note or a verdict")] = ""


class AlertFilter:
    """Which alerts are wanted; an empty choice means any, as an HTML form sends it. Raises Problem for a wrong time."""

    def __init__(self, asked: Annotated[AlertFilterQuery, Query()]) -> None:
        text = asked.text.strip()
        self.chosen: dict[str, str] = {**asked.model_dump(by_alias=True), "text": text}
        self.alert_query = AlertQuery(
            camera=asked.camera or None, severity=asked.severity or None, review=asked.review or None,
            verdict=asked.verdict or None, from_t=time_of("from", asked.begin, 0), to_t=time_of("to", asked.end, 1),
            zone=asked.zone or None, label=asked.label or None, rule=asked.rule or None, text=text or None,
        )  # fmt: skip

    @property
    def query(self) -> dict[str, str]:
        """The fields that choose something."""
        return {name: value for name, value in self.chosen.items() if value}

    @property
    def listed(self) -> AlertQuery:
        """Return the query of the list on the page.

        It leaves out what a verdict rejected and nobody has reviewed, unless that is searched for. It shows an incident
        over several cameras once.
        """
        asked = (
            self.alert_query.verdict == "rejected"
            or self.alert_query.review == "deleted"
            or self.alert_query.text is not None
        )
        return replace(self.alert_query, set_aside=asked, folded=True)

    @property
    def is_for_alerts(self) -> bool:
        """Return whether something is chosen that only alerts have."""
        return bool(self.query.keys() - {"camera", "from", "to"})


def time_of(name: str, text: str, end: int) -> float | None:
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


def cursor_of(before: str) -> AlertCursor | None:
    """Return the cursor that `before` spells; "" is the newest page. Raise Problem if it spells none."""
    if not before:
        return None
    t_start, _, alert = before.partition("~")
    try:
        return AlertCursor(float(t_start), alert)
    except ValueError:
        raise Problem(422, "`before` is the `next` of another page, such as 1700000000.5~id.") from None


AlertFilterPart = Annotated[AlertFilter, Depends()]
Before = Annotated[str, Query(max_length=128, description="`next` of the page before")]


_STANDING_TEXTS: dict[Standing | Literal[""], str] = {
    "": "",
    "edge": "as the appliance saw it",
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
        held = row.state == "waiting" and not row.attempts and now < row.window.due_t
        return cls.of_row(row, held_until=row.window.due_t if held else None, words=_notice_text(row, held))


class AlertWithNotices(AlertFull):
    """Everything about one alert, and its notices by target."""

    notices: list[NoticeItem]


class AlertReader:
    """Alerts, their notices and their evidence files as the API and the pages show them. Any thread may call."""

    def __init__(
        self,
        alerts: AlertStore,
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
        self._root = root
        self._clock = clock

    def page(
        self, wanted: AlertFilter, before: str, limit: int, *, listed: bool = False
    ) -> tuple[list[AlertItem], dict[str, str] | None]:
        """One page, newest first, and the query of the next (None: this is the last). Raises Problem.

        listed: as the list on the page has it.
        """
        query = replace(wanted.listed if listed else wanted.alert_query, cameras=visitor().cameras)
        rows = self._alerts.page(cursor_of(before), limit + 1, query)
        older = None
        if len(rows) > limit:
            last = rows[limit - 1].alert
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

    def neighbours(self, alert: Alert) -> tuple[str | None, str | None]:
        """Return the pages of the next newer and the next older alert; None: there is none."""
        mine = visitor().cameras
        older = self._alerts.page(AlertCursor.after(alert), 1, AlertQuery(cameras=mine))
        newer = self._alerts.newer_id(alert, mine)
        return newer and _page_of(newer), _page_of(older[0].alert.id) if older else None

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


AlertsPart = Annotated[AlertReader, Depends(provided(AlertReader))]


def _notice_text(row: NoticeRow, held: bool) -> str:
    if row.messages:
        reported = f"Told {_STANDING_TEXTS[row.standing]}" + (f" ({row.messages} messages)" if row.messages > 1 else "")
        if row.state == "changed":
            return f"{reported}; an update is on its way" + (f": {row.reason}" if row.reason else "")
        return reported + (f"; {row.reason}" if row.reason else "")
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
