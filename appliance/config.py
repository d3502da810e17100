"""The site file: what the appliance is told by its owner. Every key is shown in `deploy/vedette.example.yaml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator

from appliance import yamlfile
from appliance.address import Address
from appliance.model import Detector
from appliance.types import EvidenceStep, HealthKind, Severity
from appliance.yamlfile import Section

Share = Annotated[float, Field(ge=0, le=1)]
SharePoint = tuple[Share, Share]
Seconds = Annotated[float, Field(ge=0, le=86400)]
CameraName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"^([01]\d|2[0-3]):([0-5]\d)-(([01]\d|2[0-3]):([0-5]\d)|24:00)$")


class Site(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")] = "site"
    image_free: bool = False


Gigabytes = Annotated[float, Field(gt=0)]
PrerollMb = Annotated[float, Field(ge=4, le=4096)]
Recording = Literal["continuous", "pre_roll", False]


class Quota(Section):
    """What each class of recording may take, all cameras together; None: as much as the other limits leave."""

    continuous_gb: Gigabytes | None = None
    evidence_gb: Gigabytes | None = None
    preroll_mb: PrerollMb = 64.0  # of each camera


class CameraQuota(Section):
    """The same for one camera; None: the site's hours and pre-roll, and no limit of its own in bytes."""

    continuous_hours: Annotated[float | None, Field(gt=0, le=24 * 3650)] = None
    continuous_gb: Gigabytes | None = None
    evidence_gb: Gigabytes | None = None
    preroll_mb: PrerollMb | None = None


class Storage(Section):
    dir: Path = Path("vedette-data")
    segment_s: Annotated[float, Field(ge=1, le=60)] = 4.0
    keep_hours: Annotated[float, Field(gt=0, le=24 * 3650)] = 24.0
    evidence_days: Annotated[float, Field(gt=0, le=3650)] = 30.0
    size_max_gb: Annotated[float, Field(gt=0)] = 50.0
    disk_free_min_mb: Annotated[float, Field(ge=0)] = 500.0
    quota: Quota = Quota()
    preroll_dir: Path | None = None


