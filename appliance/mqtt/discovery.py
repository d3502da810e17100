"""The topics of a site, and the entities that Home Assistant finds there: its MQTT discovery messages. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance import version
from appliance.config import CameraConfig, LineRule, MqttConfig

ONLINE, OFFLINE = "online", "offline"
ON, OFF, UNKNOWN = "ON", "OFF", "None"
"""States of a binary sensor; Home Assistant shows `None` as unknown: nobody looked, or privacy forbids to say."""
_UNFIT = re.compile(r"[^A-Za-z0-9_-]+")
# Home Assistant's word for something that is seen there; without one it says on and off.
_DEVICE_CLASS = "occupancy"


@dataclass(frozen=True, slots=True)
class ZoneLabel:
    """A zone and a label that a rule looks for in it."""

    zone: str
    label: str


def zone_labels(camera: CameraConfig) -> tuple[ZoneLabel, ...]:
    """Each zone of a rule with each label that its rules want, in the order of the site file."""
    found = [(rule.zone, label) for rule in camera.rules if not isinstance(rule, LineRule) for label in rule.labels]
    return tuple(ZoneLabel(zone, label) for zone, label in dict.fromkeys(found))


class Topics:
    """The topics of one site. Names that a topic cannot hold are written with _ and a digest, so that none meet."""

    def __init__(self, config: MqttConfig, site: str) -> None:
        base = self._base = config.topic_prefix or f"vedette/{site}"
        self._discovery = config.discovery_prefix
        self.node = f"vedette_{site}"
        self.availability, self.alerts, self.system = f"{base}/status", f"{base}/alerts", f"{base}/system"
        self.configs = f"{self._discovery}/+/{self.node}/+/config"
        """Matches every discovery message of this site."""
        self.armed, self.profile = f"{base}/armed", f"{base}/profile"
        self.arm, self.choose = f"{base}/armed/set", f"{base}/profile/set"
        """Where ON or OFF, or the name of a profile, is published as a command."""
        self.pauses = f"{base}/camera/+/reports/set"
        """Matches where cameras are paused."""
        self.of_cameras = f"{base}/camera/#"
        """Matches everything about cameras."""

    def reports(self, camera: str) -> str:
        return f"{self._base}/camera/{camera}/reports"

    def zone(self, camera: str, place: ZoneLabel) -> str:
        return f"{self._base}/camera/{camera}/zone/{_topic_word(place.zone)}/{_topic_word(place.label)}"

    def problem(self, camera: str) -> str:
        return f"{self._base}/camera/{camera}/problem"

    def last_alert(self, camera: str) -> str:
        return f"{self._base}/camera/{camera}/last_alert"

    def still(self, camera: str) -> str:
        return f"{self._base}/camera/{camera}/last_alert/still"

    def config(self, component: str, entity: str) -> str:
        """Return the topic of an entity's discovery message; component: binary_sensor, sensor, image and so on."""
        return f"{self._discovery}/{component}/{self.node}/{entity}/config"


@dataclass(frozen=True, slots=True)
class DiscoveryMessage:
    """One retained message that makes an entity."""

    topic: str
    body: Mapping[str, Any]


def discovery_messages(
    topics: Topics,
    site: str,
    cameras: Mapping[str, CameraConfig],
    stills: Iterable[str],
    link: str,
    *,
    profiles: Iterable[str] = (),
) -> Iterator[DiscoveryMessage]:
    """Every entity of the site.

    stills: cameras of which a still may be published. link: the dashboard's address. profiles: that may be chosen; with
    any, there are also the switches that arm the site and pause cameras.
    """
    with_still = frozenset(stills)
    made = _EntityMaker(topics, site, link)
    choices = tuple(profiles)
    yield from made.system(choices)
    for name, camera in cameras.items():
        yield from made.camera(name, zone_labels(camera), with_still=name in with_still, pauses=bool(choices))


