"""Scenario files around small films, for tests: a visit to the yard of block_footage.py, and what should come of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from appliance.scenario import scenario_loader
from appliance.scenario import scenario_runner as scenario_run
from appliance.scenario.scenario_result import ScenarioResult
from appliance.scenario.scenario_runner import DetectorCache, DetectorLoader
from tests.support.block_footage import block_clip

YARD: dict[str, Any] = {
    "zones": {"yard": [[0.5, 0], [1, 0], [1, 1], [0.5, 1]]},
    "lines": {"door": [[0.5, 1.0], [0.5, 0.0]]},
    "rules": [
        {"name": "intruder", "kind": "enter", "zone": "yard", "severity": "alert"},
        {"name": "loiterer", "kind": "dwell", "zone": "yard", "seconds": 2},
        {"name": "in", "kind": "line", "line": "door", "direction": "left_to_right"},
    ],
}
VISIT: dict[str, Any] = {
    "clip": "visit.mp4",
    "cameras": {"gate": YARD},
    "expect": [
        {"rule": "intruder", "label": "person", "at": 2.8, "note": "the postman"},
        {"rule": "in", "line": "door", "between": [2, 4]},
        {"rule": "loiterer", "zone": "yard", "between": ["0:04", 8]},
    ],
    "never": [{"between": [0, 2]}],
    "others": "never",
    "at_most": {"alerts": 1},
}


def there_and_back(t: float) -> float | None:
    """In at 1 s, over the middle at 2.6 s, standing still until 8 s, and back out over it; gone from 11 s."""
    if t < 1 or t > 11:
        return None
    return 0.1 + 0.25 * min(max(t - 1, 0), 2.4) if t < 8 else 0.7 - 0.25 * min(t - 8, 2.4)


def visit_clip(folder: Path) -> Path:
    return block_clip(folder / "visit.mp4", 14, there_and_back)


def write(folder: Path, data: dict[str, Any], name: str = "visit") -> Path:
    file = folder / f"{name}.scenario.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


def verdict_of(file: Path, load: DetectorLoader) -> ScenarioResult:
    return scenario_run.run_scenario(scenario_loader.load_scenario(file), DetectorCache(load=load))
