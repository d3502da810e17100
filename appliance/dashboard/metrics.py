"""`/metrics`: the numbers of this box in the Prometheus text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import accumulate
from typing import Literal, get_args

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from appliance import savings
from appliance.dashboard.deps import DashboardDeps, Deps
from appliance.store.database import Database
from appliance.store.meter import MeterTotal
from appliance.store.verdict_stats import verdict_groups
from appliance.types import AGE_EDGES_MS, HEALTH_KINDS, CameraStateName, DecodeState

router = APIRouter(tags=["health"])

Labels = Mapping[str, str]
Sample = tuple[Labels, float]
_RECEIVED = {savings.CAMERA_EXACT: "exact", savings.CAMERA_ESTIMATED: "estimated"}
_COUNTERS = {
    "packets": ("vedette_camera_packets_total", "Video packets received."),
    "decoded": ("vedette_frames_decoded_total", "Frames decoded."),
    "skipped": ("vedette_packets_skipped_total", "Video packets that were not decoded: nothing spoke for it."),
    "examined": ("vedette_frames_examined_total", "Frames that the detector looked at."),
    "unexamined": ("vedette_frames_unexamined_total", "Frames due for a look that did not get one."),
    "retried": ("vedette_looks_retried_total", "Looks asked for again because the detector failed."),
    "unrecorded": ("vedette_packets_unrecorded_total", "Video packets that could not be kept: the disk was full."),
    "reconnects": ("vedette_camera_reconnects_total", "Times that a camera was connected to again."),
    "outbox_dropped": ("vedette_outbox_dropped_total", "Questions given up because the outbox was full."),
    savings.UPLINK: ("vedette_uplink_bytes_total", "Bytes sent up; without a camera: for no camera in particular."),
}


class Exposition:
    """Collects metric families and writes them as text."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, name: str, kind: Literal["gauge", "counter"], text: str, samples: Iterable[Sample]) -> None:
        """One family. A family without samples is left out."""
        lines = [f"{name}{_labels(labels)} {value:.10g}" for labels, value in samples]
        if lines:
            self._lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]

    def histogram(self, name: str, text: str, found: Iterable[tuple[Labels, Mapping[str, float], float]]) -> None:
        """One family of histograms: labels, how many lie up to each edge (rising, the last is +Inf), and the sum."""
        lines = []
        for labels, below, total in found:
            lines += [f"{name}_bucket{_labels({**labels, 'le': edge})} {count:.10g}" for edge, count in below.items()]
            lines += [
                f"{name}_sum{_labels(labels)} {total:.10g}",
                f"{name}_count{_labels(labels)} {below['+Inf']:.10g}",
            ]
        if lines:
            self._lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram", *lines]

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(desk: Deps, request: Request) -> PlainTextResponse:
    """Counters count since this core started (`_total`), gauges tell the moment."""
    out = Exposition()
    _cameras(out, desk)
    _meters(out, desk)
    _alerts(out, desk)
    _targets(out, desk)
    _storage(out, desk)
    _process(out, desk, request.app.state.hub.viewers)
    return PlainTextResponse(out.text(), media_type="text/plain; version=0.0.4")


def _cameras(out: Exposition, desk: DashboardDeps) -> None:
    rows, states = desk.cameras.all(), get_args(CameraStateName)
    samples = [({"camera": row.name, "state": state}, float(row.state == state)) for row in rows for state in states]
    out.add("vedette_camera_state", "gauge", "1 for the state that the camera is in.", samples)
    now, kinds = desk.meter.decoding(), get_args(DecodeState)
    decoding = [
        ({"camera": name, "decoding": kind}, float(now[name].state == kind)) for name in sorted(now) for kind in kinds
    ]
    out.add("vedette_camera_decoding", "gauge", "1 for what of its pictures is decoded.", decoding)
    behind = [({"camera": name}, now[name].behind_s) for name in sorted(now)]
    out.add("vedette_camera_behind_seconds", "gauge", "How late its packets are read from the socket.", behind)
    ill = {(row.camera, row.kind) for row in desk.health_events.open()}
    places = [*(row.name for row in rows), ""]
    lasting = [({"camera": name, "kind": kind}, float((name, kind) in ill)) for name in places for kind in HEALTH_KINDS]
    out.add("vedette_health_open", "gauge", "1 while it is so; without a camera: of the box.", lasting)


