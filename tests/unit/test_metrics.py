"""`/metrics`: every family that an operator's dashboards and alarms rely on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_site import Site
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from appliance.broker import LinkState
from appliance.clock import ManualClock
from appliance.dashboard import metrics
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, SystemHealth
from appliance.health.load_shedding import LoadShedding
from appliance.machine import Temperature
from appliance.mqtt.publisher import MqttStatus
from appliance.notify.delivery import TargetStatus
from appliance.sensors.box_sensors import BoxStatus
from appliance.sensors.memory_pressure import MemoryReading
from appliance.sensors.readings import SensorReading
from appliance.store.deletions import DeletionLedger
from appliance.store.meter import Metric, MetricName

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
    Looks a second that were due, over the last seconds.
vedette_camera_examined_fps gauge camera
    Looks a second that came, over the last seconds.
vedette_health_open gauge camera,kind
    1 while it is so; without a camera: of the box.
vedette_events_held_back_total counter camera,rule
    Events that opened no alert: the rule's cooldown held them back.
vedette_camera_packets_total counter camera
    Video packets received.
vedette_frames_decoded_total counter camera
    Frames decoded.
vedette_packets_skipped_total counter camera
    Video packets that were not decoded: nothing spoke for it.
vedette_frames_examined_total counter camera
    Frames that the detector looked at.
vedette_frames_unexamined_total counter camera
    Frames due for a look that did not get one.
vedette_looks_retried_total counter camera
    Looks asked for again because the detector failed.
vedette_hardware_decoder_failures_total counter camera
    Times that a hardware decoder failed.
vedette_packets_unrecorded_total counter camera
    Video packets that could not be kept: the disk was full.
vedette_camera_reconnects_total counter camera
    Times that a camera was connected to again.
vedette_outbox_dropped_total counter camera
    Questions given up because the outbox was full.
vedette_uplink_bytes_total counter camera
    Bytes sent up; without a camera: for no camera in particular.
vedette_health_events_total counter camera,kind
    Times that something was not as it should be.
vedette_frames_unexamined_by_reason_total counter camera,reason
    Frames that did not get their look, and why.
vedette_second_looks_total counter camera,outcome
    Second looks of the box: rechecked, unsure, failed, retried, missed (no time), late (the cloud was faster).
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
vedette_breaker_state gauge state
    1 for the state: open while the cloud does not answer.
vedette_breaker_trips_total counter -
    Times that the cloud stopped answering.
vedette_ingest_up gauge -
    1 while the ingest process runs.
vedette_ingest_starts_total counter -
    Starts of the ingest process.
vedette_detector_ms gauge -
    Milliseconds that one look takes.
vedette_detector_queue gauge -
    Frames that wait for a look.
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
    Power that the box draws, where it is measured; absent: nowhere.
vedette_box_memory_available_bytes gauge -
    Memory that programs could still get.
vedette_box_memory_stalled_ratio gauge -
    Share of the last ten seconds in which a task waited for memory.
vedette_load_shedding_step gauge against
    What is shed. heat: 1 fewer looks, 2 smaller pictures, 3 offload; memory: 1 caches, 2 rings; 0 nothing.
vedette_energy_joules_total counter source
    Joules that the box drew, by where they were measured.
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


@pytest.fixture
def text(tmp_path: Path) -> Iterator[str]:
    site = Site(tmp_path, ManualClock(T0))
    site.answer(site.raise_alert("a", T0))
    site.spend("gate", 1000, 10)
    site.spend("gate", 1000, 10, exact=False)
    for name in ("PACKETS", "DECODED", "RETRIED", "DECODER_FAILED", "UNRECORDED", "RECONNECTS", "OUTBOX_DROPPED"):
        site.meter.add("gate", Metric(MetricName[name]), 3)
    site.meter.add("gate", Metric(MetricName.HEALTH, "moved"), 1)
    site.meter.add("gate", Metric(MetricName.HELD_BACK, "intruder"), 1)
    site.meter.add("gate", Metric(MetricName.RECHECK, "confirmed"), 1)
    site.meter.add("gate", Metric(MetricName.ALERTS), 1)
    site.meter.add("", Metric(MetricName.ENERGY_J, "RAPL psys"), 700)
    site.meter.add("", Metric(MetricName.ENERGY_CAMERA_S), 60)
    ledger = DeletionLedger(site.db)
    ledger.add("gate", "continuous", "age", 1000, T0)
    with site.db.transaction() as connection:
        ledger.write(connection)
    probes = CoreProbes(
        link=lambda: LinkState(up=True, since=0.0),
        health=lambda: SystemHealth(ingest_running=True, age_p95_ms=120.0),
        targets=lambda: (TargetStatus(name="phone", kind="ntfy", host="h"),),
        mqtt=lambda: MqttStatus(connected=True, messages=3),
        shedding=LoadShedding,
        box=lambda: BoxStatus(
            SensorReading((Temperature("cpu", 50.0),), throttling=()), MemoryReading(10**9, 4 * 10**9, 0.0), 6.5
        ),
    )
    app = create_app(db=site.db, meter=site.meter, root=site.root, config=site.config, clock=site.clock, probes=probes)
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


def test_a_family_without_samples_is_left_out(text: str) -> None:
    assert "vedette_storage_days_left" not in text


def test_every_family_of_the_table_is_one_of_these() -> None:
    gauge_or_counter = {family[0]: (family[2], *sorted(family[3])) for family in families() if family[1] != "histogram"}
    assert {name: (text, *sorted(labels)) for name, (text, *labels) in metrics.FAMILIES.items()} == gauge_or_counter
