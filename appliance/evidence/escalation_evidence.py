"""Gives each message of an escalation its evidence (crops, whole frame, short clip) and writes it to disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance import wire
from appliance.config import EscalationConfig, SiteConfig
from appliance.errors import EvidenceError
from appliance.evidence.frame_selection import (
    FACTS_ONLY,
    EvidenceMoment,
    EvidencePlan,
    ImageSet,
    plan_evidence,
    select_moments,
)
from appliance.evidence.image_encoder import EncodedImage, encode_image
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
from appliance.evidence.redaction import HIDE_EVERYTHING, PEOPLE_WITHIN_S, Redactor, people_in_frame
from appliance.media.atomic_file import DiskWriteError, write_file
from appliance.media.clips import ClipFile, cut_clip
from appliance.media.stills import Still, cut_stills, load_still
from appliance.store.alerts import AlertStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.evidence import EvidenceStore
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertDetail, EscalationRow, EvidenceKind, EvidenceRow, MediaRow
from appliance.types import Event

logger = logging.getLogger(__name__)

CLIP_SHORT_S = 0.5  # on each side of the event, when the clip of the whole span is too large


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One file that travels, as the alert's evidence and as the question's media."""

    row: EvidenceRow
    ref: wire.MediaRef

    def media(self, escalation: str, n: int) -> MediaRow:
        return MediaRow(escalation=escalation, n=n, path=self.row.path, ref=self.ref)


class EvidenceFileWriter:
    """Makes them. Owner: the evidence maker's thread. Files are whole and on disk when a function returns."""

    def __init__(
        self,
        root: Path,
        settings: EscalationConfig,
        recording: RecordingIndex,
        veil_of: Callable[[str], Redactor],
        boxes: BoxStore,
    ) -> None:
        """veil_of: what hides, in a camera's pictures, what may not leave."""
        self._root = root
        self._settings = settings
        self._recording = recording
        self._veil_of = veil_of
        self._boxes = boxes

    def pictures(
        self, detail: AlertDetail, cut: ImageSet, shots: Sequence[tuple[EvidenceMoment, Still]]
    ) -> list[EvidenceFile]:
        """One picture a shot, each different one once; one that does not fit is left out. Raises DiskRefused."""
        made: dict[str, EvidenceFile] = {}
        for moment, still in shots:
            try:
                picture = encode_image(cut, self._settings, still.t, moment, self._veiled(detail, moment, still))
            except EvidenceError as error:
                logger.warning("a picture of alert %s is left out: %s", detail.alert.id, error)
                continue
            if picture.ref.id not in made:
                made[picture.ref.id] = self._write(detail, picture, list(made.values()))
        return list(made.values())

    def still_as_frame(self, detail: AlertDetail) -> list[EvidenceFile]:
        """The alert's still instead of a frame that the recording no longer holds; none if there is no still."""
        still = detail.piece("still")
        if still is None or still.state != "ready":
            return []
        try:
            shown = load_still(self._root / still.path, still.t_start)
        except EvidenceError as error:
            logger.warning("the still of alert %s: %s", detail.alert.id, error)
            return []
        return self.pictures(detail, "frame", [(EvidenceMoment(still.t_start, still.box), shown)])

    def clip(self, detail: AlertDetail, t0: float, t: float, t1: float) -> list[EvidenceFile]:
        """t0..t1 of the recording, or less around `t`, within the bound on bytes. Raises EvidenceError."""
        camera, folder = detail.alert.camera, evidence_folder(detail.alert.id)
        n = _next_number(detail, "clip", [])
        path = f"{folder}/clip-{n}.mp4"
        size = 0
        for begin, end in ((t0, t1), (t - CLIP_SHORT_S, t + CLIP_SHORT_S)):
            clip = cut_clip(self._recording.segments(camera, begin, end), begin, end, self._root / path, hold_t=t)
            if clip.written.bytes <= self._settings.clip_bytes_max:
                return [_of_clip(detail.alert.id, n, path, clip)]
            size = clip.written.bytes
        with contextlib.suppress(OSError):
            (self._root / path).unlink()
        raise EvidenceError(f"the clip of {size} bytes is over the limit of {self._settings.clip_bytes_max}")

    def _veiled(self, detail: AlertDetail, moment: EvidenceMoment, still: Still) -> NDArray[np.uint8]:
        alert, veil = detail.alert, self._veil_of(detail.alert.camera)
        if not veil.digest:
            return still.image
        seen = self._boxes.span(
            alert.camera, still.t - PEOPLE_WITHIN_S, still.t + PEOPLE_WITHIN_S, run=alert.run or None
        )
        return veil.redact(still.image, people_in_frame(still.t, seen, alert.tracks, moment.box))

    def _write(self, detail: AlertDetail, picture: EncodedImage, before: Sequence[EvidenceFile]) -> EvidenceFile:
        ref = picture.ref
        n = _next_number(detail, ref.kind, before)
        mark = self._veil_of(detail.alert.camera).digest
        name = f"{ref.kind}-{n}.{mark}.{picture.suffix}" if mark else f"{ref.kind}-{n}.{picture.suffix}"
        path = f"{evidence_folder(detail.alert.id)}/{name}"
        written = write_file(self._root / path, picture.data)
        if written.sha256 != ref.sha256:
            raise DiskWriteError(f"{path} is not on disk as it was written")
        row = EvidenceRow(
            alert=detail.alert.id,
            kind=ref.kind,
            n=n,
            state="ready",
            path=path,
            t_start=ref.t,
            t_end=ref.t,
            bytes=ref.bytes,
            sha256=ref.sha256,
            width=ref.width,
            height=ref.height,
            box=ref.box,
        )
        return EvidenceFile(row, ref)


