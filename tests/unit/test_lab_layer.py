"""The lab is one layer on top: the running appliance never loads it; only the command line imports it, when asked."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base import child_processes
from tests.support.python_source import parsed

ROOT = Path(__file__).parents[2]
LAB = ROOT / "appliance" / "lab"


def imported(node: ast.AST) -> list[str]:
    """Return the modules, and names in them, that a statement imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


@functools.cache  # from many modules the same ones are reached
def imported_by(path: Path) -> frozenset[str]:
    return frozenset(name for node in ast.walk(parsed(path)) for name in imported(node))


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each imported module of `appliance.lab` in a file, and whether it is loaded with the file (not within a call)."""
    text = path.read_text(encoding="utf-8")
    if not re.search(r"\blab\b", text):
        return
    tree = parsed(path)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for_types = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    later = {id(node) for scope in (*functions, *for_types) for node in ast.walk(scope)}
    for node in ast.walk(tree):
        yield from (
            (name, id(node) not in later) for name in imported(node) if name.split(".")[:2] == ["appliance", "lab"]
        )


@pytest.mark.parametrize("package", ["appliance", "cloud_worker", "models", "deploy"])
def test_only_the_command_line_imports_the_lab_and_only_when_a_command_runs(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.is_relative_to(LAB):
            continue
        for name, at_once in imports(path):
            assert path.parent == ROOT / "appliance" / "cli", f"{path.relative_to(ROOT)} imports {name}"
            assert not at_once, f"{path.relative_to(ROOT)} imports {name} before its command runs"


# One process for all three: what none of them has loaded, all of them together have not.
RUN = """
import sys
from pathlib import Path
from appliance.__main__ import main
try:
    main(["replay", "--help"])
except SystemExit:
    pass
assert main(["run", "--config", "nowhere.yaml"]) == 2
import appliance.core.app
import appliance.ingest.process
"""


def reached_from(module: str) -> set[str]:
    """Every module of ours that a process may load which runs `module`, whenever it does."""
    reached, to_see = set(), {f"{module}.__main__", module}
    while to_see:
        name = to_see.pop()
        path = ROOT.joinpath(*name.split("."))
        source = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
        if source is None or name in reached:
            continue
        reached.add(name)
        to_see |= {each for each in imported_by(source) if each.startswith("appliance")}
    return reached


# `vedette` holds every command; which of them load the lab is the test above.
@pytest.mark.parametrize("module", sorted(set(child_processes.RUNTIME) - {child_processes.APPLIANCE}))
def test_no_child_of_the_running_appliance_can_reach_the_lab(module: str) -> None:
    reached = reached_from(module)
    assert reached, f"{module} in appliance/base/child_processes.py is no module"
    assert [name for name in sorted(reached) if name.startswith("appliance.lab")] == []


def test_what_starts_a_process_takes_its_module_from_the_table() -> None:
    table = ROOT / "appliance" / "base" / "child_processes.py"
    named = {*child_processes.RUNTIME, *child_processes.LAB} - {child_processes.APPLIANCE}
    for path in sorted((ROOT / "appliance").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if '"-m"' not in text and not any(module in text for module in named):
            continue
        tree = parsed(path)
        words = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert path == table or not words & named, f"{path.relative_to(ROOT)} names {words & named} itself"
        for node in ast.walk(tree):
            after_m = isinstance(node, ast.List | ast.Tuple) and [
                ast.unparse(second)
                for first, second in zip(node.elts, node.elts[1:], strict=False)
                if isinstance(first, ast.Constant) and first.value == "-m"
            ]
            for module in after_m or []:
                assert hasattr(child_processes, module), f"{path.relative_to(ROOT)} starts {module}"


def test_the_running_appliance_and_the_help_load_nothing_of_the_lab(tmp_path: Path) -> None:
    shown = "print([name for name in sys.modules if name.startswith('appliance.lab')], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{RUN}\n{shown}"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.stderr.splitlines()[-1] == "[]"


def test_replays_and_scenarios_run_without_the_libraries_of_the_lab_extra() -> None:
    modules = ", ".join(
        f"appliance.lab.{name}" for name in ("replay_command", "replay_diff_command", "scenario.scenario_command")
    )
    heavy = "{'matplotlib', 'pycocotools', 'motmetrics', 'trackeval', 'scipy', 'pandas'}"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
