"""The whole site file and its small sections."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, model_validator

from appliance import yamlfile
from appliance.config.camera import Camera, CameraName
from appliance.config.escalation import Escalation, SecondLook, Uplink
from appliance.config.notify import Target, TargetName
from appliance.config.storage import Storage
from appliance.model import Detector
from appliance.types import HealthKind
from appliance.yamlfile import Section


class Site(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "site"
    image_free: bool = False


class Alerts(Section):
    merge_s: Annotated[float, Field(gt=0, le=600)] = 8.0
    length_max_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    pre_roll_s: Annotated[float, Field(ge=0, le=60)] = 5.0
    post_roll_s: Annotated[float, Field(ge=0, le=60)] = 5.0


class Health(Section):
    """When a camera, or the box, is said to be ill. See docs/health.md."""

    ignore: tuple[HealthKind, ...] = ()
    stalled_s: Annotated[float, Field(ge=3, le=3600)] = 6.0
    frozen_s: Annotated[float, Field(ge=2, le=3600)] = 7.0
    black_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    covered_s: Annotated[float, Field(ge=1, le=3600)] = 5.0
    moved_s: Annotated[float, Field(ge=1, le=3600)] = 4.0
    moved_share: Annotated[float, Field(ge=0.03, le=0.4)] = 0.05
    unexamined_s: Annotated[float, Field(ge=2, le=3600)] = 5.0
    detector_s: Annotated[float, Field(ge=2, le=3600)] = 8.0


class Dashboard(Section):
    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    token: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = ()
    public_url: Annotated[str, Field(pattern=r"^(https?://[^\s?#@]+)?$")] = ""

    @model_validator(mode="after")
    def _guarded(self) -> Dashboard:
        if self.host not in {"127.0.0.1", "localhost", "::1"} and self.token is None:
            raise ValueError(
                f"host {self.host} is open to the network: set dashboard.token (for example ${{VEDETTE_TOKEN}}), "
                "or keep host 127.0.0.1 and use a tunnel"
            )
        return self


class SiteConfig(Section):
    """The whole file."""

    site: Site = Site()
    storage: Storage = Storage()
    detector: Detector = Detector()
    cameras: Annotated[dict[CameraName, Camera], Field(min_length=1)]
    alerts: Alerts = Alerts()
    health: Health = Health()
    escalation: Escalation = Escalation()
    second_look: SecondLook = SecondLook()
    uplink: Uplink | None = None
    notify: Annotated[dict[TargetName, Target], Field(max_length=16)] = {}
    dashboard: Dashboard = Dashboard()

    @model_validator(mode="after")
    def _known_to_targets(self) -> SiteConfig:
        rules = {rule.name for camera in self.cameras.values() for rule in camera.rules}
        for name, target in self.notify.items():
            for what, named, known in (("camera", target.cameras, self.cameras), ("rule", target.rules, rules)):
                if strange := [each for each in named if each not in known]:
                    raise ValueError(f"notify.{name}: there is no {what} `{strange[0]}` in this file")
        return self

    def image_free(self, camera: str) -> bool:
        """No pixels of this camera may leave the site, by its own setting or the site's."""
        known = self.cameras.get(camera)
        return self.site.image_free or (known is not None and known.image_free)


def load(path: Path) -> SiteConfig:
    """Read and check the site file. Raises ConfigError with every fault, each with its line and remedy."""
    return yamlfile.load(path, SiteConfig)
