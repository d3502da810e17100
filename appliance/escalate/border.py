"""What may still leave when its turn comes: the last word before the wire."""

from __future__ import annotations

from typing import Protocol

from appliance import wire


class Border(Protocol):
    """The owner's rules as they stand now; what waits in the outbox may have been made under others."""

    def forbids(self, question: wire.Escalation) -> bool:
        """Nothing of it may leave."""
        ...

    def withholds(self, camera: str, path: str) -> bool:
        """This picture (a file of the storage folder) may not leave."""
        ...


class Open:
    """No rules."""

    def forbids(self, question: wire.Escalation) -> bool:
        return False

    def withholds(self, camera: str, path: str) -> bool:
        return False
