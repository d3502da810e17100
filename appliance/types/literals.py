"""Defines boxes, points and the closed lists of names that other values use."""

from __future__ import annotations

from typing import Literal, get_args

Box = tuple[float, float, float, float]
Point = tuple[float, float]
Severity = Literal["info", "warning", "alert"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "alert")
EventKind = Literal["enter", "exit", "line", "dwell"]
CameraStateName = Literal["connecting", "live", "stalled", "lost", "ended"]
Decision = Literal["confirmed", "rejected", "unsure", "rechecked"]
"""`rechecked`: a detector found the object again, which confirms nothing."""
JudgeKind = Literal["vlm", "person", "detector", "simulated", "unknown"]
"""Source of a verdict: a vision-language model, a person, a detector, a stand-in of a test or a replay, or unknown."""
JUDGE_KINDS: tuple[JudgeKind, ...] = ("vlm", "person", "detector", "simulated", "unknown")
CONFIRMING_KINDS: tuple[JudgeKind, ...] = ("vlm", "person", "simulated")
TEACHING_KINDS: tuple[JudgeKind, ...] = ("vlm", "person")
"""Only what these said is taken for the truth: by the calibration, and by whatever else learns from verdicts."""
Review = Literal["reviewed", "false_alarm"]
SendTiming = Literal["now", "later", "never"]
Tier = Literal["edge", "cloud"]
"""Which of the two answers about an alert: the appliance, or the cloud that it asks."""
EdgeAnswer = Literal["", "sure", "doubtful", "between"]
"""The appliance's own answer about an alert: real, hardly ever real, or it cannot tell; '': it was not asked."""
AuditSide = Literal["", "sure", "doubtful"]
EvidenceStep = Literal["facts", "crops", "frames", "clip"]
EVIDENCE_STEPS: tuple[EvidenceStep, ...] = ("facts", "crops", "frames", "clip")
PrivacyLevel = Literal["free", "image_free", "never"]
HealthKind = Literal[
    "stalled",
    "frozen",
    "black",
    "covered",
    "moved",
    "clock",
    "offset",
    "detector",
    "decoder",
    "unexamined",
    "overloaded",
    "database",
    "fallback",
    "hot",
    "memory",
    "service",
    "disk",
    "unrecorded",
    "uplink",
    "mqtt",
    "notify",
    "certificate",
    "model",
    "drift",
    "time",
    "update",
]
HEALTH_KINDS: tuple[HealthKind, ...] = get_args(HealthKind)
HEALTH_TITLES: dict[HealthKind, str] = {
    "stalled": "No picture comes",
    "frozen": "Frozen picture",
    "black": "Black picture",
    "covered": "Covered or out of focus",
    "moved": "Camera moved",
    "clock": "Clock jumped",
    "offset": "Streams apart in time",
    "detector": "Detector stuck",
    "decoder": "Hardware decoder failed",
    "unexamined": "Not examined",
    "overloaded": "Too few inferences",
    "database": "Database gone",
    "fallback": "Detector not as asked",
    "hot": "Hot or throttled",
    "memory": "Short of memory",
    "service": "Service failed",
    "disk": "Disk short or failing",
    "unrecorded": "Not recorded",
    "uplink": "Cloud not reached",
    "mqtt": "MQTT broker not reached",
    "notify": "Somebody is not notified",
    "certificate": "Certificate runs out",
    "model": "Detection does not start",
    "drift": "Alerts are right less often",
    "time": "Clock of the appliance is off",
    "update": "Update failed",
}
OF_NEIGHBOURS: frozenset[HealthKind] = frozenset({"uplink", "mqtt", "notify", "certificate", "drift", "update"})
"""Faults of what the appliance talks to, of judgement and of an update: all cameras are watched all the same."""
PAUSED = "recording is paused"
"""How the reason of a gap begins in which pictures came and could not be recorded."""
SCHEMA = 1  # of the ingest channel and the replay log
SegmentKind = Literal["continuous", "pre_roll", "alert"]
DecodeState = Literal["everything", "active", "idle"]
"""Which of a camera's frames are decoded: all (as configured, or because the stream allows nothing else), all as long
as something may happen, key frames only."""
HardwareKind = Literal["cuda", "v4l2", "drm", "vaapi", "qsv"]
"""NVDEC; V4L2's stateful decoders (Jetson); its stateless ones (Raspberry Pi 5); VA-API; Intel's oneVPL."""
HARDWARE_KINDS: tuple[HardwareKind, ...] = ("cuda", "v4l2", "drm", "vaapi", "qsv")
DecodeHardware = Literal["off", "auto", "cuda", "v4l2", "drm", "vaapi", "qsv"]
DropReason = Literal["newer", "capped", "late", "run", "failed", "stuck"]
"""Why a frame that was due was not examined: a newer one took its place; the same, of a camera that had taken more than
its part of the detector; it was decoded late and waited too long; its session was over; the detector failed; the
detector did not answer."""
DROP_REASONS: tuple[DropReason, ...] = ("newer", "capped", "late", "run", "failed", "stuck")
AGE_EDGES_MS: tuple[int, ...] = (50, 100, 200, 300, 500, 1000, 2000, 5000, 10_000)
"""Upper edges of the histogram of a frame's age when it reaches the tracker."""
