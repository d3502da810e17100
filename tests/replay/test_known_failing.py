"""A scenario that is known to fail: it does not stop a build as long as it fails, and stops it when it passes."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from appliance.lab.scenario.scenario_command import ReportTargets, scenario_command
from appliance.scenario.scenario_runner import DetectorCache
from tests.support.block_footage import BrightBlock
from tests.support.yard_scenarios import VISIT, verdict_of, visit_clip, write

ROOT = Path(__file__).parents[2]
WHY = "the network hardly knows postmen"
CONFTEST = """
from tests.support.block_footage import BrightBlock

from appliance.detect import detector_loader

detector_loader.load = lambda settings: BrightBlock()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("footage")
    visit_clip(folder)
    return folder


def marked(score_min: float) -> dict[str, Any]:
    data = copy.deepcopy(VISIT)
    data["cameras"]["gate"]["rules"][0]["score_min"] = score_min
    return {**data, "known_failing": WHY}


def test_as_long_as_it_fails_it_stops_nothing(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    write(tmp_path, marked(0.95), "late")
    write(tmp_path, VISIT, "good")
    reports = ReportTargets(junit=tmp_path / "out.xml", html=tmp_path / "out.html")
    assert scenario_command([tmp_path], "", DetectorCache(load=lambda _: BrightBlock()), reports) == 0
    said = capsys.readouterr().out
    assert "1 passed, 1 known failing" in said
    assert WHY in said
    assert "missed at 0:02.8" in said, "what is missed is still told"
    (suite,) = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["2", "0", "1"]
    (skipped,) = suite.iter("skipped")
    assert (skipped.get("type"), skipped.get("message")) == ("pytest.xfail", f"known failing: {WHY}")
    page = (tmp_path / "out.html").read_text()
    assert f"Known to fail: {WHY}" in page
    assert page.count("data:image/jpeg;base64,") == 1


def test_when_it_passes_the_mark_must_go(folder: Path) -> None:
    verdict = verdict_of(write(folder, marked(0.5)), lambda _: BrightBlock())
    assert verdict.status == "failed"
    assert verdict.text.splitlines() == [
        "it passes now: remove `known_failing` from the file",
        f"  it was said to fail: {WHY}",
        "  [known_failing]",
    ]


def test_a_detector_that_does_not_answer_is_never_what_was_known(folder: Path) -> None:
    verdict = verdict_of(write(folder, marked(0.95)), lambda _: BrightBlock(fails=10_000))
    assert verdict.status == "failed"


def test_pytest_expects_the_failure_and_no_success(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "visit.mp4").symlink_to(folder / "visit.mp4")
    write(tmp_path, marked(0.95), "late")
    write(tmp_path, marked(0.5), "mended")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "appliance.lab.scenario.pytest_plugin", "-rx"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 xfailed" in done.stdout
    assert WHY in done.stdout
    assert "it passes now: remove `known_failing` from the file" in done.stdout
