"""The list of alerts and health events with the site at a glance, and the page of one alert, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import Depends, Query
from starlette.responses import HTMLResponse, Response

from appliance.base.clock import day_bounds, local_day
from appliance.broker.nats_connection import LinkState
from appliance.config import AlertsConfig, CameraConfig
from appliance.dashboard import keep_api
from appliance.dashboard.access_rights import may
from appliance.dashboard.alert_reader import (
    PAGE_LENGTH,
    AlertCountCache,
    AlertFilter,
    AlertReader,
    Before,
    Filtered,
    Reader,
    cursor_of,
)
from appliance.dashboard.arming_api import PAUSE_LENGTHS, Armed, ArmingReport
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.deps import CoreProbes, DatabasePart, Page
from appliance.dashboard.exports_api import missed_people
from appliance.dashboard.false_alarms_api import FalseAlarms
from appliance.dashboard.health_api import HealthItem, HealthPart, HealthReader
from appliance.dashboard.notify_api import Context
from appliance.dashboard.push_api import may_subscribe
from appliance.dashboard.savings_api import HEADLINE_AFTER_S, SETTLED_AFTER_S, SavingsPart
from appliance.dashboard.scenarios_api import Exporter
from appliance.dashboard.schemas import DELETE_REASON_LENGTH_MAX, NOTE_LENGTH_MAX, AlertItem, EvidenceItem
from appliance.dashboard.settings_api import Settings
from appliance.store.boxes import BoxStore
from appliance.store.health_events import HealthEventRow
from appliance.store.rows import AlertDetail, AlertRow, DecisionRow, EscalationRow, EvidenceRow
from appliance.types import HEALTH_TITLES, Event
from appliance.web.auth import TemplatesPart
from appliance.web.routes import RouteList, provided
from appliance.web.templating import percent, score
from appliance.web.texts import tell
from appliance.web.visitor import visitor
from appliance.wire import BY_APPLIANCE

MORE_FILTERS = ("from", "to", "zone", "label", "rule")  # folded while nothing is chosen in them

ShowFilter = Annotated[Literal["", "alerts", "health"], Query(description="alerts, health, or both")]

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


@dataclass(frozen=True, slots=True)
class SiteGlance:
    """The readers of what stands beside the list."""

    cameras: Cameras
    savings: SavingsPart
    alert_counts: Annotated[AlertCountCache, Depends(provided(AlertCountCache))]
    probes: Annotated[CoreProbes, Depends(provided(CoreProbes))]
    arming: Armed
    notify: Context
    settings: Settings


@router.get("/")
def alerts_page(
    *,
    page: Page,
    db: DatabasePart,
    alerts: Reader,
    health: HealthPart,
    glance: Annotated[SiteGlance, Depends()],
    wanted: Filtered,
    before: Before = "",
    show: ShowFilter = "",
) -> HTMLResponse:
    """Return the list of alerts, newest first, and the site at a glance."""
    items, older = timeline_of(alerts, health, wanted, show, before, PAGE_LENGTH)
    counted = glance.alert_counts.read()
    counts = counted.counts
    cameras = glance.cameras
    return page(
        "alerts.html",
        here="/",
        items=items,
        older=None if older is None else f"/?{urlencode(older)}",
        newest=not before,
        filters=_filters(
            {name: each for name, each in cameras.configured.items() if visitor().sees(name)}, wanted.chosen
        ),
        chosen={**wanted.chosen, "show": show},
        more_chosen=sum(bool(wanted.chosen[name]) for name in MORE_FILTERS),
        more_filters=MORE_FILTERS,
        filtered=bool(wanted.query or show),
        faults=health.open_titles(),
        counts=counts,
        counts_behind=counted.behind,
        cameras=cameras.items(),
        day_text=cameras.day_text(day_bounds(local_day(db.clock.now()))[0], db.clock.now()),
        rules=sum(len(camera.rules) for name, camera in cameras.configured.items() if visitor().sees(name)),
        savings=glance.savings.report("today"),
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
        link_text=_uplink_text(glance.probes.link, counts.undelivered),
        failing_targets=health.failing_targets() if visitor().cameras is None else [],
        arming=ArmingReport.of(glance.arming),
        may_subscribe=may_subscribe(glance.notify, glance.settings),
        lengths=PAUSE_LENGTHS,
    )


@router.get("/fragments/alerts/{alert_id}")
def one_card(templates: TemplatesPart, alerts: Reader, wanted: Filtered, alert_id: str) -> Response:
    """One card of the list, as the list would show it; 204 when the filter leaves it out."""
    row = alerts.detail(alert_id).alert
    if not alerts.is_listed(alert_id, wanted):
        return Response(status_code=204)
    return templates.page("card.html", alert=AlertItem.of(row))


@router.get("/fragments/troubles")
def troubles(templates: TemplatesPart) -> HTMLResponse:
    """Return the part of each page that says what is wrong now."""
    return templates.page("troubles.html")


@router.get("/fragments/health/{event}")
def one_health_line(
    templates: TemplatesPart, health: HealthPart, wanted: Filtered, event: str, show: ShowFilter = ""
) -> Response:
    """One health event of the list, as the list would show it; 204 when the filter leaves it out."""
    row = health.find(event)
    if row is None or not takes_health(wanted, show, row):
        return Response(status_code=204)
    return templates.page("health.html", event=HealthItem.of(row))


def timeline_of(
    alerts: AlertReader,
    health: HealthReader,
    wanted: AlertFilter,
    show: Literal["", "alerts", "health"],
    before: str,
    limit: int,
) -> tuple[list[AlertItem | HealthItem], dict[str, str] | None]:
    """One page of alerts and health events, newest first, and the query of the next (None: this is the last).

    Raises Problem.
    """
    alert_items: list[AlertItem] = []
    health_items: list[HealthItem] = []
    older: dict[str, str] | None = None
    more = False
    if show != "health":
        alert_items, older = alerts.page(wanted, before, limit, listed=True)
        more |= older is not None
    if takes_health(wanted, show):
        begin, end = wanted.wanted.from_t, wanted.wanted.to_t
        at = cursor_of(before)
        cursor = before if end is None or (at is not None and at.t_start < end) else f"{end!r}~"
        health_items, next_health = health.page(wanted.wanted.camera or "", None, cursor, limit)
        more |= next_health is not None
        if begin is not None and health_items and health_items[-1].t_start < begin:
            health_items = [item for item in health_items if item.t_start >= begin]
            more = bool(alert_items) and older is not None
    found: list[AlertItem | HealthItem] = [*alert_items, *health_items]
    both = sorted(found, key=lambda item: (item.t_start, item.id), reverse=True)
    items = both[:limit]
    if not items or not (more or len(both) > limit):
        return items, None
    query = {**wanted.query, **({"show": show} if show else {})}
    return items, {**query, "before": f"{items[-1].t_start!r}~{items[-1].id}"}


def takes_health(wanted: AlertFilter, show: str, row: HealthEventRow | None = None) -> bool:
    """Return whether health events (or this one) belong in the list: they have no severity, review or verdict."""
    if show == "alerts" or wanted.is_for_alerts:
        return False
    asked = wanted.wanted
    return row is None or (
        (asked.camera is None or row.camera in {asked.camera, ""})
        and (asked.from_t is None or row.t_start >= asked.from_t)
        and (asked.to_t is None or row.t_start < asked.to_t)
    )


def _uplink_text(probe: Callable[[], LinkState] | None, waiting: int) -> str:
    """How the uplink does, in a sentence; '': there is none. waiting: alerts without an answer."""
    if probe is None:
        return ""
    link = probe()
    if link.up and link.breaker != "closed":
        return f"Cloud does not answer ({link.breaker_why}), {waiting} waiting; nothing is lost."
    if link.up:
        return f"Cloud link up{f', {waiting} waiting for an answer' if waiting else ''}."
    return f"Cloud link down, {waiting} waiting; nothing is lost."


def _filters(
    cameras: Mapping[str, CameraConfig], chosen: Mapping[str, str]
) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Name, word for any, and (value, text) of each choice."""
    rules = [rule for camera in cameras.values() for rule in camera.rules]
    named = {
        "zone": {name for camera in cameras.values() for name in (*camera.zones, *camera.lines)},
        "label": {label for rule in rules for label in rule.labels},
        "rule": {rule.name for rule in rules},
        "camera": set(cameras),
    }

    def names(kind: str) -> list[tuple[str, str]]:
        """With the one that is chosen, which may be of another day's site file."""
        return [(name, name) for name in sorted(named[kind] | ({chosen[kind]} - {""}))]

    return [
        ("show", "Alerts and health", [("alerts", "Alerts only"), ("health", "Health only")]),
        ("camera", "All cameras", names("camera")),
        ("severity", "Any severity", [("alert", "Alert"), ("warning", "Warning"), ("info", "Info")]),
        (
            "review",
            "Any review",
            [("open", "To review"), ("reviewed", "Reviewed"), ("false_alarm", "False alarm"), ("deleted", "Deleted")],
        ),
        (
            "verdict",
            "Any verdict",
            [
                ("confirmed", "Confirmed"),
                ("rechecked", "Rechecked"),
                ("rejected", "Rejected"),
                ("unsure", "Unsure"),
                ("none", "No verdict"),
            ],
        ),
        ("zone", "Any zone or line", names("zone")),
        ("label", "Anything", names("label")),
        ("rule", "Any rule", names("rule")),
    ]


