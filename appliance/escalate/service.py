"""The escalation side of the appliance as one part: its own thread with an event loop for link, uplink and verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from appliance.broker import Link, LinkState, end_tasks
from appliance.clock import Clock
from appliance.config import Uplink as Settings
from appliance.escalate.border import Border
from appliance.escalate.limits import Limits
from appliance.escalate.notary import Notary
from appliance.escalate.outbox import Outbox
from appliance.escalate.toll import Meter
from appliance.escalate.uplink import Uplink
from appliance.escalate.verdicts import Settles, VerdictCounts, Verdicts


class EscalationService:
    """Owner of the event loop that talks to the broker; `run()` blocks the one thread it is given.

    `stop()` and `wake()` may be called from any thread. When one of the three tasks fails (the database refused, or a
    bug), `run()` ends with that error.
    """

    def __init__(
        self,
        settings: Settings,
        site: str,
        outbox: Outbox,
        root: Path,
        meter: Meter,
        alerts: Settles,
        clock: Clock,
        *,
        changed: Callable[[], None] = lambda: None,
        border: Border | None = None,
    ) -> None:
        self._link = Link(settings, f"vedette {site}", clock, inbox=f"_INBOX.{site}")
        notary = Notary(outbox.db)
        limits = Limits.of(settings)
        self._uplink = Uplink(self._link, outbox, root, meter, clock, limits, border, notary=notary)
        self._verdicts = Verdicts(self._link, site, alerts, notary, clock, changed, self._uplink.heard)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_now = asyncio.Event()
        self._stopped = threading.Event()

    @property
    def link(self) -> LinkState:
        """With the state of the breaker."""
        breaker = self._uplink.breaker.state
        return replace(
            self._link.state,
            breaker=breaker.name,
            breaker_since=breaker.since,
            breaker_why=breaker.why,
            trips=breaker.trips,
        )

    @property
    def waits_for(self) -> str:
        """Why the outbox is not being sent although the link is up; empty when it is."""
        return self._uplink.waits_for

    @property
    def verdicts(self) -> VerdictCounts:
        return self._verdicts.counts

    def run(self) -> None:
        """Talk to the broker until `stop()`. Raises StoreError."""
        asyncio.run(self._main())

    def stop(self) -> None:
        self._stopped.set()
        self._in_loop(self._stop_now.set)

    def wake(self) -> None:
        """A question became ready."""
        self._in_loop(self._uplink.wake)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()  # before the look at `_stopped`: a stop in between is then not lost
        if self._stopped.is_set():
            self._loop = None
            return
        tasks = {
            asyncio.create_task(self._link.run(), name="link"),
            asyncio.create_task(self._uplink.run(), name="uplink"),
            asyncio.create_task(self._verdicts.run(), name="verdicts"),
        }
        stopping = asyncio.create_task(self._stop_now.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in done & tasks:
                task.result()
        finally:
            self._loop = None
            await end_tasks(*tasks, stopping)
            self._uplink.close()

    def _in_loop(self, call: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed: there is nobody to tell any more
                loop.call_soon_threadsafe(call)
