"""A test that fails where the clock was set runs again, with new fixtures; any other failure stays one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import time
import pytest
real, tries = time.time, []

@pytest.fixture(scope="module")
def made():
    tries.append("made")
    return len(tries)

def test_before(made):
    pass

def test_in_which_it_is_set(made):
    time.time = lambda: real() + {step}
    assert made > 1, tries
"""


@pytest.mark.parametrize(("step", "said"), [(60, "2 passed"), (-0.5, "2 passed"), (0.01, "1 failed, 1 passed")])
def test_a_step_of_the_clock_alone_gives_a_test_another_try(tmp_path: Path, step: float, said: str) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.support.clock_steps import ClockSteps\n\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(ClockSteps())\n"
    )
    (tmp_path / "test_it.py").write_text(TESTS.format(step=step))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert said in done.stdout, done.stdout + done.stderr
