"""Where evidence and verdicts are kept after the answer: what the worker needs of an archive, and the one without."""

from __future__ import annotations

from typing import Protocol

from appliance.wire import ArchiveLink, Verdict
from cloud_worker.judge import Case


class Shelf(Protocol):
    """An archive. Nothing here may wait: a verdict is never late because of it."""

    def links(self, case: Case, verdict: Verdict) -> tuple[ArchiveLink, ...]:
        """Where the evidence and the verdict will be found."""
        ...

    def put(self, case: Case, verdict: Verdict) -> None:
        """Keep them, soon. When too much is waiting they are left out, which is counted."""
        ...

    def waiting(self) -> int:
        """How many verdicts are not archived yet."""
        ...

    def close(self, seconds: float) -> None:
        """Finish for at most `seconds`; what is left then is left out, and counted. Blocks."""
        ...


class NoShelf:
    """Nothing is kept."""

    def links(self, case: Case, verdict: Verdict) -> tuple[ArchiveLink, ...]:
        return ()

    def put(self, case: Case, verdict: Verdict) -> None: ...

    def waiting(self) -> int:
        return 0

    def close(self, seconds: float) -> None: ...
