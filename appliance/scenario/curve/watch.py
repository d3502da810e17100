"""What the baselines could send, noted while a scenario is replayed: how much moved, whole frames, tracks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import av
import numpy as np

from appliance import wire
from appliance.alerts.evidence_moments import Moment
from appliance.alerts.evidence_picture import picture_of
from appliance.alerts.evidence_plan import plan
from appliance.alerts.view import view_of
from appliance.config import Rule, SiteConfig
from appliance.escalate.media import Message, chunk_message
from appliance.escalate.router.question import build
from appliance.ingest.examine import Look
from appliance.replay.pictures import Album
from appliance.types import Alert, Event, FrameBoxes, TrackedObject

WEIGHED_EVERY_S = 1.0  # whole frames are encoded so often; what was examined in between weighs as much as the last one


@dataclass(frozen=True, slots=True)
class Seen:
    """One look. motion: the gate's share of the picture that moved; frame_bytes: what sending this one frame whole
    would put on the uplink, the question with it."""

    t: float
    motion: float
    frame_bytes: int


@dataclass(frozen=True, slots=True)
class Sighted:
    """One track where its score was best. moments, bytes: of the evidence that the router would send of it then; a
    look at which there is less of that (the track has just begun) counts only while there is none with more."""

    t: float
    score: float
    moments: tuple[float, ...]
    bytes: int


class Watch:
    """Stands beside one camera of a replay (`replay.lane.Watch`); what it notes changes nothing of it.

    State: a number or two for each look, the best sighting of each track, the album's last looks. Whole frames are
    weighed as the evidence maker sends a single one (`escalation.frame_side_max`, `frame_bytes_max`), tracks with the
    evidence that a question of the site begins with, so that the baselines pay what the router would pay.
    """

    def __init__(self, config: SiteConfig, camera: str, model: str) -> None:
        self._config = config
        self._camera = camera
        self._model = model
        self._rules = config.cameras[camera].rules
        self._album = Album(config, camera)
        first = plan(config.escalation.first, None, 0).cut
        self._pictures = {"crops": config.escalation.crops, "frames": config.escalation.frames}.get(first, 1)
        self._tracks: dict[int, Sighted] = {}
        self._weighed_t = float("-inf")
        self._frame_bytes = 0
        self.seen: list[Seen] = []

    @property
    def sighted(self) -> Sequence[Sighted]:
        """One for each track of a kind that a rule of the camera watches."""
        return list(self._tracks.values())

    def look(self, boxes: FrameBoxes, look: Look) -> None:
        """One look of the replay."""
        if boxes.t - self._weighed_t >= WEIGHED_EVERY_S:
            self._weighed_t, self._frame_bytes = boxes.t, self._weigh(boxes.t, look.picture)
        # The first picture has nothing to be compared with; the gate calls all of it moved.
        self.seen.append(Seen(boxes.t, look.priority if boxes.seq else 0.0, self._frame_bytes))
        self._album.look(boxes, look.picture)
        for found in boxes.objects:
            rule = next((rule for rule in self._rules if found.label in rule.labels and rule.escalate), None)
            best = self._tracks.get(found.track)
            if rule is not None and (best is None or found.score > best.score or len(best.moments) < self._pictures):
                now = self._sighted(found, boxes.t, rule)
                if best is None or (len(now.moments), now.score) > (len(best.moments), best.score):
                    self._tracks[found.track] = now

    def _weigh(self, t: float, picture: av.VideoFrame) -> int:
        image = np.asarray(picture.to_ndarray(format="bgr24"), np.uint8)
        frame = picture_of("frame", self._config.escalation, t, Moment(t, None), image)
        ref, site, size = frame.ref, self._config.site.name, wire.CHUNK_BYTES
        chunks = (chunk_message(site, ref, n, frame.data[n * size : (n + 1) * size]).size for n in range(ref.chunks))
        question = wire.Escalation(
            id=f"esc-{ref.id[:16]}",
            site=site,
            camera=self._camera,
            alert=ref.id[:16],
            rule="frame",
            kind="frame",
            label="frame",
            severity="alert",
            question="Is there anything in this picture that a person should see?",
            t=t,
            created_t=t,
            model=self._model,
            media=(ref,),
        )
        return _message_bytes(question) + sum(chunks)

    def _sighted(self, found: TrackedObject, t: float, rule: Rule) -> Sighted:
        """What a question about this track would carry now; the facts that no rule gave are made up, as long as any."""
        event = Event(
            camera=self._camera,
            rule=rule.name,
            kind=rule.kind,
            track=found.track,
            label=found.label,
            t=t,
            score=found.score,
            box=found.box,
            severity="alert",
        )
        alert = Alert(
            camera=self._camera,
            id="0" * 16,
            rules=(rule.name,),
            severity="alert",
            t_start=t,
            t_end=None,
            tracks=(found.track,),
            labels=(found.label,),
            score=found.score,
            best=view_of(found, t),
        )
        pictures = self._album.pictures(alert, event)
        question = build(alert, event, rule, site=self._config.site.name, now=t, model=self._model)
        body = question.model_copy(
            update={"media": pictures.refs, "can": pictures.can, "image_free": pictures.image_free}
        )
        moments = tuple(ref.t for ref in pictures.refs) or (t,)
        return Sighted(t, found.score, moments, _message_bytes(body) + pictures.bytes)


def _message_bytes(question: wire.Escalation) -> int:
    """The question itself, with subject and headers."""
    subject = wire.escalation_subject(question.site, wire.PRIORITY_OF[question.severity])
    headers = {"Nats-Msg-Id": wire.question_message_id(question.site, question.id, question.step)}
    return Message(subject, question.to_json(), headers, "facts").size
