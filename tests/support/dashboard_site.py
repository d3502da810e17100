"""A site for the dashboard's tests: a real store on disk with real recordings, alerts and evidence, and a real server.

Everything is written through the store's own doors, as the core would.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import yaml
from argon2 import PasswordHasher
from fastapi import FastAPI
from fastapi.testclient import TestClient

from appliance import wire
from appliance.base.clock import Clock, ManualClock, SystemClock, local_day
from appliance.broker.nats_connection import LinkState
from appliance.config import SiteConfig
from appliance.dashboard.app import create_app
from appliance.dashboard.deps import CoreProbes, StoredSite, SystemHealth
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.clips import cut_clip
from appliance.media.recorded import RecordedSegment
from appliance.media.stills import cut_still, encode_jpeg
from appliance.settings.settings_service import SettingsService
from appliance.store.alert_rows import EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.health_events import HealthEventStore
from appliance.store.meter import Meter, Metric, MetricName
from appliance.store.paths import evidence_folder
from appliance.store.segments import SegmentStore
from appliance.store.users import UserStore
from appliance.types import (
    Alert,
    AlertChange,
    BestView,
    CameraState,
    Decision,
    DecodeStatus,
    Event,
    FrameBoxes,
    HealthEvent,
    SegmentRow,
    Severity,
    StreamHeader,
    TrackedObject,
)
from appliance.types.accounts import Role, UserRow
from appliance.web.acceptor import ConnectionLimits
from appliance.web.server import WebServer
from appliance.web.tls import ServerCertificate
from tests.support import numbered_footage

RUN = "run-1"
PASSWORD = "four words to remember"


def config_of(**dashboard: object) -> SiteConfig:
    """Two cameras, of which `gate` has a zone, a line and rules; the password must never be seen again."""
    rules = [
        {"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert"},
        {"name": "loiterer", "kind": "dwell", "zone": "yard", "seconds": 20},
        {"name": "wrong-way", "kind": "line", "line": "door", "direction": "left_to_right"},
    ]
    gate = {
        "url": "rtsp://viewer:hunter2@192.168.1.20/main",
        "zones": {"yard": [[0.1, 0.45], [0.95, 0.45], [0.95, 0.98], [0.1, 0.98]]},
        "lines": {"door": [[0.4, 0.2], [0.4, 0.8]]},
        "rules": rules,
    }
    cameras = {"gate": gate, "dock": {"url": "rtsp://192.168.1.21/main"}}
    return SiteConfig.model_validate(
        {
            "site": {"name": "depot-7"},
            "cameras": cameras,
            "dashboard": {"port": 0, **dashboard},
            "uplink": {"url": "nats://127.0.0.1:4222"},
        }
    )


@functools.cache
def empty_store() -> bytes:
    """A database file with all tables and no row: making them is most of the time that a small site takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vedette.db"
        Database(path, ManualClock(0)).close()
        return path.read_bytes()


@functools.cache
def password_hash(password: str = PASSWORD) -> str:
    """Salted once, and quick to check: the tests sign in hundreds of times, which is made to be slow."""
    return PasswordHasher(time_cost=1, memory_cost=8, parallelism=1).hash(password)


