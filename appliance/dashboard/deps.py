"""Defines what most handlers of the dashboard depend on, and their access to the core in the same process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Depends
from starlette.responses import HTMLResponse

from appliance.base.clock import Clock
from appliance.base.telemetry import LogLevel, LogLine
from appliance.broker.nats_connection import LinkState
from appliance.dashboard.snapshots import CutSnapshot
from appliance.health.load_shedding import LoadShedding
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader
from appliance.notify.delivery import TargetStatus
from appliance.notify.message import PushMeans, SnoozeLinks
from appliance.router.calibration import UNTRAINED, Calibration
from appliance.router.escalation_planner import ApiEscalation, RequestAnswer
from appliance.rules.arming import Arming
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter
from appliance.types import FrameBoxes, HealthKind, RecheckResult
from appliance.uplink.worker_announcements import PoolState
from appliance.web.auth import TemplatesPart
from appliance.web.routes import provided

if TYPE_CHECKING:
    from appliance.mqtt.publisher import MqttStatus  # only where home automation listens


@dataclass(frozen=True, slots=True)
class SystemHealth:
    """The ingest process now, and warnings of the core: a sentence each.

    detector_ms: time of one inference, smoothed; queue: frames that wait for one; load: share of the time that the
    detector works, 0..1; age_p95_ms: of the frames that reached the trackers in the last seconds; hardware: that
    decodes, and its sessions.
    """

    ingest_running: bool
    ingest_starts: int = 0
    ingest_pid: int = 0
    detector_ms: float = 0.0
    queue: int = 0
    rss_bytes: int = 0
    load: float = 0.0
    age_p95_ms: float = 0.0
    hardware: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredSite:
    """The stored data of the site. meter: the core's own. root: the storage folder."""

    db: Database
    meter: Meter
    root: Path
    clock: Clock


@dataclass(frozen=True, slots=True)
class MediaReaders:
    """The readers of the recording: one for pictures, another for stretches, which may take long, one that encodes.

    cutter, converter None: the first one. cut: of live pictures; None: by `reader`. detect: finds objects in JPEG
    pictures of a camera; None: nothing does.
    """

    reader: RecordingReader = READ_DIRECTLY
    cutter: RecordingReader | None = None
    converter: RecordingReader | None = None
    cut: CutSnapshot | None = None
    detect: Callable[[str, Sequence[bytes]], RecheckResult] | None = None


READ_HERE = MediaReaders()


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """The last switch of networks. networks: in words; reason: of a refusal, or why ingest was started anew for it."""

    progress: Literal["", "trying", "loading", "in force", "restarted", "refused"] = ""
    networks: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ShadowStatus:
    """The network that examines live frames beside the one in force. candidate: the bundle that is judged by it.

    reason: why it waits. frames: compared so far. memory_bytes: its process. cpu_share: of a core, at most.
    """

    progress: Literal["", "measuring", "looking", "waiting"] = ""
    candidate: str = ""
    reason: str = ""
    frames: int = 0
    memory_bytes: int = 0
    cpu_share: float = 0.0


@dataclass(frozen=True, slots=True)
class IngestOrders:
    """Orders to the ingest process. Any thread may give them.

    rebaseline: with a camera and a kind of fault, when a person confirms that the view is right as it is. switch: other
    networks are to be in force now. switched: how far that is, or how the last one ended. shadow: see ShadowStatus.
    """

    rebaseline: Callable[[str, HealthKind], object] = lambda camera, kind: None
    switch: Callable[[], object] = lambda: None
    switched: Callable[[], SwitchStatus] = SwitchStatus
    shadow: Callable[[], ShadowStatus] = ShadowStatus


@dataclass(frozen=True, slots=True)
class CoreProbes:
    """The parts of the core that the dashboard reads besides the store. None: there is no such part.

    link: the uplink now. health: the ingest process now. targets: the notification targets now. mqtt: the broker of
    home automation now. orders: to the ingest process. calibration: what the router has learnt. pool: the workers as
    they announce themselves. escalate: requests the escalation of an alert, or of a question with its pictures, and
    answers within seconds; None: there is no uplink. arming: which rules report now, and how to change it; None: made
    anew of the store. log: the newest lines of a level and above. boxes: those of a camera's last examined frames, also
    of frames not yet in the store. snooze_links: those in messages. push: the browsers that are notified. sensors: what
    they read now. shedding: what is done less of. health_events: the core's own, which knows also of what the disk does
    not take; None: made anew of the store.
    """

    link: Callable[[], LinkState] | None = None
    health: Callable[[], SystemHealth] | None = None
    targets: Callable[[], Sequence[TargetStatus]] = tuple
    mqtt: Callable[[], MqttStatus] | None = None
    orders: IngestOrders = IngestOrders()
    calibration: Callable[[], Calibration] = lambda: UNTRAINED
    pool: Callable[[], PoolState] | None = None
    escalate: Callable[[str | ApiEscalation], RequestAnswer] | None = None
    boxes: Callable[[str], Sequence[FrameBoxes]] = lambda camera: ()
    arming: Arming | None = None
    log: Callable[[LogLevel, int], Sequence[LogLine]] = lambda level, count: ()
    snooze_links: SnoozeLinks | None = None
    push: PushMeans | None = None
    sensors: Callable[[], SensorStatus] | None = None
    shedding: Callable[[], LoadShedding] | None = None
    health_events: HealthEventStore | None = None


NO_PROBES = CoreProbes()


@dataclass(frozen=True, slots=True)
class StorageRoot:
    """The storage folder."""

    path: Path


DatabasePart = Annotated[Database, Depends(provided(Database))]


def current_rev(db: DatabasePart) -> int:
    """Return the number of the last change.

    It is read before the rest of a page: what changes meanwhile comes over the stream.
    """
    return db.rev()


Rev = Annotated[int, Depends(current_rev)]
MakePage = Callable[..., HTMLResponse]
"""Render a template by its name with these values, and with the number of the last change before they were read."""


def page_maker(rev: Rev, templates: TemplatesPart) -> MakePage:
    return partial(templates.page, rev=rev)


PagePart = Annotated[MakePage, Depends(page_maker)]
