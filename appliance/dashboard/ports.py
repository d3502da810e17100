"""What the dashboard asks of the core that it runs in, besides the store: is the link up, how does ingest do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.types import HealthKind


class LinkState(Protocol):
    """The uplink now (`appliance.broker.LinkState` is one). `error`: why it is down, one sentence without secrets."""

    @property
    def up(self) -> bool: ...

    @property
    def since(self) -> float:
        """When `up` last changed, UTC seconds."""
        ...

    @property
    def error(self) -> str: ...

    @property
    def breaker(self) -> str:
        """closed: the cloud answers; open: it does not, and questions wait; half_open: one of them is tried."""
        ...

    @property
    def breaker_why(self) -> str: ...

    @property
    def trips(self) -> int:
        """How often the breaker opened since the start."""
        ...


@dataclass(frozen=True, slots=True)
class HealthState:
    """The ingest process now. `detector_ms`: time of one look, smoothed; `queue`: frames waiting for one;
    `load`: share of the time it is at work; `age_p95_ms`: of frames when the trackers hear of them, of late."""

    ingest_running: bool
    ingest_starts: int = 0
    detector_ms: float = 0.0
    queue: int = 0
    rss_bytes: int = 0
    load: float = 0.0
    age_p95_ms: float = 0.0
    warnings: tuple[str, ...] = ()


class TargetState(Protocol):
    """How a target of `notify` does (`appliance.alerts.notify.ports.TargetState` is one). Counts are since the start.

    failing_since: UTC seconds of the first failure since a message arrived; None: it is well. error: why it fails.
    """

    @property
    def name(self) -> str: ...

    @property
    def failing_since(self) -> float | None: ...

    @property
    def error(self) -> str: ...

    @property
    def waiting(self) -> int: ...

    @property
    def told(self) -> int: ...

    @property
    def updated(self) -> int: ...

    @property
    def withdrawn(self) -> int: ...

    @property
    def quiet(self) -> int: ...

    @property
    def forbidden(self) -> int: ...

    @property
    def given_up(self) -> int: ...

    @property
    def failures(self) -> int: ...


LinkProbe = Callable[[], LinkState]
HealthProbe = Callable[[], HealthState]
TargetsProbe = Callable[[], Sequence[TargetState]]
RelearnOrder = Callable[[str, HealthKind], object]
"""(camera, kind): a person says that what the camera shows is right as it is."""