@dataclass
class Site:
    """The store of one site, and hands to write it with."""

    root: Path
    clock: Clock
    config: SiteConfig = field(default_factory=config_of)
    link: LinkState = field(default_factory=lambda: LinkState(up=True, since=0.0))
    health: SystemHealth = field(default_factory=lambda: SystemHealth(ingest_running=True, ingest_starts=1))

    def __post_init__(self) -> None:
        path = self.root / "vedette.db"
        if not path.exists():
            self.root.mkdir(parents=True, exist_ok=True)
            path.write_bytes(empty_store())
        self.db = Database(path, self.clock)
        self.alerts, self.evidence, self.boxes = AlertStore(self.db), EvidenceStore(self.db), BoxStore(self.db)
        self.segments, self.meter, self.cameras = SegmentStore(self.db), Meter(self.db, "core-1"), CameraStore(self.db)
        self.faults = HealthEventStore(self.db)
        self.cameras.ensure({name: camera.url for name, camera in self.config.cameras.items()})
        self.recorded: list[SegmentRow] = []

    def close(self) -> None:
        self.db.close()

    def live(self, camera: str, t: float, size: tuple[int, int] = (320, 240)) -> None:
        self.cameras.write_header(StreamHeader(camera=camera, clip="", model="vedette-nano", size=size, run=RUN))
        self.cameras.write_state(CameraState(camera=camera, state="live", t=t))

    def record(self, camera: str, t0: float, seconds: float = 8.0) -> SegmentRow:
        """Eight seconds of pictures that say their number, and one person who walks from left to right."""
        row = numbered_footage.record(
            self.root, numbered_footage.encoded_footage(0, int(seconds * 10)), t0, camera=camera
        )
        self.keep(row, [walk(camera, t0, n) for n in range(int(seconds * 5))])
        return row

    def record_clip(self, camera: str, clip: Path, t0: float, seconds: float) -> None:
        """The first seconds of a clip, as the recorder writes them; nobody has looked at them."""
        clock = ManualClock(t0)
        source = FileSource(camera, f"file:{clip}", clock, threading.Event())
        recorder = SegmentRecorder(RecordTarget(self.root, camera, 4.0, 0), clock, self.segments.put)
        recorder.begin(source.open(), RUN)
        for packet in source.packets():
            if packet.t > t0 + seconds:
                break
            recorder.take(packet)
        recorder.end()
        source.close()

    def keep(self, row: SegmentRow, frames: Sequence[FrameBoxes]) -> None:
        self.segments.put(row)
        self.recorded.append(row)
        self.boxes.append(row.camera, RUN, frames)

    def spend(self, camera: str, received: int, sent: int, *, exact: bool = True) -> None:
        self.meter.add(camera, Metric(MetricName.CAMERA_BYTES, "" if exact else "estimated"), received)
        for purpose in ("", "evidence"):
            self.meter.add(camera, Metric(MetricName.UPLINK_BYTES, purpose), sent)
        self.meter.add(camera, Metric(MetricName.EXAMINED), 40)
        for reason, count in (("", 2), ("newer", 1), ("failed", 1)):
            self.meter.add(camera, Metric(MetricName.UNEXAMINED, reason), count)
        for edge, count in (("50", 30), ("300", 9), ("more", 1), ("sum", 4250)):
            self.meter.add(camera, Metric(MetricName.FRAME_AGE_MS, edge), count)
        self.meter.add(camera, Metric(MetricName.SKIPPED), 700)
        self.meter.note(camera, DecodeStatus("idle", promised_fps=5.0, examined_fps=4.8))
        self.meter.flush(local_day(self.clock.now()))

    def raise_alert(
        self,
        alert_id: str,
        t: float,
        *,
        camera: str = "gate",
        rules: tuple[str, ...] = ("intruder",),
        labels: tuple[str, ...] = ("person",),
        severity: Severity = "alert",
        tracks: tuple[int, ...] = (1,),
        seconds: float | None = 3.0,
        best: BestView | None = None,
        events: Sequence[Event] = (),
        ask: bool = True,
    ) -> Alert:
        """Raise an alert at `t` that ended after `seconds` (None: it lasts), and ask the cloud about it."""
        seen = best or BestView(track=tracks[0], label=labels[0], t=t + 1, score=0.87, box=(0.4, 0.4, 0.5, 0.8))
        alert = Alert(
            camera=camera, id=alert_id, rules=rules, severity=severity, t_start=t, t_end=None, tracks=tracks,
            labels=labels, score=0.87, run=RUN, best=seen,
        )  # fmt: skip
        first = Event(
            camera=camera, rule=rules[0], kind="enter", track=tracks[0], label=labels[0], t=t, score=0.87,
            box=(0.3, 0.4, 0.4, 0.8), zone="yard", severity=severity,
        )  # fmt: skip
        escalation = self._escalation(alert, first) if ask else None
        for n, event in enumerate(events or (first,)):
            change = AlertChange("extended" if n else "opened", alert, event)
            self.alerts.apply(change, escalation=None if n else escalation, priority="high")
        if seconds is not None:
            alert = replace(alert, t_end=t + seconds)
            self.alerts.apply(AlertChange("ended", alert), escalation=None, priority="high")
        return alert

    def _escalation(self, alert: Alert, event: Event) -> wire.Escalation:
        return wire.Escalation(
            id=f"e-{alert.id}", site=self.config.site.name, camera=alert.camera, alert=alert.id, rule="intruder",
            kind=event.kind, label=event.label, severity=alert.severity, t=alert.t_start, created_t=self.clock.now(),
        )  # fmt: skip

    def cut(self, alert: Alert) -> None:
        """Cut the still, the clip and the box path out of what was recorded."""
        assert alert.best is not None
        assert alert.t_end is not None
        rows = [row for row in self.recorded if row.camera == alert.camera]
        recording = [RecordedSegment(self.root / row.path, row.t_start, row.t_end) for row in rows]
        folder = self.root / evidence_folder(alert.id)
        folder.mkdir(parents=True, exist_ok=True)
        still = cut_still(recording, alert.best.t)
        (folder / "still.jpg").write_bytes(encode_jpeg(still.image))
        clip = cut_clip(recording, alert.t_start - 2, alert.t_end + 2, folder / "clip.mp4")
        frames = self.boxes.span(alert.camera, clip.t_start, clip.t_end)
        inferences = [{"t": each.t, "objects": [asdict(found) for found in each.objects]} for each in frames]
        (folder / "boxes.json").write_text(json.dumps({"schema": 1, "frames": inferences}))
        self.evidence.put(
            self._piece(alert.id, "still", still.t, still.t),
            *(self._piece(alert.id, name, clip.t_start, clip.t_end) for name in ("clip", "boxes")),
        )

    def _piece(self, alert_id: str, kind: str, t_start: float, t_end: float) -> EvidenceRow:
        names = {"still": "still.jpg", "clip": "clip.mp4", "boxes": "boxes.json"}
        path = f"{evidence_folder(alert_id)}/{names[kind]}"
        return EvidenceRow(
            alert=alert_id, kind=kind, state="ready", path=path, t_start=t_start, t_end=t_end,  # type: ignore[arg-type]
            bytes=(self.root / path).stat().st_size, sha256=f"{alert_id}-{kind}",
        )  # fmt: skip

    def answer(
        self, alert: Alert, decision: Decision = "confirmed", reason: str = "A person walks through the yard.",
        engine: str = "openai",
    ) -> None:  # fmt: skip
        """Let the cloud's verdict land."""
        t = alert.t_start
        support = tuple(
            wire.FrameSupport(media=f"{n:032x}", t=t + n, supports="yes" if n else "unsure", score=0.55 + n / 10)
            for n in range(3)
        )
        verdict = wire.Verdict(
            escalation=f"e-{alert.id}", site=self.config.site.name, alert=alert.id, decision=decision, reason=reason,
            confidence=0.92, support=support, engine=engine, model="yolox-m", prompt_version="p3", seconds=0.84,
            judged_t=self.clock.now(),
        )  # fmt: skip
        assert self.alerts.apply_verdict(verdict, self.clock.now() + 1.4)

    @property
    def stored(self) -> StoredSite:
        return StoredSite(self.db, self.meter, self.root, self.clock)

    def probes(self) -> CoreProbes:
        """The link and the ingest process as `link` and `health` say."""
        return CoreProbes(link=lambda: self.link, health=lambda: self.health, health_events=self.faults)

    def app(self, settings: SettingsService | None = None, certificate: ServerCertificate | None = None) -> FastAPI:
        """The dashboard of this site."""
        return create_app(
            self.stored, self.config.for_dashboard(), probes=self.probes(), settings=settings, certificate=certificate
        )

    def client(self) -> TestClient:
        """For a `with` block: the dashboard in this process; what it does not expect is a 500, as for a person."""
        return TestClient(self.app(), base_url="http://127.0.0.1:8080", raise_server_exceptions=False)

    def serve(self, limits: ConnectionLimits | None = None, settings: SettingsService | None = None) -> WebServer:
        """A server on a free port of the loopback, not running yet. settings None: they cannot be changed."""
        served = self.config.dashboard
        certificate = ServerCertificate.of(served, self.root, self.clock)
        return WebServer(
            self.app(settings, certificate), "127.0.0.1", 0,
            trusted_proxies=served.trusted_proxies, limits=limits, certificate=certificate,
        )  # fmt: skip


