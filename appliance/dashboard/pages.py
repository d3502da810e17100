"""The pages that people see; each is rendered whole, its script only keeps it fresh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query
from starlette.responses import HTMLResponse, Response

from appliance.broker import LinkState
from appliance.config import CameraConfig, LineRule, Rule
from appliance.dashboard import headroom_api, savings_api, scenarios_api, storage_api
from appliance.dashboard.access_rights import may
from appliance.dashboard.alert_page import AlertPageView
from appliance.dashboard.alerts_api import (
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
from appliance.dashboard.auth import TemplatesPart
from appliance.dashboard.camera_setup_api import VENDORS
from appliance.dashboard.cameras_api import Cameras
from appliance.dashboard.cascade_api import CascadePart
from appliance.dashboard.deps import CoreProbes, provided
from appliance.dashboard.false_alarms_api import FalseAlarms
from appliance.dashboard.headroom_api import Headroom
from appliance.dashboard.health_api import HealthItem, HealthPart, HealthReader
from appliance.dashboard.problems import Problem
from appliance.dashboard.savings_api import COST_DAYS, HEADLINE_AFTER_S, SETTLED_AFTER_S, CostPart, SavingsPart
from appliance.dashboard.savings_history_api import By, History, draw
from appliance.dashboard.scenarios_api import Exporter
from appliance.dashboard.schemas import API, AlertItem
from appliance.dashboard.settings_api import ConnectionReport, Settings, SettingsReport, editable_settings
from appliance.dashboard.storage_api import StoragePart, StorageReport
from appliance.dashboard.texts import gettext as _
from appliance.dashboard.visitor import visitor
from appliance.store.database import Database
from appliance.store.health_events import HealthEventRow
from appliance.store.meter import Since

RECENT = 6
MORE_FILTERS = ("from", "to", "zone", "label", "rule")  # folded while nothing is chosen in them

ShowFilter = Annotated[Literal["", "alerts", "health"], Query(description="alerts, health, or both")]
DatabasePart = Annotated[Database, Depends(provided(Database))]

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


def current_rev(db: DatabasePart) -> int:
    """The number of the last change, read before the rest of a page: what changes meanwhile comes over the stream."""
    return db.rev()


Rev = Annotated[int, Depends(current_rev)]


@router.get("/")
def alerts_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    alerts: Reader,
    health: HealthPart,
    cameras: Cameras,
    savings: SavingsPart,
    alert_counts: Annotated[AlertCountCache, Depends(provided(AlertCountCache))],
    probes: Annotated[CoreProbes, Depends(provided(CoreProbes))],
    arming: Armed,
    wanted: Filtered,
    before: Before = "",
    show: ShowFilter = "",
) -> HTMLResponse:
    """The list of alerts, newest first, and the site at a glance."""
    items, older = timeline_of(alerts, health, wanted, show, before, PAGE_LENGTH)
    counted = alert_counts.read()
    counts = counted.counts
    return templates.page(
        "alerts.html",
        here="/",
        rev=rev,
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
        rules=sum(len(camera.rules) for name, camera in cameras.configured.items() if visitor().sees(name)),
        savings=savings.report("today"),
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
        link_text=_uplink_text(probes.link, counts.undelivered),
        failing_targets=health.failing_targets() if visitor().cameras is None else [],
        arming=ArmingReport.of(arming),
        lengths=PAUSE_LENGTHS,
    )


@router.get("/fragments/alerts/{alert_id}")
def one_card(templates: TemplatesPart, alerts: Reader, wanted: Filtered, alert_id: str) -> Response:
    """One card of the list, as the list would show it; 204 when the filter leaves it out."""
    row = alerts.detail(alert_id).alert
    if not alerts.is_listed(alert_id, wanted):
        return Response(status_code=204)
    return templates.page("card.html", alert=AlertItem.of(row))


@router.get("/fragments/health/{event}")
def one_health_line(
    templates: TemplatesPart, health: HealthPart, wanted: Filtered, event: str, show: ShowFilter = ""
) -> Response:
    """One health event of the list, as the list would show it; 204 when the filter leaves it out."""
    row = health.find(event)
    if row is None or not takes_health(wanted, show, row):
        return Response(status_code=204)
    return templates.page("health.html", event=HealthItem.of(row))


@router.get("/alerts/{alert_id}")
def alert_page(
    *,
    rev: Rev,
    db: DatabasePart,
    templates: TemplatesPart,
    alerts: Reader,
    page: Annotated[AlertPageView, Depends(provided(AlertPageView))],
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
    keep = scenarios_api.panel(exporter, detail)
    return templates.page("alert.html", rev=rev, keep=keep, proposals=learnt, **page.values(detail, db.clock.now()))


@router.get("/cameras")
def cameras_page(
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    health: HealthPart,
    headroom: Headroom,
    settings: Settings,
    arming: Armed,
) -> HTMLResponse:
    """All cameras with their latest frames, and what the detector has left for them."""
    items = cameras.items()
    summary = _("{live} of {n} live").format(live=sum(camera.state == "live" for camera in items), n=len(items))
    faults = health.open_titles()
    found = headroom.report()
    return templates.page(
        "cameras.html", here="/cameras", rev=rev, paused={row.camera: row for row in arming.paused() if not row.rule},
        cameras=items, summary=summary, faults=faults,
        headroom=found, outlook=headroom_api.sentence(found), editable=settings.is_editable,
    )  # fmt: skip


@router.get("/live")
def live_page(rev: Rev, templates: TemplatesPart, cameras: Cameras, health: HealthPart, arming: Armed) -> HTMLResponse:
    """A wall of all cameras: live where something moves."""
    paused: dict[str, list[str]] = {}
    for row in arming.paused():
        paused.setdefault(row.camera, []).append(row.rule)
    return templates.page(
        "live.html", here="/live", rev=rev, cameras=cameras.items(), faults=health.open_titles(), paused=paused
    )


@router.get("/cameras/new", dependencies=[Depends(editable_settings)])
def camera_new_page(rev: Rev, templates: TemplatesPart, cameras: Cameras) -> HTMLResponse:
    """A camera, found in the network or by its address: tried, seen, named, added."""
    first = not cameras.configured
    return templates.page("camera_new.html", here="/cameras", rev=rev, vendors=VENDORS, first=first)


@router.get("/cameras/{name}")
def camera_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    alerts: Reader,
    health: HealthPart,
    settings: Settings,
    arming: Armed,
    name: str,
) -> HTMLResponse:
    """One camera: its latest frame with boxes, zones and lines; its interruptions and numbers."""
    camera = cameras.full(name)
    configured = cameras.configured.get(name)
    rules = [{"name": rule.name, "words": _rule_text(rule)} for rule in (configured.rules if configured else ())]
    items, _ = alerts.page(AlertFilter(camera=name), "", RECENT)
    events, _ = health.page(name, None, "", RECENT)
    return templates.page(
        "camera.html", here="/cameras", rev=rev, camera=camera, gaps=camera.gaps, rules=rules, alerts=items,
        arming=ArmingReport.of(arming, name), off_rules=sorted(arming.off_rules(name)), lengths=PAUSE_LENGTHS,
        lasting=health.open(name), health=[event for event in events if event.t_end is not None],
        editable=settings.is_editable and configured is not None,
        ptz=configured is not None and configured.onvif is not None and may("POST", f"{API}/cameras/{{name}}/ptz"),
    )  # fmt: skip


@router.get("/timeline")
def timeline_page(
    rev: Rev,
    templates: TemplatesPart,
    cameras: Cameras,
    arming: Armed,
    camera: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """One day of every camera, `camera` being the one whose recording is shown."""
    names = [each.name for each in cameras.items()]
    chosen = camera if camera in names else next(iter(names), "")
    return templates.page(
        "timeline.html", here="/timeline", rev=rev, camera="", cameras=names, chosen=chosen,
        pauses=ArmingReport.of(arming).pauses,
    )  # fmt: skip


@router.get("/cameras/{name}/timeline")
def camera_timeline_page(
    rev: Rev, templates: TemplatesPart, cameras: Cameras, arming: Armed, name: str
) -> HTMLResponse:
    """One day of a camera; the script reads the moment from `?t=`."""
    if name not in {each.name for each in cameras.items()}:
        raise Problem(404, "There is no such camera in the site file.")
    return templates.page(
        "timeline.html", here="/timeline", rev=rev, camera=name, cameras=[name], chosen=name,
        pauses=ArmingReport.of(arming, name).pauses,
    )  # fmt: skip


@router.get("/settings")
def settings_page(rev: Rev, templates: TemplatesPart, settings: Settings) -> HTMLResponse:
    """The site file: whether it is in force as it stands, and its versions."""
    service = settings.service
    return templates.page(
        "settings.html", here="/settings", rev=rev, report=SettingsReport.of(service), versions=service.versions(),
        cameras=sorted(service.running.config.cameras),
        certificate=ConnectionReport.of(settings.certificate).certificate,
    )  # fmt: skip


@router.get("/savings")
def savings_page(
    *,
    rev: Rev,
    templates: TemplatesPart,
    savings: SavingsPart,
    costs: CostPart,
    cascade: CascadePart,
    history: History,
    cameras: Cameras,
    settings: Settings,
    since: Annotated[Since, Query()] = "today",
    by: By = "day",
    camera: Annotated[str, Query(max_length=64)] = "",
) -> HTMLResponse:
    """What came from the cameras against what was sent up; charts of the site or of one camera."""
    names = sorted(cameras.configured)
    editable = settings.is_editable and may("POST", f"{API}/settings")
    return templates.page(
        "savings.html",
        here="/savings",
        rev=rev,
        since=since,
        savings=savings.report(since),
        costs=costs.report(),
        cascade=cascade.report(),
        cost_days=COST_DAYS,
        charts=draw(history, by, camera if camera in names else ""),
        camera_names=names,
        price_base=settings.service.status().digest if editable else "",
        kind_texts=savings_api.KIND_TEXTS,
        headline_after_s=HEADLINE_AFTER_S,
        settled_after_s=SETTLED_AFTER_S,
    )


@router.get("/scenarios")
def scenarios_page(rev: Rev, templates: TemplatesPart, exporter: Exporter) -> HTMLResponse:
    """What was kept of alerts, to prove changes on."""
    return templates.page("scenarios.html", here="/scenarios", rev=rev, kept=scenarios_api.listed(exporter))


@router.get("/storage")
def storage_page(rev: Rev, templates: TemplatesPart, cache: StoragePart) -> HTMLResponse:
    """What the recording takes, how long that lasts, and what was deleted."""
    found = StorageReport.of(cache.read())
    return templates.page(
        "storage.html",
        here="/storage",
        rev=rev,
        storage=found,
        class_texts=storage_api.CLASS_TEXTS,
        reason_texts=storage_api.REASON_TEXTS,
        mode_texts=storage_api.MODE_TEXTS,
        days=storage_api.days,
        outlook=storage_api.sentence(found.forecast),
        lasts={each.camera: storage_api.lasts(each) for each in found.cameras},
    )


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
    """Whether health events (or this one) belong in the list: they have no severity, review or verdict."""
    if show == "alerts" or wanted.is_for_alerts:
        return False
    asked = wanted.wanted
    return row is None or (
        (asked.camera is None or row.camera in {asked.camera, ""})
        and (asked.from_t is None or row.t_start >= asked.from_t)
        and (asked.to_t is None or row.t_start < asked.to_t)
    )


def _uplink_text(probe: Callable[[], LinkState] | None, waiting: int) -> str:
    """How the uplink does, in a sentence. waiting: alerts without an answer."""
    if probe is None:
        return "Edge only: no uplink is set."
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


def _rule_text(rule: Rule) -> str:
    labels = ", ".join(rule.labels)
    if isinstance(rule, LineRule):
        way = {"both": "", "left_to_right": " left to right", "right_to_left": " right to left"}[rule.direction]
        return f"{labels} crosses line {rule.line}{way}"
    verb = {"enter": "enters", "exit": "leaves", "dwell": "stays in"}[rule.kind]
    stay: Any = f" for {rule.seconds:g} s" if rule.kind == "dwell" else ""
    return f"{labels} {verb} zone {rule.zone}{stay}"
