"""The values that travel between packages: frozen, slotted, without behaviour beyond arithmetic on themselves.

Coordinates are shares of the frame (0..1), boxes are `(x1, y1, x2, y2)`. Times are UTC seconds live and seconds
since the clip's first frame in a replay. Objects that carry a `type` are JSON lines on the ingest channel and in the
replay log (see `appliance.base.json_lines`); their fields may grow, those that stand here stay.
"""

from appliance.types.events import Alert as Alert
from appliance.types.events import AlertChange as AlertChange
from appliance.types.events import BestView as BestView
from appliance.types.events import Event as Event
from appliance.types.events import LogEnd as LogEnd
from appliance.types.events import LogLine as LogLine
from appliance.types.events import LogVerdict as LogVerdict
from appliance.types.events import PipelineStep as PipelineStep
from appliance.types.events import Route as Route
from appliance.types.events import RouteInputs as RouteInputs
from appliance.types.frames import Detections as Detections
from appliance.types.frames import FrameBoxes as FrameBoxes
from appliance.types.frames import StreamHeader as StreamHeader
from appliance.types.frames import TrackedObject as TrackedObject
from appliance.types.ingest_messages import CACHES as CACHES
from appliance.types.ingest_messages import RINGS as RINGS
from appliance.types.ingest_messages import CameraMeter as CameraMeter
from appliance.types.ingest_messages import CameraState as CameraState
from appliance.types.ingest_messages import Command as Command
from appliance.types.ingest_messages import ConfigureCommand as ConfigureCommand
from appliance.types.ingest_messages import CropRequest as CropRequest
from appliance.types.ingest_messages import CropResult as CropResult
from appliance.types.ingest_messages import EdgeVerdict as EdgeVerdict
from appliance.types.ingest_messages import FootageSpan as FootageSpan
from appliance.types.ingest_messages import Gap as Gap
from appliance.types.ingest_messages import HealthEvent as HealthEvent
from appliance.types.ingest_messages import IngestHealth as IngestHealth
from appliance.types.ingest_messages import IngestMessage as IngestMessage
from appliance.types.ingest_messages import MeasuredSegment as MeasuredSegment
from appliance.types.ingest_messages import NetworksAnswer as NetworksAnswer
from appliance.types.ingest_messages import NetworksCommand as NetworksCommand
from appliance.types.ingest_messages import RebaselineCommand as RebaselineCommand
from appliance.types.ingest_messages import RecheckCommand as RecheckCommand
from appliance.types.ingest_messages import RecheckDetection as RecheckDetection
from appliance.types.ingest_messages import RecheckResult as RecheckResult
from appliance.types.ingest_messages import SegmentRow as SegmentRow
from appliance.types.ingest_messages import ShedLoadCommand as ShedLoadCommand
from appliance.types.literals import AGE_EDGES_MS as AGE_EDGES_MS
from appliance.types.literals import CONFIRMING_KINDS as CONFIRMING_KINDS
from appliance.types.literals import DROP_REASONS as DROP_REASONS
from appliance.types.literals import EVIDENCE_STEPS as EVIDENCE_STEPS
from appliance.types.literals import HARDWARE_KINDS as HARDWARE_KINDS
from appliance.types.literals import HEALTH_KINDS as HEALTH_KINDS
from appliance.types.literals import HEALTH_TITLES as HEALTH_TITLES
from appliance.types.literals import JUDGE_KINDS as JUDGE_KINDS
from appliance.types.literals import OF_NEIGHBOURS as OF_NEIGHBOURS
from appliance.types.literals import PAUSED as PAUSED
from appliance.types.literals import SCHEMA as SCHEMA
from appliance.types.literals import SEVERITIES as SEVERITIES
from appliance.types.literals import TEACHING_KINDS as TEACHING_KINDS
from appliance.types.literals import AuditSide as AuditSide
from appliance.types.literals import Box as Box
from appliance.types.literals import CameraStateName as CameraStateName
from appliance.types.literals import Decision as Decision
from appliance.types.literals import DecodeHardware as DecodeHardware
from appliance.types.literals import DecodeState as DecodeState
from appliance.types.literals import DropReason as DropReason
from appliance.types.literals import EdgeAnswer as EdgeAnswer
from appliance.types.literals import EventKind as EventKind
from appliance.types.literals import EvidenceStep as EvidenceStep
from appliance.types.literals import HardwareKind as HardwareKind
from appliance.types.literals import HealthKind as HealthKind
from appliance.types.literals import JudgeKind as JudgeKind
from appliance.types.literals import Point as Point
from appliance.types.literals import PrivacyLevel as PrivacyLevel
from appliance.types.literals import Review as Review
from appliance.types.literals import SegmentKind as SegmentKind
from appliance.types.literals import SendTiming as SendTiming
from appliance.types.literals import Severity as Severity
from appliance.types.literals import Tier as Tier
