"""`/metrics`: every family that an operator's dashboards and alarms rely on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from appliance.base.clock import ManualClock
from appliance.base.machine import Temperature
from appliance.broker.nats_connection import LinkState
from appliance.dashboard import metrics_api as metrics
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.dashboard.live_api import LiveHub
from appliance.dashboard.recordings import FrameCache, RecordingCuts
from appliance.dashboard.renditions import Renditions
from appliance.dashboard.snapshots import SnapshotCache
from appliance.health.load_shedding import LoadShedding, SheddingStep
from appliance.mqtt.publisher import MqttStatus
from appliance.notify.delivery import TargetStatus
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.sensors.linux_sensors import MemoryReading, SensorReading
from appliance.store.deletions import DeletionLedger
from appliance.store.meter import Metric, MetricName
from tests.support.dashboard_site import Site

T0 = 1_700_000_000.0

# As they were before prometheus-client wrote them: name, type, labels; help.
FAMILIES = """
vedette_camera_state gauge camera,state
    1 for the state that the camera is in.
vedette_camera_decoding gauge camera,decoding
    1 for what of its pictures is decoded.
vedette_camera_decoder gauge camera,decoder
    1 for what decodes it: software, or a kind of hardware.
vedette_camera_behind_seconds gauge camera
    How late its packets are read from the socket.
vedette_camera_promised_fps gauge camera
    Inferences a second that were due, over the last seconds.
vedette_camera_examined_fps gauge camera
    Inferences a second that came, over the last seconds.
vedette_health_open gauge camera,kind
    1 while it is so; without a camera: of the appliance.
vedette_events_held_back_total counter camera,rule
    Events that opened no alert: the rule's cooldown held them back.
vedette_tracks_evicted_total counter camera
    Tracks that the rules forgot early: there were too many at a time.
vedette_camera_packets_total counter camera
    Video packets received.
vedette_frames_decoded_total counter camera
    Frames decoded.
vedette_packets_skipped_total counter camera
    Video packets that were not decoded: nothing spoke for it.
vedette_frames_examined_total counter camera
    Frames that the detector looked at.
vedette_frames_unexamined_total counter camera
    Frames due for an inference that did not get one.
vedette_looks_retried_total counter camera
    Inferences asked for again because the detector failed.
vedette_hardware_decoder_failures_total counter camera
    Times that a hardware decoder failed.
vedette_packets_unrecorded_total counter camera
    Video packets that could not be kept: the disk was full.
vedette_camera_reconnects_total counter camera
    Times that a camera was connected to again.
vedette_outbox_dropped_total counter camera
    Questions given up because the outbox was full.
vedette_outbox_expired_total counter camera
    Questions given up because their time was over.
vedette_uplink_bytes_total counter camera
    Bytes sent up; without a camera: for no camera in particular.
vedette_health_events_total counter camera,kind
    Times that something was not as it should be.
vedette_frames_unexamined_by_reason_total counter camera,reason
    Frames without their inference, by reason.
vedette_second_looks_total counter camera,outcome
    Rechecks of the appliance: rechecked, unsure, failed, retried, missed (no time), late (cloud was faster).
vedette_stage_seconds histogram le,stage
    Seconds of each stage, from an event to a person told; since this core started.
vedette_frame_age_seconds histogram camera,le
    Age of a frame when the tracker hears of it.
vedette_camera_bytes_total counter camera,counted
    Bytes received from the camera.
vedette_uplink_bytes_by_purpose_total counter camera,what
    Bytes sent up whose purpose is known.
vedette_alerts gauge -
    Alerts in the store.
vedette_alerts_to_review gauge -
    Alerts that nobody looked at.
vedette_verdicts gauge decision
    Alerts in the store by the verdict that counts.
vedette_opinions gauge box_version,decision,detector,engine,model,prompt
    Verdicts by the versions of box and judge: rejected ones disagree.
vedette_outbox gauge state
    Questions to the cloud that are not settled, by state.
