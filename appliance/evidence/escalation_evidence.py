"""Gives each message of an escalation its evidence (crops, whole frame, short clip) and writes it to disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from appliance import wire
from appliance.base.errors import EvidenceError
from appliance.base.local_files import DiskWriteError, write_file
from appliance.config import CameraConfig, EscalationConfig
from appliance.evidence.alert_evidence import AlertStillMaker, clip_row, ready_row
from appliance.evidence.evidence_selection import (
    FACTS_ONLY,
    EncodedImage,
    EvidenceMoment,
    EvidencePlan,
    ImageSet,
    encoded_image,
    order_image,
    plan_evidence,
    select_moments,
)
from appliance.evidence.privacy import HIDE_EVERYTHING, PEOPLE_WITHIN_S, Redactor, people_in_frame
from appliance.evidence.recording_index import (
    BOXES_WAIT_S,
    ENDED_GRACE_S,
    FRAMES_WAIT_S,
    Coverage,
    Outcome,
    RecordingIndex,
    RetryTracker,
    disk_may_recover,
)
from appliance.media.recorded import ClipFile, FrameImage, FrameImages, ImageOrder, RecordedSegment, Redaction
from appliance.store.alert_rows import EvidenceKind, EvidenceRow, EvidenceStore
from appliance.store.alerts import AlertDetail, AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationRow, EscalationStore, MediaRow
from appliance.store.paths import evidence_folder
from appliance.types import Event

logger = logging.getLogger(__name__)

CLIP_SHORT_S = 0.5  # on each side of the event, when the clip of the whole span is too large
CLIP_AFTER_S = 1.0  # after the event: what a person does next is part of what they did


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One file of an escalation, as a row of the alert's evidence and as a reference in the message."""

    row: EvidenceRow
    ref: wire.MediaRef

    def media_row(self, escalation: str, n: int) -> MediaRow:
        return MediaRow(escalation=escalation, n=n, path=self.row.path, ref=self.ref)


@dataclass(frozen=True, slots=True)
class OrderedImage:
    """The image of a moment that is to be made."""

    moment: EvidenceMoment
    order: ImageOrder


@dataclass(frozen=True, slots=True)
class CutImage:
    """The image that was made of an order, from the frame of time `t`."""

    ordered: OrderedImage
    t: float
    made: FrameImage


