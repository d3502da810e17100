"""Decides what of an alert may leave the site: the owner's privacy rules, which stand above the router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance import wire
from appliance.config import CameraConfig, SiteConfig
from appliance.evidence.redaction import Redactor
from appliance.rules.polygon_geometry import Polygon, foot
from appliance.rules.schedule import ArmedHours, LocalTime
from appliance.types import Event, PrivacyLevel


@dataclass(frozen=True, slots=True)
class _Never:
    """One `privacy.never`. zones: by name; empty: the whole camera."""

    hours: ArmedHours
    zones: dict[str, Polygon]

    def forbids(self, event: Event, wall: LocalTime | None) -> bool:
        if wall is not None and not self.hours.armed(*wall(event.t)):
            return False
        if not self.zones or event.zone in self.zones:
            return True
        # An event of another zone, or of a line: what counts is where the object stands. Unknown: forbidden.
        return not any(event.box) or any(zone.contains(foot(event.box)) for zone in self.zones.values())


class PrivacyRules:
    """The rules of a site. Pure: an event and the time on the box's wall decide.

    wall: the weekday and minute of a frame time; None (footage without a time of day): every hour counts as named.
    """

    def __init__(self, config: SiteConfig, wall: LocalTime | None) -> None:
        self._config = config
        self._wall = wall
        self._never = {name: _nevers(camera) for name, camera in config.cameras.items()}

    def level(self, event: Event) -> PrivacyLevel:
        """never: nothing leaves; image_free: facts alone; free: pictures as well, veiled as the camera's section says.

        Of a camera that the site file does not know (any more) nothing leaves.
        """
        never = self._never.get(event.camera)
        if never is None or any(each.forbids(event, self._wall) for each in never):
            return "never"
        return "image_free" if self._config.image_free(event.camera) else "free"


class PrivacyEgressPolicy:
    """The rules once more, when a question's turn to leave has come: they may have been changed since it was made.

    events_of: an alert's events, to know where its object stood. A picture made under a veil that is not today's (its
    file name tells) does not leave.
    """

    def __init__(self, config: SiteConfig, wall: LocalTime | None, events_of: Callable[[str], Sequence[Event]]) -> None:
        self._config = config
        self._rules = PrivacyRules(config, wall)
        self._events_of = events_of
        self._careful = {name for name, camera in config.cameras.items() if camera.privacy.never}
        self._marks = {name: Redactor(camera).digest for name, camera in config.cameras.items()}

    def forbids(self, question: wire.Escalation) -> bool:
        if question.camera in self._marks and question.camera not in self._careful:
            return False
        told = Event(camera=question.camera, rule=question.rule, kind="enter", track=-1, label="", t=question.t)
        same = [event for event in self._events_of(question.alert) if event.rule == question.rule]
        asked = min(same, key=lambda event: abs(event.t - question.t), default=told)
        return self._rules.level(asked) == "never"

    def withholds(self, camera: str, path: str) -> bool:
        mark = self._marks.get(camera)
        if mark is None or self._config.image_free(camera):
            return True
        return bool(mark) and f".{mark}." not in path


def _nevers(camera: CameraConfig) -> tuple[_Never, ...]:
    return tuple(
        _Never(ArmedHours(each), {name: Polygon(camera.zones[name]) for name in each.zones})
        for each in camera.privacy.never
    )