def _meters(out: Exposition, desk: DashboardDeps) -> None:
    totals = desk.meter.totals("start")
    for kind, (name, text) in _COUNTERS.items():
        samples = [({"camera": each.camera}, float(each.amount)) for each in totals if each.kind == kind]
        out.add(name, "counter", text, samples)
    ill = [
        ({"camera": each.camera, "kind": each.kind.removeprefix("health_")}, float(each.amount))
        for each in totals
        if each.kind.startswith("health_")
    ]
    out.add("vedette_health_events_total", "counter", "Times that something was not as it should be.", ill)
    why = [
        ({"camera": each.camera, "reason": each.kind.removeprefix("unexamined_")}, float(each.amount))
        for each in totals
        if each.kind.startswith("unexamined_")
    ]
    out.add("vedette_frames_unexamined_by_reason_total", "counter", "Frames that did not get their look, and why.", why)
    looks = [
        ({"camera": each.camera, "outcome": each.kind.removeprefix("second_look_")}, float(each.amount))
        for each in totals
        if each.kind.startswith("second_look_")
    ]
    text = "Second looks of the box: confirmed, unsure, failed, retried, missed (no time), late (the cloud was faster)."
    out.add("vedette_second_looks_total", "counter", text, looks)
    out.histogram("vedette_frame_age_seconds", "Age of a frame when the tracker hears of it.", _ages(totals))
    received = [
        ({"camera": each.camera, "counted": counted}, float(each.amount))
        for each in totals
        if (counted := _RECEIVED.get(each.kind))
    ]
    out.add("vedette_camera_bytes_total", "counter", "Bytes received from the camera.", received)
    kinds = [
        ({"camera": each.camera, "what": each.kind.removeprefix(f"{savings.UPLINK}_")}, float(each.amount))
        for each in totals
        if each.kind.startswith(f"{savings.UPLINK}_")
    ]
    out.add("vedette_uplink_bytes_by_purpose_total", "counter", "Bytes sent up whose purpose is known.", kinds)


def _ages(totals: Iterable[MeterTotal]) -> Iterator[tuple[Labels, Mapping[str, float], float]]:
    """Frame ages of each camera, see `types.AGE_EDGES_MS`."""
    found: dict[str, dict[str, int]] = {}
    for each in totals:
        if each.kind.startswith("age_ms_"):
            found.setdefault(each.camera, {})[each.kind.removeprefix("age_ms_")] = each.amount
    for camera, counts in found.items():
        edges = [(f"{edge / 1000:g}", counts.get(str(edge), 0)) for edge in AGE_EDGES_MS]
        names, amounts = zip(*edges, ("+Inf", counts.get("more", 0)), strict=True)
        below = dict(zip(names, map(float, accumulate(amounts)), strict=True))
        yield {"camera": camera}, below, counts.get("sum", 0) / 1000


def _alerts(out: Exposition, desk: DashboardDeps) -> None:
    counts = desk.counts.read()
    out.add("vedette_alerts", "gauge", "Alerts in the store.", [({}, float(counts.total))])
    out.add("vedette_alerts_to_review", "gauge", "Alerts that nobody looked at.", [({}, float(counts.to_review))])
    verdicts = {"confirmed": counts.confirmed, "rejected": counts.rejected, "unsure": counts.unsure}
    samples = [({"decision": name}, float(amount)) for name, amount in verdicts.items()]
    out.add("vedette_verdicts", "gauge", "Alerts in the store by the verdict that counts.", samples)
    out.add(
        "vedette_opinions",
        "gauge",
        "Verdicts by the versions of box and judge: rejected ones disagree.",
        (
            ({name: value for name, value in asdict(group).items() if name != "count"}, float(group.count))
            for group in verdict_groups(desk.db)
        ),
    )
    waiting = [({"state": state}, float(amount)) for state, amount in escalations_by_state(desk.db).items()]
    out.add("vedette_outbox", "gauge", "Questions to the cloud that are not settled, by state.", waiting)


