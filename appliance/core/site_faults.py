"""Faults of the appliance itself and of what it talks to, as health events report them: see docs/health.md."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.base.clock import Clock
from appliance.broker import LinkState
from appliance.health.expiry import expires_t
from appliance.types import HealthKind

if TYPE_CHECKING:
    from appliance.mqtt.publisher import MqttStatus
    from appliance.notify.delivery import TargetStatus

HOLD_S = 60.0  # what is away for shorter is tried again without a word to a person
EXPIRES_SOON_S = 14 * 86400.0  # two weeks to have a new certificate made
EXPIRY_EVERY_S = 600.0  # files that were replaced are taken note of within ten minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The peers that the appliance talks to. None: there is no such part.

    expiring: the files of certificates and tokens that somebody else makes, by what they are for.
    """

    link: Callable[[], LinkState] | None = None
    mqtt: Callable[[], MqttStatus] | None = None
    targets: Callable[[], Sequence[TargetStatus]] = tuple
    expiring: Mapping[str, Path]


class SiteFaults:
    """Gathers the lasting faults, a sentence each that stays the same as long as the fault does.

    State: since when each neighbour is away, and when certificates and tokens were read last. Owner: the core's thread.
    """

    def __init__(
        self,
        own: Callable[[], Mapping[HealthKind, str]],
        neighbours: Neighbours,
        ignored: Collection[HealthKind],
        clock: Clock,
    ) -> None:
        """own: the faults of the machine and of the services."""
        self._own = own
        self._neighbours = neighbours
        self._ignored = ignored
        self._clock = clock
        self._since: dict[HealthKind, float] = {}
        self._expiry_at = float("-inf")
        self._expiry = ""

    def read(self) -> Mapping[HealthKind, str]:
        """Return what lasts now, without the kinds that are ignored."""
        away: dict[HealthKind, str] = {"uplink": self._uplink(), "mqtt": self._mqtt(), "notify": self._targets()}
        now = self._clock.monotonic()
        for kind, reason in away.items():
            if not reason:
                self._since.pop(kind, None)
        held = {
            kind: reason
            for kind, reason in away.items()
            if reason and now - self._since.setdefault(kind, now) >= HOLD_S
        }
        found: dict[HealthKind, str] = {**self._own(), **held, "certificate": self._expiring()}
        return {kind: reason for kind, reason in found.items() if reason and kind not in self._ignored}

    def _uplink(self) -> str:
        if self._neighbours.link is None:
            return ""
        link = self._neighbours.link()
        if not link.up:
            return (
                f"the cloud link is down{f': {link.error}' if link.error else ''}; what was flagged waits, unverified"
            )
        if link.breaker == "open":
            return f"the cloud does not answer: {link.breaker_why}; what was flagged waits, unverified"
        return ""

    def _mqtt(self) -> str:
        now = self._neighbours.mqtt() if self._neighbours.mqtt is not None else None
        return (
            f"home automation hears nothing: {now.error}" if now is not None and now.error and not now.connected else ""
        )

    def _targets(self) -> str:
        failing = [each for each in self._neighbours.targets() if each.failing_since is not None]
        return "; ".join(f"{each.name} cannot be notified: {each.error}" for each in failing)

    def _expiring(self) -> str:
        if self._clock.monotonic() - self._expiry_at >= EXPIRY_EVERY_S:
            self._expiry_at, now, found = self._clock.monotonic(), self._clock.now(), []
            for what, path in self._neighbours.expiring.items():
                end = expires_t(path)
                if end is not None and end - now < EXPIRES_SOON_S:
                    days = (end - now) // 86400
                    when = "has run out" if end < now else f"runs out in {days:.0f} days" if days else "runs out today"
                    found.append(f"{what} {when}")
            self._expiry = "; ".join(found)
        return self._expiry
