"""The house rules that a machine can check: imports, lint, types, and what the documents must name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(sys.executable).parent


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"], ["lint-imports"]],
    ids=["lint", "format", "types", "imports"],
)
def test_the_checks_of_make_lint_pass(command: list[str]) -> None:
    done = subprocess.run(
        [str(TOOLS / command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_cloud_never_imports_pyav() -> None:
    code = "import sys, cloud_worker.worker, appliance.detect.detector; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_file_names_a_package_registry_or_a_home_folder() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    suspects = re.compile(r"(index-url|pypi\.org/|files\.pythonhosted|registry\.npmjs|[\s\"'=(]/(home|Users)/\w)")
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".txt", ".sh", ".js", ".html", ""} and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            if path != Path(__file__):
                assert not suspects.search(text), f"{name}: {suspects.search(text)}"


def test_only_clock_reads_a_clock() -> None:
    reads = re.compile(r"\btime\.(time|monotonic|perf_counter|sleep)\(|datetime\.(now|utcnow|today)\(")
    for path in [*ROOT.glob("appliance/**/*.py"), *ROOT.glob("cloud_worker/**/*.py")]:
        if path != ROOT / "appliance" / "clock.py":
            assert not reads.search(path.read_text()), f"{path.relative_to(ROOT)} reads a clock itself"


def test_the_design_page_names_every_package_and_module() -> None:
    listed = (ROOT / "docs" / "design.md").read_text().split("## Packages")[1].split("## Glossary")[0]
    for path in sorted((ROOT / "appliance").iterdir()):
        if path.is_dir() and path.name != "__pycache__":
            assert f"{path.name}/" in listed, f"docs/design.md does not name the package {path.name}/"
        elif path.suffix == ".py" and path.stem != "__init__":
            assert re.search(rf"\b{path.stem}\b", listed), f"docs/design.md does not name {path.name}"


def test_the_readme_names_every_command() -> None:
    readme = (ROOT / "README.md").read_text()
    for command in ("check", "run", "replay", "demo"):
        assert f"vedette {command}" in readme
    assert "vedette-worker run" in readme
    for target in ("make demo", "make test", "make lint", "make bench"):
        assert target in readme
