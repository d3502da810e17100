"""Writes the replay log (JSON lines): header with format and settings, lines, their schema (log.schema.json)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, TypeAdapter

from appliance import version
from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.base.errors import SourceError
from appliance.base.json_lines import encode_log, record_class, unused_header_fields
from appliance.base.local_files import is_special
from appliance.config import (
    AlertsConfig,
    CameraConfig,
    DecisionConfig,
    DetectConfig,
    EscalationConfig,
    Rule,
    SharePoint,
)
from appliance.detect.detector import ObjectDetector
from appliance.detect.detector_loader import with_device
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet, describe_conditions
from appliance.replay.verdict_source import AnsweredBy
from appliance.types import (
    Alert,
    Event,
    FrameBoxes,
    Gap,
    HardwareKind,
    HealthEvent,
    LogEnd,
    LogLine,
    LogVerdict,
    PipelineStep,
    Route,
    StreamHeader,
)

LOG = "vedette.replay"
VERSION = 3  # 1 had no name, no settings, no router decisions and no end line; 3 has verdicts
_WITHOUT_VERDICTS = 2  # what a log says that holds none: an older Vedette reads it as ever


class Replayed(ConfigModel):
    """One camera's footage. run: of its first header; files: how many; t_from: UTC seconds of t = 0 in a recording."""

    camera: str
    kind: Literal["clip", "recording"]
    clip: str
    run: str
    files: int = 1
    t_from: float | None = None
    t_to: float | None = None


class DetectorSettings(ConfigModel):
    """The detector without any path. labels: first 16 hex digits of the sha256 of its class names."""

    name: str
    head: str
    device: str
    precision: str
    threads: int
    score_min: float
    labels: str


class CameraSettings(ConfigModel):
    """A camera's analysis settings in the site file, without its URLs."""

    detect: DetectConfig
    zones: dict[str, tuple[SharePoint, ...]]
    ignore: tuple[str, ...] = ()
    lines: dict[str, tuple[SharePoint, SharePoint]]
    rules: tuple[Rule, ...]

    @property
    def unused(self) -> dict[str, Any]:
        """Keys that are not written where a camera has none, so logs from before these keys stay what they are."""
        rules = {
            index: {key for key in ("height_min", "height_max") if getattr(rule, key) is None}
            for index, rule in enumerate(self.rules)
        }
        return {"rules": rules, **({} if self.ignore else {"ignore": True})}


