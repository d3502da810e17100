"""The `cameras` and `decode` sections: streams, zones, rules, privacy and quotas, and what decodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from appliance.base.config_model import ConfigModel
from appliance.config.values import Schedule, Seconds, Share, SharePoint, Title
from appliance.config.verdict_severity import VerdictSeverityConfig
from appliance.types import DecodeHardware, HealthKind, Severity

Gigabytes = Annotated[float, Field(gt=0)]
PrerollMb = Annotated[float, Field(ge=4, le=4096)]
RecordingMode = Literal["continuous", "pre_roll", False]
Hardware = Annotated[DecodeHardware, BeforeValidator(lambda given: "off" if given is False else given)]


class CameraDecodeConfig(ConfigModel):
    """The decode settings of one camera; None: as the site's `decode` section says."""

    hardware: Hardware | None = None
    fallback: bool | None = None


def polygon_problem(points: tuple[SharePoint, ...]) -> str | None:
    if len(points) < 3:
        return f"a polygon needs at least 3 points, this has {len(points)}"
    if len(points) > 64:
        return f"a polygon may have at most 64 points, this has {len(points)}"
    edges = list(zip(points, points[1:] + points[:1], strict=True))
    for i, (a, b) in enumerate(edges):
        for j in range(i + 2, len(edges)):
            if (j + 1) % len(edges) != i and _edges_cross(a, b, *edges[j]):
                return f"its edges {i + 1} and {j + 1} cross; list the corners in order around the zone"
    return "its points enclose no area" if polygon_area(points) < 1e-5 else None


def polygon_area(points: tuple[SharePoint, ...]) -> float:
    """Return the area that a polygon encloses, as a share of the frame."""
    edges = zip(points, points[1:] + points[:1], strict=True)
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in edges)) / 2


def _edges_cross(a: SharePoint, b: SharePoint, c: SharePoint, d: SharePoint) -> bool:
    def side(p: SharePoint, q: SharePoint, r: SharePoint) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


class RuleBase(ConfigModel):
    """height_min, height_max: of an object's box, as shares of the frame's height; None: any."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    title: Title = ""
    labels: Annotated[tuple[str, ...], Field(min_length=1)] = ("person",)
    score_min: Share = 0.5
    height_min: Share | None = None
    height_max: Share | None = None
    severity: Severity = "warning"
    cooldown_s: Seconds = 0.0
    schedule: Schedule | None = None
    escalate: bool = True
    ask: Annotated[str, Field(max_length=500)] = ""
    severity_on_verdict: VerdictSeverityConfig | None = None

    @model_validator(mode="after")
    def _heights(self) -> RuleBase:
        if (self.height_min or 0.0) >= (1.0 if self.height_max is None else self.height_max):
            raise ValueError(
                f"rule `{self.name}`: no object is at least height_min: {self.height_min or 0:g} and at most "
                f"height_max: {1.0 if self.height_max is None else self.height_max:g} high; "
                "both are shares of the picture's height"
            )
        return self


AtStart = Literal["moving", "report", "ignore"]
"""How a rule treats objects that are in its zone when the camera's session begins; see docs/rules.md."""


class EnterRule(RuleBase):
    kind: Literal["enter"]
    zone: str
    at_start: AtStart = "moving"


class ExitRule(RuleBase):
    kind: Literal["exit"]
    zone: str


class DwellRule(RuleBase):
    kind: Literal["dwell"]
    zone: str
    seconds: Annotated[float, Field(gt=0, le=86400)]
    at_start: AtStart = "report"


class LineRule(RuleBase):
    kind: Literal["line"]
    line: str
    direction: Literal["left_to_right", "right_to_left", "both"] = "both"


Rule = Annotated[EnterRule | ExitRule | DwellRule | LineRule, Field(discriminator="kind")]


CameraName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
LatencyMode = Literal["lowest", "normal", "thrifty"]


class DetectConfig(ConfigModel):
    """How often a camera's frames are examined.

    fps: inferences a second while something moves; fps_max: while something fast or new is followed, more than fps by
    need (None: never more than fps); heartbeat_s: longest time without; latency: docs/decode.md.
    """

    fps: Annotated[float, Field(gt=0, le=60)] = 5.0
    fps_max: Annotated[float, Field(gt=0, le=60)] | None = None
    heartbeat_s: Annotated[float, Field(gt=0, le=60)] = 4.0
    latency: LatencyMode = "normal"


class NeverExportConfig(Schedule):
    """The alerts of which nothing leaves, not even facts: in these zones (none: the whole camera), at these times."""

    zones: tuple[str, ...] = ()


BlurMode = Literal["none", "people", "surroundings"]