def _targets(out: Exposition, desk: DashboardDeps) -> None:
    found = desk.targets()
    outcomes = ("told", "updated", "withdrawn", "quiet", "forbidden", "given_up")
    ended: list[Sample] = [
        ({"target": each.name, "outcome": outcome}, float(getattr(each, outcome)))
        for each in found
        for outcome in outcomes
    ]
    out.add("vedette_notices_total", "counter", "Alerts by what became of telling a target.", ended)
    failures: list[Sample] = [({"target": each.name}, float(each.failures)) for each in found]
    out.add("vedette_notify_failures_total", "counter", "Tries that did not arrive.", failures)
    waiting: list[Sample] = [({"target": each.name}, float(each.waiting)) for each in found]
    out.add("vedette_notify_waiting", "gauge", "Messages that are held or to be sent.", waiting)
    ill: list[Sample] = [({"target": each.name}, float(each.failing_since is not None)) for each in found]
    out.add("vedette_notify_failing", "gauge", "1 since a target's last message did not arrive.", ill)


def _storage(out: Exposition, desk: DashboardDeps) -> None:
    found = desk.storage.read()
    taken = [
        ({"camera": each.camera, "class": what}, float(amount))
        for each in found.cameras
        for what, amount in each.taken.items()
    ]
    out.add("vedette_storage_bytes", "gauge", "Bytes stored by camera and class.", taken)
    free: list[Sample] = [({}, float(found.disk_free))]
    out.add("vedette_storage_disk_free_bytes", "gauge", "Bytes that are free on the disk of storage.dir.", free)
    if (left := found.forecast.days_left) is not None:
        text = "Days until a limit deletes recording before its time; absent: not known, or never."
        out.add("vedette_storage_days_left", "gauge", text, [({}, left)])
    for name, text, sums in (
        ("vedette_storage_deleted_files_total", "Files deleted, by class and reason.", found.deleted_files),
        ("vedette_storage_deleted_bytes_total", "Bytes deleted, by class and reason.", found.deleted_bytes),
    ):
        out.add(
            name, "counter", text, [({"class": key[0], "reason": key[1]}, float(n)) for key, n in sorted(sums.items())]
        )


def _process(out: Exposition, desk: DashboardDeps, viewers: int) -> None:
    if desk.link is not None:
        link = desk.link()
        out.add("vedette_link_up", "gauge", "1 while the uplink is connected.", [({}, float(link.up))])
        states = [({"state": name}, float(link.breaker == name)) for name in ("closed", "open", "half_open")]
        out.add("vedette_breaker_state", "gauge", "1 for the state: open while the cloud does not answer.", states)
        out.add("vedette_breaker_trips_total", "counter", "Times that the cloud stopped answering.", [({}, link.trips)])
    if desk.health is not None:
        state = desk.health()
        out.add("vedette_ingest_up", "gauge", "1 while the ingest process runs.", [({}, float(state.ingest_running))])
        out.add("vedette_ingest_starts_total", "counter", "Starts of the ingest process.", [({}, state.ingest_starts)])
        out.add("vedette_detector_ms", "gauge", "Milliseconds that one look takes.", [({}, state.detector_ms)])
        out.add("vedette_detector_queue", "gauge", "Frames that wait for a look.", [({}, state.queue)])
        out.add("vedette_detector_load", "gauge", "Share of the time the detector is at work.", [({}, state.load)])
        text = "Age of frames when the tracker hears of them, over the last seconds."
        recent: list[Sample] = [({"quantile": "0.95"}, state.age_p95_ms / 1000)]
        out.add("vedette_frame_age_recent_seconds", "gauge", text, recent)
        out.add("vedette_ingest_rss_bytes", "gauge", "Memory of the ingest process.", [({}, state.rss_bytes)])
    out.add("vedette_dashboard_streams", "gauge", "Event streams open.", [({}, viewers)])
    out.add(
        "vedette_pictures_cut_total", "counter", "Live pictures cut for the dashboard.", [({}, desk.snapshots.cuts)]
    )


def escalations_by_state(db: Database) -> dict[str, int]:
    """How many questions are in each unsettled state."""
    with db.read() as connection:
        rows = connection.execute(
            """SELECT state, count(*) AS n FROM escalation
               WHERE state IN ('waiting', 'deferred', 'ready', 'sent') GROUP BY state"""
        )
        return dict.fromkeys(("waiting", "deferred", "ready", "sent"), 0) | {row["state"]: row["n"] for row in rows}
