"""The schema of a scenario file: a clip, the cameras that filmed it, and what must and must not be reported.

Every key: docs/scenarios.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from appliance.base.config_model import ConfigModel, DetectorConfig
from appliance.base.errors import UsageError
from appliance.config import AlertsConfig, CameraConfig, CameraName, Share
from appliance.replay.footage_conditions import (
    NO_CONDITIONS,
    SEED_MAX,
    ConditionSet,
    clock_seconds,
    parse_conditions,
)

CONDITION_SETS_MAX = 50  # each is a replay of the whole footage
SCENARIO_SUFFIX = ".scenario.yaml"


def _seconds(value: Any) -> Any:
    """Convert `m:ss` and `h:mm:ss` to seconds.

    YAML itself reads `1:05` as 65, but `0:05` as text.
    """
    if not isinstance(value, str):
        return value
    found = clock_seconds(value.strip())
    if found is None:
        raise ValueError(f"`{value}` is not a time: write seconds (75.5), m:ss (1:15.5) or h:mm:ss")
    return found


ClipTime = Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=7 * 86400)]
ClipWindow = tuple[ClipTime, ClipTime]


class ScenarioCamera(CameraConfig):
    """A camera as in a site file, so that its section can be copied; no `url` is needed, the clip takes its place."""

    url: Annotated[str, Field(min_length=1, repr=False)] = "file:clip"


class EventCount(ConfigModel):
    """How many events one entry expects; without `max` any number. A number alone is exactly so many."""

    min: Annotated[int, Field(ge=0, le=1000)] = 1
    max: Annotated[int | None, Field(ge=0, le=1000)] = None

    @model_validator(mode="before")
    @classmethod
    def _number(cls, data: Any) -> Any:
        if isinstance(data, int) and not isinstance(data, bool):
            return {"min": data, "max": data}
        if not isinstance(data, dict | EventCount):
            raise ValueError(f"`{data}` is no count: write a number, as in 2, or {{min: 1, max: 3}}")
        return data

    @model_validator(mode="after")
    def _in_order(self) -> EventCount:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"count.max is {self.max}, less than count.min ({self.min})")
        return self


class EventEntry(ConfigModel):
    """The keys that describe an event; one that is left out matches anything."""

    camera: str | None = None
    rule: str | None = None
    zone: str | None = None
    line: str | None = None
    label: str | None = None
    between: ClipWindow | None = None
    note: Annotated[str, Field(max_length=500)] = ""

    @model_validator(mode="after")
    def _in_order(self) -> EventEntry:
        if self.between is not None and self.between[1] < self.between[0]:
            raise ValueError(f"between: it ends ({self.between[1]:g} s) before it begins ({self.between[0]:g} s)")
        return self


class ExpectEntry(EventEntry):
    """An event that must be reported. `at`: its true moment; the delay counts from there, or from `between`."""

    at: ClipTime | None = None
    count: EventCount = EventCount(min=1, max=1)

    @model_validator(mode="after")
    def _not_empty(self) -> ExpectEntry:
        if not (self.rule or self.zone or self.line or self.label):
            raise ValueError("say what must be reported: rule, zone, line or label")
        if self.at is not None and self.between is not None and not self.between[0] <= self.at <= self.between[1]:
            raise ValueError(
                f"at: {self.at:g} s is not inside `between` ({self.between[0]:g} to {self.between[1]:g} s)"
            )
        return self


class NeverEntry(EventEntry):
    """An event that must not be reported; without `between` in the whole clip."""


class StoodEntry(ConfigModel):
    """An object that stood still when the clip began, for so many seconds by then. box: x1, y1, x2, y2 in shares."""

    label: str
    box: tuple[Share, Share, Share, Share]
    seconds: Annotated[float, Field(ge=0, le=366 * 86400)]


class AtMost(ConfigModel):
    """Limits over all the scenario's cameras together."""

    alerts: Annotated[int | None, Field(ge=0)] = None
    bytes: Annotated[int | None, Field(ge=0)] = None


class RequiredFigures(ConfigModel):
    """Figures that must be reached. With `recall` or `precision` a single miss or false alarm does not fail."""

    recall: Share | None = None
    precision: Share | None = None
    delay_s: Annotated[float | None, Field(ge=0)] = None
    hota: Share | None = None
    idf1: Share | None = None
    mota: Annotated[float | None, Field(ge=-100, le=1)] = None
    ap50: Share | None = None


