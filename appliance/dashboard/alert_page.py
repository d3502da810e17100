"""What the page of one alert shows, in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from appliance.dashboard.alerts_api import notice_items
from appliance.dashboard.deps import DashboardDeps
from appliance.dashboard.health_api import HEALTH_TITLES
from appliance.dashboard.schemas import AlertItem, EvidenceItem
from appliance.dashboard.templating import score
from appliance.store.alerts import AlertCursor, AlertDetail, AlertRow
from appliance.store.rows import EscalationRow, EvidenceRow
from appliance.types import Event
from appliance.wire import Verdict

_COLOURS = 6
_DELIVERY_TEXTS = {
    "waiting": "The question waits for its evidence to be cut.",
    "deferred": "The question waits for a better moment.",
    "ready": "The question is ready and waits for the link.",
    "sent": "The question is with the cloud; its answer will appear here.",
    "expired": "No answer came in time, so the alert stands as the edge saw it.",
    "settled": "The question is settled.",
}
_STEP_TEXTS = {
    "": "more, which is being made",
    "facts": "the facts",
    "crop": "cut-outs",
    "frame": "the whole picture",
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
    """An event: in words, and where its tick stands (percent of the time shown, row of its track)."""

    t: float
    words: str
    colour: int
    x: float
    row: int


def values(desk: DashboardDeps, detail: AlertDetail) -> dict[str, Any]:
    """The variables of `alert.html`."""
    row = detail.alert
    clip, boxes = detail.piece("clip"), detail.piece("boxes")
    start, end = _life(desk, row, clip)
    verdict = detail.verdict.body if detail.verdict else None
    asked = detail.escalation
    return {
        "alert": AlertItem.of(row),
        "newer": _neighbour(desk, row, newer=True),
        "older": _neighbour(desk, row, newer=False),
        "clip": clip,
        "best": row.best,
        "still": detail.piece("still"),
        "boxes": boxes,
        "boxes_url": EvidenceItem.of(boxes).url if boxes else None,
        "clip_words": _clip_words(clip),
        "life_start": start,
        "life_end": end,
        "alert_from": _percent(row.t_start, start, end),
        "alert_width": _percent(row.t_end or end, start, end) - _percent(row.t_start, start, end),
        "tracks": _bars(desk, row, start, end),
        "events": [_line(event, row, start, end) for event in detail.events],
        "verdict": verdict,
        "engine_words": engine_text(verdict) if verdict else "",
        "support": verdict.support if verdict else (),
        "answer_s": detail.verdict.applied_t - asked.created_t if detail.verdict and asked else 0.0,
        "delivery": asked,
        "steps": _steps(detail) if asked else (),
        "notices": notice_items(desk, row.id),
        "end_words": _END_TEXTS,
        "waiting_words": _waiting_words(desk, row, asked),
        "second_look": detail.recheck,
    }


def _waiting_words(desk: DashboardDeps, row: AlertRow, asked: EscalationRow | None) -> str:
    """What stands until the cloud has spoken, and what is wrong meanwhile: on this box, on the way, or there."""
    if asked is None:
        return "Not asked: this alert was settled on the edge."
    words = [f"Unverified: the edge saw it ({score(row.score)} sure). {_DELIVERY_TEXTS[asked.state]}"]
    link = desk.probes.link() if desk.probes.link is not None else None
    if link is not None and not link.up:
        words.append("The cloud cannot be reached now.")
    elif link is not None and link.breaker != "closed":
        words.append("The cloud does not answer now.")
    ill = sorted({event.kind for event in desk.health_events.open() if event.camera in {row.camera, ""}})
    if ill:
        words.append(f"The edge itself is not well: {', '.join(HEALTH_TITLES[kind].lower() for kind in ill)}.")
    return " ".join(words)


def _steps(detail: AlertDetail) -> list[tuple[str, int]]:
    """The messages of the newest question: what each brought, in words, and its bytes."""
    asked = detail.escalation
    return [
        (_STEP_TEXTS[step.evidence], step.bytes_sent)
        for step in detail.steps
        if asked is not None and step.escalation == asked.id
    ]


def engine_text(verdict: Verdict) -> str:
    """What judged, so that nobody takes a detector for a language model."""
    if verdict.engine == "redetect":
        return "a second look by a detector, not a language model"
    if verdict.engine == "openai":
        return "a vision language model"
    return verdict.engine


def _life(desk: DashboardDeps, row: AlertRow, clip: EvidenceRow | None) -> tuple[float, float]:
    """The time that the page shows: the clip's, or the alert's with its roll while there is no clip."""
    if clip is not None and clip.state == "ready":
        return clip.t_start, clip.t_end
    roll = desk.config.alerts
    return row.t_start - roll.pre_roll_s, (row.t_end or desk.clock.now()) + roll.post_roll_s


def _bars(desk: DashboardDeps, row: AlertRow, start: float, end: float) -> list[TrackBar]:
    seen: dict[int, list[float]] = {track: [] for track in row.tracks}
    for frame in desk.boxes.span(row.camera, start, end, run=row.run or None):
        for each in frame.objects:
            if each.track in seen:
                seen[each.track].append(frame.t)
    bars = []
    for track, times in seen.items():
        x = _percent(min(times, default=row.t_start), start, end)
        width = _percent(max(times, default=row.t_end or end), start, end) - x
        bars.append(TrackBar(track, x, max(0.5, width), track % _COLOURS))
    return bars


def _line(event: Event, row: AlertRow, start: float, end: float) -> EventLine:
    place = row.tracks.index(event.track) if event.track in row.tracks else 0
    return EventLine(event.t, _event_words(event), event.track % _COLOURS, _percent(event.t, start, end), place)


def _percent(t: float, start: float, end: float) -> float:
    return round(100 * min(1.0, max(0.0, (t - start) / max(0.001, end - start))), 2)


def _event_words(event: Event) -> str:
    what = f"{event.label} {event.track}"
    place = {
        "enter": f"entered {event.zone}",
        "exit": f"left {event.zone}",
        "dwell": f"stayed in {event.zone}",
        "line": f"crossed {event.line}",
    }[event.kind]
    return f"{what} {place} ({event.rule})"


def _clip_words(clip: EvidenceRow | None) -> str:
    if clip is None:
        return "No clip was asked for."
    if clip.state == "waiting":
        return "The clip is cut as soon as its last seconds are recorded."
    return f"No clip: {clip.reason or 'it could not be cut'}"


def _neighbour(desk: DashboardDeps, row: AlertRow, *, newer: bool) -> str | None:
    if not newer:
        rows = desk.alerts.page(AlertCursor.after(row), 1)
        return f"/alerts/{quote(rows[0].id, safe='')}" if rows else None
    with desk.db.read() as connection:
        found = connection.execute(
            "SELECT id FROM alert WHERE (t_start, id) > (?, ?) ORDER BY t_start, id LIMIT 1", (row.t_start, row.id)
        ).fetchone()
    return f"/alerts/{quote(found['id'], safe='')}" if found else None