class Schedule(Section):
    """When a rule is armed, in the box's own time zone. A span may run past midnight: `22:00-06:00`."""

    days: Annotated[tuple[Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"], ...], Field(min_length=1)] = DAYS
    hours: tuple[str, ...] = ("00:00-24:00",)

    @field_validator("hours")
    @classmethod
    def _spans(cls, hours: tuple[str, ...]) -> tuple[str, ...]:
        for span in hours:
            if not _SPAN.match(span):
                raise ValueError(f"`{span}` is not a span of hours such as 22:00-06:00")
        return hours


class RuleBase(Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    labels: Annotated[tuple[str, ...], Field(min_length=1)] = ("person",)
    score_min: Share = 0.5
    severity: Severity = "warning"
    cooldown_s: Seconds = 0.0
    schedule: Schedule | None = None
    escalate: bool = True
    ask: Annotated[str, Field(max_length=500)] = ""


class EnterRule(RuleBase):
    kind: Literal["enter"]
    zone: str


class ExitRule(RuleBase):
    kind: Literal["exit"]
    zone: str


class DwellRule(RuleBase):
    kind: Literal["dwell"]
    zone: str
    seconds: Annotated[float, Field(gt=0, le=86400)]


class LineRule(RuleBase):
    kind: Literal["line"]
    line: str
    direction: Literal["left_to_right", "right_to_left", "both"] = "both"


Rule = Annotated[EnterRule | ExitRule | DwellRule | LineRule, Field(discriminator="kind")]


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


Latency = Literal["lowest", "normal", "thrifty"]


class Detect(Section):
    """fps: looks a second while something moves; heartbeat_s: never longer without one; latency: see docs/decode.md."""

    fps: Annotated[float, Field(gt=0, le=60)] = 5.0
    heartbeat_s: Annotated[float, Field(gt=0, le=60)] = 4.0
    latency: Latency = "normal"


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
            problem = _polygon_problem(points)
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


class Alerts(Section):
    merge_s: Annotated[float, Field(gt=0, le=600)] = 8.0
    length_max_s: Annotated[float, Field(gt=0, le=3600)] = 120.0
    pre_roll_s: Annotated[float, Field(ge=0, le=60)] = 5.0
    post_roll_s: Annotated[float, Field(ge=0, le=60)] = 5.0


Amount = Annotated[float, Field(ge=0)]


class Router(Section):
    """Which alerts are worth a question. See docs/router.md."""

    recall_min: Annotated[float, Field(ge=0.5, lt=1)] = 0.98
    value_min: Amount = 0.0
    audit_share: Share = 0.02
    repeat_s: Seconds = 600.0
    queue_age_max_s: Annotated[float, Field(gt=0)] = 600.0
    load_max: Annotated[float, Field(gt=0)] | None = None
    temperature_max_c: float | None = None


class OffPeak(Schedule):
    """When questions of these severities are sent; at other times they wait."""

    severities: tuple[Severity, ...] = ("info", "warning")


class Budget(Section):
    """What asking may cost; None: as much as it takes. alert_reserve: the share that only severity `alert` may use."""

    mb_day: Amount | None = None
    mb_month: Amount | None = None
    gpu_s_day: Amount | None = None
    gpu_s_month: Amount | None = None
    money_day: Amount | None = None
    money_month: Amount | None = None
    alert_reserve: Share = 0.2


class Prices(Section):
    """What asking costs, in the owner's own currency. gpu_rented_hours_day: paid for whether they are used or not."""

    uplink_gb: Amount = 0.0
    gpu_hour: Amount = 0.0
    gpu_rented_hours_day: Annotated[float, Field(ge=0, le=24)] = 0.0
    tokens_in_million: Amount = 0.0
    tokens_out_million: Amount = 0.0


class Escalation(Section):
    enabled: bool = True
    severities: tuple[Severity, ...] = ("warning", "alert")
    first: EvidenceStep = "crops"
    crops: Annotated[int, Field(ge=1, le=3)] = 2
    crop_bytes_max: Annotated[int, Field(ge=2048, le=128 * 1024)] = 12 * 1024
    frame_bytes_max: Annotated[int, Field(ge=8 * 1024, le=4 * 1024 * 1024)] = 32 * 1024
    clip_bytes_max: Annotated[int, Field(ge=64 * 1024, le=16 * 1024 * 1024)] = 2 * 1024 * 1024
    frames: Annotated[int, Field(ge=1, le=8)] = 4
    frame_side_max: Annotated[int, Field(ge=160, le=4096)] = 1280
    span_s: Annotated[float, Field(ge=0, le=30)] = 3.0
    expire_hours: Annotated[float, Field(gt=0, le=24 * 365)] = 72.0
    router: Router = Router()
    off_peak: OffPeak | None = None
    budget: Budget = Budget()
    prices: Prices = Prices()


class TtlHours(Section):
    """How long a question of this severity waits for its answer; None: escalation.expire_hours."""

    alert: Annotated[float | None, Field(gt=0, le=24 * 365)] = None
    warning: Annotated[float | None, Field(gt=0, le=24 * 365)] = None
    info: Annotated[float | None, Field(gt=0, le=24 * 365)] = 24.0


class Uplink(Address):
    """The broker, and how much may be sent to it. See docs/uplink.md."""

    kbps_max: Annotated[float | None, Field(ge=8)] = None
    mb_day: Annotated[float | None, Field(gt=0)] = None
    over_mb_day: Literal["urgent", "wait"] = "urgent"
    outbox_mb_max: Annotated[float, Field(gt=0)] = 2048.0
    ttl_hours: TtlHours = TtlHours()
    silent_s: Annotated[float, Field(ge=5, le=86400)] = 300.0


class Dashboard(Section):
    enabled: bool = True
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    token: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = ()

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
    uplink: Uplink | None = None
    dashboard: Dashboard = Dashboard()

    def image_free(self, camera: str) -> bool:
        """No pixels of this camera may leave the site, by its own setting or the site's."""
        known = self.cameras.get(camera)
        return self.site.image_free or (known is not None and known.image_free)


def load(path: Path) -> SiteConfig:
    """Read and check the site file. Raises ConfigError with every fault, each with its line and remedy."""
    return yamlfile.load(path, SiteConfig)


def _must_exist(what: str, name: str, known: tuple[str, ...], where: str) -> None:
    if name not in known:
        listed = ", ".join(known) or "none"
        raise ValueError(f"{where}: there is no {what} `{name}` on this camera (there is: {listed})")


def _polygon_problem(points: tuple[SharePoint, ...]) -> str | None:
    if len(points) < 3:
        return f"a polygon needs at least 3 points, this has {len(points)}"
    if len(points) > 64:
        return f"a polygon may have at most 64 points, this has {len(points)}"
    edges = list(zip(points, points[1:] + points[:1], strict=True))
    for i, (a, b) in enumerate(edges):
        for j in range(i + 2, len(edges)):
            if (j + 1) % len(edges) != i and _cross(a, b, *edges[j]):
                return f"its edges {i + 1} and {j + 1} cross; list the corners in order around the zone"
    area = sum(a[0] * b[1] - b[0] * a[1] for a, b in edges) / 2
    return "its points enclose no area" if abs(area) < 1e-5 else None


def _cross(a: SharePoint, b: SharePoint, c: SharePoint, d: SharePoint) -> bool:
    def side(p: SharePoint, q: SharePoint, r: SharePoint) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0
