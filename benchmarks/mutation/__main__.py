"""Planting of small faults, one at a time, to see the share of them that the closest tests notice.

    python -m benchmarks.mutation                          # all that the list does not know yet: half an hour
    python -m benchmarks.mutation --area guard --again     # try those again that survived
    python -m benchmarks.mutation --every                  # and those that were killed

Faults are drawn by a seed and written to faults.jsonl beside this file as each is tried, so that a run that is cut goes
on where it was. A fault whose lines have changed is dropped, and another is drawn. A survivor wants a test, or a
`state` of "equivalent" with the `reason` why no test can tell.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.mutation import fault_list
from benchmarks.mutation.fault_list import AREAS, ROOT, Area, Fault, drawn, killed_share

SHARE_MIN = 0.9
MEMORY = Path("/dev/shm")


class TreeError(Exception):
    """The tests fail without any fault, or there is no tree to copy."""


class _List:
    """The list on disk, written after each trial."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._faults = {each.key: each for each in fault_list.read(path)}

    def all(self) -> list[Fault]:
        return list(self._faults.values())

    def put(self, fault: Fault) -> None:
        with self._lock:
            self._faults[fault.key] = fault
            fault_list.write(self._faults.values(), self._path)

    def drop(self, fault: Fault) -> None:
        with self._lock:
            del self._faults[fault.key]
            fault_list.write(self._faults.values(), self._path)


def main(arguments: Sequence[str] | None = None) -> int:
    words = argparse.ArgumentParser(
        prog="python -m benchmarks.mutation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("--seed", type=int, default=7)
    words.add_argument("--faults", type=int, default=240, help="in all areas together (default 240)")
    words.add_argument("--area", action="append", choices=[each.name for each in AREAS], help="these areas only")
    words.add_argument("--jobs", type=int, default=2, help="areas at a time (default 2)")
    words.add_argument(
        "--quick", type=float, default=1e6, metavar="S", help="seconds of tests a fault at most (no limit)"
    )
    words.add_argument("--again", action="store_true", help="also those that survived before")
    words.add_argument("--every", action="store_true", help="also those that were killed before")
    words.add_argument("--list", type=Path, default=fault_list.LIST)
    given = words.parse_args(arguments)
    listed = _List(given.list)
    wanted = [area for area in AREAS if not given.area or area.name in given.area]
    todo = [(area, due) for area in wanted if (due := _due(listed, area, given))]
    print(f"{sum(len(due) for _, due in todo)} faults to try", flush=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        wrong = [each for each in pool.map(lambda job: _try_area(job[0], job[1], listed, given.quick), todo) if each]
    print(fault_list.table(listed.all()))
    print("\n".join(wrong), file=sys.stderr)
    return 2 if wrong else 0 if killed_share(listed.all()) >= SHARE_MIN else 1


def _due(listed: _List, area: Area, given: argparse.Namespace) -> list[Fault]:
    """Return the faults to try in an area: those of the list that were asked for, and new ones for those missing."""
    mine = []
    for each in [each for each in listed.all() if each.area == area.name]:
        if each.planted((ROOT / each.file).read_text(encoding="utf-8")) is None:
            print(f"gone: {each.file}:{each.line} {each.operator}")
            listed.drop(each)
        else:
            mine.append(each)
    again = {"survived": given.again or given.every, "killed": given.every, "equivalent": False}
    missing = given.faults // len(AREAS) - len(mine)
    new = drawn(area, given.seed, missing, {each.key for each in mine}) if missing > 0 else []
    return [*(each for each in mine if again[each.state]), *new]


def _try_area(area: Area, due: list[Fault], listed: _List, quick_s: float) -> str:
    """Try the faults of an area, and return what went wrong, or an empty text."""
    memory = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mutation-", dir=memory, ignore_cleanup_errors=True) as made:
        try:
            for done in _tried(area, due, Path(made), quick_s):
                listed.put(done)
                print(f"{done.state}: {done.file}:{done.line} {done.operator} {done.killed_by}", flush=True)
        except TreeError as error:
            return f"{area.name}: {error}"
    return ""


def _tried(area: Area, due: list[Fault], folder: Path, quick_s: float) -> Iterator[Fault]:
    """Yield each fault with what came of it, from a pytest in a copy of the tree. Raise TreeError."""
    copy, plan, report = folder / "tree", folder / "plan.json", folder / "report.jsonl"
    _copy_tree(copy)
    tests = [f"tests/{each}" for each in area.tests]
    asked = {"faults": [asdict(each) for each in due], "tests": tests, "quick_s": quick_s}
    plan.write_text(json.dumps(asked), encoding="utf-8")
    report.touch()
    # Nothing compiled is kept of a fault, and processes that tests start import this copy, too.
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.mutation.trials", str(plan), str(report)],
        cwd=copy, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as child, report.open(encoding="utf-8") as told:  # fmt: skip
        left = len(due)
        while left:
            ended = child.poll() is not None
            line = told.readline()
            if not line:
                if ended:
                    raise TreeError(f"pytest ended with {child.returncode}; run {' '.join(tests)}")
                time.sleep(0.2)
                continue
            words = json.loads(line)
            if "wrong" in words:
                raise TreeError(f"fails without a fault: {words['wrong']}")
            killed_by, left = words["killed_by"], left - 1
            yield replace(due[words["number"]], state="killed" if killed_by else "survived", killed_by=killed_by)


def _copy_tree(to: Path) -> None:
    """Copy the files that git knows or does not ignore. Raise TreeError."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise TreeError(f"this is no working tree of git: {listed.stderr.strip()}")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "appliance", "cloud_worker"], cwd=to, check=False,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
