"""The first line of a replay log: which format it is, what was replayed, and with which settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from pydantic import TypeAdapter

from appliance.config import Alerts, Camera, Detect, Escalation, Rule, SharePoint, SiteConfig
from appliance.detect.detector import ObjectDetector
from appliance.replay.answers import AnsweredBy
from appliance.types import StreamHeader
from appliance.weather.weather import CLEAR, Weather, said
from appliance.yamlfile import Section

LOG = "vedette.replay"
VERSION = 3  # 1 had no name, no settings, no router decisions and no end line; 3 has verdicts
_OF_WEATHER = {"weather", "seed"}
_WITHOUT_VERDICTS = 2  # what a log says that holds none: an older Vedette reads it as ever


class Replayed(Section):
    """One camera's footage. run: of its first header; files: how many; t_from: UTC seconds of t = 0 in a recording."""

    camera: str
    kind: Literal["clip", "recording"]
    clip: str
    run: str
    files: int = 1
    t_from: float | None = None
    t_to: float | None = None


class DetectorSettings(Section):
    """The detector without any path. labels: first 16 hex digits of the sha256 of its class names."""

    name: str
    head: str
    device: str
    precision: str
    threads: int
    score_min: float
    labels: str


class CameraSettings(Section):
    """What a site file says about how a camera is watched; its URLs are no business of a log."""

    detect: Detect
    zones: dict[str, tuple[SharePoint, ...]]
    lines: dict[str, tuple[SharePoint, SharePoint]]
    rules: tuple[Rule, ...]


class Settings(Section):
    """All of the site file that a replay depends on. uplink: whether the site has one; scheduled: rules were armed by
    the time of day (a recording), not always (a clip). verdicts: who answered; None, and not written: nobody was to.
    weather: what was made of the footage, and the seed of the chance in that; empty, and not written: nothing."""

    site: str
    detector: DetectorSettings
    cameras: dict[str, CameraSettings]
    alerts: Alerts
    escalation: Escalation
    uplink: bool
    scheduled: bool = False
    verdicts: AnsweredBy | None = None
    weather: tuple[str, ...] = ()
    seed: int = 0

    @property
    def weather_words(self) -> str:
        """For people; "" when nothing was made of the footage."""
        return said(self.weather, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader(StreamHeader):
    """The header of the first camera, and what is said once a log. digest: 16 hex digits of all but camera and size;
    two replays of the same digest give the same log on the same backend."""

    log: Literal["vedette.replay"] = "vedette.replay"
    version: int = VERSION
    vedette: str
    replayed: tuple[Replayed, ...]
    settings: Settings
    digest: str = ""

    def begun_by(self, header: StreamHeader) -> LogHeader:
        """This opening as the header of the camera that comes first."""
        return replace(self, camera=header.camera, clip=header.clip, size=header.size, run=header.run)


_header: TypeAdapter[LogHeader] = TypeAdapter(LogHeader)


def opening(replayed: Sequence[Replayed], settings: Settings) -> LogHeader:
    """The first line but for the camera that happens to come first and the size of its picture."""
    blank = LogHeader(
        camera="",
        clip="",
        model=settings.detector.name,
        size=(0, 0),
        vedette=vedette_version(),
        replayed=tuple(replayed),
        settings=settings,
        version=_WITHOUT_VERDICTS if settings.verdicts is None else VERSION,
    )
    return replace(blank, digest=hashlib.sha256(_dumped(blank)).hexdigest()[:16])


def settings_of(
    config: SiteConfig,
    cameras: Sequence[str],
    detector: ObjectDetector,
    *,
    scheduled: bool = False,
    verdicts: AnsweredBy | None = None,
    weather: Weather = CLEAR,
) -> Settings:
    """What of the site file the replay of these cameras depends on."""
    watched: Mapping[str, Camera] = {name: config.cameras[name] for name in cameras}
    return Settings(
        site=config.site.name,
        detector=DetectorSettings(
            name=detector.name,
            head=config.detector.head,
            device=config.detector.device,
            precision=config.detector.precision,
            threads=config.detector.threads,
            score_min=config.detector.score_min,
            labels=hashlib.sha256("\n".join(detector.labels).encode()).hexdigest()[:16],
        ),
        cameras={
            name: CameraSettings(detect=each.detect, zones=each.zones, lines=each.lines, rules=each.rules)
            for name, each in watched.items()
        },
        alerts=config.alerts,
        escalation=config.escalation,
        uplink=config.uplink is not None,
        scheduled=scheduled,
        verdicts=verdicts,
        weather=weather.words,
        seed=weather.seed,
    )


def encode_header(header: LogHeader) -> bytes:
    """One JSON line, newline included."""
    return _dumped(header) + b"\n"


def _dumped(header: LogHeader) -> bytes:
    settings = header.settings
    unsaid = ({"verdicts"} if settings.verdicts is None else set()) | (set() if settings.weather else _OF_WEATHER)
    return _header.dump_json(header, exclude={"settings": unsaid})


def decode_header(data: dict[str, Any]) -> LogHeader:
    """Raises pydantic's ValidationError; the reader of logs says it in words."""
    return _header.validate_python(data)


def vedette_version() -> str:
    """Of the installed package."""
    try:
        return version("vedette")
    except PackageNotFoundError:
        return "unknown"
