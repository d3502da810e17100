"""Makes the evidence of alerts as soon as the recording holds it: still, clip, box path, images for the cloud.

Pictures and clips that came through the API are decoded in the media sandbox, redacted, and kept as evidence, too.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from appliance import wire
from appliance.base.clock import Clock
from appliance.base.errors import VedetteError
from appliance.base.local_files import write_file
from appliance.base.telemetry import LogThrottle
from appliance.config import CameraConfig, DecisionConfig, EscalationConfig
from appliance.evidence.alert_evidence import AlertClipMaker, AlertStillMaker
from appliance.evidence.escalation_evidence import EscalationEvidenceMaker
from appliance.evidence.frame_selection import EncodedImage, EvidenceMoment, encoded_image, order_image
from appliance.evidence.privacy import PeopleInFrame, Redactor
from appliance.evidence.recording_index import Outcome, RecordingIndex, RetryTracker
from appliance.media.recorded import FrameImages, ImageOrder, RecordedSegment
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader
from appliance.store.alert_rows import EvidenceStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.paths import CUTS, EVIDENCE, evidence_folder
from appliance.types import Box

logger = logging.getLogger(__name__)

POLL_S = 0.1  # while evidence waits for the recording
IDLE_S = 1.0  # while nothing waits; `wake` comes first
WAITING_MAX = 256  # alerts and escalations looked through in one run
ITEMS_PER_RUN_MAX = 16  # stills and clips in one turn; a stop is heeded between turns


class EvidenceMaker:
    """Turns waiting evidence into files, or into the reason why there is none.

    Owner: one thread that calls `run()`. State: the wait of each item; all else is in the store, so a restart
    continues. Invariant: evidence that the database marks as ready is complete and on disk. `made` and `missing` count
    since the start.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        config: DecisionConfig,
        clock: Clock,
        *,
        ready: Callable[[], None] | None = None,
        reader: RecordingReader = READ_DIRECTLY,
    ) -> None:
        """root: the storage folder, to which all stored paths are relative. ready: called once an escalation is.

        reader: of the recording.
        """
        self._evidence = EvidenceStore(db)
        self._escalations = EscalationStore(db)
        self._retries = RetryTracker(clock)
        recording = RecordingIndex(db, root, config.cameras, reader)
        boxes = BoxStore(db)
        self._stills = AlertStillMaker(self._evidence, boxes, root, recording, self._retries)
        self._for_escalations = EscalationEvidenceMaker(
            db, root, config.cameras, config.escalation, config.image_free, recording,
            stills=self._stills, retries=self._retries,
        )  # fmt: skip
        self._clips = AlertClipMaker(self._evidence, boxes, root, config.alerts, recording, self._retries)
        self._ready = ready
        self._clock = clock
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._is_waiting = True
        self._throttle = LogThrottle(logger, clock)
        self.made = 0
        self.missing = 0

    def run(self) -> None:
        """Work until `stop()`. A full disk or a busy database is reported and tried again."""
        while not self._stop.is_set():
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                idle = not self.run_once()
            except VedetteError as error:
                self._throttle.report(error)
                idle = True
            if idle:
                self._clock.sleep(POLL_S if self._is_waiting else IDLE_S, self._wake)

    def wake(self) -> None:
        """Wake the maker: an alert or escalation was written. Any thread may call."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run()` return after the item it is working on."""
        self._stop.set()
        self._wake.set()

    def run_once(self) -> int:
        """Make the evidence that is possible now, escalations first, at most ITEMS_PER_RUN_MAX; return the count.

        Raises StoreError; nothing is lost then, the items still wait.
        """
        escalations = self._escalations.waiting_for_evidence(WAITING_MAX)
        rows = self._evidence.waiting(WAITING_MAX)
        self._is_waiting = bool(escalations or rows)
        wanted = {self._for_escalations.key(each) for each in escalations}
        wanted |= {maker.key(each.alert) for each in rows for maker in (self._stills, self._clips)}
        self._retries.keep(wanted)
        changed = 0
        for escalation in escalations:
            along = self._stills.along
            made = self._count(self._for_escalations.make(escalation))
            along = self._stills.along - along
            self.made += along
            if made and self._ready is not None:
                self._ready()
            changed += made + along
            if changed >= ITEMS_PER_RUN_MAX or self._stop.is_set():
                return changed
        for maker in (self._stills, self._clips):
            for row in rows:
                changed += self._count(maker.make(row))
                if changed >= ITEMS_PER_RUN_MAX or self._stop.is_set():
                    return changed
        return changed

    def _count(self, outcome: Outcome) -> int:
        self.made += outcome == "made"
        self.missing += outcome == "missing"
        return int(outcome != "nothing")