class EvidenceFileWriter:
    """Writes the images and clips of escalations, redacted. Owner: the evidence maker's thread. Holds no state.

    Invariant: files are whole and on disk when a method returns.
    """

    def __init__(
        self,
        root: Path,
        settings: EscalationConfig,
        recording: RecordingIndex,
        redactor_of: Callable[[str], Redactor],
        boxes: BoxStore,
    ) -> None:
        """redactor_of: the redactor of a camera."""
        self._root = root
        self._settings = settings
        self._recording = recording
        self._redactor_of = redactor_of
        self._boxes = boxes

    def order(self, detail: AlertDetail, image_set: ImageSet, moment: EvidenceMoment) -> OrderedImage:
        """Order the image of a moment in the form that may leave the site."""
        return OrderedImage(moment, order_image(image_set, self._settings, moment, self._redaction(detail, moment)))

    def images(self, detail: AlertDetail, cut: Sequence[CutImage]) -> list[EvidenceFile]:
        """Write a file for each image that was cut, equal ones once; skip an image that is too large.

        Raise DiskWriteError.
        """
        made: dict[str, EvidenceFile] = {}
        for each in cut:
            try:
                image = encoded_image(each.ordered.order, each.t, each.ordered.moment, each.made)
            except EvidenceError as error:
                logger.warning("an image of alert %s is left out: %s", detail.alert.id, error)
                continue
            if image.ref.id not in made:
                made[image.ref.id] = self._write(detail, image, list(made.values()))
        return list(made.values())

    def still_as_frame(self, detail: AlertDetail) -> list[EvidenceFile]:
        """Write the alert's still in place of a frame that the recording no longer holds; none if there is no still."""
        still = detail.piece("still")
        if still is None or still.state != "ready":
            return []
        try:
            wanted = self.order(detail, "frame", EvidenceMoment(still.t_start, still.box))
            path = self._root / still.path
            shown = self._recording.reader.file_images(path, still.t_start, [wanted.order])
        except EvidenceError as error:
            logger.warning("the still of alert %s: %s", detail.alert.id, error)
            return []
        return self.images(detail, [CutImage(wanted, shown.t, shown.images[0])])

    def clip(self, detail: AlertDetail, t0: float, t: float, t1: float) -> list[EvidenceFile]:
        """Write t0..t1 of the recording, or less around `t`, within the limit of bytes. Raise EvidenceError."""
        camera, folder = detail.alert.camera, evidence_folder(detail.alert.id)
        n = _next_number(detail, "clip", [])
        path = f"{folder}/clip-{n}.mp4"
        size = 0
        for begin, end in ((t0, t1), (t - CLIP_SHORT_S, t + CLIP_SHORT_S)):
            segments = self._recording.segments(camera, begin, end)
            clip = self._recording.reader.clip(segments, begin, end, self._root / path, hold_t=t)
            if clip.written.bytes <= self._settings.clip_bytes_max:
                return [_clip_file(detail.alert.id, n, path, clip)]
            size = clip.written.bytes
            with contextlib.suppress(OSError):
                (self._root / path).unlink()
        raise EvidenceError(f"the clip of {size} bytes is over the limit of {self._settings.clip_bytes_max}")

    def _redaction(self, detail: AlertDetail, moment: EvidenceMoment) -> Redaction | None:
        alert, redactor = detail.alert, self._redactor_of(detail.alert.camera)
        if not redactor.digest:
            return None
        t0, t1 = moment.t - PEOPLE_WITHIN_S, moment.t + PEOPLE_WITHIN_S
        seen = self._boxes.span(alert.camera, t0, t1, run=alert.run or None)
        return redactor.redaction(people_in_frame(moment.t, seen, alert.tracks, moment.box))

    def _write(self, detail: AlertDetail, image: EncodedImage, before: Sequence[EvidenceFile]) -> EvidenceFile:
        ref = image.ref
        n = _next_number(detail, ref.kind, before)
        digest = self._redactor_of(detail.alert.camera).digest
        name = f"{ref.kind}-{n}.{digest}.{image.suffix}" if digest else f"{ref.kind}-{n}.{image.suffix}"
        path = f"{evidence_folder(detail.alert.id)}/{name}"
        written = write_file(self._root / path, image.data)
        if written.sha256 != ref.sha256:
            raise DiskWriteError(f"{path} is not on disk as it was written")
        row = ready_row(detail.alert.id, ref.kind, path, written, (ref.t, ref.t), (ref.width, ref.height))
        return EvidenceFile(replace(row, n=n, box=ref.box), ref)


def _next_number(detail: AlertDetail, kind: EvidenceKind, before: Sequence[EvidenceFile]) -> int:
    """Return a free number; 0 is the alert's own crop and clip, which are made for people."""
    own = 0 if kind == "frame" else 1
    taken = [row.n + 1 for row in (*detail.evidence, *(each.row for each in before)) if row.kind == kind]
    return max([own, *taken])


