"""Decides what of an alert may leave the site: the owner's privacy rules, which stand above the router."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from appliance import wire
from appliance.config import CameraConfig, SiteIdentity
from appliance.evidence.redaction import Redactor
from appliance.rules.line_polygon_geometry import Polygon, foot
from appliance.rules.schedule import ArmedHours, LocalTime
from appliance.types import Event, PrivacyLevel


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
        """never: nothing leaves; image_free: facts alone; free: images as well, redacted as the camera's section says.

        Nothing leaves of a camera that the site file does not know (any more).
        """
        never = self._never.get(event.camera)
        if never is None or any(each.forbids(event, self._local_time) for each in never):
            return "never"
        return "image_free" if self.is_image_free(event.camera) else "free"

    def lets_frames_leave(self, camera: str, t: float) -> bool:
        """Return True if a whole frame of this camera may leave although no alert asks for it.

        It may not if any `never` is in force at that time, be it for one zone. It may not if people are blurred either:
        a person whom the detector missed cannot be blurred.
        """
        never = self._never.get(camera)
        if never is None or self.is_image_free(camera) or camera in self._blurred:
            return False
        return not any(each.is_in_force(t, self._local_time) for each in never)

    def lets_facts_leave(self, camera: str, t: float) -> bool:
        """Return True if what is seen by this camera now may leave.

        It may not if any `never` is in force, be it for one zone.
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
