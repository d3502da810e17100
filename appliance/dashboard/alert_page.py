"""The page of one alert: its evidence, tracks, events, verdict and review, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends
from starlette.responses import HTMLResponse

from appliance.config import AlertsConfig
from appliance.dashboard import scenarios_api
from appliance.dashboard.access_rights import may
from appliance.dashboard.alert_reader import AlertReader, AlertsPart
from appliance.dashboard.deps import CoreProbes, DatabasePart, PagePart
from appliance.dashboard.exports_api import missed_people
from appliance.dashboard.false_alarms_api import FalseAlarms
from appliance.dashboard.health_api import HealthReader
from appliance.dashboard.scenarios_api import Exporter
from appliance.dashboard.schemas import DELETE_REASON_LENGTH_MAX, NOTE_LENGTH_MAX, AlertItem, EvidenceItem
from appliance.dashboard.settings_api import Settings
from appliance.store.alert_rows import EvidenceRow
from appliance.store.alerts import AlertDetail
from appliance.store.boxes import BoxStore
from appliance.store.decisions import DecisionRow
from appliance.store.escalations import EscalationRow
from appliance.types import HEALTH_TITLES, Alert, Event
from appliance.web.routes import RouteList, provided
from appliance.web.templating import percent, score
from appliance.web.texts import tell
from appliance.wire import BY_APPLIANCE

COLOURS = 6  # style.css has so many colours for tracks
TRACKS_SHOWN = 8  # rows of the timeline; the rows of further tracks are folded away
EVENTS_SHOWN = 12  # if there are more events, those that differ only in the track share a line, which opens
_DELIVERY_TEXTS = {
    "waiting": "The escalation waits for its evidence to be cut.",
    "deferred": "The escalation waits for a better moment.",
    "ready": "The escalation is ready and waits for a judge.",
    "sent": "The escalation is with the cloud; its verdict will appear here.",
    "expired": "No answer came in time, so the alert stands as the appliance saw it.",
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

router = RouteList(include_in_schema=False, default_response_class=HTMLResponse)


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
        row, alert, escalation = detail.row, detail.alert, detail.escalation
        clip, boxes = detail.piece("clip"), detail.piece("boxes")
        start, end = self._shown_time(alert, clip, now)
        verdict = detail.verdict.body if detail.verdict else None
        events = [_event_line(event, alert, start, end) for event in detail.events]
        deleted_t = row.reviewed.deleted_t
        newer, older = self._alerts.neighbours(alert)
        return {
            "alert": AlertItem.of(row),
            "newer": newer,
            "older": older,
            "clip": clip,
            "best": alert.best,
            "still": detail.piece("still"),
            "boxes": boxes,
            "boxes_url": EvidenceItem.of(boxes).url if boxes else None,
            "clip_text": _clip_text(clip),
            "life_start": start,
            "life_end": end,
            "alert_from": _percent(alert.t_start, start, end),
            "alert_width": _percent(alert.t_end or end, start, end) - _percent(alert.t_start, start, end),
            "tracks": self._track_bars(alert, start, end),
            "tracks_shown": TRACKS_SHOWN,
            "events": events,
            "event_groups": _grouped(events) if len(events) > EVENTS_SHOWN else None,
            "verdict": verdict,
            "by_appliance": BY_APPLIANCE,
            "support": verdict.support if verdict else (),
            "answer_s": detail.verdict.applied_t - escalation.times.created_t if detail.verdict and escalation else 0.0,
            "delivery": escalation,
            "steps": _steps(detail) if escalation else (),
            "notices": self._alerts.notices(alert.id),
            "end_texts": _END_TEXTS,
            "waiting_text": self._waiting_text(alert, escalation, detail.decision),
            "second_look": detail.recheck,
            "changes": detail.changes,
            "delete_reason_length_max": DELETE_REASON_LENGTH_MAX,
            "undo_until": None if deleted_t is None else deleted_t + self._alerts.undo_s,
            "can_escalate": self._probes.escalate is not None
            and deleted_t is None
            and row.judged.verdict is None
            and row.judged.delivery in {None, "deferred"},
            "undo_s": self._alerts.undo_s,
            "undo": deleted_t is not None and now < deleted_t + self._alerts.undo_s,
            "note_length_max": NOTE_LENGTH_MAX,
        }

    def _waiting_text(self, alert: Alert, escalation: EscalationRow | None, decision: DecisionRow | None) -> str:
        """Return what holds until there is a verdict, and what is wrong meanwhile, in the language of the request.

        The fault may be here, on the way, or in the cloud.
        """
        if escalation is None:
            return " ".join(map(tell, ("Not asked: this alert was settled on the appliance.", *_edge_texts(decision))))
        texts = [f"Unverified: the appliance saw it ({score(alert.score)} sure).", _DELIVERY_TEXTS[escalation.state]]
        if decision is not None and decision.flagged:
            texts.append(f"Until then this stands{_certainty_text(decision)}: {decision.flagged}.")
        link = self._probes.link() if self._probes.link is not None else None
        if link is None or link.judged_here:
            texts.append("This appliance's own model judges what waits.")
        if link is not None and not link.up:
            texts.append("The cloud cannot be reached now.")
        elif link is not None and link.breaker != "closed":
            texts.append("The cloud does not answer now.")
        faults = sorted({event.kind for event in self._health.open(alert.camera)})
        if faults:
            named = ", ".join(tell(HEALTH_TITLES[kind]) for kind in faults)
            texts.append(f"The appliance itself is not well: {named}.")
        return " ".join(map(tell, texts))

    def _shown_time(self, alert: Alert, clip: EvidenceRow | None, now: float) -> tuple[float, float]:
        """Return the time that the page shows: the clip's, or the alert's with its roll while there is no clip."""
        if clip is not None and clip.state == "ready":
            return clip.t_start, clip.t_end
        return alert.t_start - self._roll.pre_roll_s, (alert.t_end or now) + self._roll.post_roll_s

    def _track_bars(self, alert: Alert, start: float, end: float) -> list[TrackBar]:
        seen: dict[int, list[float]] = {track: [] for track in alert.tracks}
        for frame in self._boxes.span(alert.camera, start, end, run=alert.run or None):
            for each in frame.objects:
                if each.track in seen:
                    seen[each.track].append(frame.t)
        bars = []
        for track, times in seen.items():
            x = _percent(min(times, default=alert.t_start), start, end)
            width = _percent(max(times, default=alert.t_end or end), start, end) - x
            bars.append(TrackBar(track, x, max(0.5, width), track % COLOURS))
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


def _event_line(event: Event, alert: Alert, start: float, end: float) -> EventLine:
    line = alert.tracks.index(event.track) if event.track in alert.tracks else 0
    words, same = _event_text(event, f" {event.track}"), _event_text(event, "")
    return EventLine(event.t, words, same, event.track % COLOURS, _percent(event.t, start, end), line)


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
    page: PagePart,
    db: DatabasePart,
    alerts: AlertsPart,
    view: Annotated[AlertPageView, Depends(provided(AlertPageView))],
    exporter: Exporter,
    alarms: FalseAlarms,
    settings: Settings,
    alert_id: str,
) -> HTMLResponse:
    """Return the page of one alert: evidence, tracks, verdict, review."""
    detail = alerts.detail(alert_id)
    learnt = []
    if detail.row.reviewed.review == "false_alarm" and settings.is_editable and may("GET", "/cameras/{name}/edit"):
        learnt = [each for each in alarms.proposals(detail.alert.camera) if alert_id in each.alarms]
    keep = scenarios_api.panel(exporter, detail)
    missed = missed_people(db, detail.alert.camera)
    return page("alert.html", keep=keep, proposals=learnt, missed=missed, **view.values(detail, db.clock.now()))