class PrivacyConfig(ConfigModel):
    """The limits on what leaves the site with an escalation. mask: zones that are painted over. See docs/privacy.md."""

    never: Annotated[
        tuple[NeverExportConfig, ...], BeforeValidator(lambda given: [{}] if given is True else given or ())
    ] = ()
    blur: BlurMode = "none"
    mask: tuple[str, ...] = ()

    @property
    def redacts_images(self) -> bool:
        """Images leave redacted, if at all."""
        return self.blur != "none" or bool(self.mask)


class CameraQuotaConfig(ConfigModel):
    """The limits of one camera; None: the site's hours and pre-roll, and no limit of its own in bytes.

    zone_days: by zone, how long what happened in it is kept; the least of them bounds the continuous recording, too.
    """

    continuous_hours: Annotated[float | None, Field(gt=0, le=24 * 3650)] = None
    continuous_gb: Gigabytes | None = None
    evidence_gb: Gigabytes | None = None
    preroll_mb: PrerollMb | None = None
    zone_days: dict[str, Annotated[float, Field(gt=0, le=3650)]] = {}


# Keys of a camera that decide nothing about its picture nor about its alerts: with another of them, both go on.
NO_MATTER_OF_ALERTS = {"title", "privacy", "image_free", "training", "quota", "onvif"}


class CameraConfig(ConfigModel):
    title: Title = ""
    url: Annotated[str, Field(min_length=1, repr=False)]
    detect_url: Annotated[str | None, Field(repr=False)] = None
    onvif: Annotated[str | None, Field(repr=False)] = None
    enabled: bool = True
    record: Annotated[RecordingMode, BeforeValidator(lambda given: "continuous" if given is True else given)] = (
        "continuous"
    )
    audio: bool = False
    quota: CameraQuotaConfig = CameraQuotaConfig()
    image_free: bool = False
    training: bool = False
    privacy: PrivacyConfig = PrivacyConfig()
    connect_timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    stall_timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    loop: bool = True
    model: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    detect: DetectConfig = DetectConfig()
    decode: CameraDecodeConfig = CameraDecodeConfig()
    health_ignore: tuple[HealthKind, ...] = ()
    zones: dict[str, tuple[SharePoint, ...]] = {}
    ignore: tuple[str, ...] = ()
    lines: dict[str, tuple[SharePoint, SharePoint]] = {}
    rules: tuple[Rule, ...] = ()

    @property
    def rule_lines(self) -> tuple[tuple[SharePoint, SharePoint], ...]:
        """The lines that a rule asks for, in the order of their names in the site file."""
        wanted = {rule.line for rule in self.rules if isinstance(rule, LineRule)}
        return tuple(line for name, line in self.lines.items() if name in wanted)

    @field_validator("url", "detect_url")
    @classmethod
    def _scheme(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("rtsp://", "rtsps://", "file:")):
            raise ValueError("must begin with rtsp://, rtsps:// or file:")
        return url

    @field_validator("onvif")
    @classmethod
    def _onvif_scheme(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://, like http://user:password@192.168.1.20")
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
    def _known_places(self) -> CameraConfig:
        names = [rule.name for rule in self.rules]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"rule `{name}`: two rules of this camera have this name")
        for rule in self.rules:
            if isinstance(rule, LineRule):
                _must_exist("line", rule.line, tuple(self.lines), f"rule `{rule.name}`")
            else:
                _must_exist("zone", rule.zone, tuple(self.zones), f"rule `{rule.name}`")
        watched = {rule.zone: rule.name for rule in self.rules if not isinstance(rule, LineRule)}
        for zone in self.ignore:
            _must_exist("zone", zone, tuple(self.zones), "ignore")
            if zone in watched:
                raise ValueError(
                    f"ignore: zone `{zone}` is watched by rule `{watched[zone]}`, which could never report"
                )
        for zone in self.privacy.mask:
            _must_exist("zone", zone, tuple(self.zones), "privacy.mask")
        for zone in self.quota.zone_days:
            _must_exist("zone", zone, tuple(self.zones), "quota.zone_days")
        for never in self.privacy.never:
            for zone in never.zones:
                _must_exist("zone", zone, tuple(self.zones), "privacy.never")
        return self

    @property
    def is_file(self) -> bool:
        return self.url.startswith("file:")


def rule_labels(cameras: Iterable[CameraConfig]) -> frozenset[str]:
    """Return the labels that the rules of these cameras report."""
    return frozenset(label for camera in cameras for rule in camera.rules for label in rule.labels)


def _must_exist(what: str, name: str, known: tuple[str, ...], where: str) -> None:
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ValueError(f"{where}: there is no {what} `{name}` on this camera (there is: {listed})")
