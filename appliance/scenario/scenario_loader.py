"""Finds and reads scenario files and checks them against their site file: clips as cameras, and their conditions."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from appliance import config
from appliance.base import yamlfile
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ConfigError, UsageError
from appliance.config import CameraConfig, DecisionConfig, LineRule
from appliance.replay.cassette_file import CassetteReader
from appliance.replay.footage_conditions import NO_CONDITIONS, ConditionSet
from appliance.replay.verdict_source import OracleOptions, parse_verdict_source
from appliance.rules.engine import can_report
from appliance.scenario.ground_truth import format_of, read_labels
from appliance.scenario.scenario_schema import SCENARIO_SUFFIX, EventEntry, ExpectEntry, Scenario

SCENARIO_FILES_MAX = 10_000  # each is opened to be listed

_Lines = Mapping[tuple[str | int, ...], int]


@dataclass(frozen=True, slots=True)
class ScenarioPart:
    """One camera of a scenario and its clip; several clips begin at the same moment."""

    camera: str
    clip: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPlan:
    """A checked scenario: every camera, rule, zone and line it names exists. absent: clips that are missing.

    storage: the storage folder of the site file; None: the scenario has a site of its own.
    """

    name: str
    file: Path
    scenario: Scenario
    config: DecisionConfig
    parts: tuple[ScenarioPart, ...]
    truth: Path | None
    absent: tuple[Path, ...]
    lines: _Lines
    conditions: ConditionSet = NO_CONDITIONS
    storage: Path | None = None

    def locate(self, section: str, index: int) -> str:
        """Where an entry stands in the file: `expect 2 (line 31)`."""
        return f"{section} {index + 1} (line {self.lines.get((section, index), 0)})"


def find_scenarios(paths: Iterable[Path], pattern: str = "") -> list[Path]:
    """Return the scenario files at `paths`, folders searched in all depth, sorted and each once.

    pattern: a part of the name or a glob such as `yard*`, in any case. Raises UsageError when a path is not there, or
    nothing was found.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        for file in _files_below(path):
            found.setdefault(file.resolve(), file)
    if not found:
        raise UsageError(
            f"no *{SCENARIO_SUFFIX} in {', '.join(map(str, paths))}; docs/scenarios.md shows how to write one"
        )
    if len(found) > SCENARIO_FILES_MAX:
        raise UsageError(f"over {SCENARIO_FILES_MAX} scenarios; name a smaller folder")
    chosen = [file for file in found.values() if not pattern or _name_matches(file, pattern)]
    if not chosen:
        raise UsageError(f"none of the {len(found)} scenarios has a name like `{pattern}`")
    return chosen


def _files_below(path: Path) -> list[Path]:
    if path.is_dir():
        found = (file for file in path.rglob(f"*{SCENARIO_SUFFIX}") if file.is_file())
        # As pytest does: hidden folders are skipped (a scenario that is being kept or deleted).
        return sorted(file for file in found if not any(part.startswith(".") for part in file.relative_to(path).parts))
    if path.is_file():
        return [path]
    raise UsageError(f"{path}: no such file or folder")


def _name_matches(file: Path, pattern: str) -> bool:
    name, pattern = scenario_name(file).lower(), pattern.lower()
    return pattern in name or fnmatch.fnmatchcase(name, pattern)


def scenario_name(file: Path) -> str:
    """Return the name of a scenario whose file gives none."""
    return file.name.removesuffix(SCENARIO_SUFFIX)


def load_scenario(file: Path) -> ScenarioPlan:
    """Read and check one scenario. Raises ConfigError with every fault, each with its line and remedy.

    It is planned under the first conditions that it names; `plans_by_conditions` gives all.
    """
    scenario = yamlfile.load(file, Scenario)
    lines = yamlfile.line_numbers(file)
    faults = _ScenarioFaults(file, lines)
    folder = file.parent
    site, storage = _site(scenario, folder, faults)
    parts = _parts(scenario, site, folder, faults)
    _check_entries(scenario, site, parts, faults)
    faults.report()
    absent = tuple(part.clip for part in parts if not part.clip.is_file())
    if absent and scenario.if_absent == "fail":
        faults.add(
            ("clip",) if scenario.clip else ("clips",),
            f"{', '.join(map(str, absent))} is not there; paths count from the scenario's folder "
            "(if the footage is not on every machine, write `if_absent: skip`)",
        )
    try:
        check_verdict_source(scenario.verdicts, folder)
    except UsageError as error:
        faults.add(("verdicts",), str(error))
    truth = _truth(scenario, folder, faults) if not absent else None
    faults.report()
    return ScenarioPlan(
        name=scenario.name or scenario_name(file),
        file=file,
        scenario=scenario,
        config=site,
        parts=parts,
        truth=truth,
        absent=absent,
        lines=lines,
        conditions=scenario.condition_sets[0],
        storage=storage,
    )


