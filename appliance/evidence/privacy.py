"""Decides which data of an alert may leave the site, and in which form: privacy rules, redaction, notifications.

The owner's privacy rules override the router. Mask zones are painted over, and people who are not part of the alert
become a mosaic (`media.stills` does it).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance import wire
from appliance.base.errors import EvidenceError
from appliance.config import BlurMode, CameraConfig, PrivacyConfig, SiteIdentity
from appliance.media.recorded import ClipRedaction, ExaminedMoment, ImageOrder, Redaction
from appliance.media.recording_reader import RecordingReader
from appliance.rules.line_polygon_geometry import Polygon, foot
from appliance.rules.weekly_hours import ArmedHours, LocalTime
from appliance.sandbox.sandbox import SandboxError
from appliance.store.alert_rows import EvidenceRow
from appliance.store.alerts import AlertDetail
from appliance.store.boxes import BoxStore
from appliance.types import Alert, Box, Event, FrameBoxes, Point, PrivacyLevel

logger = logging.getLogger(__name__)

STILL_BYTES_MAX = 2 * 1024 * 1024  # messaging services refuse large attachments; a 1080p still has under 1 MB
NOTICE_QUALITY = 80  # JPEG of a message: seen on a phone, and paid by its uplink
PEOPLE_WITHIN_S = 0.75  # an examined frame further away does not tell who is in the image
PEOPLE = frozenset({"person"})


@dataclass(frozen=True, slots=True)
class PeopleInFrame:
    """The people in an image.

    Attributes:
        others: boxes of people who are not of the alert; None: no frame near that time was examined.
        own: boxes of the alert's objects.
    """

    others: tuple[Box, ...] | None
    own: tuple[Box, ...]


def people_in_frame(t: float, seen: Sequence[FrameBoxes], tracks: Sequence[int], box: Box | None) -> PeopleInFrame:
    """Return the people in the image of time `t`, by the examined frames around it.

    tracks: the alert's own. box: the box of its object.
    """
    known = () if box is None else (box,)
    near = [frame for frame in seen if frame.looked and abs(frame.t - t) <= PEOPLE_WITHIN_S]
    if not near:
        return PeopleInFrame(None, known)
    others = [each.box for frame in near for each in frame.objects if each.track not in tracks and each.label in PEOPLE]
    closest = min(near, key=lambda frame: abs(frame.t - t))
    own = [each.box for each in closest.objects if each.track in tracks]
    return PeopleInFrame(tuple(others), tuple(own) or known)


def clip_redaction(
    camera: CameraConfig,
    hide: Literal["surroundings", "people"],
    frames: Sequence[FrameBoxes],
    own: Mapping[tuple[float, int], str],
) -> ClipRedaction:
    """Return the regions of a clip to hide: all but the objects in `own`, or other people; mask zones always.

    frames: the examined ones of its span, oldest first. own: maps the time of a frame and the track in it to a key for
    each object that stays visible.
    """
    moments = tuple(
        ExaminedMoment(
            t=frame.t,
            own=tuple((own[frame.t, each.track], each.box) for each in frame.objects if (frame.t, each.track) in own),
            others=tuple(
                each.box for each in frame.objects if each.label in PEOPLE and (frame.t, each.track) not in own
            ),
        )
        for frame in frames
        if frame.looked
    )
    return ClipRedaction(hide, tuple(camera.zones[name] for name in camera.privacy.mask), moments)


class Redactor:
    """Defines how the images of one camera are redacted, by its `privacy` section. Pure.

    digest: of the rules, to recognise an image that was made under other rules; empty: nothing is redacted.
    """

    def __init__(self, camera: CameraConfig) -> None:
        self._blur: BlurMode = camera.privacy.blur
        self._masks: tuple[tuple[Point, ...], ...] = tuple(camera.zones[name] for name in camera.privacy.mask)
        rules = f"{self._blur} {self._masks}" if camera.privacy.redacts_images else ""
        self.digest = "v" + hashlib.sha256(rules.encode()).hexdigest()[:8] if rules else ""

    def redaction(self, found: PeopleInFrame) -> Redaction | None:
        """Return the redaction of an image with these people; None if it may leave as it is."""
        return Redaction(self._blur, self._masks, found.others, found.own) if self.digest else None


HIDE_EVERYTHING = Redactor(CameraConfig(url="file:none", privacy=PrivacyConfig(blur="surroundings")))
"""For a camera that the site file no longer knows."""


@dataclass(frozen=True, slots=True)
class _NeverRule:
    """One entry of `privacy.never`. zones: by name; empty: the whole camera."""

    hours: ArmedHours
    zones: dict[str, Polygon]

    def is_in_force(self, t: float, local_time: LocalTime | None) -> bool:
        return local_time is None or self.hours.armed(*local_time(t))

    def forbids(self, event: Event, local_time: LocalTime | None) -> bool:
        if not self.is_in_force(event.t, local_time):
            return False
        if not self.zones or event.zone in self.zones:
            return True
        # An event of another zone, or of a line: what counts is where the object stands. Unknown: forbidden.
        return not any(event.box) or any(zone.contains(foot(event.box)) for zone in self.zones.values())


class PrivacyRules:
    """The privacy rules of a site. Pure: an event and its local time decide."""

    def __init__(self, site: SiteIdentity, cameras: Mapping[str, CameraConfig], local_time: LocalTime | None) -> None:
        """local_time: weekday and minute of a frame time; None (footage without a time of day): every hour counts."""
        self._local_time = local_time
        self._never = {name: _never_rules(camera) for name, camera in cameras.items()}
        self._blurred = {name for name, camera in cameras.items() if camera.privacy.blur != "none"}
        self._image_free = {name for name, camera in cameras.items() if site.image_free or camera.image_free}

    def level(self, event: Event) -> PrivacyLevel:
        """Return `never` (nothing leaves), `image_free` (facts alone) or `free` (redacted images, too).

        Nothing leaves of a camera that the site file does not know (any more).
        """
        never = self._never.get(event.camera)
        if never is None or any(each.forbids(event, self._local_time) for each in never):
            return "never"
        return "image_free" if self.is_image_free(event.camera) else "free"

    def lets_frames_leave(self, camera: str, t: float) -> bool:
        """Return True if a whole frame of this camera may leave although no alert asks for it.

        It may not if any `never` is in force at that time, even for one zone only. It may not if people are blurred,
        since a person whom the detector missed cannot be blurred.
        """
        never = self._never.get(camera)
        if never is None or self.is_image_free(camera) or camera in self._blurred:
            return False
        return not any(each.is_in_force(t, self._local_time) for each in never)

    def lets_facts_leave(self, camera: str, t: float) -> bool:
        """Return True if facts about this camera's present view may leave.

        They may not if any `never` is in force, even for one zone only.
        """
        never = self._never.get(camera)
        return never is not None and not any(each.is_in_force(t, self._local_time) for each in never)

    def is_image_free(self, camera: str) -> bool:
        """No pixels of this camera may leave, by its own setting or the site's."""
        return camera in self._image_free


