"""Plays clips to the appliance's own parts, which record, examine and raise alerts; reviews the alerts by the truth.

What is left is the storage folder of `vedette run`, so that `vedette export` and `vedette models prove` work on it. No
time is waited for: the clock is moved along the clips. The truth of a clip are MOTChallenge rows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from appliance.alerts.pipeline import Pipeline
from appliance.analysis.camera_analysis import CameraAnalysis
from appliance.base.clock import ManualClock, local_weekday_minute
from appliance.config import SiteConfig, load
from appliance.detect.detector import ObjectDetector
from appliance.evidence.maker import EvidenceMaker
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from appliance.store.review_writes import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.track.tracker import Tracker
from appliance.types import Event, Gap, PipelineStep, StreamHeader, iou
from fixtures.render.family.mannequin import FPS
from fixtures.render.scene import PERSON
from fixtures.render.truth import Row, read_rows

CAMERA, RULE = "shop", "somebody"
BEGIN_T = 1_795_172_400.0  # UTC seconds, 2026-11-20T11:00:00Z
AWAY_S = 60.0  # between two clips: alerts of one are no incident with those of the next
SAME_IOU = 0.3  # an event is about the true box that it overlaps most, from here on
EVIDENCE_ROUNDS = 40  # of the evidence maker, which makes a few pieces at a time


@dataclass(frozen=True, slots=True)
class Reported:
    """An event, and which true object it is about (None: nothing that is there). clip: the file's stem."""

    clip: str
    event: Event
    about: int | None
    is_person: bool


def write_site(root: Path, size: tuple[int, int], model: str = "auto") -> Path:
    """Write the site file of one camera that reports everybody who stays for 0.6 s; return its path."""
    everywhere = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]
    rule = {"name": RULE, "kind": "dwell", "zone": "ground", "seconds": 0.6, "labels": ["person"]}
    site = {
        "site": {"name": "rendered"},
        "storage": {"dir": str(root / "data"), "disk_free_min_mb": 0, "keep_hours": 1000},
        "detector": {"model": model},
        "alerts": {"merge_s": 1, "pre_roll_s": 0, "post_roll_s": 0},
        "cameras": {
            CAMERA: {
                "url": "file:/dev/null",
                "training": True,
                "detect": {"latency": "lowest"},
                "zones": {"ground": everywhere},
                "rules": [rule],
            }
        },
    }
    root.mkdir(parents=True, exist_ok=True)
    path = root / "site.yaml"
    path.write_text(yaml.safe_dump(site, sort_keys=False))
    return path


class RecordedSite:
    """The storage of a site while clips are played to it. Owner: one thread; `close` ends it."""

    def __init__(self, site_file: Path, detector: ObjectDetector) -> None:
        self.config: SiteConfig = load(site_file)
        self._root = self.config.storage.dir
        self._root.mkdir(parents=True, exist_ok=True)
        self._clock = ManualClock(BEGIN_T)
        self._db = Database(self._root / DATABASE, self._clock)
        self.alerts, self.boxes, self.cameras = AlertStore(self._db), BoxStore(self._db), CameraStore(self._db)
        self.cameras.ensure({name: camera.url for name, camera in self.config.cameras.items()})
        self.detector = detector
        self.raised: set[str] = set()
        """Alerts by their ids."""
        self._right: set[str] = set()

    def play(self, clips: Sequence[Path]) -> list[Reported]:
        """Let the camera show each clip in a session of its own; return what its rule reported. Raise SourceError."""
        return [each for clip in clips for each in self._played(clip)]

    def review(self) -> tuple[int, int]:
        """Answer every alert as the truth is: right if any event of it is about a person. Return right and false."""
        counts = [0, 0]
        for alert in self.raised:
            right = any(each.id in self._right for each in self.alerts.events_of(alert))
            ReviewStore(self._db).review([alert], "reviewed" if right else "false_alarm", self._clock.now())
            counts[not right] += 1
        return counts[0], counts[1]

    def close(self) -> None:
        """Make what evidence the alerts need, and end."""
        maker = EvidenceMaker(self._db, self._root, self.config.for_decisions(), self._clock)
        for _ in range(EVIDENCE_ROUNDS):
            if not maker.run_once():
                break
        self._db.close()

    def _played(self, clip: Path) -> Iterator[Reported]:
        begin, run = self._clock.now(), clip.stem
        source = FileSource(CAMERA, f"file:{clip}", self._clock)
        info = source.open()
        target = RecordTarget(self._root, CAMERA, self.config.storage.segment_s, 0)
        store = SegmentStore(self._db)
        recorder = SegmentRecorder(target, self._clock, lambda row: None if isinstance(row, Gap) else store.put(row))
        recorder.begin(info, run)
        session = _Session(self, run)
        decoder = Decoder(CAMERA, info)
        for packet in source.packets():
            recorder.take(packet)
            for frame in decoder.decode(packet):
                session.take(frame)
        recorder.end()
        source.close()
        session.end()
        truth = read_rows(clip.with_suffix(".gt.txt"))
        for event in session.events:
            row = _about(event, round((event.t - begin) * FPS) + 1, truth, session.size)
            is_person = row is not None and row.kind == PERSON
            if is_person:
                self._right.add(event.id)
            yield Reported(run, event, None if row is None else row.number, is_person)
        self._clock.advance(AWAY_S)


class _Session:
    """One clip on its way from frames to alerts."""

    def __init__(self, site: RecordedSite, run: str) -> None:
        camera = site.config.cameras[CAMERA]
        self._site, self._run, self._t = site, run, 0.0
        self._analysis = CameraAnalysis(CAMERA, site.detector, Tracker, camera.detect, decode_everything=True)
        self._pipeline = Pipeline(CAMERA, camera, site.config.alerts, local_time=local_weekday_minute)
        self.size = (0, 0)
        self.events: list[Event] = []

    def take(self, frame: DecodedFrame) -> None:
        """Examine a frame if it is due, and decide."""
        self._t = frame.t
        if self._analysis.begins_session(frame):
            self.size = self._analysis.start_session(frame)
            header = StreamHeader(camera=CAMERA, clip="", model=self._site.detector.name, size=self.size, run=self._run)
            self._site.cameras.write_header(header)
            self._pipeline.feed(header)
        request = self._analysis.select(frame)
        if request is not None:
            found = self._site.detector.detect([self._analysis.detector_input(request)])[0]
            boxes = self._analysis.result(request, found)
            self._site.boxes.append(CAMERA, self._run, [boxes])
            self._commit(self._pipeline.feed(boxes))

    def end(self) -> None:
        """End what is open, as the stream is over."""
        self._commit(self._pipeline.close(self._t, "new run"))

    def _commit(self, step: PipelineStep) -> None:
        """Store it as the core does, without a cloud."""
        self.events += step.events
        self._site.alerts.add_suppressed(step.suppressed, self._run)
        for change in step.changes:
            self._site.alerts.apply(change, escalation=None, priority="")
            self._site.raised.add(change.alert.id)


def _about(event: Event, frame: int, truth: Sequence[Row], size: tuple[int, int]) -> Row | None:
    width, height = size
    rows = [row for row in truth if row.frame == frame]
    shared = [
        iou(event.box, (row.x / width, row.y / height, (row.x + row.w) / width, (row.y + row.h) / height))
        for row in rows
    ]
    best = max(range(len(rows)), key=shared.__getitem__, default=None)
    return None if best is None or shared[best] < SAME_IOU else rows[best]