class Settings(ConfigModel):
    """All settings of the site file that a replay depends on.

    uplink: whether the site has one; scheduled: rules were armed by the time of day (a recording), not always (a clip).
    verdicts: the judge that answered; None, and not written: there was none. weather: the conditions applied to the
    footage, and their seed; empty, and not written: none. stood_before: 16 hex digits of what was known to have stood
    there before; empty, and not written: nothing was. decoder: the kind of hardware that decoded; empty, and not
    written: software.
    """

    site: str
    detector: DetectorSettings
    cameras: dict[str, CameraSettings]
    alerts: AlertsConfig
    escalation: EscalationConfig
    uplink: bool
    scheduled: bool = False
    verdicts: AnsweredBy | None = None
    weather: tuple[str, ...] = ()
    seed: int = 0
    stood_before: str = ""
    decoder: HardwareKind | Literal[""] = ""

    @property
    def weather_words(self) -> str:
        """For people; "" without conditions."""
        return describe_conditions(self.weather, self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogHeader(StreamHeader):
    """The header of the first camera, with the parts that are written once a log.

    digest: 16 hex digits of all but camera and size; two replays of the same digest give the same log on the same
    backend.
    """

    log: Literal["vedette.replay"] = "vedette.replay"
    version: int = VERSION
    vedette: str
    replayed: tuple[Replayed, ...]
    settings: Settings
    digest: str = ""

    def begun_by(self, header: StreamHeader) -> LogHeader:
        """Return this opening as the header of the camera that comes first."""
        return replace(
            self,
            camera=header.camera,
            clip=header.clip,
            size=header.size,
            run=header.run,
            known_before=header.known_before,
            calibration=header.calibration,
        )


_header: TypeAdapter[LogHeader] = TypeAdapter(LogHeader)


def opening(replayed: Sequence[Replayed], settings: Settings) -> LogHeader:
    """Return the first line, but for the camera that happens to come first and its frame size."""
    blank = LogHeader(
        camera="",
        clip="",
        model=settings.detector.name,
        size=(0, 0),
        vedette=version() or "unknown",
        replayed=tuple(replayed),
        settings=settings,
        version=_WITHOUT_VERDICTS if settings.verdicts is None else VERSION,
    )
    return replace(blank, digest=hashlib.sha256(_dumped(blank)).hexdigest()[:16])


def settings_of(
    config: DecisionConfig,
    cameras: Sequence[str],
    detector: ObjectDetector,
    *,
    scheduled: bool = False,
    verdicts: AnsweredBy | None = None,
    conditions: ConditionSet = NO_CONDITIONS,
    stood_before: str = "",
    decoder: HardwareKind | None = None,
) -> Settings:
    """Return the part of the site file that the replay of these cameras depends on."""
    watched: Mapping[str, CameraConfig] = {name: config.cameras[name] for name in cameras}
    return Settings(
        site=config.site.name,
        detector=DetectorSettings(
            name=detector.name,
            head=config.detector.head,
            device=with_device(config.detector).device,
            precision=config.detector.precision,
            threads=config.detector.threads,
            score_min=config.detector.score_min,
            labels=hashlib.sha256("\n".join(detector.labels).encode()).hexdigest()[:16],
        ),
        cameras={
            name: CameraSettings(
                detect=each.detect, zones=each.zones, ignore=each.ignore, lines=each.lines, rules=each.rules
            )
            for name, each in watched.items()
        },
        alerts=config.alerts,
        escalation=_without_address(config.escalation),
        uplink=config.has_judge,
        scheduled=scheduled,
        verdicts=verdicts,
        weather=conditions.texts,
        seed=conditions.seed,
        stood_before=stood_before,
        decoder=decoder or "",
    )


def _without_address(escalation: EscalationConfig) -> EscalationConfig:
    """Return the section without the local judge's URL, which may hold a password, as cameras stand without theirs."""
    judge = escalation.local_judge.model_copy(update={"url": None})
    return escalation.model_copy(update={"local_judge": judge})


def encode_header(header: LogHeader) -> bytes:
    """Return one JSON line, newline included."""
    return _dumped(header) + b"\n"


def _dumped(header: LogHeader) -> bytes:
    settings = header.settings
    omitted = {name for name in ("verdicts", "weather", "stood_before", "decoder") if not getattr(settings, name)}
    if not settings.weather:
        omitted.add("seed")
    cameras = {name: camera.unused for name, camera in settings.cameras.items()}
    left_out = {"cameras": cameras, **dict.fromkeys(omitted, True)}
    exclude: dict[str, Any] = {"settings": left_out, **dict.fromkeys(unused_header_fields(header), True)}
    return _header.dump_json(header, exclude=exclude)


def decode_header(data: dict[str, Any]) -> LogHeader:
    """Decode a header. Raise pydantic's ValidationError, which the reader of logs translates."""
    return _header.validate_python(data)


_SAMPLE_BYTES = 1024 * 1024  # of a clip's begin and end: its digest for the run id


class LogSink(Protocol):
    """Where the lines go: a binary file, a buffer."""

    def write(self, line: bytes, /) -> int: ...


class ReplayLog:
    """Writes whole lines in the order of decisions: boxes, their events, the router's decisions, the alerts that ended.

    The first header carries `opening`: format, settings, what was replayed. `sink` None: nothing is written. Raises
    OSError when the disk is full; the lines before are whole.
    """

    def __init__(self, sink: LogSink | None, opening: LogHeader) -> None:
        self._sink = sink
        self._opening: LogHeader | None = opening

    def header(self, header: StreamHeader) -> None:
        first, self._opening = self._opening, None
        self._put(encode_log(header) if first is None else encode_header(first.begun_by(header)))

    def write(self, line: LogLine) -> None:
        """Write one line.

        A fault stands at the frame at which it was noticed, changed or was over; a verdict before the boxes of the
        first frame at which it has arrived.
        """
        self._put(encode_log(line))

    def step(self, step: PipelineStep, routes: Iterable[Route] = ()) -> None:
        """Write events in any case, alerts once they are over."""
        ended = (change.alert for change in step.changes if change.kind == "ended")
        lines: tuple[LogLine, ...] = (*step.events, *routes, *ended)
        for line in lines:
            self.write(line)

    def _put(self, line: bytes) -> None:
        if self._sink is not None:
            self._sink.write(line)


def run_id_of(
    files: Iterable[tuple[Path, int | None]],
    camera_name: str,
    camera: CameraConfig,
    detector: DetectorConfig,
    model: str,
) -> str:
    """Return 16 hex digits of all that decides which boxes a replay finds: files in a row, detect settings, model.

    Of a file only so many bytes count (None: all), and of these their number and the first and last mebibyte, not its
    name or place, so that a copy replays under the same ids and footage of hours is not read twice. Raises SourceError
    if one cannot be read.
    """
    # Not its repr: ids of logs must not depend on the name of a class.
    detect = f"Detect({', '.join(f'{name}={value!r}' for name, value in camera.detect)})"
    digest = hashlib.sha256(f"{camera_name}|{detect}|{detector.score_min!r}|{detector.head}|{model}|".encode())
    for path, limit in files:
        try:
            if is_special(path):
                raise SourceError(f"{path} is a pipe or a device, not a file")
            _sample(path, limit, digest)
        except OSError as error:
            raise SourceError(f"{path.name} cannot be read: {error.strerror}") from None
    return digest.hexdigest()[:16]


def _sample(path: Path, limit: int | None, digest: hashlib._Hash) -> None:
    with path.open("rb") as file:
        bytes_ = file.seek(0, os.SEEK_END)
        bytes_ = bytes_ if limit is None else min(limit, bytes_)
        digest.update(f"{bytes_}|".encode())
        for start in (0, max(0, bytes_ - _SAMPLE_BYTES)):
            file.seek(start)
            digest.update(file.read(min(_SAMPLE_BYTES, bytes_ - start)))


_Route: Any = record_class(Route)
_Line = Annotated[
    FrameBoxes | Event | _Route | Alert | LogVerdict | Gap | HealthEvent | LogEnd, Field(discriminator="type")
]
_line: TypeAdapter[Any] = TypeAdapter(LogHeader | StreamHeader | _Line)


def log_schema() -> dict[str, Any]:
    """Return the schema of a log's lines; the first is a `LogHeader`. Readers ignore fields they do not know."""
    schema = _line.json_schema(mode="serialization")
    for part in schema["$defs"].values():
        if "const" in part.get("properties", {}).get("type", {}):  # always written, and what tells lines apart
            part["required"] = ["type", *(name for name in part.get("required", ()) if name != "type")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of a Vedette replay log, version 3",
        "description": "One JSON object a line; the first line is a LogHeader. Version 2 has no verdicts, and is still "
        "what a log without them says. See docs/replay.md.",
        **schema,
    }
