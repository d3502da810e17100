"""The whole site file, its small sections, its secrets, and how it is loaded.

`<site file>.secrets` holds passwords that the site file names as `${NAME}`, for those who set no environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from appliance.base import yamlfile
from appliance.base.broker_config import BrokerConfig
from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.base.errors import ConfigError
from appliance.base.local_files import is_special
from appliance.config.arming_config import ArmingConfig
from appliance.config.camera_config import CameraConfig, CameraName, polygon_area
from appliance.config.costs_config import CostsConfig
from appliance.config.dashboard_config import DashboardConfig
from appliance.config.escalation_config import EscalationConfig
from appliance.config.health_config import HealthConfig
from appliance.config.ingest_config import OWN_NETWORKS_MAX, DecodeConfig, IngestConfig, RecheckConfig
from appliance.config.mqtt_config import MqttConfig
from appliance.config.notify_config import Target, TargetName
from appliance.config.storage_config import StorageConfig
from appliance.config.uplink_config import UplinkConfig
from appliance.config.values import Title
from appliance.types import Decision, Severity
from appliance.wire import LANGUAGES

CAMERAS_MAX = 256  # a file with 20,000 was checked for a minute, and no appliance decodes 256
ADJOINING_MAX = 64  # pairs of zones; eight cameras around a house have some twelve
PASSAGE_AREA_MAX = 0.5  # share of the picture: a zone of nearly all of it says nothing about where somebody left


class LoadSheddingConfig(ConfigModel):
    """When load is shed and when it comes back; see docs/power.md.

    Heat: from temperature_max_c on, or throttled, for hold_s, one step after another, each step_s apart; back one step
    when it has been below temperature_clear_c and not throttled for clear_s. Memory: at once.
    """

    enabled: bool = True
    temperature_max_c: Annotated[float, Field(ge=30, le=120)] = 80.0
    temperature_clear_c: Annotated[float, Field(ge=20, le=119)] = 74.0
    hold_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    step_s: Annotated[float, Field(ge=1, le=3600)] = 60.0
    clear_s: Annotated[float, Field(ge=1, le=86400)] = 120.0
    fps_share: Annotated[float, Field(ge=0.1, lt=1)] = 0.5
    input_share: Annotated[float, Field(ge=0.5, lt=1)] = 0.75
    offload: bool = False
    memory_available_min_mb: Annotated[float, Field(ge=0)] = 200.0
    memory_stalled_max: Annotated[float, Field(gt=0, le=1)] = 0.1
    memory_group_share_max: Annotated[float, Field(gt=0, le=1)] = 0.9

    @model_validator(mode="after")
    def _apart(self) -> LoadSheddingConfig:
        if self.temperature_clear_c >= self.temperature_max_c:
            raise ValueError("temperature_clear_c must be below temperature_max_c, or it would go back and forth")
        return self


class SensorsConfig(ConfigModel):
    """root: of the file system in which /sys, /proc and /dev of the appliance lie."""

    root: Path = Path("/")


class SiteIdentity(ConfigModel):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "site"
    title: Title = ""
    image_free: bool = False
    language: str = "en"

    @property
    def shown(self) -> str:
        """The name for people."""
        return self.title or self.name

    @field_validator("language")
    @classmethod
    def _known_language(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(f"must be one of {', '.join(LANGUAGES)}")
        return language


class AdjoiningConfig(ConfigModel):
    """Two zones, `camera/zone` each, between which people walk from one camera to the other.

    seconds: the longest time in which neither camera sees them. Two people who walk further apart stay two.
    """

    zones: tuple[str, str]
    seconds: Annotated[float, Field(gt=0, le=15)] = 6.0

    @field_validator("zones")
    @classmethod
    def _named(cls, zones: tuple[str, str]) -> tuple[str, str]:
        for each in zones:
            if not all(each.partition("/")):
                raise ValueError(f"`{each}` is not a camera and a zone of it, such as gate/driveway")
        if zones[0].partition("/")[0] == zones[1].partition("/")[0]:
            raise ValueError(f"{zones[0]} and {zones[1]} are of one camera, whose events are one alert anyway")
        return zones

    @property
    def places(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Camera and zone of each side."""
        (a, _, b), (c, _, d) = (each.partition("/") for each in self.zones)
        return (a, b), (c, d)


class AlertsConfig(ConfigModel):
    merge_s: Annotated[float, Field(gt=0, le=600)] = 8.0
    length_max_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    pre_roll_s: Annotated[float, Field(ge=0, le=60)] = 5.0
    post_roll_s: Annotated[float, Field(ge=0, le=60)] = 5.0
    adjoining: Annotated[tuple[AdjoiningConfig, ...], Field(max_length=ADJOINING_MAX)] = ()