class PrivacyEgressPolicy:
    """Applies the rules again when an escalation is about to be sent: they may have changed since it was made.

    An image that was redacted under other rules than today's (its file name tells) does not leave.
    """

    def __init__(
        self, rules: PrivacyRules, cameras: Mapping[str, CameraConfig], events_of: Callable[[str], Sequence[Event]]
    ) -> None:
        """events_of: the events of an alert, to know where its object stood."""
        self._rules = rules
        self._events_of = events_of
        self._with_never_rules = {name for name, camera in cameras.items() if camera.privacy.never}
        self._digests = {name: Redactor(camera).digest for name, camera in cameras.items()}

    def forbids(self, escalation: wire.Escalation) -> bool:
        """Nothing of it may leave."""
        if escalation.camera in self._digests and escalation.camera not in self._with_never_rules:
            return False
        from_body = Event(
            camera=escalation.camera, rule=escalation.rule, kind="enter", track=-1, label="", t=escalation.t
        )
        same = [event for event in self._events_of(escalation.alert) if event.rule == escalation.rule]
        event = min(same, key=lambda each: abs(each.t - escalation.t), default=from_body)
        return self._rules.level(event) == "never"

    def withholds(self, camera: str, path: str) -> bool:
        """Return True if the evidence file at `path` may not leave."""
        digest = self._digests.get(camera)
        if digest is None or self._rules.is_image_free(camera):
            return True
        return bool(digest) and f".{digest}." not in path


def _never_rules(camera: CameraConfig) -> tuple[_NeverRule, ...]:
    return tuple(
        _NeverRule(ArmedHours(each), {name: Polygon(camera.zones[name]) for name in each.zones})
        for each in camera.privacy.never
    )


class ShareableStills:
    """Reads stills for notifications. Holds no state; any thread."""

    def __init__(
        self,
        root: Path,
        reader: RecordingReader,
        boxes: BoxStore,
        cameras: Mapping[str, CameraConfig],
        may_leave: Callable[[Event], bool],
    ) -> None:
        """Keep a redactor for each camera.

        root: the storage folder. reader: redacts. may_leave: true if an image of an event may leave the site at all.
        """
        self._root = root
        self._reader = reader
        self._boxes = boxes
        self._redactors = {name: Redactor(camera) for name, camera in cameras.items()}
        self._may_leave = may_leave

    def read(self, detail: AlertDetail, local: bool) -> bytes | None:
        """Return the still as a JPEG: empty if there is none or it may not leave, None if it is not cut yet.

        local: it stays on the site.
        """
        alert, piece = detail.alert, detail.piece("still")
        redactor = self._redactors.get(alert.camera)
        if redactor is None or (not local and not all(self._may_leave(event) for event in detail.events)):
            return b""
        if piece is None or piece.state == "waiting":
            return None
        if piece.state != "ready" or not piece.path:
            return b""
        path = self._root / piece.path
        try:
            data = path.read_bytes()
        except OSError:  # retention was faster
            return b""
        if len(data) > STILL_BYTES_MAX:
            return b""
        if local or not redactor.digest:
            return data
        return self._redacted(redactor, path, detail.alert, piece)

    def _redacted(self, redactor: Redactor, path: Path, alert: Alert, still: EvidenceRow) -> bytes:
        at = still.t_start
        t0, t1 = at - PEOPLE_WITHIN_S, at + PEOPLE_WITHIN_S
        # Track numbers begin anew with each session; the still may show another moment than the best view.
        seen = self._boxes.span(alert.camera, t0, t1, run=alert.run or None)
        found = people_in_frame(at, seen, alert.tracks, still.box)
        order = ImageOrder(quality=NOTICE_QUALITY, redaction=redactor.redaction(found))
        try:
            return self._reader.file_images(path, at, [order]).images[0].data
        except (EvidenceError, SandboxError) as error:
            logger.warning("the still of alert %s goes to nobody: %s", alert.id, error)
            return b""
