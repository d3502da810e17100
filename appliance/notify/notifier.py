"""Notifies people of alerts: one thread with an event loop, one sender a target, and a task that follows changes.

`check_targets` checks the targets without sending (`vedette check`); `test_command` sends each a test message
(`vedette notify test`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from appliance import config
from appliance.base.clock import Clock, ClockStepDetector, SystemClock
from appliance.base.errors import StoreUnavailable, UsageError, lacks_files
from appliance.base.service_loop import ServiceLoop
from appliance.base.telemetry import LogThrottle
from appliance.config import AppriseTarget, HttpTarget, NtfyTarget, PushTarget, Target, WebhookTarget
from appliance.config.values import Finding
from appliance.notify.apprise_sender import AppriseSender, load_service
from appliance.notify.delivery import POLL_S, NotifierDeps, TargetSender, TargetStatus, UnstoredAlert
from appliance.notify.http_sender import HttpSender, load_tls_ca
from appliance.notify.message import MessageBuilder, MessageSender, PushMeans, SendResult
from appliance.notify.notice_policy import is_news
from appliance.notify.push_sender import PushSender
from appliance.store.database import Database
from appliance.store.notices import NewNotice, NoticeRow, OpenNotice
from appliance.types import AlertChange

MakeSender = Callable[[str, Target, Clock], MessageSender]
EXPIRE_EVERY_S = 10.0  # notices live for minutes
STOP_S_MAX = 3.0  # what is being sent when the appliance stops may arrive within this time

logger = logging.getLogger(__name__)


def new_sender(name: str, target: Target, clock: Clock, push: PushMeans | None = None) -> MessageSender:
    """Make the sender of the target's kind.

    Raise UsageError if its certificate, address or package cannot be used.
    """
    if isinstance(target, PushTarget):
        if push is None:
            raise UsageError("only a running appliance knows the browsers that are notified")
        return PushSender(target, name, push, clock)
    if isinstance(target, AppriseTarget):
        return AppriseSender(target, clock)
    return HttpSender(target, clock)


class Notifier:
    """Delivers the notices of all targets.

    Owner of the notice rows once they are written, and of the loop that talks to the targets; `run()` blocks the one
    thread it is given. `stop()`, `wake()` and `notify_unstored()` may be called, and `statuses` read, from any thread.
    Invariant: a target that is slow, hangs or fails delays no other target.
    """

    def __init__(
        self,
        targets: Mapping[str, Target],
        deps: NotifierDeps,
        db: Database,
        make_sender: MakeSender = new_sender,
    ) -> None:
        """Make the senders of the enabled targets; raise UsageError if a target cannot be used."""
        self._notices = deps.notices
        self._due = deps.due
        self._db = db
        self._clock = deps.clock
        self._targets = {name: target for name, target in targets.items() if target.enabled}
        self._senders = {
            name: TargetSender(name, target, deps, _made(name, target, deps.clock, make_sender))
            for name, target in self._targets.items()
        }
        self._steps = ClockStepDetector(self._clock)
        self._step_s = 0.0
        self._throttle = LogThrottle(logger, self._clock)
        self._rev = -1
        self._expire_at = float("-inf")
        self._stopped = threading.Event()
        self._wakes: tuple[asyncio.Event, ...] = ()
        self._event_loop = ServiceLoop()

    @property
    def statuses(self) -> tuple[TargetStatus, ...]:
        return tuple(sender.status for sender in self._senders.values())

    def follow(self, before: Notifier) -> None:
        """Go on from another notifier, for targets that are the same. Call it before `run`."""
        for name, sender in self._senders.items():
            if before._targets.get(name) == self._targets[name]:
                sender.follow(before._senders[name])

    def run(self) -> None:
        """Deliver until `stop()`. Raises StoreError. May be called again after it failed."""
        self._event_loop.run(self._main())

    def stop(self) -> None:
        self._stopped.set()
        self.wake()

    def wake(self) -> None:
        """Wake the senders: an alert or a verdict was written."""
        self._due.fire()

    def notify_unstored(self, change: AlertChange, notices: Sequence[NewNotice], why: str) -> None:
        """Send an alert that the disk does not take: its targets get their message all the same, without waiting."""
        for notice in notices:
            if notice.target in self._senders:
                self._senders[notice.target].send_unstored(UnstoredAlert(notice, change, why))
        self.wake()

    async def _main(self) -> None:
        jobs: dict[str, Callable[[], Awaitable[float]]] = {"notify changes": self._follow_changes}
        for sender in self._senders.values():
            jobs[f"notify {sender.name}"] = partial(sender.run_once, self._stopped.is_set)
        self._wakes = tuple(asyncio.Event() for _ in jobs)
        tasks = [
            asyncio.create_task(self._repeat(job, wake, name), name=name)
            for wake, (name, job) in zip(self._wakes, jobs.items(), strict=True)
        ]
        try:
            with self._due.listening(self._wake_all):
                done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if self._stopped.is_set() and pending:  # let messages that are being sent arrive
                    more, pending = await asyncio.wait(pending, timeout=STOP_S_MAX)
                    done |= more
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for sender in self._senders.values():  # after a failure they are used again
            await sender.close()

    async def _repeat(self, job: Callable[[], Awaitable[float]], wake: asyncio.Event, name: str) -> None:
        """Run `job` until stopped, at the latest after the seconds it returns; also while the disk is full."""
        while not self._stopped.is_set():
            wake.clear()
            wait_s = POLL_S
            try:
                wait_s = await job()
            except StoreUnavailable as error:
                self._throttle.report(f"{name} waits: {error}")
            except OSError as error:
                if not lacks_files(error):
                    raise
                self._throttle.report(f"{name} waits: too many files are open in this process")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(wake.wait(), min(wait_s, POLL_S))

    def _wake_all(self) -> None:
        for wake in self._wakes:
            wake.set()

    async def _follow_changes(self) -> float:
        """Reopen notices whose alert has changed, and give up those that cannot be sent. Raises StoreError."""
        self._step_s += self._steps.step_s()
        if self._step_s:  # before anything expires by it; one that cannot be recorded now, next time
            self._notices.clock_stepped(self._step_s)
            self._step_s = 0.0
        rev = self._db.rev()
        if rev != self._rev:
            self._reopen_changed()
            self._rev = rev
        if self._clock.monotonic() >= self._expire_at:
            self._expire()
            self._expire_at = self._clock.monotonic() + EXPIRE_EVERY_S
        return POLL_S

    def _reopen_changed(self) -> None:
        while True:
            items, upto = self._notices.changed()
            changed = [item.row for item in items if item.row.target in self._senders and _is_news(item)]
            for row in changed:
                logger.info("%s gets an update of alert %s", row.target, row.alert)
            if upto <= self._rev:
                return
            self._notices.mark_changed([(row, self._targets[row.target].expire_hours * 3600) for row in changed], upto)
            self._rev = upto
            if changed:
                self._wake_all()

    def _expire(self) -> None:
        """Give up, visibly, notices that are too old, too many, or of a target that no longer exists."""
        now = self._clock.now()
        for row in self._notices.undeliverable(now, tuple(self._targets)):
            hours, why = (row.window.expire_t - row.created_t) / 3600, row.reason or "it could not be sent"
            is_late = row.window.expire_t <= now
            gone = "given up: the site file has no such target (any more)"
            self._give_up(row, f"given up after {hours:.3g} h: {why}" if is_late else gone, untold=is_late)
        for row in self._notices.overflow():
            self._give_up(row, "given up: too many messages wait for this target")

    def _give_up(self, row: NoticeRow, why: str, *, untold: bool = False) -> None:
        self._notices.end(row, "given_up", why, untold=untold and row.target in self._senders)
        logger.warning("%s gets no message of alert %s: %s", row.target, row.alert, why)
        if row.target in self._senders:
            self._senders[row.target].count("given_up")


def _made(name: str, target: Target, clock: Clock, make_sender: MakeSender) -> MessageSender:
    try:
        return make_sender(name, target, clock)
    except UsageError as error:
        raise type(error)(f"notify.{name}: {error}") from None


def _is_news(item: OpenNotice) -> bool:
    """Return True if the alert says something else now than the last message did."""
    row = item.row
    return is_news(item.standing, item.severity, row.standing or None, row.severity or None)


CONNECT_S_MAX = 3.0  # `vedette check` tries each target; a lost SYN is repeated after 1 s


def check_targets(
    targets: Mapping[str, Target], *, public_url: str, has_judge: bool, contact: bool
) -> Iterator[Finding]:
    """Yield findings about the enabled targets; nothing is sent.

    contact: true if each may be connected to.
    """
    enabled = {name: target for name, target in targets.items() if target.enabled}
    if enabled and not public_url:
        yield Finding("dashboard.public_url", "warning", "not set: messages carry no link to the alert's page")
    for name, target in enabled.items():
        if target.hold_s and not has_judge:
            text = "has no effect without `uplink` or `escalation.local_judge`: there is no verdict to wait for"
            yield Finding(f"notify.{name}.hold_s", "warning", text)
        if isinstance(target, AppriseTarget):
            yield _check_apprise(name, target)
        elif isinstance(target, PushTarget):
            yield Finding(f"notify.{name}", "ok", "browsers subscribe on the dashboard's page Notifications")
        else:
            yield from _check_http(name, target)
    http = {name: target for name, target in enabled.items() if isinstance(target, HttpTarget)}
    if contact and http:
        with ThreadPoolExecutor(len(http), thread_name_prefix="notify") as pool:
            yield from pool.map(_connect, http, http.values())


def _check_apprise(name: str, target: AppriseTarget) -> Finding:
    """Check that apprise is installed and knows the address.

    Only a message shows if the service takes one.
    """
    try:
        load_service(target)
    except UsageError as error:
        return Finding(f"notify.{name}", "wrong", str(error))
    return Finding(f"notify.{name}", "ok", f"{target.host}: try it with: vedette notify test --target {name}")


def _check_http(name: str, target: WebhookTarget | NtfyTarget) -> Iterator[Finding]:
    about = f"notify.{name}"
    if target.tls_ca is not None:
        try:
            load_tls_ca(target.tls_ca)
        except UsageError as error:
            yield Finding(f"{about}.tls_ca", "wrong", str(error))
    secret = target.token if isinstance(target, NtfyTarget) else target.authorization
    if secret is not None and not target.local and target.url.startswith("http:"):
        text = "what it is told, and the password with it, can be read on the way: use https"
        yield Finding(f"{about}.url", "warning", text)


def _connect(name: str, target: HttpTarget) -> Finding:
    about, parts = f"notify.{name}", urlsplit(target.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((target.host, port), CONNECT_S_MAX) as connection:
            peer = connection.getpeername()[0]
    except OSError as error:
        reason = error.strerror or "no answer"
        text = f"{target.host}:{port}: {reason}; messages would wait and be given up"
        return Finding(about, "unreachable", text)
    if target.local and ipaddress.ip_address(peer.split("%")[0]).is_global:
        return Finding(f"{about}.local", "wrong", f"{target.host} is {peer}, which is not on this site's own network")
    text = f"{target.host}:{port} answers; try it with: vedette notify test --target {name}"
    return Finding(about, "ok", text)


def test_command(site_file: Path, name: str | None, *, as_json: bool) -> int:
    """Print what came back of each target; 0 when all took it, else 1. Raises ConfigError, UsageError."""
    site = config.load(site_file)
    failed = 0
    for each, target in _chosen(site.notify, name).items():
        result = asyncio.run(send_test(site.site.name, site.dashboard.public_url, each, target))
        failed += not result.ok
        print(json.dumps(_as_json(each, result)) if as_json else _result_text(each, target, result), flush=True)
    return 1 if failed else 0


def _chosen(targets: Mapping[str, Target], name: str | None) -> Mapping[str, Target]:
    if not targets:
        raise UsageError("the site file has no `notify`: nobody is told (docs/notify.md)")
    if name is None:
        return targets
    if name not in targets:
        raise UsageError(f"there is no target `{name}` (there is: {', '.join(targets)})")
    return {name: targets[name]}


async def send_test(site: str, public_url: str, name: str, target: Target, push: PushMeans | None = None) -> SendResult:
    """Send a test message and say what came of it. push: for a target of that kind. Raises UsageError."""
    clock = SystemClock()
    sender = _made(name, target, clock, partial(new_sender, push=push))
    try:
        builder = MessageBuilder(site, public_url, lambda event: False)
        return await sender.send(builder.test(name, clock.now()))
    finally:
        await sender.close()


def _result_text(name: str, target: Target, result: SendResult) -> str:
    if not result.ok:
        return f"{name}: {result.error}"
    off = "" if target.enabled else "; it is switched off (`enabled: false`)"
    return f"{name}: {target.host} took it ({result.status}) in {result.seconds * 1000:.0f} ms{off}"


def _as_json(name: str, result: SendResult) -> dict[str, object]:
    return {
        "target": name,
        "ok": result.ok,
        "status": result.status,
        "error": result.error,
        "seconds": round(result.seconds, 3),
    }
