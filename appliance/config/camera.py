"""A camera: its streams, what is looked for in them, and what of it may leave the site."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from appliance.config.polygon import polygon_problem
from appliance.config.rules import LineRule, Rule
from appliance.config.storage import CameraQuota, Recording
from appliance.config.values import Schedule, SharePoint
from appliance.types import HealthKind
from appliance.yamlfile import Section

CameraName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
Latency = Literal["lowest", "normal", "thrifty"]


class Detect(Section):
    """fps: looks a second while something moves; heartbeat_s: never longer without one; latency: see docs/decode.md."""

    fps: Annotated[float, Field(gt=0, le=60)] = 5.0
    heartbeat_s: Annotated[float, Field(gt=0, le=60)] = 4.0
    latency: Latency = "normal"


class Never(Schedule):
    """Of what nothing leaves, not even facts: alerts in these zones (none: of the whole camera), at these times."""

    zones: tuple[str, ...] = ()


Blur = Literal["none", "people", "surroundings"]


class Privacy(Section):
    """What leaves the site with a question about a camera. mask: zones that are painted over. See docs/privacy.md."""

    never: Annotated[tuple[Never, ...], BeforeValidator(lambda said: [{}] if said is True else said or ())] = ()
    blur: Blur = "none"
    mask: tuple[str, ...] = ()

    @property
    def veiled(self) -> bool:
        """Pictures leave altered, if at all."""
        return self.blur != "none" or bool(self.mask)


class Camera(Section):
    url: Annotated[str, Field(min_length=1, repr=False)]
    detect_url: Annotated[str | None, Field(repr=False)] = None
    enabled: bool = True
    record: Annotated[Recording, BeforeValidator(lambda said: "continuous" if said is True else said)] = "continuous"
    quota: CameraQuota = CameraQuota()
    image_free: bool = False
    privacy: Privacy = Privacy()
    connect_timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    stall_timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    loop: bool = True
    detect: Detect = Detect()
    health_ignore: tuple[HealthKind, ...] = ()
    zones: dict[str, tuple[SharePoint, ...]] = {}
    lines: dict[str, tuple[SharePoint, SharePoint]] = {}
    rules: tuple[Rule, ...] = ()

    @field_validator("url", "detect_url")
    @classmethod
    def _scheme(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("rtsp://", "rtsps://", "file:")):
            raise ValueError("must begin with rtsp://, rtsps:// or file:")
        return url

    @field_validator("zones")
    @classmethod
    def _polygons(cls, zones: dict[str, tuple[SharePoint, ...]]) -> dict[str, tuple[SharePoint, ...]]:
        for name, points in zones.items():
            problem = polygon_problem(points)
            if problem:
                raise ValueError(f"zone `{name}`: {problem}")
        return zones

    @field_validator("lines")
    @classmethod
    def _segments(cls, lines: dict[str, tuple[SharePoint, SharePoint]]) -> dict[str, tuple[SharePoint, SharePoint]]:
        for name, (a, b) in lines.items():
            if a == b:
                raise ValueError(f"line `{name}`: its two ends are the same point")
        return lines

    @model_validator(mode="after")
    def _known_places(self) -> Camera:
        names = [rule.name for rule in self.rules]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"rule `{name}`: two rules of this camera have this name")
        for rule in self.rules:
            if isinstance(rule, LineRule):
                _must_exist("line", rule.line, tuple(self.lines), f"rule `{rule.name}`")
            else:
                _must_exist("zone", rule.zone, tuple(self.zones), f"rule `{rule.name}`")
        for zone in self.privacy.mask:
            _must_exist("zone", zone, tuple(self.zones), "privacy.mask")
        for never in self.privacy.never:
            for zone in never.zones:
                _must_exist("zone", zone, tuple(self.zones), "privacy.never")
        return self

    @property
    def is_file(self) -> bool:
        return self.url.startswith("file:")


def _must_exist(what: str, name: str, known: tuple[str, ...], where: str) -> None:
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ValueError(f"{where}: there is no {what} `{name}` on this camera (there is: {listed})")