class _EntityMaker:
    def __init__(self, topics: Topics, site: str, link: str) -> None:
        self._topics = topics
        self._site = site
        self._link = link.rstrip("/")

    def system(self, profiles: tuple[str, ...]) -> Iterator[DiscoveryMessage]:
        device = self._device("", f"Vedette {self._site}", "/")
        state = {"state_topic": self._topics.system}
        yield self._entity("sensor", "to_review", device, name="Alerts to review", **state,
                           value_template="{{ value_json.alerts_to_review }}", state_class="measurement")  # fmt: skip
        yield self._entity("sensor", "cameras_live", device, name="Cameras live", **state,
                           value_template="{{ value_json.cameras_live }}", state_class="measurement",
                           entity_category="diagnostic")  # fmt: skip
        yield self._entity("sensor", "detector_load", device, name="Detector load", **state,
                           value_template="{{ value_json.detector_load }}", state_class="measurement",
                           unit_of_measurement="%", entity_category="diagnostic")  # fmt: skip
        if profiles:
            yield self._entity("switch", "armed", device, name="Armed", state_topic=self._topics.armed,
                               command_topic=self._topics.arm, icon="mdi:shield-home")  # fmt: skip
            profile = self._topics.profile
            yield self._entity("select", "profile", device, name="Profile", state_topic=profile,
                               value_template="{{ value_json.profile }}", json_attributes_topic=profile,
                               command_topic=self._topics.choose, options=list(profiles),
                               icon="mdi:shield-account")  # fmt: skip
        yield self._entity("binary_sensor", "problem", device, name="Problem", **state, device_class="problem",
                           value_template="{{ value_json.problem }}", json_attributes_topic=self._topics.system,
                           entity_category="diagnostic")  # fmt: skip

    def camera(
        self, name: str, places: Iterable[ZoneLabel], *, with_still: bool, pauses: bool
    ) -> Iterator[DiscoveryMessage]:
        device = self._device(name, name, f"/cameras/{name}")
        for place in places:
            entity = f"{name}-zone-{_topic_word(place.zone)}-{_topic_word(place.label)}"
            yield self._entity("binary_sensor", entity, device, name=f"{place.zone} {place.label}",
                               state_topic=self._topics.zone(name, place), device_class=_DEVICE_CLASS)  # fmt: skip
        problem = self._topics.problem(name)
        yield self._entity("binary_sensor", f"{name}-problem", device, name="Problem", state_topic=problem,
                           value_template="{{ value_json.state }}", json_attributes_topic=problem,
                           device_class="problem", entity_category="diagnostic")  # fmt: skip
        last = self._topics.last_alert(name)
        yield self._entity("sensor", f"{name}-last-alert", device, name="Last alert", state_topic=last,
                           value_template="{{ value_json.summary }}", json_attributes_topic=last,
                           icon="mdi:shield-alert")  # fmt: skip
        if pauses:
            reports = self._topics.reports(name)
            yield self._entity("switch", f"{name}-reports", device, name="Reports", state_topic=reports,
                               value_template="{{ value_json.state }}", json_attributes_topic=reports,
                               command_topic=f"{reports}/set", icon="mdi:bell-sleep")  # fmt: skip
        if with_still:
            yield self._entity("image", f"{name}-last-alert-still", device, name="Last alert",
                               image_topic=self._topics.still(name), content_type="image/jpeg")  # fmt: skip

    def _device(self, camera: str, name: str, page: str) -> dict[str, Any]:
        node = self._topics.node
        device: dict[str, Any] = {
            "identifiers": [f"{node}-{camera}" if camera else node],
            "name": name,
            "manufacturer": "Vedette",
            "sw_version": version(),
        }
        if camera:
            device["via_device"] = node
        if self._link:
            device["configuration_url"] = f"{self._link}{page}"
        return device

    def _entity(
        self, component: str, entity: str, device: Mapping[str, Any], **keys: str | list[str]
    ) -> DiscoveryMessage:
        body = {
            **keys,
            "unique_id": f"{self._topics.node}-{entity}",
            "availability_topic": self._topics.availability,
            "device": device,
            "origin": {"name": "Vedette", "sw_version": version()},
        }
        return DiscoveryMessage(self._topics.config(component, entity), body)


def _topic_word(name: str) -> str:
    """`name` as one level of a topic and as part of an id."""
    word = _UNFIT.sub("_", name)[:64]
    return word if word == name else f"{word}_{hashlib.sha256(name.encode()).hexdigest()[:6]}"