class _ScenarioFaults:
    """Faults of one file, each with the line of the key that is wrong."""

    def __init__(self, file: Path, lines: _Lines) -> None:
        self._file = file
        self._lines = lines
        self._found: list[str] = []

    def add(self, key: tuple[str | int, ...], text: str) -> None:
        known = key
        while known and known not in self._lines:
            known = known[:-1]
        where = f"line {self._lines[known]}: " if known else ""
        self._found.append(f"{where}{'.'.join(map(str, key))}: {text}")

    def report(self) -> None:
        if self._found:
            raise ConfigError(str(self._file), self._found)


def _site(scenario: Scenario, folder: Path, faults: _ScenarioFaults) -> tuple[DecisionConfig, Path | None]:
    """Return the site configuration, with detector and alerts overridden, and the storage folder if it has one.

    It is that of the named file or of the inline sections.
    """
    storage = None
    if scenario.site is not None:
        try:
            whole = config.load(folder / scenario.site)
            site, storage = whole.for_decisions(), whole.storage.dir
        except ConfigError as error:
            faults.add(("site",), f"{error.source}: {'; '.join(error.problems)}")
            faults.report()
            raise
    else:
        cameras = {name: CameraConfig(**dict(camera)) for name, camera in scenario.cameras.items()}
        site = config.of_cameras(cameras).for_decisions()
    changes: dict[str, Any] = {}
    if scenario.alerts is not None:
        changes["alerts"] = scenario.alerts
    if scenario.detector is not None:
        changes["detector"] = _beside_scenario(scenario.detector, folder)
    if scenario.at_most.bytes is not None or scenario.verdicts is not None:
        changes["has_judge"] = True
    return replace(site, **changes), storage


def with_uplink(site: DecisionConfig) -> DecisionConfig:
    """Return the site as if it escalated, to measure what that costs. A replay never connects to the uplink."""
    asking = site.escalation.model_copy(update={"enabled": True})
    return replace(site, has_judge=True, escalation=asking)


def _beside_scenario(detector: DetectorConfig, folder: Path) -> DetectorConfig:
    """Prefer a model file beside the scenario to one of the same path elsewhere."""
    if (folder / detector.model).is_file():
        return detector.model_copy(update={"model": str(folder / detector.model)})
    return detector


def _parts(scenario: Scenario, site: DecisionConfig, folder: Path, faults: _ScenarioFaults) -> tuple[ScenarioPart, ...]:
    names = tuple(site.cameras)
    if scenario.clip is None:
        for name in scenario.clips:
            if name not in names:
                faults.add(("clips", name), f"there is no camera `{name}` (there is: {', '.join(names)})")
        return tuple(ScenarioPart(name, folder / clip) for name, clip in scenario.clips.items() if name in names)
    name = scenario.camera or (names[0] if len(names) == 1 else "")
    if not name:
        faults.add(("clip",), f"which camera filmed it? Add `camera:` with one of {', '.join(names)}")
    elif name not in names:
        faults.add(("camera",), f"there is no camera `{name}` (there is: {', '.join(names)})")
    else:
        return (ScenarioPart(name, folder / scenario.clip),)
    return ()


