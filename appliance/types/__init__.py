"""The values that travel between rooms: frozen, slotted, without behaviour beyond arithmetic on themselves.

Coordinates are shares of the picture (0..1), boxes are `(x1, y1, x2, y2)`. Times are UTC seconds live and seconds
since the clip's first frame in a replay. Objects that carry a `type` are JSON lines on the ingest channel and in the
replay log (see `appliance.wire`); their fields may grow, those that stand here stay.
"""

from appliance.types.alerts import Alert, AlertChange, BestView, Event, Step
from appliance.types.cameras import (
    CameraMeter,
    CameraState,
    Command,
    Gap,
    HealthEvent,
    IngestHealth,
    IngestMessage,
    Relearn,
    SegmentRow,
)
from appliance.types.frames import Detections, FrameBoxes, StreamHeader, TrackedObject
from appliance.types.log import LogEnd, LogLine, LogVerdict
from appliance.types.routes import Route, RouteInputs
from appliance.types.second import EdgeVerdict, Footage, Found, Glimpse, SecondLook, SecondSight, Sighting
from appliance.types.words import (
    AGE_EDGES_MS,
    EVIDENCE_STEPS,
    HEALTH_KINDS,
    SCHEMA,
    SEVERITIES,
    SHED_REASONS,
    Box,
    CameraStateName,
    Decision,
    DecodeState,
    EventKind,
    EvidenceStep,
    HealthKind,
    Point,
    Privacy,
    Review,
    SegmentKind,
    Severity,
    ShedReason,
    When,
)

__all__ = [
    "AGE_EDGES_MS",
    "EVIDENCE_STEPS",
    "HEALTH_KINDS",
    "SCHEMA",
    "SEVERITIES",
    "SHED_REASONS",
    "Alert",
    "AlertChange",
    "BestView",
    "Box",
    "CameraMeter",
    "CameraState",
    "CameraStateName",
    "Command",
    "Decision",
    "DecodeState",
    "Detections",
    "EdgeVerdict",
    "Event",
    "EventKind",
    "EvidenceStep",
    "Footage",
    "Found",
    "FrameBoxes",
    "Gap",
    "Glimpse",
    "HealthEvent",
    "HealthKind",
    "IngestHealth",
    "IngestMessage",
    "LogEnd",
    "LogLine",
    "LogVerdict",
    "Point",
    "Privacy",
    "Relearn",
    "Review",
    "Route",
    "RouteInputs",
    "SecondLook",
    "SecondSight",
    "SegmentKind",
    "SegmentRow",
    "Severity",
    "ShedReason",
    "Sighting",
    "Step",
    "StreamHeader",
    "TrackedObject",
    "When",
]