class DerivedEvents(ConfigModel):
    """Expect what the camera's rules make of the true boxes, each from `before_s` earlier until `after_s` later."""

    before_s: Annotated[float, Field(ge=0, le=60)] = 1.0
    after_s: Annotated[float, Field(ge=0, le=60)] = 3.0


class TruthFile(ConfigModel):
    """The file of true boxes. Exactly one of mot, coco, cvat."""

    camera: str | None = None
    mot: Path | None = None
    coco: Path | None = None
    cvat: Path | None = None
    labels: Annotated[tuple[str, ...], Field(min_length=1)] = ("person",)
    classes: dict[str, str] = {}
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None = None
    visible_min: Share = 0.0
    height_min: Share = 0.0
    events: DerivedEvents | None = None

    @model_validator(mode="before")
    @classmethod
    def _class_names(cls, data: Any) -> Any:
        """Class numbers may be written as numbers."""
        if isinstance(data, dict) and isinstance(data.get("classes"), dict):
            return {**data, "classes": {str(key): value for key, value in data["classes"].items()}}
        return data

    @model_validator(mode="after")
    def _one_file(self) -> TruthFile:
        if sum(path is not None for path in (self.mot, self.coco, self.cvat)) != 1:
            raise ValueError("name exactly one file of truth: mot, coco or cvat")
        return self


ConditionSets = tuple[tuple[str, ...], ...]


def _condition_sets(value: Any) -> Any:
    """`rain,night` or `[rain, night]` is one set of conditions; `[[], [rain, night]]` are two, the first empty."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise ValueError("write a list, as in [rain, night], or a list of such lists")
    sets = [[each] if isinstance(each, str) else each for each in value] if _nested(value) else [value]
    for each in sets:
        if not isinstance(each, list | tuple) or not all(isinstance(item, str) for item in each):
            raise ValueError("each weather is a text, as in rain, fog:40m or ir@20s")
        try:
            parse_conditions(each)
        except UsageError as error:
            raise ValueError(str(error)) from None
    return tuple(tuple(each) for each in sets)


def _nested(value: list[Any] | tuple[Any, ...]) -> bool:
    return any(isinstance(each, list | tuple) for each in value)


class Scenario(ConfigModel):
    """A scenario file."""

    name: Annotated[str, Field(max_length=200)] = ""
    note: Annotated[str, Field(max_length=2000)] = ""
    clip: Path | None = None
    clips: dict[CameraName, Path] = {}
    if_absent: Literal["fail", "skip"] = "fail"
    known_failing: Annotated[str, Field(max_length=500)] = ""
    site: Path | None = None
    camera: str | None = None
    cameras: dict[CameraName, ScenarioCamera] = {}
    alerts: AlertsConfig | None = None
    detector: DetectorConfig | None = None
    stood_before: dict[CameraName, tuple[StoodEntry, ...]] = {}
    expect: tuple[ExpectEntry, ...] = ()
    never: tuple[NeverEntry, ...] = ()
    others: Literal["allowed", "never"] = "allowed"
    at_most: AtMost = AtMost()
    verdicts: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    verdicts_match: Literal["exact", "nearest"] | None = None
    after_verdicts: bool = False
    truth: TruthFile | None = None
    require: RequiredFigures = RequiredFigures()
    made_of: Annotated[
        ConditionSets, BeforeValidator(_condition_sets), Field(alias="with", max_length=CONDITION_SETS_MAX)
    ] = ()
    seed: Annotated[int, Field(ge=0, le=SEED_MAX)] = 0

    @property
    def condition_sets(self) -> tuple[ConditionSet, ...]:
        """The conditions put on the footage, one run for each set; one run as it is without `with`."""
        return tuple(ConditionSet.parse(each, self.seed) for each in self.made_of) or (NO_CONDITIONS,)

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        if (self.clip is None) == (not self.clips):
            raise ValueError("name the footage: `clip:` for one camera, or `clips:` with one clip per camera")
        if (self.site is None) == (not self.cameras):
            raise ValueError("say who watches: `site:` (a site file), or `cameras:` with zones and rules in this file")
        if self.verdicts is None and (self.after_verdicts or self.verdicts_match):
            raise ValueError("after_verdicts and verdicts_match need `verdicts:` with a cassette or a stand-in")
        return self