@dataclass(frozen=True, slots=True)
class DecisionConfig:
    """The sections by which tracks, events, alerts and escalations are decided, live and in a replay.

    has_judge: escalations are answered, by workers over the uplink or by the appliance's own judge.
    """

    site: SiteIdentity
    detector: DetectorConfig
    cameras: Mapping[str, CameraConfig]
    alerts: AlertsConfig
    health: HealthConfig
    escalation: EscalationConfig
    has_judge: bool

    def shown(self, camera: str, rule: str = "") -> str:
        """Return the name for people of a camera, or of one of its rules; the id where there is none."""
        known = self.cameras.get(camera)
        if not rule:
            return (known.title if known else "") or camera
        return next((each.title for each in (known.rules if known else ()) if each.name == rule), "") or rule

    def image_free(self, camera: str) -> bool:
        """Return True if no pixels of this camera may leave the site, by its own setting or the site's."""
        known = self.cameras.get(camera)
        return self.site.image_free or (known is not None and known.image_free)

    def severity_after(self, camera: str, rule: str, severity: Severity, decision: Decision) -> Severity:
        """Return the severity, after a verdict, of an alert of this rule that has `severity` by the rules."""
        rules = self.cameras[camera].rules if camera in self.cameras else ()
        own = next((each.severity_on_verdict for each in rules if each.name == rule), None)
        return (own or self.escalation.severity_on_verdict).after(severity, decision)


@dataclass(frozen=True, slots=True)
class ReplaySections:
    """The sections that a replay of clips or of the recording needs."""

    decisions: DecisionConfig
    storage: StorageConfig
    decode: DecodeConfig
    uplink: BrokerConfig | None


@dataclass(frozen=True, slots=True)
class DashboardSections:
    """The sections that the dashboard serves by."""

    decisions: DecisionConfig
    storage: StorageConfig
    notify: Mapping[str, Target]
    arming: ArmingConfig
    costs: CostsConfig
    dashboard: DashboardConfig


class SiteConfig(ConfigModel):
    """The whole site file."""

    site: SiteIdentity = SiteIdentity()
    storage: StorageConfig = StorageConfig()
    detector: DetectorConfig = DetectorConfig()
    decode: DecodeConfig = DecodeConfig()
    cameras: dict[CameraName, CameraConfig]
    alerts: AlertsConfig = AlertsConfig()
    health: HealthConfig = HealthConfig()
    escalation: EscalationConfig = EscalationConfig()
    second_look: RecheckConfig = RecheckConfig()
    uplink: UplinkConfig | None = None
    notify: Annotated[dict[TargetName, Target], Field(max_length=16)] = {}
    mqtt: MqttConfig | None = None
    arming: ArmingConfig = ArmingConfig()
    costs: CostsConfig = CostsConfig()
    sensors: SensorsConfig = SensorsConfig()
    load_shedding: LoadSheddingConfig = LoadSheddingConfig()
    dashboard: DashboardConfig = DashboardConfig()

    @field_validator("cameras", mode="before")
    @classmethod
    def _bounded(cls, cameras: object) -> object:
        """Refuse too many cameras before each is checked: that would take a minute for 20,000."""
        if isinstance(cameras, dict) and len(cameras) > CAMERAS_MAX:
            raise ValueError(
                f"there are {len(cameras)} cameras, and a site has at most {CAMERAS_MAX}: divide them among more "
                "appliances, each with a site file of its own"
            )
        return cameras

    @model_validator(mode="after")
    def _can_offload(self) -> SiteConfig:
        if self.load_shedding.offload and (self.uplink is None or not self.escalation.enabled):
            raise ValueError("load_shedding.offload needs `uplink`, and escalation.enabled: there is no cloud to ask")
        return self

    @model_validator(mode="after")
    def _has_work_for_its_judge(self) -> SiteConfig:
        if self.escalation.local_judge.url is not None and not self.escalation.enabled:
            raise ValueError("escalation.local_judge.url needs escalation.enabled: it judges what is escalated")
        return self

    @model_validator(mode="after")
    def _known_to_targets(self) -> SiteConfig:
        rules = {rule.name for camera in self.cameras.values() for rule in camera.rules}
        for name, target in self.notify.items():
            for what, named, known in (("camera", target.cameras, self.cameras), ("rule", target.rules, rules)):
                if strange := [each for each in named if each not in known]:
                    raise ValueError(f"notify.{name}: there is no {what} `{strange[0]}` in this file")
        return self

    @model_validator(mode="after")
    def _known_to_passages(self) -> SiteConfig:
        for n, border in enumerate(self.alerts.adjoining):
            for camera, zone in border.places:
                points = self.cameras[camera].zones.get(zone) if camera in self.cameras else None
                if points is None:
                    raise ValueError(
                        f"alerts.adjoining.{n}: there is no zone `{zone}` on a camera `{camera}`: name another, or "
                        "take the pair away (Settings, Where zones adjoin)"
                    )
                if polygon_area(points) > PASSAGE_AREA_MAX:
                    raise ValueError(
                        f"alerts.adjoining.{n}: zone `{zone}` of camera `{camera}` covers more than half of the "
                        "picture: draw one where people come and go"
                    )
        return self

    @model_validator(mode="after")
    def _decoder_sessions(self) -> SiteConfig:
        bound = [
            name
            for name, camera in self.cameras.items()
            if camera.enabled and self.decode.hardware_of(camera.decode) != "off"
            if not self.decode.falls_back(camera.decode)
        ]
        if len(bound) > self.decode.sessions_max:
            raise ValueError(
                f"decode.sessions_max: {len(bound)} cameras are to be decoded by hardware, and it allows "
                f"{self.decode.sessions_max}: raise it, or set decode.fallback to true"
            )
        return self

    @model_validator(mode="after")
    def _networks_at_once(self) -> SiteConfig:
        own = self.for_ingest().own_networks()
        if len(own) > OWN_NETWORKS_MAX:
            named = ", ".join(each.model for each in own)
            raise ValueError(
                f"cameras have {len(own)} networks of their own ({named}), and {OWN_NETWORKS_MAX} may run beside "
                "detector.model: name the same one at all of them"
            )
        if own and self.detector.backend in ("hailo", "tensorrt"):
            raise ValueError(
                f"detector.backend {self.detector.backend} runs one network: take `model` out of the cameras, or set "
                "backend to auto, onnx or openvino"
            )
        return self

    @model_validator(mode="after")
    def _known_to_profiles(self) -> SiteConfig:
        if missing := self.arming.unknown_profile():
            raise ValueError(f"arming: there is no profile `{missing}`: it has {', '.join(self.arming.names)}")
        rules = {rule.name for camera in self.cameras.values() for rule in camera.rules}
        for name, profile in self.arming.profiles.items():
            for what, named, known in (
                ("camera", profile.cameras, self.cameras),
                ("rule", profile.rules, rules),
                ("target", profile.notify, self.notify),
            ):
                if strange := [each for each in named or () if each not in known]:
                    raise ValueError(f"arming.profiles.{name}: there is no {what} `{strange[0]}` in this file")
        return self

    def for_ingest(self) -> IngestConfig:
        return IngestConfig(
            storage=self.storage, detector=self.detector, decode=self.decode, cameras=self.cameras, health=self.health,
            second_look=self.second_look,
        )  # fmt: skip

    def for_decisions(self) -> DecisionConfig:
        return DecisionConfig(
            site=self.site,
            detector=self.detector,
            cameras=self.cameras,
            alerts=self.alerts,
            health=self.health,
            escalation=self.escalation,
            has_judge=self.uplink is not None or self.escalation.local_judge.url is not None,
        )

    def for_replay(self) -> ReplaySections:
        return ReplaySections(
            decisions=self.for_decisions(), storage=self.storage, decode=self.decode, uplink=self.uplink
        )

    def for_dashboard(self) -> DashboardSections:
        return DashboardSections(
            decisions=self.for_decisions(),
            storage=self.storage,
            notify=self.notify,
            arming=self.arming,
            costs=self.costs,
            dashboard=self.dashboard,
        )