def _clip_file(alert: str, n: int, path: str, clip: ClipFile) -> EvidenceFile:
    written = clip.written
    ref = wire.MediaRef(
        id=written.sha256[:32],
        kind="clip",
        mime="video/mp4",
        bytes=written.bytes,
        sha256=written.sha256,
        chunks=-(-written.bytes // wire.CHUNK_BYTES),
        t=clip.t_start,
        width=max(1, clip.size[0]),
        height=max(1, clip.size[1]),
    )
    return EvidenceFile(clip_row(alert, path, clip, n), ref)


@dataclass(slots=True)
class _EscalationJob:
    """One message of an escalation while its evidence is made.

    Attributes: due: the wait is over. age_s: since the message was first seen here. event: the event that the
    escalation is about. files: its evidence so far.
    """

    escalation: EscalationRow
    detail: AlertDetail
    plan: EvidencePlan
    due: bool
    age_s: float
    event: Event
    files: list[EvidenceFile] = field(default_factory=list)


class EscalationEvidenceMaker:
    """Turns waiting escalations into ready ones. Owner: the evidence maker's thread.

    Invariant: the first message of an escalation leaves `waiting` with all images that could be cut. After
    `FRAMES_WAIT_S` it is sent with the available ones, even with none: an escalation without images is better than no
    escalation. A later message is sent with the evidence that the cloud requested; without that evidence the escalation
    ends as `unsure`.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        cameras: Mapping[str, CameraConfig],
        settings: EscalationConfig,
        image_free: Callable[[str], bool],
        recording: RecordingIndex,
        *,
        stills: AlertStillMaker,
        retries: RetryTracker,
    ) -> None:
        """image_free: returns True if no pixels of a camera may leave. stills: made with an escalation's frames."""
        self._alerts = AlertStore(db)
        self._boxes = BoxStore(db)
        self._evidence = EvidenceStore(db)
        self._escalations = EscalationStore(db)
        self._settings = settings
        self._image_free = image_free
        self._recording = recording
        self._stills = stills
        self._retries = retries
        self._redactors = {name: Redactor(camera) for name, camera in cameras.items()}
        self._files = EvidenceFileWriter(root, settings, recording, self._redactor_of, self._boxes)

    @staticmethod
    def key(escalation: EscalationRow) -> str:
        """Under which the retries of this message are tracked."""
        return f"frames {escalation.id} {escalation.step}"

    def make(self, escalation: EscalationRow) -> Outcome:
        """Make one escalation ready if its time has come. Raises StoreError."""
        job = self._job(escalation)
        if job is None:
            return "nothing"
        if job.plan is FACTS_ONLY and escalation.step:
            return self._close_unsure(job, "this site sends no pictures")
        if job.detail.row.audit and escalation.step:
            return self._close_unsure(job, "an audit sends one picture and no more")
        if escalation.need == "clip" and not job.plan.clip:
            return self._close_unsure(job, "this camera sends no clips: its pictures are veiled")
        moments = self._moments(job)
        if not job.due and (moments is None or any(self._coverage(job, each.t) == "later" for each in moments)):
            return "nothing"
        if job.plan.clip and not job.due and self._recording.covered_until(escalation.camera) < _clip_end(job.event):
            return "nothing"
        return self._make(job, moments or [])

    def _job(self, escalation: EscalationRow) -> _EscalationJob | None:
        age_s = self._retries.age_s(self.key(escalation))
        detail = self._alerts.get(escalation.alert)
        if detail is None or not self._retries.may_try(self.key(escalation)):
            return None
        clips = not self._redactor_of(escalation.camera).digest
        chosen = plan_evidence(
            escalation.evidence or self._settings.first, escalation.need or None, escalation.step, clips=clips
        )
        if detail.row.audit:  # one frame, and no more of it
            chosen = replace(chosen, can=())
        if self._image_free(escalation.camera):
            chosen = FACTS_ONLY
        ended = age_s >= ENDED_GRACE_S and self._recording.has_ended(escalation.camera)
        due = ended or age_s >= FRAMES_WAIT_S or self._recording.is_disabled(escalation.camera)
        return _EscalationJob(escalation, detail, chosen, due, age_s, _event_of(escalation, detail))

    def _redactor_of(self, camera: str) -> Redactor:
        """Return the camera's redactor; it hides everything if the camera is no longer in the site file."""
        return self._redactors.get(camera, HIDE_EVERYTHING)

    def _coverage(self, job: _EscalationJob, t: float) -> Coverage:
        return self._recording.coverage(job.escalation.camera, t)

    def _moments(self, job: _EscalationJob) -> list[EvidenceMoment] | None:
        """When the images are taken; None: the boxes of the event's frame are not in the table yet."""
        if job.plan.images == "none":
            return []
        event, camera = job.event, job.escalation.camera
        newest = self._boxes.latest(camera)
        may_wait = job.age_s < BOXES_WAIT_S and not job.due
        if may_wait and (newest is None or newest.t < event.t):
            return None
        run = job.detail.alert.run or None
        seen = self._boxes.span(camera, event.t - self._settings.span_s, event.t, run=run)
        return select_moments(job.plan.images, self._settings, event, seen, job.detail.alert.best)

    def _make(self, job: _EscalationJob, moments: Sequence[EvidenceMoment]) -> Outcome:
        recorded = [each for each in moments if self._coverage(job, each.t) == "ready"]
        try:
            cut = self._cut(job, recorded)
            if recorded and not cut and not job.due:
                self._retries.failed(self.key(job.escalation))
                return "nothing"
            job.files = self._files.images(job.detail, cut)
            if job.plan.images == "frame" and not job.files:
                job.files = self._files.still_as_frame(job.detail)
            if job.plan.clip:
                job.files += self._files.clip(
                    job.detail, job.event.t - self._settings.span_s, job.event.t, _clip_end(job.event)
                )
        except EvidenceError as error:
            self._retries.failed(self.key(job.escalation))
            if disk_may_recover(error, job.age_s):
                logger.info("the evidence of escalation %s waits: %s", job.escalation.id, error)
                return "nothing"
            if job.escalation.step:
                return self._close_unsure(job, str(error))
        return self._make_ready(job)

    def _cut(self, job: _EscalationJob, moments: Sequence[EvidenceMoment]) -> list[CutImage]:
        if not moments:
            return []
        camera, alert = job.escalation.camera, job.detail.alert
        segments = self._recording.segments(camera, moments[0].t - 1, moments[-1].t + 1)
        ordered = [self._files.order(job.detail, job.plan.images, each) for each in moments]
        try:
            still = self._stills.order(alert)
            if still is None or not any(each.t_start <= still[0] < each.t_end for each in segments):
                return self._cut_of(segments, ordered)
            *found, shown = self._recording.reader.images(segments, [*_wanted(ordered), still])
            with contextlib.suppress(EvidenceError):  # it is tried again by itself
                self._stills.write(alert, shown)
            return _cut_images(ordered, found)
        except EvidenceError:
            pass  # one bad frame spoils the batch: take them one by one
        cut: list[CutImage] = []
        for each in ordered:
            try:
                cut += self._cut_of(segments, [each])
            except EvidenceError as error:
                logger.info("a frame for escalation %s is missing: %s", job.escalation.id, error)
        return cut

    def _cut_of(self, segments: Sequence[RecordedSegment], ordered: Sequence[OrderedImage]) -> list[CutImage]:
        return _cut_images(ordered, self._recording.reader.images(segments, _wanted(ordered)))

    def _make_ready(self, job: _EscalationJob) -> Outcome:
        escalation, chosen = job.escalation, job.plan
        sent = {ref.id for ref in escalation.body.media}
        new = {each.ref.id: each for each in job.files if each.ref.id not in sent}
        if escalation.step and not new:
            reason = (
                "it has seen all of that already" if job.files else self._recording.missing_reason(escalation.camera)
            )
            return self._close_unsure(job, reason)
        if not new and (chosen.images != "none" or chosen.clip):
            logger.warning("escalation %s goes without images: none could be cut", escalation.id)
        body = escalation.body.model_copy(
            update={"step": escalation.step, "can": chosen.can, "image_free": chosen is FACTS_ONLY}
        )
        first = len(sent)
        media = [each.media_row(escalation.id, first + n) for n, each in enumerate(new.values())]
        evidence = chosen.evidence if new else "facts"
        if not self._evidence.make_ready(body, media, [each.row for each in new.values()], evidence):
            return "nothing"
        return "made" if new or chosen.evidence == "facts" else "missing"

    def _close_unsure(self, job: _EscalationJob, why: str) -> Outcome:
        """Close the escalation with the answer it has: what the cloud requested cannot be had."""
        logger.warning("escalation %s ends as unsure: %s", job.escalation.id, why)
        return "missing" if self._escalations.close_unsure(job.escalation, why) else "nothing"


def _wanted(ordered: Sequence[OrderedImage]) -> list[tuple[float, list[ImageOrder]]]:
    return [(each.moment.t, [each.order]) for each in ordered]


def _cut_images(ordered: Sequence[OrderedImage], found: Sequence[FrameImages]) -> list[CutImage]:
    return [CutImage(each, one.t, one.images[0]) for each, one in zip(ordered, found, strict=True)]


def _event_of(escalation: EscalationRow, detail: AlertDetail) -> Event:
    """Return the event that the escalation is about; it is built from its body if the table does not hold it."""
    same = [event for event in detail.events if event.rule == escalation.body.rule] or list(detail.events)
    found = min(same, key=lambda event: abs(event.t - escalation.body.t), default=None)
    body = escalation.body
    return found or Event(camera=body.camera, rule=body.rule, kind="enter", track=-1, label=body.label, t=body.t)


def _clip_end(event: Event) -> float:
    return event.t + CLIP_AFTER_S
