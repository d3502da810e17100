"""A box that has lived through a film: recorded by the real recorder, examined, alerted and cut by the real parts.

No time is waited for: the clock is moved along the film. What is left is the storage folder of `vedette run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.alerts.pipeline import Pipeline
from appliance.base.clock import ManualClock, local_weekday_minute
from appliance.config import SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.evidence.evidence_maker import EvidenceMaker
from appliance.ingest.file_source import FileSource
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.media.decoder import DecodedFrame, Decoder
from appliance.media.frames import upright_size
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.cameras import CameraStore
from appliance.store.database import Database
from appliance.store.paths import DATABASE
from appliance.store.reviews import ReviewStore
from appliance.store.segments import SegmentStore
from appliance.track.tracker import Tracker
from appliance.types import Alert, CameraState, PipelineStep, Review, SegmentRow, StreamHeader
from tests.support.scripted_sources import FrameByFrame
from tests.support.unmeasured import UNMEASURED

LIFE_T0 = 1_795_172_400.0  # 2026-11-20T11:00:00Z


def site_of(root: Path, camera: Mapping[str, Any], *, model: str = "auto", name: str = "gate") -> SiteConfig:
    """A site with one camera. Alerts are told apart after 4 s of quiet."""
    return SiteConfig.model_validate(
        {
            "site": {"name": "depot-7"},
            "storage": {"dir": str(root), "disk_free_min_mb": 0},
            "detector": {"model": model}
            if model.startswith("builtin:")
            else {**UNMEASURED, "precision": "fp32", "model": model},
            "cameras": {name: {"url": "rtsp://viewer:hunter2@127.0.0.1/main", **camera}},
            "alerts": {"merge_s": 4, "pre_roll_s": 3, "post_roll_s": 2},
        }
    )


class Life:
    """The store of a box while it runs, and what its camera showed."""

    def __init__(self, config: SiteConfig, eye: ObjectDetector) -> None:
        self.config = config
        self.root = config.storage.dir
        self.clock = ManualClock(LIFE_T0)
        self.db = Database(self.root / DATABASE, self.clock)
        self.alerts, self.boxes, self.cameras = AlertStore(self.db), BoxStore(self.db), CameraStore(self.db)
        self.cameras.ensure({name: camera.url for name, camera in config.cameras.items()})
        self._eye = eye
        self._runs = 0

    def live_through(self, clip: Path, camera: str = "gate", seconds: float = float("inf")) -> None:
        """The camera shows the film, or its first `seconds`, in a run of its own, and is away then for a minute."""
        self._runs += 1
        run, begin = f"run{self._runs}", self.clock.now()
        source = FileSource(camera, f"file:{clip}", self.clock)
        info = source.open()
        recorder = SegmentRecorder(
            RecordTarget(self.root, camera, self.config.storage.segment_s, 0), self.clock, self._record
        )
        recorder.begin(info, run)
        watch = _Watch(self, camera, run, self._eye)
        decoder = Decoder(camera, info)
        for packet in source.packets():
            if packet.t - begin > seconds:
                break
            recorder.take(packet)
            for frame in decoder.decode(packet):
                watch.take(frame)
        recorder.end()
        source.close()
        watch.end()
        self.clock.advance(60)

    def commit(self, step: PipelineStep, run: str) -> None:
        """As the core does, without a cloud."""
        self.alerts.add_suppressed(step.suppressed, run)
        for change in step.changes:
            self.alerts.apply(change, escalation=None, priority="")

    def _record(self, row: SegmentRow) -> None:
        SegmentStore(self.db).put(row)

    def make_evidence(self) -> None:
        maker = EvidenceMaker(self.db, self.root, self.config.for_decisions(), self.clock)
        for _ in range(40):
            maker.run_once()
            self.clock.advance(1)

    def all(self) -> list[Alert]:
        """Oldest first."""
        return [row.alert for row in self.alerts.page(limit=100)[::-1]]

    def review(self, alert: Alert, review: Review | None) -> None:
        assert ReviewStore(self.db).review([alert.id], review, self.clock.now())


class _Watch:
    """One run of a camera: what was seen goes to the store, what it decides as well."""

    def __init__(self, life: Life, camera: str, run: str, eye: ObjectDetector) -> None:
        plan = life.config.cameras[camera]
        self._life, self._camera, self._run, self._eye = life, camera, run, eye
        self._examiner = FrameByFrame(camera, eye, Tracker(eye.labels), plan.detect)
        self._pipeline = Pipeline(camera, plan, life.config.alerts, local_time=local_weekday_minute)
        self._t: float | None = None

    def take(self, frame: DecodedFrame) -> None:
        if self._t is None:
            size = upright_size(frame.av_frame)
            header = StreamHeader(camera=self._camera, clip="", model=self._eye.name, size=size, run=self._run)
            self._life.cameras.write_header(header)
            self._life.cameras.write_state(CameraState(camera=self._camera, state="live", t=frame.t))
            self._pipeline.feed(header)
        self._t = frame.t
        boxes = self._examiner.examine(frame.index, frame.t, frame.av_frame)
        if boxes is not None:
            self._life.boxes.append(self._camera, self._run, [boxes])
            self._life.commit(self._pipeline.feed(boxes), self._run)

    def end(self) -> None:
        assert self._t is not None
        self._life.cameras.write_state(CameraState(camera=self._camera, state="ended", t=self._t))
        self._life.commit(self._pipeline.close(self._t, "new run"), self._run)