def _next_number(detail: AlertDetail, kind: EvidenceKind, before: Sequence[EvidenceFile]) -> int:
    """A free number; 0 is the alert's own crop and clip, made for people."""
    own = 0 if kind == "frame" else 1
    taken = [row.n + 1 for row in (*detail.evidence, *(each.row for each in before)) if row.kind == kind]
    return max([own, *taken])


def _of_clip(alert: str, n: int, path: str, clip: ClipFile) -> EvidenceFile:
    written = clip.written
    row = EvidenceRow(
        alert=alert,
        kind="clip",
        n=n,
        state="ready",
        path=path,
        t_start=clip.t_start,
        t_end=clip.t_end,
        bytes=written.bytes,
        sha256=written.sha256,
        width=clip.size[0],
        height=clip.size[1],
        reason=clip.note,
    )
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
    return EvidenceFile(row, ref)


CLIP_AFTER_S = 1.0  # what somebody does next is part of what they did


@dataclass(slots=True)
class _EscalationJob:
    """One question while it is served. due: what is not there now is not waited for any longer."""

    asked: EscalationRow
    detail: AlertDetail
    plan: EvidencePlan
    due: bool
    age_s: float
    event: Event
    made: list[EvidenceFile] = field(default_factory=list)


class EscalationEvidenceMaker:
    """Turns waiting escalations into ready ones. Owner: the evidence maker's thread.

    Invariant: the first message of a question leaves `waiting` with all the pictures that could be had; after
    `FRAMES_WAIT_S` it goes with those there are, if need be with none: a question without pictures is worth more than
    no question. A later message goes with what was asked for or not at all, and the question then ends as `unsure`.
    """

    def __init__(
        self, db: Database, root: Path, config: SiteConfig, recording: RecordingIndex, patience: RetryTracker
    ) -> None:
        self._alerts = AlertStore(db)
        self._boxes = BoxStore(db)
        self._evidence = EvidenceStore(db)
        self._escalations = EscalationStore(db)
        self._config = config
        self._settings = config.escalation
        self._recording = recording
        self._patience = patience
        self._veils = {name: Redactor(camera) for name, camera in config.cameras.items()}
        self._exhibits = EvidenceFileWriter(root, config.escalation, recording, self._veil_of, self._boxes)

    @staticmethod
    def key(asked: EscalationRow) -> str:
        """Under which the patience with this message is kept."""
        return f"frames {asked.id} {asked.step}"

    def serve(self, asked: EscalationRow) -> Outcome:
        """Make one escalation ready if its time has come. Raises StoreError."""
        case = self._case(asked)
        if case is None:
            return "nothing"
        if case.plan is FACTS_ONLY and asked.step:
            return self._over(case, "this site sends no pictures")
        if asked.need == "clip" and not case.plan.clip:
            return self._over(case, "this camera sends no clips: its pictures are veiled")
        moments = self._moments(case)
        if not case.due and (moments is None or any(self._covered(case, each.t) == "later" for each in moments)):
            return "nothing"
        if case.plan.clip and not case.due and self._recording.covered_until(asked.camera) < _clip_end(case.event):
            return "nothing"
        return self._make(case, moments or [])

    def _case(self, asked: EscalationRow) -> _EscalationJob | None:
        age_s = self._patience.age_s(self.key(asked))
        detail = self._alerts.get(asked.alert)
        if detail is None or not self._patience.may_try(self.key(asked)):
            return None
        clips = not self._veil_of(asked.camera).digest
        chosen = plan_evidence(asked.evidence or self._settings.first, asked.need or None, asked.step, clips=clips)
        if self._config.image_free(asked.camera):
            chosen = FACTS_ONLY
        over = age_s >= ENDED_GRACE_S and self._recording.has_ended(asked.camera)
        due = over or age_s >= FRAMES_WAIT_S or self._recording.is_disabled(asked.camera)
        return _EscalationJob(asked, detail, chosen, due, age_s, _event_of(asked, detail))

    def _veil_of(self, camera: str) -> Redactor:
        """Of a camera that is no longer in the site file: all is hidden."""
        return self._veils.get(camera, HIDE_EVERYTHING)

    def _covered(self, case: _EscalationJob, t: float) -> Coverage:
        return self._recording.coverage(case.asked.camera, t)

    def _moments(self, case: _EscalationJob) -> list[EvidenceMoment] | None:
        """When the pictures are taken; None: the boxes of the event's frame are not in the table yet."""
        if case.plan.images == "none":
            return []
        event, camera = case.event, case.asked.camera
        newest = self._boxes.latest(camera)
        patient = case.age_s < BOXES_WAIT_S and not case.due
        if patient and (newest is None or newest.t < event.t):
            return None
        run = case.detail.alert.run or None
        seen = self._boxes.span(camera, event.t - self._settings.span_s, event.t, run=run)
        return select_moments(case.plan.images, self._settings, event, seen, case.detail.alert.best)

    def _make(self, case: _EscalationJob, moments: Sequence[EvidenceMoment]) -> Outcome:
        there = [each for each in moments if self._covered(case, each.t) == "ready"]
        try:
            shots = self._cut(case.asked, there)
            if there and not shots and not case.due:
                self._patience.failed(self.key(case.asked))
                return "nothing"
            case.made = self._exhibits.pictures(case.detail, case.plan.images, shots)
            if case.plan.images == "frame" and not case.made:
                case.made = self._exhibits.still_as_frame(case.detail)
            if case.plan.clip:
                case.made += self._exhibits.clip(case.detail, *self._clip_span(case))
        except EvidenceError as error:
            self._patience.failed(self.key(case.asked))
            if disk_may_recover(error, case.age_s):
                logger.info("the evidence of escalation %s waits: %s", case.asked.id, error)
                return "nothing"
            if case.asked.step:
                return self._over(case, str(error))
        return self._send(case)

    def _clip_span(self, case: _EscalationJob) -> tuple[float, float, float]:
        return case.event.t - self._settings.span_s, case.event.t, _clip_end(case.event)

    def _cut(self, asked: EscalationRow, moments: Sequence[EvidenceMoment]) -> list[tuple[EvidenceMoment, Still]]:
        if not moments:
            return []
        segments = self._recording.segments(asked.camera, moments[0].t - 1, moments[-1].t + 1)
        try:
            return list(zip(moments, cut_stills(segments, [each.t for each in moments]), strict=True))
        except EvidenceError:
            pass  # one bad frame spoils the batch: take them one by one
        pictures = []
        for moment in moments:
            try:
                pictures.append((moment, cut_stills(segments, [moment.t])[0]))
            except EvidenceError as error:
                logger.info("a frame for escalation %s is missing: %s", asked.id, error)
        return pictures

    def _send(self, case: _EscalationJob) -> Outcome:
        asked, chosen = case.asked, case.plan
        known = {ref.id for ref in asked.body.media}
        new = {each.ref.id: each for each in case.made if each.ref.id not in known}
        if asked.step and not new:
            seen = "it has seen all of that already" if case.made else self._recording.missing_reason(asked.camera)
            return self._over(case, seen)
        if not new and (chosen.images != "none" or chosen.clip):
            logger.warning("escalation %s goes without pictures: none could be cut", asked.id)
        body = asked.body.model_copy(update={"step": asked.step, "can": chosen.can, "image_free": chosen is FACTS_ONLY})
        first = len(known)
        media = [each.media(asked.id, first + n) for n, each in enumerate(new.values())]
        evidence = chosen.evidence if new else "facts"
        if not self._evidence.make_ready(body, media, [each.row for each in new.values()], evidence):
            return "nothing"
        return "made" if new or chosen.evidence == "facts" else "missing"

    def _over(self, case: _EscalationJob, why: str) -> Outcome:
        """What the cloud asked for cannot be had: the question ends as it answered it."""
        logger.warning("escalation %s ends as unsure: %s", case.asked.id, why)
        return "missing" if self._escalations.close_unsure(case.asked, why) else "nothing"


def _event_of(asked: EscalationRow, detail: AlertDetail) -> Event:
    """The event that was asked about; as the question tells it, when the table does not hold it."""
    same = [event for event in detail.events if event.rule == asked.body.rule] or list(detail.events)
    found = min(same, key=lambda event: abs(event.t - asked.body.t), default=None)
    return found or _event_from_body(asked.body)


def _event_from_body(body: wire.Escalation) -> Event:
    return Event(camera=body.camera, rule=body.rule, kind="enter", track=-1, label=body.label, t=body.t)


def _clip_end(event: Event) -> float:
    return event.t + CLIP_AFTER_S
