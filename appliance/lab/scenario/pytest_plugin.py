"""Makes every *.scenario.yaml a pytest test (`pytest my-footage/`).

Installed with the package and loaded in every pytest run: it imports nothing of the appliance until a scenario is
collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from appliance.lab.scenario.html_report import StillsByFrame
    from appliance.replay.footage_conditions import ConditionSet
    from appliance.scenario.scenario_result import ScenarioResult
    from appliance.scenario.scenario_runner import DetectorCache

_SUFFIX = ".scenario.yaml"


@dataclass
class _SharedState:
    """The state that the scenarios of one pytest session share. Owner: the pytest config."""

    models: DetectorCache | None = None
    results: list[ScenarioResult] = field(default_factory=list)
    stills: list[StillsByFrame] = field(default_factory=list)
    condition_sets: tuple[ConditionSet, ...] = ()


_shared = pytest.StashKey[_SharedState]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("vedette", "Vedette scenarios (*.scenario.yaml)")
    group.addoption("--vedette-model", metavar="M", help="use this model instead of what scenarios and sites name")
    group.addoption(
        "--vedette-with",
        action="append",
        default=[],
        metavar="W",
        help="run scenarios in this weather (rain,night,drop:5%%) instead of their own; repeatable",
    )
    group.addoption("--vedette-seed", type=_seed, default=0, metavar="N", help="of the chance in --vedette-with")
    group.addoption("--vedette-html", metavar="FILE", help="write a report with pictures of the scenarios here")


def _seed(text: str) -> int:
    from appliance.replay.footage_conditions import parse_seed

    return parse_seed(text)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_shared] = _SharedState()
    if config.getoption("--vedette-with"):
        from appliance.base.errors import UsageError
        from appliance.scenario.scenario_loader import read_condition_sets

        try:
            found = read_condition_sets(config.getoption("--vedette-with"), config.getoption("--vedette-seed"))
        except UsageError as error:
            raise pytest.UsageError(f"--vedette-with: {error}") from None
        config.stash[_shared].condition_sets = found
    target = config.getoption("--vedette-html")
    if target and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"--vedette-html: there is no folder {Path(target).parent}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.name.endswith(_SUFFIX):
        return ScenarioTestFile.from_parent(parent, path=file_path)
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report, if one is wanted and anything was run. Under pytest-xdist each worker would write its own."""
    target, shared = session.config.getoption("--vedette-html"), session.config.stash[_shared]
    if not target or not shared.results:
        return
    from appliance.base.clock import SystemClock
    from appliance.lab.scenario.html_report import html_report
    from appliance.lab.scenario.scenario_command import total_figures

    text = html_report(shared.results, shared.stills, total_figures(shared.results), SystemClock().now())
    Path(target).write_text(text, encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    shared = config.stash[_shared]
    if not shared.results:
        return
    from appliance.lab.scenario.scenario_command import summary_lines

    terminalreporter.section("Vedette scenarios")
    for line in summary_lines(shared.results):
        terminalreporter.write_line(line)
    if config.getoption("--vedette-html"):
        terminalreporter.write_line(f"report: {config.getoption('--vedette-html')}")


class ScenarioTestFile(pytest.File):
    """One file: a test for each set of conditions. A faulty file is one test, which fails with its faults."""

    def collect(self) -> Iterator[pytest.Item]:
        from appliance.base.errors import VedetteError
        from appliance.scenario.scenario_loader import load_scenario, title_with_conditions

        name, requested = self.path.name.removesuffix(_SUFFIX), self.config.stash[_shared].condition_sets
        try:
            condition_sets = requested or load_scenario(self.path).scenario.condition_sets
        except VedetteError:
            condition_sets = ()
        if not condition_sets:
            yield ScenarioTestItem.from_parent(self, name=name)
        for conditions in condition_sets:
            title = title_with_conditions(name, conditions)
            yield ScenarioTestItem.from_parent(self, name=title, conditions=conditions)


class ScenarioFailed(Exception):
    """The scenario failed; the message lists its faults."""


class ScenarioTestItem(pytest.Item):
    """Runs one scenario under one set of conditions. A faulty file fails with each fault and its line."""

    def __init__(self, *, conditions: ConditionSet | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        self._conditions = conditions

    def runtest(self) -> None:
        from appliance.base.errors import VedetteError
        from appliance.lab.scenario.html_report import cut_stills
        from appliance.scenario.scenario_loader import load_scenario, plans_by_conditions
        from appliance.scenario.scenario_runner import DetectorCache, run_scenario

        shared = self.config.stash[_shared]
        if shared.models is None:
            shared.models = DetectorCache(self.config.getoption("--vedette-model"))
        try:
            plan = load_scenario(self.path)
            if self._conditions is not None:
                (plan,) = plans_by_conditions(plan, [self._conditions])
            result = run_scenario(plan, shared.models)
        except VedetteError as error:
            raise ScenarioFailed(_error_text(error)) from None
        shared.stills.append(cut_stills(result, shared.stills) if self.config.getoption("--vedette-html") else {})
        shared.results.append(result)
        if result.status == "skipped":
            pytest.skip(result.reason)
        if result.status == "known failing":  # strict: one that passes has failed
            pytest.xfail(result.reason)
        if result.status == "failed":
            raise ScenarioFailed(result.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the faults alone, without a traceback through our code."""
        if isinstance(excinfo.value, ScenarioFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"scenario {self.name}"


def _error_text(error: Exception) -> str:
    from appliance.base.errors import ConfigError

    if isinstance(error, ConfigError):
        return "\n".join([f"{error.source}:", *(f"  {problem}" for problem in error.problems)])
    return str(error)
