"""The list of planted faults is whole, most of them are seen, and what plants them plants one at a time."""

from __future__ import annotations

import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.mutation import edits, fault_list
from benchmarks.mutation.fault_list import AREAS, ROOT, STATES, Fault, fault_of, killed_share
from benchmarks.mutation.trials import _swaps

PYTHON = """\
import logging

logger = logging.getLogger(__name__)
LIMIT_S = 30 * 86400


def waits(asked: int | None, most: int = 4) -> bool:
    \"\"\"Whether it is too much.\"\"\"
    if asked is None:
        logger.info("nothing was asked")
        raise ValueError("say something")
    return asked + 1 >= most and not asked == LIMIT_S
"""
SHELL = """\
put() {
  install -m 0600 "$1" "$2"
}
if [ -n "$1" ]; then put a b || exit 2; fi
echo 'done = well'
"""


@pytest.fixture(scope="module")
def listed() -> list[Fault]:
    return fault_list.read()


def test_each_fault_of_the_list_says_what_was_planted_and_what_came_of_it(listed: list[Fault]) -> None:
    files = {area.name: area.files for area in AREAS}
    assert len({each.key for each in listed}) == len(listed)
    for each in listed:
        assert each.state in STATES
        assert each.file in files[each.area], each
        assert (each.line > 0, each.before != each.after, bool(each.operator)) == (True, True, True), each
        assert bool(each.killed_by) == (each.state == "killed"), each
        assert (len(each.reason) > 30) == (each.state == "equivalent"), each


def test_nine_of_ten_faults_are_seen_by_the_tests(listed: list[Fault]) -> None:
    assert len(listed) >= 200
    assert killed_share(listed) >= 0.9, fault_list.table(listed)
    for area in AREAS:
        mine = [each for each in listed if each.area == area.name]
        assert len(mine) >= 15, area.name
        assert killed_share(mine) >= 0.8, area.name


def test_equivalent_ones_do_not_count_and_survivors_do() -> None:
    one = Fault(area="a", file="f", line=1, operator="o", before="x", after="y")
    told = [replace(one, state=state) for state in ("killed", "killed", "killed", "survived", "equivalent")]
    assert killed_share(told) == 0.75
    assert "| all | 5 | 3 | 1 | 1 | 75% |" in fault_list.table(told)


def test_every_fault_of_a_module_is_one_that_python_reads_and_leaves_sentences_alone() -> None:
    made = {(each.operator, each.applied(PYTHON)) for each in edits.python_edits(PYTHON, random.Random(1))}
    assert all(edits.is_python(text) and text != PYTHON for _, text in made)
    kinds = {"comparison", "arithmetic", "boolean operator", "constant", "condition negated", "statement removed"}
    assert {operator for operator, _ in made} >= kinds
    changed = {line for _, text in made for line in set(text.split("\n")) - set(PYTHON.split("\n"))}
    for line in ("LIMIT_S = 30 / 86400", "    return asked + 1 > most and not asked == LIMIT_S", "        pass",
                 "def waits(asked: int | None, most: int = 5) -> bool:"):  # fmt: skip
        assert line in changed
    assert not [line for line in changed if "nothing was" in line or "too much" in line or "& None" in line]


def test_a_script_has_faults_too_and_what_it_says_has_none() -> None:
    texts = [each.applied(SHELL) for each in edits.shell_edits(SHELL)]
    changed = {line for text in texts for line in set(text.split("\n")) - set(SHELL.split("\n"))}
    for line in ('  install -m 0644 "$1" "$2"', "  :", 'if [ -z "$1" ]; then put a b || exit 2; fi'):
        assert line in changed
    assert 'if [ -n "$1" ]; then put a b && exit 2; fi' in changed
    assert edits.is_shell(SHELL)
    assert not edits.is_shell(SHELL.replace("then", "them"))


def test_a_fault_finds_its_lines_where_they_have_moved_to_and_is_gone_with_them() -> None:
    fault = fault_of("a", "f", "o", PYTHON, PYTHON.replace(">= most", "> most"))
    assert fault is not None
    assert (fault.line, fault.before.count("\n")) == (12, 0)
    moved = f'"""A title."""\n\n{PYTHON}'
    planted = fault.planted(moved)
    assert planted is not None
    assert [line for line in planted.split("\n") if line not in moved.split("\n")] == [fault.after]
    assert fault.planted(moved.replace("asked + 1", "asked + 2")) is None


def test_a_fault_in_a_function_is_put_into_it_and_one_of_a_table_is_not(tmp_path: Path) -> None:
    path = tmp_path / "waiting.py"
    found: dict[str, object] = {}
    exec(compile(PYTHON, str(path), "exec"), found)
    waits = found["waits"]
    swaps = _swaps(path, PYTHON, PYTHON.replace(">= most", "< most"))
    assert swaps is not None
    ((function, code),) = swaps
    assert (function is waits, waits(9)) == (True, True)  # type: ignore[operator]
    function.__code__ = code
    assert waits(9) is False  # type: ignore[operator]
    assert _swaps(path, PYTHON, PYTHON.replace("30 *", "31 *")) is None
    assert _swaps(path, PYTHON, PYTHON.replace("= 4", "= 5")) is None


def test_the_tree_that_is_copied_has_all_that_is_named() -> None:
    for area in AREAS:
        for name in (*area.files, *(f"tests/{each}" for each in area.tests)):
            assert (ROOT / name).is_file(), name
    assert subprocess.run(["sh", "-n", str(ROOT / "deploy/install.sh")], check=False).returncode == 0
