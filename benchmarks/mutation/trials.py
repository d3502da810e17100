"""A pytest that runs an area's tests once, and then again for each fault those of them that reach its lines.

`python -m benchmarks.mutation.trials PLAN REPORT`, in a copy of the tree. Starting takes most of what a test costs,
so it is done once: for a fault a child is forked from the collected session, in which the functions of the module get
the faulty code (which the file has too, for processes that tests start). A fault in what runs at import, as a table or
a default, needs a pytest of its own.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import IO, Any

import pytest

from benchmarks.mutation.fault_list import Fault

_IS_FUNCTION = 0x1  # CO_OPTIMIZED: neither a module nor the body of a class
_TIMES_SLOWER = 6  # than without a fault: then it hangs, which counts as killed
_SLACK_S = 60.0
_FOLDER = "--basetemp=../files"  # emptied by each that begins; a child that is killed leaves much in it


@dataclass(slots=True)
class _Reach:
    """The lines (file, number) of the files in question that a test reached, and how long it took."""

    lines: set[tuple[str, int]]
    took_s: float


class Trials:
    """The plugin that takes the place of pytest's loop over the tests."""

    def __init__(self, faults: Sequence[Fault], files: Sequence[str], report: IO[str], quick_s: float) -> None:
        """files: of the tests, the closest first. quick_s: no more tests for a fault than take so long without it."""
        self._faults = faults
        self._files = list(files)
        self._quick_s = quick_s
        self._report = report
        self._reach: dict[str, _Reach] = {}
        self._items: list[pytest.Item] = []
        self._lines: set[tuple[str, int]] = set()
        self._made: dict[str, set[tuple[str, int]]] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._items = session.items
        wrong = self._rehearse()
        if wrong:
            self._say({"wrong": wrong})
            return True
        for fault in self._faults:
            with _planted(fault) as (text, mutated):
                self._say(self._tried(fault, text, mutated))
        return True

    def _say(self, words: dict[str, Any]) -> None:
        self._report.write(json.dumps(words) + "\n")
        self._report.flush()

    def _rehearse(self) -> str:
        """Run all without a fault, and note who reaches what; the test that fails, or ''."""
        names = {os.path.abspath(each.file): each.file for each in self._faults}
        notes = Path(f"{self._report.name}.reach")

        def work() -> str:
            reached: dict[str, Any] = {}
            for item, following in zip(self._items, [*self._items[1:], None], strict=True):
                self._lines = set()
                began = time.monotonic()
                with _traced(names, self._lines):
                    failed = _run(item, following)
                shared = (self._made.get(name, set()) for name in getattr(item, "fixturenames", ()))
                reached[item.nodeid] = [sorted(self._lines.union(*shared)), time.monotonic() - began]
                if failed:
                    return item.nodeid
            notes.write_text(json.dumps(reached))
            return ""

        state, said = _in_child(work, 1800.0)
        if state != 0:
            return said or f"the tests end with {state}"
        for name, (lines, took_s) in json.loads(notes.read_text()).items():
            self._reach[name] = _Reach({(file, line) for file, line in lines}, took_s)
        return ""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Count the lines that make a fixture of several tests for all of them: they run only in the first."""
        before = set(self._lines)
        result = yield
        if fixturedef.scope != "function":
            self._made.setdefault(fixturedef.argname, set()).update(self._lines - before)
        return result

    def _tried(self, fault: Fault, text: str, mutated: str) -> dict[str, Any]:
        chosen = self._chosen(fault)
        limit_s = _SLACK_S + _TIMES_SLOWER * sum(self._reach[each.nodeid].took_s for each in chosen)
        swaps = _swaps(Path(fault.file), text, mutated)

        def work() -> str:
            for function, code in swaps or []:
                function.__code__ = code
            for item, following in zip(chosen, [*chosen[1:], None], strict=True):
                if _run(item, following):
                    return item.nodeid
            return ""

        if swaps is None:
            state, said = _in_a_new_pytest([each.nodeid for each in chosen], limit_s)
        else:
            state, said = _in_child(work, limit_s)
        killed_by = "timeout" if state is None else said or "start"
        return {"number": self._faults.index(fault), "killed_by": "" if state == 0 else killed_by}

    def _chosen(self, fault: Fault) -> list[pytest.Item]:
        """Return the tests that run the fault's lines, or all where none is known to, in the order of the area.

        The tests of the file that saw the fault before come first.
        """
        lines = {(fault.file, fault.line + down) for down in range(fault.before.count("\n") + 1)}
        reaching = [each for each in self._items if lines & self._reach[each.nodeid].lines]
        first = fault.killed_by.partition("::")[0]

        def order(item: pytest.Item) -> tuple[bool, int]:
            file = item.nodeid.partition("::")[0]
            return file != first, self._files.index(file)

        ordered = sorted(reaching or self._items, key=order)
        took_s = list(accumulate(self._reach[each.nodeid].took_s for each in ordered))
        return [each for each, so_far in zip(ordered, took_s, strict=True) if so_far <= self._quick_s] or ordered[:1]


@contextlib.contextmanager
def _planted(fault: Fault) -> Iterator[tuple[str, str]]:
    """Plant the fault in the file meanwhile; yield its text without and with it."""
    path = Path(fault.file)
    text = path.read_text(encoding="utf-8")
    mutated = fault.planted(text)
    assert mutated is not None, "the list was checked against this tree"
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()  # it is told apart by size and second alone
    path.write_text(mutated, encoding="utf-8")
    try:
        yield text, mutated
    finally:
        path.write_text(text, encoding="utf-8")


def _run(item: pytest.Item, following: pytest.Item | None) -> bool:
    """Return whether the test fails."""
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    return bool(item.session.testsfailed)


@contextlib.contextmanager
def _traced(names: dict[str, str], found: set[tuple[str, int]]) -> Iterator[None]:
    """Note the lines that are run of these files."""

    def line(frame: FrameType, event: str, _: object) -> Any:
        found.add((names[frame.f_code.co_filename], frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, _: object) -> Any:
        return line(frame, event, _) if frame.f_code.co_filename in names else None

    threading.settrace(call)
    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def _in_child(work: Callable[[], str], limit_s: float) -> tuple[int | None, str]:
    """Fork: 0 and '', 1 and the test that fails by `work`, 3 where that crashed, or None: it took too long."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.setsid()
            os.close(reading)
            with open(writing, "w", encoding="utf-8") as say:
                found = work()
                say.write(found)
            code = 1 if found else 0
        finally:
            os._exit(code)  # neither fixtures nor threads of a test that failed are waited for
    os.close(writing)
    end = time.monotonic() + limit_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended or time.monotonic() > end:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with what the tests left running
    if not ended:
        os.waitpid(child, 0)
    with open(reading, encoding="utf-8", errors="replace") as said_by:
        said_text = said_by.read()
    return (os.waitstatus_to_exitcode(status), said_text) if ended else (None, "")