DETECT_SIDE_MAX = 1280  # pixels; the shared detector sees at most 640 of them
DETECT_QUALITY = 90  # JPEG; less costs small objects their edges
CLIP_FRAMES = 4  # as escalation.frames by default: each is an inference, and a picture for the model
CLIP_S_MAX = 60.0  # seconds of a clip that are looked at
ASKED = "ask-"  # begins the id of a question that came through the API


@dataclass(frozen=True, slots=True)
class UploadedFrame:
    """A picture, or a frame of a clip, at `t` seconds into it.

    shown: JPEG for the local detector; sent: the redacted form that may leave the site.
    """

    t: float
    shown: bytes
    sent: EncodedImage


class UploadReader:
    """Reads what was uploaded. Any thread; the reader serves one call at a time. Holds no state."""

    def __init__(self, root: Path, reader: RecordingReader, settings: EscalationConfig) -> None:
        """root: the storage folder. reader: decodes in a sandbox, since an upload is hostile data."""
        self._root = root
        self._reader = reader
        self._settings = settings

    def frames(self, media: bytes, *, clip: bool, camera: CameraConfig, t: float) -> list[UploadedFrame]:
        """Return the frames; the camera's masks are painted over the sent form. Raise EvidenceError.

        t: when it was taken, UTC seconds.
        """
        redaction = Redactor(camera).redaction(PeopleInFrame((), ()))
        moment = EvidenceMoment(t, None)
        order = order_image("frame", self._settings, moment, redaction)
        orders = [ImageOrder(side_max=DETECT_SIDE_MAX, quality=DETECT_QUALITY), order]
        with self._file(media) as path:
            found = self._of_clip(path, orders) if clip else [self._reader.file_images(path, 0.0, orders)]
        return [
            UploadedFrame(each.t, each.images[0].data, encoded_image(order, t + each.t, moment, each.images[1]))
            for each in found
        ]

    def _of_clip(self, path: Path, orders: Sequence[ImageOrder]) -> list[FrameImages]:
        whole = RecordedSegment(path, 0.0, CLIP_S_MAX)
        copied = path.with_suffix(".copy.mp4")
        try:
            length_s = self._reader.clip([whole], 0.0, CLIP_S_MAX, copied).t_end
            part = RecordedSegment(copied, 0.0, length_s)
            times = [length_s * (n + 0.5) / CLIP_FRAMES for n in range(CLIP_FRAMES)]
            return self._reader.images([part], [(each, orders) for each in times])
        finally:
            copied.unlink(missing_ok=True)

    def keep(
        self, name: str, camera: CameraConfig, frames: Sequence[UploadedFrame], boxes: Sequence[Box | None]
    ) -> tuple[tuple[wire.MediaRef, str], ...]:
        """Write the redacted frames as evidence of the question `name`; return them with paths. Raise DiskWriteError.

        boxes: the box of the requested object in each frame; None: not detected there.
        """
        digest = Redactor(camera).digest
        kept: dict[str, tuple[wire.MediaRef, str]] = {}
        for n, (each, box) in enumerate(zip(frames, boxes, strict=True)):
            if each.sent.ref.id in kept:
                continue
            mark = f".{digest}" if digest else ""
            path = f"{evidence_folder(name)}/frame-{n}{mark}.{each.sent.suffix}"
            write_file(self._root / path, each.sent.data)
            kept[each.sent.ref.id] = (each.sent.ref.model_copy(update={"box": box}), path)
        return tuple(kept.values())

    def forget(self, name: str) -> None:
        """Delete what `keep` has written: the question goes to nobody."""
        shutil.rmtree(self._root / evidence_folder(name), ignore_errors=True)

    @contextlib.contextmanager
    def _file(self, media: bytes) -> Iterator[Path]:
        path = self._root / CUTS / f"upload-{uuid4().hex}.mp4"
        try:
            write_file(path, media)
            yield path
        finally:
            path.unlink(missing_ok=True)


def forget_unasked(root: Path, is_known: Callable[[str], bool]) -> None:
    """Delete the pictures of questions that a kill left without a row. root: the storage folder. For the start."""
    for folder in (root / EVIDENCE).glob(f"{ASKED}*"):
        if not is_known(folder.name):
            shutil.rmtree(folder, ignore_errors=True)