def _check_entries(
    scenario: Scenario, site: DecisionConfig, parts: Sequence[ScenarioPart], faults: _ScenarioFaults
) -> None:
    names = tuple(part.camera for part in parts)
    for section, entries in (("expect", scenario.expect), ("never", scenario.never)):
        for index, entry in enumerate(entries):
            if entry.camera is not None and entry.camera not in names:
                faults.add(
                    (section, index, "camera"), f"no clip of a camera `{entry.camera}` (there is: {', '.join(names)})"
                )
                continue
            cameras = [site.cameras[name] for name in names if entry.camera in (None, name)]
            for key, text in _unknown(entry, cameras):
                faults.add((section, index, key), text)
    for name in scenario.stood_before:
        if name not in names:
            faults.add(("stood_before", name), f"there is no camera `{name}` (there is: {', '.join(names)})")
    truth = scenario.truth
    if truth and (truth.camera not in names if truth.camera else len(names) != 1):
        faults.add(("truth", "camera"), f"say which camera it is the truth of: {', '.join(names)}")


def _unknown(entry: EventEntry, cameras: Sequence[CameraConfig]) -> list[tuple[str, str]]:
    """(key, text) for each name in the entry that none of the cameras has."""
    rules = [rule for camera in cameras for rule in camera.rules]
    names = {
        "rule": (entry.rule, {rule.name for rule in rules}),
        "zone": (entry.zone, {rule.zone for rule in rules if not isinstance(rule, LineRule)}),
        "line": (entry.line, {rule.line for rule in rules if isinstance(rule, LineRule)}),
        "label": (entry.label, {label for rule in rules if entry.rule in (None, rule.name) for label in rule.labels}),
    }
    faults = []
    for key, (name, known) in names.items():
        if name is not None and name not in known and cameras:
            listed = ", ".join(sorted(known)) or "none"
            scope = f"`{entry.rule}` watches" if key == "label" and entry.rule else "its rules use"
            faults.append((key, f"no rule can report the {key} `{name}` ({scope}: {listed})"))
    if (
        cameras
        and not faults
        and isinstance(entry, ExpectEntry)
        and not any(can_report(rule, *(getattr(entry, key) or "" for key in names)) for rule in rules)
    ):
        faults.append(("rule", "no single rule reports all of this together"))
    return faults


def _truth(scenario: Scenario, folder: Path, faults: _ScenarioFaults) -> Path | None:
    truth = scenario.truth
    required = [name for name in ("hota", "idf1", "mota", "ap50") if getattr(scenario.require, name) is not None]
    if truth is None:
        if required:
            faults.add(("require", required[0]), "needs `truth:` with the true boxes")
        return None
    path = folder / (truth.mot or truth.coco or truth.cvat or "")
    kind = format_of(truth)
    if not path.is_file():
        faults.add(("truth", kind), f"{path} is not there")
        return path
    try:
        read_labels(path, truth)  # now, and not after an hour of footage
    except ConfigError as error:
        for problem in error.problems:
            faults.add(("truth", kind), f"{path}: {problem}")
    return path


def plans_by_conditions(plan: ScenarioPlan, instead: Sequence[ConditionSet] = ()) -> list[ScenarioPlan]:
    """One plan for each set of conditions that the scenario names under `with`, or for each of `instead`."""
    return [
        replace(plan, conditions=each, name=title_with_conditions(plan.name, each))
        for each in instead or plan.scenario.condition_sets
    ]


def title_with_conditions(name: str, weather: ConditionSet) -> str:
    """`yard [rain:10mm, night:1lux]`; nothing is added for unchanged footage."""
    return f"{name} [{weather}]" if weather.conditions else name


def read_condition_sets(texts: Iterable[str], seed: int) -> tuple[ConditionSet, ...]:
    """Parse the texts of the command line, each a set of conditions."""
    return tuple(ConditionSet.parse([each], seed) for each in texts)


def verdict_source(text: str | None, folder: Path) -> Path | OracleOptions | None:
    """Return the source that `verdicts:` names: a cassette beside the scenario, or an oracle. Raise UsageError."""
    if text is None:
        return None
    try:
        source = parse_verdict_source(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(str(error)) from None
    if isinstance(source, Path):
        return folder / source
    if source.truth is not None:
        raise UsageError("the truth is this scenario itself: leave `truth=` away")
    return source


def check_verdict_source(text: str | None, folder: Path) -> None:
    """Read a named cassette from end to end. Raises UsageError where it is damaged."""
    source = verdict_source(text, folder)
    if isinstance(source, Path):
        for _ in CassetteReader(source).lines():
            pass