@contextlib.contextmanager
def furnished(
    folder: Path, people: Mapping[str, tuple[Role, tuple[str, ...] | None]], *, config: SiteConfig | None = None
) -> Iterator[str]:
    """A served dashboard with something behind each route; yields its URL without the last slash.

    Each camera has footage, a fault and the alerts open-CAMERA, reviewed-CAMERA and deleted-CAMERA, none of which is
    reviewed or deleted yet. people: role and cameras (None: all) of each user; the password is PASSWORD.
    """
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(folder, SystemClock(), config=config or config_of())
    for name, (role, cameras) in sorted(people.items()):
        UserStore(site.db).add(UserRow(name=name, role=role, cameras=cameras, password=password_hash()))
    t0 = site.clock.now() - 20
    for camera in ("gate", "dock"):
        site.live(camera, t0)
        site.record(camera, t0)
        for n, state in enumerate(("open", "reviewed", "deleted")):
            site.raise_alert(f"{state}-{camera}", t0 + 2 + n / 10, camera=camera)
            found = site.alerts.get(f"{state}-{camera}")
            assert found is not None
            site.cut(found.alert)
        fault = HealthEvent(
            id=f"fault-{camera}", camera=camera, kind="moved", t_start=t0, t_end=None, t=t0, reason="", recovery="",
            attempts=0, times=1,
        )  # fmt: skip
        HealthEventStore(site.db).put(fault)
    site.spend("gate", 420_000_000, 150_000)
    site_file = folder / "site.yaml"
    site_file.write_text("site: {name: depot-7}\ncameras: {gate: {url: 'rtsp://a/b'}, dock: {url: 'rtsp://a/c'}}\n")
    settings = SettingsService(site_file, folder, site.clock, lambda config: ())
    with running(site.serve(settings=settings)) as url:
        yield url
    site.close()


