"""`/metrics`: the numbers of this appliance in the Prometheus text format (version 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, get_args

from fastapi import Depends
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest
from starlette.responses import PlainTextResponse

from appliance.base.stage_latencies import StageLatencies
from appliance.dashboard.alert_reader import AlertCountCache
from appliance.dashboard.deps import CoreProbes
from appliance.dashboard.live_api import LiveHub
from appliance.dashboard.recording_jobs import RecordingJobs
from appliance.dashboard.recordings import FrameCache, RecordingCuts
from appliance.dashboard.renditions import Renditions
from appliance.dashboard.snapshots import SnapshotCache
from appliance.dashboard.stream_api import StreamHub
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter, MeterTotal, Metric, MetricName
from appliance.store.savings import EnergyAccount
from appliance.store.storage_report import StorageReportCache
from appliance.store.verdict_stats import verdict_groups
from appliance.types import AGE_EDGES_MS, HEALTH_KINDS, CameraStateName, Decision, DecodeState
from appliance.web.routes import RouteList, provided

Samples = Iterable[tuple[tuple[str, ...], float]]
"""Label values and the value of each sample."""


# Help text and label names. A name that ends in `_total` is a counter since this core started, any other a gauge.
FAMILIES: dict[str, tuple[str, ...]] = {
    "vedette_camera_state": ("1 for the state that the camera is in.", "camera", "state"),
    "vedette_camera_decoding": ("1 for what of its pictures is decoded.", "camera", "decoding"),
    "vedette_camera_decoder": ("1 for what decodes it: software, or a kind of hardware.", "camera", "decoder"),
    "vedette_camera_behind_seconds": ("How late its packets are read from the socket.", "camera"),
    "vedette_camera_promised_fps": ("Inferences a second that were due, over the last seconds.", "camera"),
    "vedette_camera_examined_fps": ("Inferences a second that came, over the last seconds.", "camera"),
    "vedette_camera_packets_total": ("Video packets received.", "camera"),
    "vedette_camera_bytes_total": ("Bytes received from the camera.", "camera", "counted"),
    "vedette_camera_reconnects_total": ("Times that a camera was connected to again.", "camera"),
    "vedette_frames_decoded_total": ("Frames decoded.", "camera"),
    "vedette_packets_skipped_total": ("Video packets that were not decoded: nothing spoke for it.", "camera"),
    "vedette_packets_unrecorded_total": ("Video packets that could not be kept: the disk was full.", "camera"),
    "vedette_frames_examined_total": ("Frames that the detector looked at.", "camera"),
    "vedette_frames_unexamined_total": ("Frames due for an inference that did not get one.", "camera"),
    "vedette_frames_unexamined_by_reason_total": (
        "Frames without their inference, by reason.",
        "camera",
        "reason",
    ),
    "vedette_looks_retried_total": ("Inferences asked for again because the detector failed.", "camera"),
    "vedette_hardware_decoder_failures_total": ("Times that a hardware decoder failed.", "camera"),
    "vedette_second_looks_total": (
        "Rechecks of the appliance: rechecked, unsure, failed, retried, missed (no time), late (cloud was faster).",
        "camera",
        "outcome",
    ),
    "vedette_health_open": ("1 while it is so; without a camera: of the appliance.", "camera", "kind"),
    "vedette_health_events_total": ("Times that something was not as it should be.", "camera", "kind"),
    "vedette_events_held_back_total": (
        "Events that opened no alert: the rule's cooldown held them back.",
        "camera",
        "rule",
    ),
    "vedette_tracks_evicted_total": ("Tracks that the rules forgot early: there were too many at a time.", "camera"),
    "vedette_alerts": ("Alerts in the store.",),
    "vedette_alerts_to_review": ("Alerts that nobody looked at.",),
    "vedette_verdicts": ("Alerts in the store by the verdict that counts.", "decision"),
    "vedette_opinions": (
        "Verdicts by the versions of box and judge: rejected ones disagree.",
        *("box_version", "detector", "engine", "model", "prompt", "decision"),
    ),
    "vedette_outbox": ("Questions to the cloud that are not settled, by state.", "state"),
    "vedette_outbox_dropped_total": ("Questions given up because the outbox was full.", "camera"),
    "vedette_outbox_expired_total": ("Questions given up because their time was over.", "camera"),
    "vedette_uplink_bytes_total": ("Bytes sent up; without a camera: for no camera in particular.", "camera"),
    "vedette_uplink_bytes_by_purpose_total": ("Bytes sent up whose purpose is known.", "camera", "what"),
    "vedette_notices_total": ("Alerts by what became of telling a target.", "target", "outcome"),
    "vedette_notify_failures_total": ("Tries that did not arrive.", "target"),
    "vedette_notify_waiting": ("Messages that are held or to be sent.", "target"),
    "vedette_notify_failing": ("1 since a target's last message did not arrive.", "target"),
    "vedette_mqtt_up": ("1 while the MQTT broker is connected.",),
    "vedette_mqtt_messages_total": ("Messages published to the MQTT broker.",),
    "vedette_mqtt_dropped_total": ("Messages to the MQTT broker that were given up.",),
    "vedette_storage_bytes": ("Bytes stored by camera and class.", "camera", "class"),
    "vedette_storage_disk_free_bytes": ("Bytes that are free on the disk of storage.dir.",),
    "vedette_storage_days_left": (
        "Days until a limit deletes recording before its time; absent: not known, or never.",
    ),
    "vedette_storage_deleted_files_total": ("Files deleted, by class and reason.", "class", "reason"),
    "vedette_storage_deleted_bytes_total": ("Bytes deleted, by class and reason.", "class", "reason"),
    "vedette_link_up": ("1 while the uplink is connected.",),
    "vedette_link_region": ("1 for the region of the broker that is connected.", "region"),
    "vedette_link_failovers_total": ("Times that the link went to another region.",),
    "vedette_breaker_state": ("1 for the state: open while the cloud does not answer.", "state"),
    "vedette_breaker_trips_total": ("Times that the cloud stopped answering.",),
    "vedette_ingest_up": ("1 while the ingest process runs.",),
    "vedette_ingest_starts_total": ("Starts of the ingest process.",),
    "vedette_ingest_rss_bytes": ("Memory of the ingest process.",),
    "vedette_detector_ms": ("Milliseconds that one inference takes.",),
    "vedette_detector_queue": ("Frames that wait for an inference.",),
    "vedette_detector_load": ("Share of the time the detector is at work.",),
    "vedette_frame_age_recent_seconds": (
        "Age of frames when the tracker hears of them, over the last seconds.",
        "quantile",
    ),
    "vedette_box_temperature_celsius": ("Temperature by sensor; absent: none.", "sensor"),
    "vedette_box_throttled": ("1 while a processor is slowed down by heat or power; absent: nothing tells.",),
    "vedette_box_power_watts": ("Power that the appliance draws, where it is measured; absent: nowhere.",),
    "vedette_box_memory_available_bytes": ("Memory that programs could still get.",),
    "vedette_box_memory_stalled_ratio": ("Share of the last ten seconds in which a task waited for memory.",),
    "vedette_load_shedding_step": (
        "What is shed. heat: 1 fewer inferences, 2 smaller pictures, 3 offload; memory: 1 caches, 2 rings; 0 nothing.",
        "against",
    ),
    "vedette_energy_joules_total": ("Joules that the appliance drew, by where they were measured.", "source"),
    "vedette_energy_joules_per_camera_hour": ("Joules for an hour of one live camera, since this core started.",),
    "vedette_energy_joules_per_alert": ("Joules for an alert, since this core started.",),
    "vedette_dashboard_streams": ("Event streams open.",),
    "vedette_dashboard_headers_ignored_total": ("Headers of a reverse proxy that came from somebody else.", "header"),
    "vedette_live_viewers": ("Live views open.",),
    "vedette_live_conversions": ("Cameras whose live video is converted for browsers now.",),
    "vedette_live_conversion_cpu_seconds_total": ("Processor time spent on that.",),
    "vedette_live_bytes_total": ("Bytes of live video sent to viewers.",),
    "vedette_live_skipped_total": ("Pieces of live video that were not sent to viewers who read too slowly.",),
    "vedette_pictures_cut_total": ("Live pictures cut for the dashboard.",),
    "vedette_recorded_frames_cut_total": ("Pictures of the recording cut for the timeline.",),
    "vedette_recordings_cut_total": ("Stretches of the recording cut for playing or download.",),
    "vedette_recordings_cut_bytes_total": ("Bytes of the stretches that were cut.",),
    "vedette_renditions_total": ("Stretches and clips converted to H.264 for browsers that need it.",),
    "vedette_renditions_failed_total": ("Stretches and clips that could not be converted.",),
    "vedette_renditions_bytes_total": ("Bytes of what was converted to H.264.",),
    "vedette_renditions_seconds_total": ("Seconds that converting to H.264 took.",),
    "vedette_lab_jobs_total": ("Jobs on recorded video that a person asked for, by how they ended.", "kind", "state"),
}
_UNLABELLED = {
    MetricName.PACKETS: "vedette_camera_packets_total",
    MetricName.DECODED: "vedette_frames_decoded_total",
    MetricName.SKIPPED: "vedette_packets_skipped_total",
    MetricName.EXAMINED: "vedette_frames_examined_total",
    MetricName.UNEXAMINED: "vedette_frames_unexamined_total",
    MetricName.RETRIED: "vedette_looks_retried_total",
    MetricName.DECODER_FAILED: "vedette_hardware_decoder_failures_total",
    MetricName.UNRECORDED: "vedette_packets_unrecorded_total",
    MetricName.RECONNECTS: "vedette_camera_reconnects_total",
    MetricName.TRACKS_EVICTED: "vedette_tracks_evicted_total",
    MetricName.OUTBOX_DROPPED: "vedette_outbox_dropped_total",
    MetricName.OUTBOX_EXPIRED: "vedette_outbox_expired_total",
    MetricName.UPLINK_BYTES: "vedette_uplink_bytes_total",
}
_LABELLED = {
    MetricName.UNEXAMINED: "vedette_frames_unexamined_by_reason_total",
    MetricName.RECHECK: "vedette_second_looks_total",
    MetricName.HEALTH: "vedette_health_events_total",
    MetricName.HELD_BACK: "vedette_events_held_back_total",
    MetricName.UPLINK_BYTES: "vedette_uplink_bytes_by_purpose_total",
}
# Alerts ask how they grow: to Prometheus a step from no series to 1 is no increase, and a sum with none is none.
_WATCHED = (MetricName.EXAMINED, MetricName.UNEXAMINED, MetricName.OUTBOX_DROPPED, MetricName.OUTBOX_EXPIRED)
_OF_THE_APPLIANCE = {MetricName.ENERGY_J: "vedette_energy_joules_total"}  # labelled, and of no camera
_NOTICE_OUTCOMES = ("told", "updated", "withdrawn", "quiet", "forbidden", "given_up")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceCollector:
    """A prometheus_client collector over the store, the meter and the probes into the core."""

    db: Database
    meter: Meter
    cameras: CameraStore
    health_events: HealthEventStore
    alert_counts: AlertCountCache
    storage: StorageReportCache
    probes: CoreProbes
    snapshots: SnapshotCache
    frames: FrameCache
    cuts: RecordingCuts
    renditions: Renditions
    jobs: RecordingJobs
    hub: StreamHub
    ignored_headers: Mapping[str, int]
    live: LiveHub

    def text(self) -> str:
        """All of it as `/metrics` answers. Raises StoreError."""
        return generate_latest(self).decode()

    def collect(self) -> Iterator[Family]:
        """Yield the families that have samples. Raise StoreError."""
        totals = self.meter.totals("start")
        metered = _metered(totals, [row.name for row in self.cameras.all()])
        services = (self._mqtt(), self._storage(), self._process())
        sources = (self._cameras(), metered, self._alerts(), self._targets(), *services, self._box(totals))
        for name, samples in (each for source in sources for each in source):
            text, *labels = FAMILIES[name]
            of_kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = of_kind(name, text, labels=labels)
            for values, value in samples:
                family.add_metric(values, value)
            if family.samples:
                yield family
        yield from (each for each in (_stages(self.db.latencies), _frame_ages(totals)) if each.samples)

    def _cameras(self) -> Iterator[tuple[str, Samples]]:
        rows, decoding = self.cameras.all(), sorted(self.meter.decoding().items())
        states = get_args(CameraStateName)
        yield "vedette_camera_state", [((row.name, each), row.state == each) for row in rows for each in states]
        kinds = get_args(DecodeState)
        yield "vedette_camera_decoding", [((name, each), now.state == each) for name, now in decoding for each in kinds]
        yield "vedette_camera_decoder", [((name, now.decoder), 1) for name, now in decoding if now.decoder]
        yield "vedette_camera_behind_seconds", [((name,), now.behind_s) for name, now in decoding]
        rated = [(name, now.promised_fps, now.examined_fps) for name, now in decoding]
        yield "vedette_camera_promised_fps", [((name,), fps) for name, fps, _ in rated if fps is not None]
        yield "vedette_camera_examined_fps", [((name,), fps) for name, _, fps in rated if fps is not None]
        faults = {(row.camera, row.kind) for row in self.health_events.open()}
        places = [*(row.name for row in rows), ""]
        yield (
            "vedette_health_open",
            [((name, kind), (name, kind) in faults) for name in places for kind in HEALTH_KINDS],
        )

    def _alerts(self) -> Iterator[tuple[str, Samples]]:
        counts = self.alert_counts.read().counts
        yield "vedette_alerts", [((), counts.total)]
        yield "vedette_alerts_to_review", [((), counts.to_review)]
        yield "vedette_verdicts", [((decision,), getattr(counts, decision)) for decision in get_args(Decision)]
        yield (
            "vedette_opinions",
            [
                ((each.box_version, each.detector, each.engine, each.model, each.prompt, each.decision), each.count)
                for each in verdict_groups(self.db)
            ],
        )
        unsettled = EscalationStore(self.db).count_unsettled()
        yield "vedette_outbox", [((state,), count) for state, count in unsettled.items()]

    def _targets(self) -> Iterator[tuple[str, Samples]]:
        found = self.probes.targets()
        yield (
            "vedette_notices_total",
            [((each.name, outcome), getattr(each, outcome)) for each in found for outcome in _NOTICE_OUTCOMES],
        )
        yield "vedette_notify_failures_total", [((each.name,), each.failures) for each in found]
        yield "vedette_notify_waiting", [((each.name,), each.waiting) for each in found]
        yield "vedette_notify_failing", [((each.name,), each.failing_since is not None) for each in found]

    def _mqtt(self) -> Iterator[tuple[str, Samples]]:
        if self.probes.mqtt is not None:
            now = self.probes.mqtt()
            yield "vedette_mqtt_up", [((), now.connected)]
            yield "vedette_mqtt_messages_total", [((), now.messages)]
            yield "vedette_mqtt_dropped_total", [((), now.dropped)]

    def _storage(self) -> Iterator[tuple[str, Samples]]:
        found = self.storage.read()
        taken = [((each.camera, what), amount) for each in found.cameras for what, amount in each.taken.items()]
        yield "vedette_storage_bytes", taken
        yield "vedette_storage_disk_free_bytes", [((), found.disk_free)]
        days_left = found.forecast.days_left
        yield "vedette_storage_days_left", [] if days_left is None else [((), days_left)]
        yield "vedette_storage_deleted_files_total", sorted(found.deleted_files.items())
        yield "vedette_storage_deleted_bytes_total", sorted(found.deleted_bytes.items())

    def _box(self, totals: list[MeterTotal]) -> Iterator[tuple[str, Samples]]:
        if self.probes.sensors is not None:
            now = self.probes.sensors()
            found = [((each.name,), each.celsius) for each in now.reading.temperatures]
            yield "vedette_box_temperature_celsius", found
            throttling, memory = now.reading.throttling, now.memory
            yield "vedette_box_throttled", [] if throttling is None else [((), bool(throttling))]
            yield "vedette_box_power_watts", _known(now.watts)
            yield "vedette_box_memory_available_bytes", _known(memory.available_bytes)
            yield "vedette_box_memory_stalled_ratio", _known(memory.stalled)
        if self.probes.shedding is not None:
            shed = self.probes.shedding()
            steps = {"heat": shed.heat.step, "memory": shed.memory.step}
            yield "vedette_load_shedding_step", [((name,), step) for name, step in steps.items()]
        energy = EnergyAccount.of(totals)
        if energy is not None:
            yield "vedette_energy_joules_per_camera_hour", _known(energy.joules_per_camera_hour)
            yield "vedette_energy_joules_per_alert", _known(energy.joules_per_alert)

    def _process(self) -> Iterator[tuple[str, Samples]]:
        if self.probes.link is not None:
            link = self.probes.link()
            yield "vedette_link_up", [((), link.up)]
            if link.region:
                yield "vedette_link_region", [((link.region,), link.up)]
            yield "vedette_link_failovers_total", [((), link.failovers)]
            states = ("closed", "open", "half_open")
            yield "vedette_breaker_state", [((state,), link.breaker == state) for state in states]
            yield "vedette_breaker_trips_total", [((), link.trips)]
        if self.probes.health is not None:
            now = self.probes.health()
            yield "vedette_ingest_up", [((), now.ingest_running)]
            yield "vedette_ingest_starts_total", [((), now.ingest_starts)]
            yield "vedette_ingest_rss_bytes", [((), now.rss_bytes)]
            yield "vedette_detector_ms", [((), now.detector_ms)]
            yield "vedette_detector_queue", [((), now.queue)]
            yield "vedette_detector_load", [((), now.load)]
            yield "vedette_frame_age_recent_seconds", [(("0.95",), now.age_p95_ms / 1000)]
        yield "vedette_dashboard_streams", [((), self.hub.viewers)]
        yield "vedette_dashboard_headers_ignored_total", [((name,), n) for name, n in self.ignored_headers.items()]
        yield "vedette_live_viewers", [((), self.live.viewers)]
        yield "vedette_live_conversions", [((), len(self.live.conversions.running))]
        yield "vedette_live_conversion_cpu_seconds_total", [((), self.live.conversions.cpu_s)]
        yield "vedette_live_bytes_total", [((), self.live.bytes_sent)]
        yield "vedette_live_skipped_total", [((), self.live.skipped)]
        yield "vedette_pictures_cut_total", [((), self.snapshots.cuts)]
        yield "vedette_recorded_frames_cut_total", [((), self.frames.cuts)]
        yield "vedette_recordings_cut_total", [((), self.cuts.cuts)]
        yield "vedette_recordings_cut_bytes_total", [((), self.cuts.bytes_cut)]
        yield "vedette_renditions_total", [((), self.renditions.made)]
        yield "vedette_renditions_failed_total", [((), self.renditions.failed)]
        yield "vedette_renditions_bytes_total", [((), self.renditions.bytes_made)]
        yield "vedette_renditions_seconds_total", [((), self.renditions.seconds)]
        yield "vedette_lab_jobs_total", [((kind, state), n) for (kind, state), n in sorted(self.jobs.counts.items())]


def _known(value: float | None) -> Samples:
    return [] if value is None else [((), value)]


def _metered(totals: list[MeterTotal], cameras: Iterable[str]) -> Iterator[tuple[str, Samples]]:
    for metric, name in _UNLABELLED.items():
        found = dict.fromkeys(cameras, 0) if metric in _WATCHED else {}
        found |= {each.camera: each.amount for each in totals if each.metric == Metric(metric)}
        yield name, [((camera,), amount) for camera, amount in found.items()]
    for metric, name in _LABELLED.items():
        labelled = [each for each in totals if each.metric.name is metric and each.metric.label]
        yield name, [((each.camera, each.metric.label), each.amount) for each in labelled]
    for metric, name in _OF_THE_APPLIANCE.items():
        yield name, [((each.metric.label,), each.amount) for each in totals if each.metric.name is metric]
    received = [each for each in totals if each.metric.name is MetricName.CAMERA_BYTES]
    yield (
        "vedette_camera_bytes_total",
        [((each.camera, each.metric.label or "exact"), each.amount) for each in received],
    )


def _stages(latencies: StageLatencies) -> Family:
    """Return a histogram per stage, see `StageLatencies`."""
    text = "Seconds of each stage, from an event to a person told; since this core started."
    family = HistogramMetricFamily("vedette_stage_seconds", text, labels=["stage"])
    for stage, (buckets, total) in latencies.read().items():
        family.add_metric([stage], buckets, total)
    return family


def _frame_ages(totals: Iterable[MeterTotal]) -> Family:
    """Return a histogram per camera, see `types.AGE_EDGES_MS`."""
    text = "Age of a frame when the tracker hears of it."
    family = HistogramMetricFamily("vedette_frame_age_seconds", text, labels=["camera"])
    found: dict[str, dict[str, int]] = {}
    for each in totals:
        if each.metric.name is MetricName.FRAME_AGE_MS:
            found.setdefault(each.camera, {})[each.metric.label] = each.amount
    edges = [*(f"{edge / 1000:g}" for edge in AGE_EDGES_MS), "+Inf"]
    for camera, counts in found.items():
        up_to = accumulate(float(counts.get(key, 0)) for key in (*map(str, AGE_EDGES_MS), "more"))
        family.add_metric([camera], list(zip(edges, up_to, strict=True)), counts.get("sum", 0) / 1000)
    return family


router = RouteList(tags=["health"])


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(collector: Annotated[ApplianceCollector, Depends(provided(ApplianceCollector))]) -> PlainTextResponse:
    """Counters count since this core started (`_total`), gauges tell the moment."""
    return PlainTextResponse(collector.text(), media_type="text/plain; version=0.0.4")