_COLOURS = 6  # of tracks in style.css
TRACKS_SHOWN = 8  # rows of the timeline; the others are folded
EVENTS_SHOWN = 12  # lines; where there are more, those that say the same of other tracks are one line to open
_DELIVERY_TEXTS = {
    "waiting": "The escalation waits for its evidence to be cut.",
    "deferred": "The escalation waits for a better moment.",
    "ready": "The escalation is ready and waits for a judge.",
    "sent": "The escalation is with the cloud; its verdict will appear here.",
    "expired": "No answer came in time, so the alert stands as the edge saw it.",
    "settled": "The escalation is settled.",
}
_STEP_TEXTS = {
    "": "more, which is being made",
    "facts": "the facts",
    "crop": "cut-outs",
    "frame": "the whole frame",
    "clip": "the clip",
}
_END_TEXTS = {
    "quiet": "nothing more was seen",
    "length": "it grew too long; what follows is another alert",
    "new run": "the camera's stream began anew",
    "clock set back": "the clock was set back",
    "restart": "the appliance was started again",
}


@dataclass(frozen=True, slots=True)
class TrackBar:
    """When a track was seen, in percent of the time shown."""

    track: int
    x: float
    width: float
    colour: int


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event: as a sentence, and where its tick stands (percent of the time shown, row of its track)."""

    t: float
    words: str
    same: str  # the words without the track
    colour: int
    x: float
    row: int


@dataclass(frozen=True, slots=True)
class EventGroup:
    """Events that say the same of different tracks, oldest first."""

    words: str
    lines: tuple[EventLine, ...]


class AlertPageView:
    """Makes the variables of `alert.html`. Any thread may call."""

    def __init__(
        self, alerts: AlertReader, health: HealthReader, boxes: BoxStore, probes: CoreProbes, roll: AlertsConfig
    ) -> None:
        """roll: how far before and after an alert its clip reaches."""
        self._alerts = alerts
        self._health = health
        self._boxes = boxes
        self._probes = probes
        self._roll = roll

    def values(self, detail: AlertDetail, now: float) -> dict[str, Any]:
        """Return the variables of the template. now: UTC seconds."""
        row, escalation = detail.alert, detail.escalation
        clip, boxes = detail.piece("clip"), detail.piece("boxes")
        start, end = self._shown_time(row, clip, now)
        verdict = detail.verdict.body if detail.verdict else None
        events = [_event_line(event, row, start, end) for event in detail.events]
        newer, older = self._alerts.neighbours(row)
        return {
            "alert": AlertItem.of(row),
            "newer": newer,
            "older": older,
            "clip": clip,
            "best": row.best,
            "still": detail.piece("still"),
            "boxes": boxes,
            "boxes_url": EvidenceItem.of(boxes).url if boxes else None,
            "clip_text": _clip_text(clip),
            "life_start": start,
            "life_end": end,
            "alert_from": _percent(row.t_start, start, end),
            "alert_width": _percent(row.t_end or end, start, end) - _percent(row.t_start, start, end),
            "tracks": self._track_bars(row, start, end),
            "tracks_shown": TRACKS_SHOWN,
            "events": events,
            "event_groups": _grouped(events) if len(events) > EVENTS_SHOWN else None,
            "verdict": verdict,
            "by_appliance": BY_APPLIANCE,
            "support": verdict.support if verdict else (),
            "answer_s": detail.verdict.applied_t - escalation.times.created_t if detail.verdict and escalation else 0.0,
            "delivery": escalation,
            "steps": _steps(detail) if escalation else (),
            "notices": self._alerts.notices(row.id),
            "end_texts": _END_TEXTS,
            "waiting_text": self._waiting_text(row, escalation, detail.decision),
            "second_look": detail.recheck,
            "changes": detail.changes,
            "delete_reason_length_max": DELETE_REASON_LENGTH_MAX,
            "undo_until": None if row.deleted_t is None else row.deleted_t + self._alerts.undo_s,
            "can_escalate": self._probes.escalate is not None
            and row.deleted_t is None
            and row.verdict is None
            and row.delivery in {None, "deferred"},
            "undo_s": self._alerts.undo_s,
            "undo": row.deleted_t is not None and now < row.deleted_t + self._alerts.undo_s,
            "note_length_max": NOTE_LENGTH_MAX,
        }

    def _waiting_text(self, row: AlertRow, escalation: EscalationRow | None, decision: DecisionRow | None) -> str:
        """Return what holds until there is a verdict, and what is wrong meanwhile, in the language of the request.

        The fault may be here, on the way, or in the cloud.
        """
        if escalation is None:
            return " ".join(map(tell, ("Not asked: this alert was settled on the edge.", *_edge_texts(decision))))
        texts = [f"Unverified: the edge saw it ({score(row.score)} sure).", _DELIVERY_TEXTS[escalation.state]]
        if decision is not None and decision.flagged:
            texts.append(f"Until then this stands{_certainty_text(decision)}: {decision.flagged}.")
        link = self._probes.link() if self._probes.link is not None else None
        if link is None or link.judged_here:
            texts.append("This appliance's own model judges what waits.")
        if link is not None and not link.up:
            texts.append("The cloud cannot be reached now.")
        elif link is not None and link.breaker != "closed":
            texts.append("The cloud does not answer now.")
        faults = sorted({event.kind for event in self._health.open(row.camera)})
        if faults:
            texts.append(f"The edge itself is not well: {', '.join(tell(HEALTH_TITLES[kind]) for kind in faults)}.")
        return " ".join(map(tell, texts))

    def _shown_time(self, row: AlertRow, clip: EvidenceRow | None, now: float) -> tuple[float, float]:
        """Return the time that the page shows: the clip's, or the alert's with its roll while there is no clip."""
        if clip is not None and clip.state == "ready":
            return clip.t_start, clip.t_end
        return row.t_start - self._roll.pre_roll_s, (row.t_end or now) + self._roll.post_roll_s

    def _track_bars(self, row: AlertRow, start: float, end: float) -> list[TrackBar]:
        seen: dict[int, list[float]] = {track: [] for track in row.tracks}
        for frame in self._boxes.span(row.camera, start, end, run=row.run or None):
            for each in frame.objects:
                if each.track in seen:
                    seen[each.track].append(frame.t)
        bars = []
        for track, times in seen.items():
            x = _percent(min(times, default=row.t_start), start, end)
            width = _percent(max(times, default=row.t_end or end), start, end) - x
            bars.append(TrackBar(track, x, max(0.5, width), track % _COLOURS))
        return bars


def _steps(detail: AlertDetail) -> list[tuple[str, int]]:
    """Return the messages of the newest escalation: what each brought, in words, and its bytes."""
    escalation = detail.escalation
    return [
        (_STEP_TEXTS[step.evidence], step.bytes_sent)
        for step in detail.steps
        if escalation is not None and step.escalation == escalation.id
    ]


def _edge_texts(decision: DecisionRow | None) -> Iterator[str]:
    """Yield why it was not asked about, how sure the appliance is, and what is claimed of such alerts."""
    if decision is None or not decision.tier:
        return
    yield f"{decision.reason[:1].upper()}{decision.reason[1:]}{_certainty_text(decision)}."
    if decision.edge == "sure" and decision.error_high < 1:
        yield f"Of such alerts at most {percent(decision.error_high)} are wrong, with 95 % confidence."


def _certainty_text(decision: DecisionRow) -> str:
    return f" ({score(decision.certainty)} sure)" if decision.edge else ""


def _event_line(event: Event, row: AlertRow, start: float, end: float) -> EventLine:
    line = row.tracks.index(event.track) if event.track in row.tracks else 0
    words, same = _event_text(event, f" {event.track}"), _event_text(event, "")
    return EventLine(event.t, words, same, event.track % _COLOURS, _percent(event.t, start, end), line)


def _percent(t: float, start: float, end: float) -> float:
    return round(100 * min(1.0, max(0.0, (t - start) / max(0.001, end - start))), 2)


def _grouped(events: Sequence[EventLine]) -> list[EventGroup]:
    """By what they say, in order of the first of each."""
    found: dict[str, list[EventLine]] = {}
    for event in events:
        found.setdefault(event.same, []).append(event)
    return [EventGroup(words, tuple(lines)) for words, lines in found.items()]


def _event_text(event: Event, track: str) -> str:
    what = f"{event.label}{track}"
    place = {
        "enter": f"entered {event.zone}",
        "exit": f"left {event.zone}",
        "dwell": f"stayed in {event.zone}",
        "line": f"crossed {event.line}",
    }[event.kind]
    return f"{what} {place} ({event.rule})"


def _clip_text(clip: EvidenceRow | None) -> str:
    if clip is None:
        return "No clip was asked for."
    if clip.state == "waiting":
        return "The clip is cut as soon as its last seconds are recorded."
    return f"No clip: {clip.reason or 'it could not be cut'}"


@router.get("/alerts/{alert_id}")
def alert_page(
    *,
    page: Page,
    db: DatabasePart,
    alerts: Reader,
    view: Annotated[AlertPageView, Depends(provided(AlertPageView))],
    exporter: Exporter,
    alarms: FalseAlarms,
    settings: Settings,
    alert_id: str,
) -> HTMLResponse:
    """One alert: evidence, track life, verdict, review."""
    detail = alerts.detail(alert_id)
    learnt = []
    if detail.alert.review == "false_alarm" and settings.is_editable and may("GET", "/cameras/{name}/edit"):
        learnt = [each for each in alarms.proposals(detail.alert.camera) if alert_id in each.alarms]
    keep = keep_api.panel(exporter, detail)
    missed = missed_people(db, detail.alert.camera)
    return page("alert.html", keep=keep, proposals=learnt, missed=missed, **view.values(detail, db.clock.now()))
