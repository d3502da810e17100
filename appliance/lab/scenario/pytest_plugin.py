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
    from appliance.lab.conditions.condition_spec import ConditionSet
    from appliance.lab.scenario.html_report import StillsByFrame
    from appliance.lab.scenario.scenario_result import ScenarioResult
    from appliance.lab.scenario.scenario_runner import DetectorCache

_SUFFIX = ".scenario.yaml"


@dataclass
class _Session:
    """What the scenarios of one pytest session share. Owner: the pytest config."""

    models: DetectorCache | None = None
    verdicts: list[ScenarioResult] = field(default_factory=list)
    stills: list[StillsByFrame] = field(default_factory=list)
    weathers: tuple[ConditionSet, ...] = ()


_session = pytest.StashKey[_Session]()


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
    group.addoption("--vedette-seed", type=int, default=0, metavar="N", help="of the chance in --vedette-with")
    group.addoption("--vedette-html", metavar="FILE", help="write a report with pictures of the scenarios here")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_session] = _Session()
    if config.getoption("--vedette-with"):
        from appliance.errors import UsageError
        from appliance.lab.scenario.scenario_loader import read_condition_sets

        try:
            found = read_condition_sets(config.getoption("--vedette-with"), config.getoption("--vedette-seed"))
        except UsageError as error:
            raise pytest.UsageError(f"--vedette-with: {error}") from None
        config.stash[_session].weathers = found
    target = config.getoption("--vedette-html")
    if target and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"--vedette-html: there is no folder {Path(target).parent}")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.name.endswith(_SUFFIX):
        return ScenarioFile.from_parent(parent, path=file_path)
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The report, if one is wanted and anything was run. Under pytest-xdist each worker would write its own."""
    target, done = session.config.getoption("--vedette-html"), session.config.stash[_session]
    if not target or not done.verdicts:
        return
    from appliance.clock import SystemClock
    from appliance.lab.scenario import html_report
    from appliance.lab.scenario.scenario_command import total_figures

    text = html_report.html_report(done.verdicts, done.stills, total_figures(done.verdicts), SystemClock().now())
    Path(target).write_text(text, encoding="utf-8")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    done = config.stash[_session]
    if not done.verdicts:
        return
    from appliance.lab.scenario.scenario_command import summary_lines

    terminalreporter.section("Vedette scenarios")
    for line in summary_lines(done.verdicts):
        terminalreporter.write_line(line)
    if config.getoption("--vedette-html"):
        terminalreporter.write_line(f"report: {config.getoption('--vedette-html')}")


class ScenarioFile(pytest.File):
    """One file: one test, or one for each weather. A file that is wrong is one test, which fails with its faults."""

    def collect(self) -> Iterator[pytest.Item]:
        from appliance.errors import VedetteError
        from appliance.lab.scenario import scenario_loader
        from appliance.lab.scenario.scenario_loader import title_with_conditions

        name, asked = self.path.name.removesuffix(_SUFFIX), self.config.stash[_session].weathers
        try:
            weathers = asked or scenario_loader.load_scenario(self.path).scenario.condition_sets
        except VedetteError:
            weathers = ()
        if not weathers:
            yield ScenarioItem.from_parent(self, name=name)
        for weather in weathers:
            yield ScenarioItem.from_parent(self, name=title_with_conditions(name, weather), weather=weather)


class ScenarioFailed(Exception):
    """The scenario failed; the message holds its words."""


class ScenarioItem(pytest.Item):
    """Runs one scenario, in one weather. A file that is wrong fails as a test does, with each fault and its line."""

    def __init__(self, *, weather: ConditionSet | None = None, **rest: Any) -> None:
        super().__init__(**rest)
        self._weather = weather

    def runtest(self) -> None:
        from appliance.errors import VedetteError
        from appliance.lab.scenario import scenario_loader
        from appliance.lab.scenario import scenario_runner as scenario_run
        from appliance.lab.scenario.html_report import cut_stills
        from appliance.lab.scenario.scenario_loader import plans_by_conditions

        done = self.config.stash[_session]
        if done.models is None:
            done.models = scenario_run.DetectorCache(self.config.getoption("--vedette-model"))
        try:
            planned = scenario_loader.load_scenario(self.path)
            if self._weather is not None:
                (planned,) = plans_by_conditions(planned, [self._weather])
            verdict = scenario_run.run_scenario(planned, done.models)
        except VedetteError as error:
            raise ScenarioFailed(_words(error)) from None
        done.stills.append(cut_stills(verdict, done.stills) if self.config.getoption("--vedette-html") else {})
        done.verdicts.append(verdict)
        if verdict.status == "skipped":
            pytest.skip(verdict.reason)
        if verdict.status == "known failing":  # strict: one that passes has failed
            pytest.xfail(verdict.reason)
        if verdict.status == "failed":
            raise ScenarioFailed(verdict.text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The words alone: where in our code it was noticed helps nobody."""
        if isinstance(excinfo.value, ScenarioFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"scenario {self.name}"


def _words(error: Exception) -> str:
    from appliance.errors import ConfigError

    if isinstance(error, ConfigError):
        return "\n".join([f"{error.source}:", *(f"  {problem}" for problem in error.problems)])
    return str(error)
