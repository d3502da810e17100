"""The files of the browser beside the others: a few of xdist's workers have nothing else, from the beginning.

Playwright keeps an event loop running in its worker until that ends, so in no worker may anything follow the browser's
files. In all workers at the end they left half of the cores idle: most of their time is waited for a page.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# They read all sources, which one process parses once for all of them.
READ_SOURCES = tuple(f"tests/unit/test_{each}.py" for each in ("architecture", "lab_layer", "vocabulary", "wiring"))
WORKERS_MIN = 4  # with fewer the browser's files come last in all of them
SHARE = 4  # of so many workers one has the files of the browser: measured, they take a quarter of the time of all


class BrowserBeside(LoadFileScheduling):
    """`loadfile`, in the order of the collection, with workers that have only files of `folder`. The others take those
    as well when nothing else is left."""

    folder = "tests/browser/"

    def __init__(self, *given: object) -> None:
        super().__init__(*given)
        self._browsers: frozenset[WorkerController] = frozenset()

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return READ_SOURCES[0] if file in READ_SOURCES else file

    def schedule(self) -> None:
        if self.collection is None and len(self.nodes) >= WORKERS_MIN:
            files = {self._split_scope(test) for test in next(iter(self.registered_collections.values()))}
            pages = sum(each.startswith(self.folder) for each in files)
            if pages < len(files):
                self._browsers = frozenset(self.nodes[: min(pages, len(self.nodes) // SHARE)])
        super().schedule()

    def _assign_work_unit(self, node: WorkerController) -> None:
        own = node in self._browsers
        scope = next((each for each in self.workqueue if each.startswith(self.folder) is own), None)
        if scope is None and own:
            node.shutdown()  # it finishes what it has
            return
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)