def _in_a_new_pytest(tests: Sequence[str], limit_s: float) -> tuple[int | None, str]:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-rfE", _FOLDER, *tests]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        text=True,
    ) as child:  # fmt: skip
        try:
            said = child.communicate(timeout=limit_s + _SLACK_S)[0]
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    named = [line.split()[1] for line in said.splitlines() if line.startswith(("FAILED ", "ERROR ")) and "::" in line]
    return child.returncode, named[0] if named else ""


def _swaps(path: Path, text: str, mutated: str) -> list[tuple[FunctionType, CodeType]] | None:
    """Return the living functions of this file, and what they become; None if more than functions changes."""
    if path.suffix != ".py":
        return []
    before, after = (list(_codes(compile(each, str(path), "exec", dont_inherit=True))) for each in (text, mutated))
    if [each.co_name for each in before] != [each.co_name for each in after]:
        return None
    pairs = list(zip(before, after, strict=True))
    if any(not old.co_flags & _IS_FUNCTION and _plain(old) != _plain(new) for old, new in pairs):
        return None
    become: dict[tuple[str, int], CodeType] = {}
    for old, new in pairs:
        key = old.co_name, old.co_firstlineno
        if key in become and _plain(old) != _plain(new):
            return None  # two of one name on one line
        become[key] = new
    whole = os.path.abspath(path)
    living = [each for each in gc.get_objects() if type(each) is FunctionType and each.__code__.co_filename == whole]
    swaps = [(each, become[each.__code__.co_name, each.__code__.co_firstlineno]) for each in living]
    return swaps if all(len(each.__code__.co_freevars) == len(code.co_freevars) for each, code in swaps) else None


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _plain(code: CodeType) -> tuple[object, ...]:
    """Return the code's own part, without the functions in it."""
    own: Iterable[object] = (repr(each) for each in code.co_consts if not isinstance(each, CodeType))
    return code.co_code, tuple(own), code.co_names, code.co_varnames, code.co_freevars


def main(plan: Path, report: Path) -> int:
    asked = json.loads(plan.read_text(encoding="utf-8"))
    faults = [Fault(**each) for each in asked["faults"]]
    with report.open("a", encoding="utf-8") as to:
        arguments = ["-q", "-p", "no:cacheprovider", "--tb=no", _FOLDER, *asked["tests"]]
        return int(pytest.main(arguments, plugins=[Trials(faults, asked["tests"], to, asked["quick_s"])]))


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