vedette_notices_total counter outcome,target
    Alerts by what became of telling a target.
vedette_notify_failures_total counter target
    Tries that did not arrive.
vedette_notify_waiting gauge target
    Messages that are held or to be sent.
vedette_notify_failing gauge target
    1 since a target's last message did not arrive.
vedette_mqtt_up gauge -
    1 while the MQTT broker is connected.
vedette_mqtt_messages_total counter -
    Messages published to the MQTT broker.
vedette_mqtt_dropped_total counter -
    Messages to the MQTT broker that were given up.
vedette_storage_bytes gauge camera,class
    Bytes stored by camera and class.
vedette_storage_disk_free_bytes gauge -
    Bytes that are free on the disk of storage.dir.
vedette_link_up gauge -
    1 while the uplink is connected.
vedette_link_region gauge region
    1 for the region of the broker that is connected.
vedette_link_failovers_total counter -
    Times that the link went to another region.
vedette_breaker_state gauge state
    1 for the state: open while the cloud does not answer.
vedette_breaker_trips_total counter -
    Times that the cloud stopped answering.
vedette_ingest_up gauge -
    1 while the ingest process runs.
vedette_ingest_starts_total counter -
    Starts of the ingest process.
vedette_detector_ms gauge -
    Milliseconds that one inference takes.
vedette_detector_queue gauge -
    Frames that wait for an inference.
vedette_detector_load gauge -
    Share of the time the detector is at work.
vedette_frame_age_recent_seconds gauge quantile
    Age of frames when the tracker hears of them, over the last seconds.
vedette_ingest_rss_bytes gauge -
    Memory of the ingest process.
vedette_dashboard_streams gauge -
    Event streams open.
vedette_renditions_total counter -
    Stretches and clips converted to H.264 for browsers that need it.
vedette_renditions_failed_total counter -
    Stretches and clips that could not be converted.
vedette_renditions_bytes_total counter -
    Bytes of what was converted to H.264.
vedette_renditions_seconds_total counter -
    Seconds that converting to H.264 took.
vedette_dashboard_headers_ignored_total counter header
    Headers of a reverse proxy that came from somebody else.
vedette_live_viewers gauge -
    Live views open.
vedette_live_conversions gauge -
    Cameras whose live video is converted for browsers now.
vedette_live_conversion_cpu_seconds_total counter -
    Processor time spent on that.
vedette_live_bytes_total counter -
    Bytes of live video sent to viewers.
vedette_live_skipped_total counter -
    Pieces of live video that were not sent to viewers who read too slowly.
vedette_pictures_cut_total counter -
    Live pictures cut for the dashboard.
vedette_recorded_frames_cut_total counter -
    Pictures of the recording cut for the timeline.
vedette_recordings_cut_total counter -
    Stretches of the recording cut for playing or download.
vedette_recordings_cut_bytes_total counter -
    Bytes of the stretches that were cut.
vedette_renditions_total counter -
    Stretches and clips converted to H.264 for browsers that need it.
vedette_renditions_failed_total counter -
    Stretches and clips that could not be converted.
vedette_renditions_bytes_total counter -
    Bytes of what was converted to H.264.
vedette_renditions_seconds_total counter -
    Seconds that converting to H.264 took.
vedette_lab_jobs_total counter kind,state
    Jobs on recorded video that a person asked for, by how they ended.
vedette_storage_days_left gauge -
    Days until a limit deletes recording before its time; absent: not known, or never.
vedette_storage_deleted_files_total counter class,reason
    Files deleted, by class and reason.
vedette_storage_deleted_bytes_total counter class,reason
    Bytes deleted, by class and reason.
vedette_box_temperature_celsius gauge sensor
    Temperature by sensor; absent: none.
vedette_box_throttled gauge -
    1 while a processor is slowed down by heat or power; absent: nothing tells.
vedette_box_power_watts gauge -
    Power that the appliance draws, where it is measured; absent: nowhere.
