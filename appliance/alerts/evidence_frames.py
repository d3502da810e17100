"""Gives an escalation its pictures: the moments around its event at which the object was seen, each with its box."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance import wire
from appliance.alerts.evidence_cover import (
    BOXES_WAIT_S,
    ENDED_GRACE_S,
    FRAMES_WAIT_S,
    Coverage,
    Outcome,
    Patience,
    Recording,
    disk_may_recover,
)
from appliance.alerts.evidence_files import write_file
from appliance.alerts.evidence_still import Still, cut_stills, jpeg
from appliance.config import Escalation
from appliance.errors import EvidenceError
from appliance.store.alerts import Alerts
from appliance.store.boxes import Boxes
from appliance.store.database import Database
from appliance.store.evidence import Evidence
from appliance.store.paths import evidence_folder
from appliance.store.rows import AlertDetail, EscalationRow, EvidenceRow, MediaRow
from appliance.types import BestView, Box, Event, FrameBoxes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time at which a frame is wanted, and the object's box in it (None: not known)."""

    t: float
    box: Box | None


def choose_moments(event: Event, seen: Sequence[FrameBoxes], best: BestView | None, count: int) -> list[Moment]:
    """At most `count` moments, oldest first: spread over the frames of `seen` that hold the event's track, the first
    and the last always among them; the best view fills an empty place, the event itself stands in for none."""
    found: dict[float, Moment] = {}
    for frame in seen:
        for each in frame.objects:
            if each.track == event.track:
                found[frame.t] = Moment(frame.t, each.box)
    moments = [found[t] for t in sorted(found)] or [Moment(event.t, event.box if any(event.box) else None)]
    if len(moments) > count:
        last = len(moments) - 1
        moments = [moments[last if count == 1 else round(i * last / (count - 1))] for i in range(count)]
    elif best is not None and best.track == event.track and len(moments) < count and best.t not in found:
        moments = sorted([*moments, Moment(best.t, best.box)], key=lambda moment: moment.t)
    return moments


class EscalationFrames:
    """Turns waiting escalations into ready ones. Owner: the evidence maker's thread.

    Invariant: an escalation leaves `waiting` with all the pictures that could be had; after `FRAMES_WAIT_S` it goes
    with those there are, if need be with none: a question without pictures is worth more than no question.
    """

    def __init__(self, db: Database, root: Path, config: Escalation, recording: Recording, patience: Patience) -> None:
        self._alerts = Alerts(db)
        self._boxes = Boxes(db)
        self._evidence = Evidence(db)
        self._root = root
        self._config = config
        self._recording = recording
        self._patience = patience

    @staticmethod
    def key(asked: EscalationRow) -> str:
        """Under which the patience with this escalation is kept."""
        return f"frames {asked.id}"

    def serve(self, asked: EscalationRow) -> Outcome:
        """Make one escalation ready if its time has come. Raises StoreError."""
        age_s = self._patience.age_s(self.key(asked))
        detail = self._alerts.get(asked.alert)
        if detail is None or not self._patience.may_try(self.key(asked)):
            return "nothing"
        over = age_s >= ENDED_GRACE_S and self._recording.over(asked.camera)
        due = over or age_s >= FRAMES_WAIT_S or self._recording.off(asked.camera)
        moments = self._moments(asked, detail, patient=age_s < BOXES_WAIT_S and not due)
        if not due and (moments is None or any(self._covered(asked, each) == "later" for each in moments)):
            return "nothing"
        there = [each for each in moments or () if self._covered(asked, each) == "ready"]
        pictures = self._cut(asked, there)
        if there and not pictures and not due:
            self._patience.failed(self.key(asked))
            return "nothing"
        try:
            return self._send(asked, detail, pictures)
        except EvidenceError as error:
            self._patience.failed(self.key(asked))
            if disk_may_recover(error, age_s):
                logger.info("the frames of escalation %s wait: %s", asked.id, error)
                return "nothing"
            return self._send(asked, detail, [])

    def _covered(self, asked: EscalationRow, moment: Moment) -> Coverage:
        return self._recording.coverage(asked.camera, moment.t)

    def _moments(self, asked: EscalationRow, detail: AlertDetail, *, patient: bool) -> list[Moment] | None:
        """None: the boxes of the event's frame are not in the table yet."""
        event = _event_of(asked, detail)
        if event is None:
            return [Moment(asked.body.t, None)]
        newest = self._boxes.latest(asked.camera)
        if patient and (newest is None or newest.t < event.t):
            return None
        span = (event.t - self._config.span_s, event.t)
        seen = self._boxes.span(asked.camera, *span, run=detail.alert.run or None)
        return choose_moments(event, seen, detail.alert.best, self._config.frames)

    def _cut(self, asked: EscalationRow, moments: Sequence[Moment]) -> list[tuple[Moment, Still]]:
        if not moments:
            return []
        segments = self._recording.of(asked.camera, moments[0].t - 1, moments[-1].t + 1)
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

    def _send(self, asked: EscalationRow, detail: AlertDetail, pictures: Sequence[tuple[Moment, Still]]) -> Outcome:
        before = sum(row.kind == "frame" for row in detail.evidence)
        media: dict[str, MediaRow] = {}
        frames: list[EvidenceRow] = []
        for moment, still in pictures:
            row, ref = self._write(asked.alert, before + len(frames), moment, still)
            if ref.id not in media:
                media[ref.id] = MediaRow(escalation=asked.id, n=len(media), path=row.path, ref=ref)
                frames.append(row)
        if not media:
            logger.warning("escalation %s goes without pictures: none could be cut", asked.id)
        if not self._evidence.make_ready(asked.body, tuple(media.values()), frames):
            return "nothing"
        return "made" if media else "missing"

    def _write(self, alert: str, n: int, moment: Moment, still: Still) -> tuple[EvidenceRow, wire.MediaRef]:
        side_max = self._config.frame_side_max
        scale = min(1.0, side_max / max(still.size))
        width, height = (max(1, round(side * scale)) for side in still.size)
        path = f"{evidence_folder(alert)}/frame-{n}.jpg"
        written = write_file(self._root / path, jpeg(still.image, side_max=side_max))
        row = EvidenceRow(
            alert=alert,
            kind="frame",
            n=n,
            state="ready",
            path=path,
            t_start=still.t,
            t_end=still.t,
            bytes=written.bytes,
            sha256=written.sha256,
            width=width,
            height=height,
            box=moment.box,
        )
        ref = wire.MediaRef(
            id=written.sha256[:32],
            kind="frame",
            mime="image/jpeg",
            bytes=written.bytes,
            sha256=written.sha256,
            chunks=-(-written.bytes // wire.CHUNK_BYTES),
            t=still.t,
            width=width,
            height=height,
            box=moment.box,
        )
        return row, ref


def _event_of(asked: EscalationRow, detail: AlertDetail) -> Event | None:
    same = [event for event in detail.events if event.rule == asked.body.rule] or list(detail.events)
    return min(same, key=lambda event: abs(event.t - asked.body.t), default=None)
