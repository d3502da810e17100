"""What the lanes are handed, and what they say of themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from appliance.alerts.notify.message import Composer
from appliance.alerts.notify.request import Request
from appliance.clock import Clock
from appliance.store.alerts import Alerts
from appliance.store.notices import NewNotice, Notices
from appliance.types import Alert

if TYPE_CHECKING:
    from appliance.alerts.notify.post import Reply


class Sends(Protocol):
    """The way to a target; see post.py."""

    async def send(self, request: Request) -> Reply: ...

    async def close(self) -> None: ...


class Surroundings(Protocol):
    """See around.py."""

    @property
    def answers(self) -> bool: ...

    def degraded(self, camera: str, *, unverified: bool) -> tuple[str, ...]: ...


class Counts(Protocol):
    """Where bytes are counted; see appliance.store.meter."""

    def add(self, camera: str, kind: str, amount: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetState:
    """How a target does. failing_since: UTC seconds of the first failure since a message arrived; None: it is well.

    Counts are since the start: messages that arrived (told: the first about an alert), alerts that were dropped before
    anybody was told, and tries that failed.
    """

    name: str
    kind: str
    host: str
    failing_since: float | None = None
    error: str = ""
    waiting: int = 0
    told: int = 0
    updated: int = 0
    withdrawn: int = 0
    quiet: int = 0
    forbidden: int = 0
    given_up: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Unwritten:
    """An alert that waits in memory because the disk takes nothing."""

    notice: NewNotice
    alert: Alert
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What all lanes share."""

    notices: Notices
    alerts: Alerts
    composer: Composer
    around: Surroundings
    counts: Counts
    clock: Clock
