"""How files are shared out among the workers of a run: the browser's beside the others, and nothing after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xdist", reason="pytest-xdist is in the dev extra")
from tests.support.browser_beside import READ_SOURCES, BrowserBeside

UNIT = [f"tests/unit/test_{n}.py::test_{m}" for n in range(8) for m in range(3)]
BROWSER = [f"tests/browser/test_{n}.py::test_{m}" for n in range(4) for m in range(3)]


class Worker:
    """A worker that does at once what it is told."""

    def __init__(self, number: int) -> None:
        self.gateway = type("Gateway", (), {"id": f"gw{number}"})
        self.queue: list[int] = []
        self.done: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def run(config: Any, count: int, tests: list[str]) -> list[Worker]:
    """All workers take turns, a test each."""
    scheduler, workers = BrowserBeside(config), [Worker(number) for number in range(count)]
    scheduler.numnodes = count
    for each in workers:
        scheduler.add_node(each)  # type: ignore[arg-type]
        scheduler.add_node_collection(each, tests)  # type: ignore[arg-type]
    scheduler.schedule()
    while any(each.queue for each in workers):
        for each in workers:
            if each.queue:
                index = each.queue.pop(0)
                each.done.append(tests[index])
                scheduler.mark_test_complete(each, index)  # type: ignore[arg-type]
    assert not scheduler.has_pending
    assert all(each.shutting_down for each in workers)
    assert sorted(test for each in workers for test in each.done) == sorted(tests)
    return workers


@pytest.fixture
def parallel(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> pytest.Config:
    monkeypatch.setattr(pytestconfig.option, "tx", ["popen"])
    monkeypatch.setattr(pytestconfig.option, "loadscopereorder", False)
    return pytestconfig


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 9])
def test_every_test_runs_once_and_none_after_the_browsers_in_one_worker(parallel: pytest.Config, count: int) -> None:
    for worker in run(parallel, count, UNIT + BROWSER):
        kinds = [test.startswith(BrowserBeside.folder) for test in worker.done]
        assert kinds == sorted(kinds)


def test_of_eight_workers_two_have_the_browser_from_the_beginning(parallel: pytest.Config) -> None:
    first = [worker.done[0].startswith(BrowserBeside.folder) for worker in run(parallel, 8, UNIT + BROWSER)]
    assert first == [True] * 2 + [False] * 6


def test_what_reads_all_sources_runs_in_one_worker(parallel: pytest.Config) -> None:
    sources = [f"{file}::test_{n}" for n in range(3) for file in READ_SOURCES]
    busy = [worker.done for worker in run(parallel, 3, sources + UNIT) if set(worker.done) & set(sources)]
    assert [set(sources) <= set(done) for done in busy] == [True]
    root = Path(__file__).parents[2]
    assert [file for file in READ_SOURCES if not (root / file).is_file()] == []


@pytest.mark.parametrize("tests", [UNIT, BROWSER])
def test_without_the_browser_or_anything_else_all_workers_work(parallel: pytest.Config, tests: list[str]) -> None:
    assert all(worker.done for worker in run(parallel, 4, tests))