vedette_box_memory_available_bytes gauge -
    Memory that programs could still get.
vedette_box_memory_stalled_ratio gauge -
    Share of the last ten seconds in which a task waited for memory.
vedette_load_shedding_step gauge against
    What is shed. heat: 1 fewer inferences, 2 smaller pictures, 3 offload; memory: 1 caches, 2 rings; 0 nothing.
vedette_energy_joules_total counter source
    Joules that the appliance drew, by where they were measured.
vedette_energy_joules_per_camera_hour gauge -
    Joules for an hour of one live camera, since this core started.
vedette_energy_joules_per_alert gauge -
    Joules for an alert, since this core started.
"""


def families() -> set[tuple[str, str, str, tuple[str, ...]]]:
    lines = FAMILIES.strip().splitlines()
    found = set()
    for head, text in zip(lines[::2], lines[1::2], strict=True):
        name, kind, labels = head.split()
        found.add((name, kind, text.strip(), tuple(labels.split(",")) if labels != "-" else ()))
    return found


# A limit is as good as reached only on a disk that fills, a job is what a person asks for: tests of their own.
NOT_HERE = {"vedette_storage_days_left", "vedette_lab_jobs_total"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = Site(tmp_path_factory.mktemp("site"), ManualClock(T0))
    site.answer(site.raise_alert("a", T0))
    site.spend("gate", 1000, 10)
    site.spend("gate", 1000, 10, exact=False)
    names = (
        *("PACKETS", "DECODED", "RETRIED", "DECODER_FAILED", "UNRECORDED", "RECONNECTS"),
        *("OUTBOX_DROPPED", "OUTBOX_EXPIRED"),
    )
    for number, name in enumerate(names, 31):
        site.meter.add("gate", Metric(MetricName[name]), number)
    site.meter.add("gate", Metric(MetricName.HEALTH, "moved"), 41)
    site.meter.add("gate", Metric(MetricName.HELD_BACK, "intruder"), 42)
    site.meter.add("gate", Metric(MetricName.TRACKS_EVICTED), 44)
    site.meter.add("gate", Metric(MetricName.RECHECK, "confirmed"), 43)
    site.meter.add("gate", Metric(MetricName.ALERTS), 2)
    site.meter.add("", Metric(MetricName.ENERGY_J, "RAPL psys"), 700)
    site.meter.add("", Metric(MetricName.ENERGY_CAMERA_S), 60)
    ledger = DeletionLedger(site.db)
    ledger.add("gate", "continuous", "age", 1000, T0)
    with site.db.transaction() as connection:
        ledger.write(connection)
    probes = CoreProbes(
        link=lambda: LinkState(up=True, since=0.0, breaker="half_open", trips=51, region="eu", failovers=50),
        health=lambda: SystemHealth(
            ingest_running=True, ingest_starts=52, detector_ms=17.5, queue=53, rss_bytes=54_000_000, load=0.75,
            age_p95_ms=120.0,
        ),
        targets=lambda: (
            TargetStatus(
                name="phone", kind="ntfy", host="h", failing_since=T0, waiting=61, told=62, updated=63, withdrawn=64,
                quiet=65, forbidden=66, given_up=67, failures=68,
            ),
        ),
        mqtt=lambda: MqttStatus(connected=True, messages=55, dropped=56),
        shedding=lambda: LoadShedding(heat=SheddingStep(2, "cpu 90 °C"), memory=SheddingStep(1, "stalled")),
        sensors=lambda: SensorStatus(
            SensorReading((Temperature("cpu", 50.0),), throttling=("cpu",)), MemoryReading(10**9, 4 * 10**9, 0.25), 6.5
        ),
    )  # fmt: skip
    app = create_app(site.stored, site.config.for_dashboard(), probes=probes)
    parts = app.state.parts
    parts[SnapshotCache].cuts, parts[FrameCache].cuts = 71, 72
    parts[RecordingCuts].cuts, parts[RecordingCuts].bytes_cut = 73, 74_000
    made = parts[Renditions]
    made.made, made.failed, made.bytes_made, made.seconds = 75, 76, 77_000, 78.5
    parts[LiveHub].bytes_sent, parts[LiveHub].skipped = 79_000, 80
    parts[LiveHub].conversions.cpu_s = 78.5
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client.get("/metrics").text
    site.close()


def test_the_families_keep_their_names_types_help_and_labels(text: str) -> None:
    found = set()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        found.add((name, family.type, family.documentation, tuple(sorted(labels))))
    assert found == {family for family in families() if family[0] not in NOT_HERE}


# What the site of `text` is, by hand: seconds, bytes, watts and shares of one, never milliseconds or percent, but for
# the one name that ends in `_ms`.
VALUES = """
vedette_camera_state{camera="gate",state="connecting"} 1
vedette_camera_state{camera="gate",state="live"} 0
vedette_camera_decoding{camera="gate",decoding="idle"} 1
vedette_camera_decoding{camera="gate",decoding="everything"} 0
vedette_camera_decoder{camera="gate",decoder="software"} 1
vedette_camera_behind_seconds{camera="gate"} 0
vedette_camera_promised_fps{camera="gate"} 5
vedette_camera_examined_fps{camera="gate"} 4.8
vedette_health_open{camera="gate",kind="frozen"} 0
vedette_health_open{camera="",kind="hot"} 0
vedette_camera_packets_total{camera="gate"} 31
vedette_frames_decoded_total{camera="gate"} 32
vedette_looks_retried_total{camera="gate"} 33
vedette_hardware_decoder_failures_total{camera="gate"} 34
vedette_packets_unrecorded_total{camera="gate"} 35
vedette_camera_reconnects_total{camera="gate"} 36
vedette_tracks_evicted_total{camera="gate"} 44
vedette_outbox_dropped_total{camera="gate"} 37
vedette_outbox_dropped_total{camera="dock"} 0
vedette_outbox_expired_total{camera="gate"} 38
vedette_outbox_expired_total{camera="dock"} 0
vedette_packets_skipped_total{camera="gate"} 1400
vedette_frames_examined_total{camera="gate"} 80
vedette_frames_examined_total{camera="dock"} 0
vedette_frames_unexamined_total{camera="gate"} 4
vedette_frames_unexamined_total{camera="dock"} 0
vedette_uplink_bytes_total{camera="gate"} 20
vedette_frames_unexamined_by_reason_total{camera="gate",reason="failed"} 2
vedette_frames_unexamined_by_reason_total{camera="gate",reason="newer"} 2
vedette_health_events_total{camera="gate",kind="moved"} 41
vedette_events_held_back_total{camera="gate",rule="intruder"} 42
vedette_second_looks_total{camera="gate",outcome="confirmed"} 43
vedette_uplink_bytes_by_purpose_total{camera="gate",what="evidence"} 20
vedette_energy_joules_total{source="RAPL psys"} 700
vedette_energy_joules_per_camera_hour 42000
vedette_energy_joules_per_alert 350
vedette_camera_bytes_total{camera="gate",counted="exact"} 1000
vedette_camera_bytes_total{camera="gate",counted="estimated"} 1000
vedette_alerts 1
vedette_alerts_to_review 1
vedette_verdicts{decision="confirmed"} 1
vedette_verdicts{decision="rejected"} 0
vedette_outbox{state="waiting"} 0
vedette_notices_total{outcome="told",target="phone"} 62
vedette_notices_total{outcome="updated",target="phone"} 63
vedette_notices_total{outcome="withdrawn",target="phone"} 64
vedette_notices_total{outcome="quiet",target="phone"} 65
vedette_notices_total{outcome="forbidden",target="phone"} 66
vedette_notices_total{outcome="given_up",target="phone"} 67
vedette_notify_failures_total{target="phone"} 68
vedette_notify_waiting{target="phone"} 61
vedette_notify_failing{target="phone"} 1
vedette_mqtt_up 1
vedette_mqtt_messages_total 55
vedette_mqtt_dropped_total 56
vedette_storage_deleted_files_total{class="continuous",reason="age"} 1
vedette_storage_deleted_bytes_total{class="continuous",reason="age"} 1000
vedette_link_up 1
vedette_link_region{region="eu"} 1
vedette_link_failovers_total 50
vedette_breaker_state{state="closed"} 0
vedette_breaker_state{state="open"} 0
vedette_breaker_state{state="half_open"} 1
vedette_breaker_trips_total 51
vedette_ingest_up 1
vedette_ingest_starts_total 52
vedette_ingest_rss_bytes 54000000
vedette_detector_ms 17.5
vedette_detector_queue 53
vedette_detector_load 0.75
vedette_frame_age_recent_seconds{quantile="0.95"} 0.12
vedette_dashboard_streams 0
vedette_dashboard_headers_ignored_total{header="x-forwarded-for"} 0
vedette_live_viewers 0
vedette_live_conversions 0
vedette_live_conversion_cpu_seconds_total 78.5
vedette_live_bytes_total 79000
vedette_live_skipped_total 80
vedette_pictures_cut_total 71
vedette_recorded_frames_cut_total 72
vedette_recordings_cut_total 73
vedette_recordings_cut_bytes_total 74000
vedette_renditions_total 75
vedette_renditions_failed_total 76
vedette_renditions_bytes_total 77000
vedette_renditions_seconds_total 78.5
vedette_box_temperature_celsius{sensor="cpu"} 50
vedette_box_throttled 1
vedette_box_power_watts 6.5
vedette_box_memory_available_bytes 1000000000
vedette_box_memory_stalled_ratio 0.25
vedette_load_shedding_step{against="heat"} 2
vedette_load_shedding_step{against="memory"} 1
vedette_stage_seconds_bucket{stage="alert",le="0.005"} 1
vedette_stage_seconds_count{stage="alert"} 1
vedette_stage_seconds_sum{stage="alert"} 0
vedette_frame_age_seconds_bucket{camera="gate",le="0.05"} 60
vedette_frame_age_seconds_bucket{camera="gate",le="0.2"} 60
vedette_frame_age_seconds_bucket{camera="gate",le="0.3"} 78
vedette_frame_age_seconds_bucket{camera="gate",le="10"} 78
vedette_frame_age_seconds_bucket{camera="gate",le="+Inf"} 80
vedette_frame_age_seconds_count{camera="gate"} 80
vedette_frame_age_seconds_sum{camera="gate"} 8.5
"""


def test_every_figure_is_in_the_unit_of_its_name(text: str) -> None:
    said = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    known = set()
    for line in VALUES.strip().splitlines():
        (family,) = text_string_to_metric_families(f"{line}\n")
        (sample,) = family.samples
        key = sample.name, tuple(sorted(sample.labels.items()))
        assert said[key] == pytest.approx(sample.value), line
        known.add(key)
    counters = {key for key in said if key[0].endswith("_total") and "headers_ignored" not in key[0]}
    assert counters <= known, "nothing is counted under a name that is another's"
    families_said = {name for name, _ in said} - {"vedette_opinions", "vedette_storage_bytes"}
    told = {line.partition("{")[0].partition(" ")[0] for line in VALUES.split("\n")}
    assert families_said - told == {"vedette_storage_disk_free_bytes"}, "add its value to VALUES"


def test_a_family_without_samples_is_left_out(text: str) -> None:
    assert "vedette_storage_days_left" not in text


def test_every_family_of_the_table_is_one_of_these() -> None:
    gauge_or_counter = {family[0]: (family[2], *sorted(family[3])) for family in families() if family[1] != "histogram"}
    assert {name: (text, *sorted(labels)) for name, (text, *labels) in metrics.FAMILIES.items()} == gauge_or_counter
