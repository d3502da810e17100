"""Faults of cameras, of the appliance itself and of what it talks to, as health events that last: docs/health.md."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from appliance.base.clock import Clock
from appliance.base.errors import StoreError
from appliance.broker.nats_connection import LinkState
from appliance.core.core_settings import CoreSettings, CoreStores
from appliance.core.ingest_supervisor import HEALTHY_AFTER_S
from appliance.store.meter import Metric, MetricName
from appliance.store.write_backlog import WriteBacklog
from appliance.types import PAUSED, Gap, HealthEvent, HealthKind

if TYPE_CHECKING:
    from appliance.mqtt.publisher import MqttStatus
    from appliance.notify.delivery import TargetStatus

HOLD_S = 60.0  # what is away for shorter is tried again without a word to a person
EXPIRES_SOON_S = 14 * 86400.0  # two weeks to have a new certificate made
EXPIRY_EVERY_S = 600.0  # files that were replaced are taken note of within ten minutes
CLOCK_EVERY_S = 10.0  # a query by an index
BEHIND_S = 600.0  # a camera that is ahead by less is believed, and stamps its own recording
UPDATE_FAILED = "upgrade-failed"  # in the storage folder, with the version in its first line
FILE_BYTES_MAX = 256 * 1024  # a chain has some 6 kB
_JWT = re.compile(r"ey[\w-]+\.(ey[\w-]+)\.[\w-]+")
FAILED_STARTS_MIN = 3  # of the ingest process, one after the other: the first two may be the machine's start
PAUSE_REPORTED_S_MAX = 30.0  # it reports a pause each 5 s and at a key frame; silent for longer, it is not paused

logger = logging.getLogger(__name__)


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

    State: since when each neighbour is away, what home automation's broker said last, and when certificates and tokens
    were read last. Owner: the core's thread.
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
        self._mqtt_fault = ""
        self._expiry_at = float("-inf")
        self._expiry = ""

    def follow(self, before: SiteFaults, same: Collection[HealthKind]) -> None:
        """Go on from the faults before other settings, for the neighbours that are the same."""
        self._since = {kind: t for kind, t in before._since.items() if kind in same}
        self._mqtt_fault = before._mqtt_fault if "mqtt" in same else ""

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
        return "" if self._neighbours.link is None else self._neighbours.link().fault

    def _mqtt(self) -> str:
        now = self._neighbours.mqtt() if self._neighbours.mqtt is not None else None
        if now is None or now.connected:
            self._mqtt_fault = ""
        elif now.error:
            self._mqtt_fault = f"home automation hears nothing: {now.error}"
        return self._mqtt_fault  # while it connects nothing is known, and so what was said last holds

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
                    left = f"in {days:.0f} day{'s' if days > 1 else ''}" if days else "today"
                    when = "has run out" if end < now else f"runs out {left}"
                    found.append(f"{what} {when}")
            self._expiry = "; ".join(found)
        return self._expiry


class ClockWatch:
    """Notices that the clock of the appliance stands before what it has recorded, and nothing keeps it right.

    A computer without a battery for its clock starts in the past. Where the kernel says that the clock is synchronised,
    it is right, and what was recorded was not. State: what was found last. Owner: the core's thread.
    """

    def __init__(
        self, recorded_t: Callable[[], float | None], synchronised: Callable[[], bool | None], clock: Clock
    ) -> None:
        """recorded_t: the latest moment of any recording, UTC seconds; it may raise StoreError."""
        self._recorded_t = recorded_t
        self._synchronised = synchronised
        self._clock = clock
        self._read_at = float("-inf")
        self._fault = ""

    @property
    def fault(self) -> str:
        """A sentence for a person; '': all is well."""
        if self._clock.monotonic() - self._read_at >= CLOCK_EVERY_S:
            self._read_at = self._clock.monotonic()
            with contextlib.suppress(StoreError):
                self._fault = self._read()
        return self._fault

    def _read(self) -> str:
        recorded = self._recorded_t()
        if recorded is None or recorded - self._clock.now() < BEHIND_S or self._synchronised():
            return ""
        return (
            "the clock of the appliance stands before what is recorded already, and nothing sets it: let it reach a "
            "time server (timedatectl set-ntp true)"
        )


class UpdateWatch:
    """Reads the file that an update leaves when it did not succeed (deploy/install.sh), until one succeeds.

    State: what was found last. Owner: the core's thread.
    """

    def __init__(self, root: Path, clock: Clock) -> None:
        """root: the storage folder."""
        self._path = root / UPDATE_FAILED
        self._clock = clock
        self._read_at = float("-inf")
        self._fault = ""

    @property
    def fault(self) -> str:
        """A sentence for a person; '': none failed."""
        if self._clock.monotonic() - self._read_at >= EXPIRY_EVERY_S:
            self._read_at = self._clock.monotonic()
            try:
                with self._path.open(encoding="utf-8", errors="replace") as file:
                    version = file.readline(64).strip()
                self._fault = f"the update to {version} did not start, so the version before is in force again"
            except OSError:
                self._fault = ""
        return self._fault


def expires_t(path: Path) -> float | None:
    """Return the UTC seconds at which the first certificate or token in `path` runs out; None: never, or unreadable."""
    try:
        with path.open(encoding="latin-1") as file:
            text = file.read(FILE_BYTES_MAX)
        if "BEGIN CERTIFICATE" in text:
            from appliance.web.tls import certificate_end_t  # cryptography: 9 MB, only where there is a certificate

            return certificate_end_t(text.encode("latin-1"))
        found = _JWT.search(text)
        claims = json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4))) if found else {}
        expires = claims.get("exp")
        return float(expires) if isinstance(expires, int | float) else None
    except (OSError, ValueError, OverflowError, RecursionError):
        return None


class LastingFaults:
    """Health events that have begun and not ended. Owner: the core's thread."""

    def __init__(self, stores: CoreStores, backlog: WriteBacklog, clock: Clock) -> None:
        self._stores = stores
        self._backlog = backlog
        self._clock = clock
        self._faults: dict[str, HealthEvent] = {}
        self._own: dict[HealthKind, HealthEvent] = {}
        self._paused: dict[str, tuple[HealthEvent, float]] = {}  # recordings, with when it was last reported
        self._up_at: float | None = None
        self._failed_starts, self._died = 0, ""

    def ingest_lives(self) -> None:
        """Note that the ingest process is up."""
        self._up_at = self._clock.monotonic() if self._up_at is None else self._up_at
        if self._clock.monotonic() - self._up_at > HEALTHY_AFTER_S:
            self._failed_starts = 0

    def ingest_died(self, reason: str, *, intended: bool = False) -> None:
        """Note that the ingest process is gone; dying young again and again is a fault, unless it was `intended`."""
        lived_s = self._clock.monotonic() - self._up_at if self._up_at is not None else 0.0
        self._up_at = None
        if not intended:
            self._died = reason
            self._failed_starts = self._failed_starts + 1 if lived_s < HEALTHY_AFTER_S else 1

    def end_all(self, reason: str) -> None:
        """End every event: the appliance stops."""
        self._own.clear()
        self.end_of_ingest(reason)

    def end_of_ingest(self, reason: str) -> None:
        """End the events that the ingest process reported: nothing is known of what they were about."""
        own = frozenset(event.id for event in self._own.values())
        self._backlog.write(partial(self._stores.health.end_open, self._clock.now(), reason, own))
        self._faults = {key: event for key, event in self._faults.items() if key in own}
        self._paused.clear()
        self._stores.health.forget(own)

    def end_of_others(self, cameras: Collection[str]) -> None:
        """End the events of cameras that are not among these."""
        now = self._clock.now()
        for fault in list(self._faults.values()):
            if fault.camera and fault.camera not in cameras:
                self.note(replace(fault, t=now, t_end=now, recovery=""))

    def watch_appliance(self, settings: CoreSettings) -> None:
        """Report faults that no other process reports: a database that was moved, heat, lack of memory.

        A database file that was moved or deleted is a fault at once, though it is stored only once it is back.
        """
        now, lasting = self._clock.now(), dict(settings.appliance_faults())
        if gone := self._stores.displaced():
            lasting["database"] = gone
        if self._failed_starts >= FAILED_STARTS_MIN:
            lasting["model"] = f"detection does not stay up, and nothing is watched: {self._died}"
        for camera, (_, reported_at) in list(self._paused.items()):
            if self._clock.monotonic() - reported_at > PAUSE_REPORTED_S_MAX:
                self._resume(camera, now)
        for kind, reason in lasting.items():
            known = self._own.get(kind)
            if known is not None and known.reason == reason:
                continue
            event = (
                HealthEvent(camera="", id=uuid4().hex[:16], kind=kind, t=now, t_start=now, reason=reason)
                if known is None
                else replace(known, t=now, reason=reason)
            )
            self._own[kind] = event
            self.note(event)
        for kind in self._own.keys() - lasting.keys():
            self.note(replace(self._own.pop(kind), t=now, t_end=now))

    def pause(self, gap: Gap, ignored: Collection[HealthKind]) -> None:
        """Open an event while the disk takes no recording of a camera whose picture comes all the same.

        ignored: the kinds that the camera's settings leave out.
        """
        if gap.t_end is not None:
            self._resume(gap.camera, gap.t_end)
        elif gap.reason.startswith(PAUSED) and "unrecorded" not in ignored:
            event, _ = self._paused.get(gap.camera, (None, 0.0))
            if event is None:
                event = HealthEvent(
                    camera=gap.camera, id=uuid4().hex[:16], kind="unrecorded", t=self._clock.now(), t_start=gap.t_start,
                    reason=gap.reason,
                )  # fmt: skip
                self.note(event)
            self._paused[gap.camera] = event, self._clock.monotonic()

    def _resume(self, camera: str, t: float) -> None:
        event, _ = self._paused.pop(camera, (None, 0.0))
        if event is not None:
            self.note(replace(event, t=self._clock.now(), t_end=max(event.t_start, t)))

    def note(self, event: HealthEvent) -> None:
        """Write the event, count it when it is new, and log each of its changes."""
        self._stores.health.note(event)
        self._backlog.write(partial(self._stores.health.put, event), key=f"health {event.id}")
        who = f"camera {event.camera}" if event.camera else "the appliance"
        known, key = self._faults.get(event.id), event.id
        if event.t_end is not None:
            self._faults.pop(key, None)
            logger.info("%s is well again: %s ended after %.0f s", who, event.kind, event.t_end - event.t_start)
            return
        self._faults[key] = event
        if known is None:
            self._stores.meter.add(event.camera, Metric(MetricName.HEALTH, event.kind), 1)
            logger.warning("%s is ill (%s): %s", who, event.kind, event.reason)
        elif event.reason != known.reason:
            logger.warning("%s: %s: now %s", who, event.kind, event.reason)
        if event.attempts > (known.attempts if known else 0):
            logger.info("%s: %s; tried: %s (%d)", who, event.kind, event.recovery, event.attempts)