def site_of_file(folder: Path, text: str) -> tuple[Path, Site]:
    """Return the site file, with this text, and its site, on the real clock."""
    path = folder / "site.yaml"
    path.write_text(text)
    (folder / "data").mkdir()
    return path, Site(folder / "data", SystemClock(), SiteConfig.model_validate(yaml.safe_load(text)))


def filmed_site(folder: Path, text: str) -> tuple[Path, Site, float]:
    """Return a site file with this text, its site, and since when (UTC seconds) its live camera `gate` is recorded."""
    path, site = site_of_file(folder, text)
    t0 = site.clock.now() - 20
    site.live("gate", t0)
    site.record("gate", t0)
    return path, site, t0


def walk(camera: str, t0: float, n: int) -> FrameBoxes:
    """Look `n` (five a second) at a person who walks from left to right."""
    x = 0.05 + 0.02 * n
    person = TrackedObject(track=1, label="person", score=0.87, box=(x, 0.4, x + 0.1, 0.8))
    return FrameBoxes(camera=camera, seq=n, frame=2 * n, t=t0 + n / 5, looked=True, objects=(person,))


@contextlib.contextmanager
def running(server: WebServer) -> Iterator[str]:
    """Run the server in a thread; yields its URL without the last slash."""
    thread = threading.Thread(target=server.run, name="dashboard")
    thread.start()
    try:
        yield server.url.rstrip("/")
    finally:
        server.stop()
        thread.join(60)
        assert not thread.is_alive(), "the dashboard did not stop"