def load(path: Path) -> SiteConfig:
    """Read and check the site file. Raises ConfigError with every fault, each with its line and remedy."""
    return yamlfile.load(path, SiteConfig, variables(path))


def of_cameras(cameras: Mapping[str, object]) -> SiteConfig:
    """Return a site of these cameras, all else by default. Raise pydantic's ValidationError."""
    return SiteConfig.model_validate({"cameras": cameras})


def loads(text: str, name: str, variables: Mapping[str, str] | None = None) -> SiteConfig:
    """Check the text of a site file; faults call it `name`. Raises ConfigError as `load` does."""
    return yamlfile.loads(text, SiteConfig, name, variables)


SECRETS_BYTES_MAX = 256 * 1024  # far above what secrets take: a larger file is another one by mistake
SECRET_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def secrets_path(site_file: Path) -> Path:
    """Beside the site file, under its name: `site.yaml` has `site.secrets`. Raises ConfigError: `.` has none."""
    if not site_file.name:
        raise ConfigError(str(site_file), ["a folder: name the file in it"])
    return site_file.with_suffix(".secrets")


def read_secrets(site_file: Path) -> dict[str, str]:
    """Read `NAME=value` lines; empty ones and those that begin with # do not count. {}: there is no such file.

    Raises ConfigError with the line, never with a value.
    """
    path = secrets_path(site_file)
    try:
        if is_special(path):
            raise ConfigError(str(path), ["a pipe or a device: give a file"])
        if path.stat().st_size > SECRETS_BYTES_MAX:
            raise ConfigError(str(path), [f"the file is over {SECRETS_BYTES_MAX} bytes; secrets are not that long"])
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), [f"cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}"]) from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator or not SECRET_NAME.fullmatch(name.strip()):
            raise ConfigError(str(path), [f"line {number}: not NAME=value"])
        found[name.strip()] = value.strip()
    return found


def variables(site_file: Path, coming: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the values of `${NAME}` in a site file: its secrets, and above them the environment.

    coming: secrets that are about to be kept beside it.
    """
    given = {name: value for name, value in os.environ.items() if value}
    return {**read_secrets(site_file), **(coming or {}), **given}


def secrets_exposed(site_file: Path) -> bool:
    """Return True if others than the owner may read the secrets."""
    path = secrets_path(site_file)
    return path.exists() and bool(path.stat().st_mode & 0o077)
