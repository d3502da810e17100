"""Sends a message through apprise, which reaches over a hundred services (chat, mail, SMS, push) by one URL each.

The service's own protocol, its rate limit and its redirects are apprise's business; holding, retries, audit and
counting stay with `TargetSender`. apprise is an optional package, imported only where a target of this kind is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from appliance.base.clock import Clock
from appliance.base.errors import MissingDependency, UsageError
from appliance.config import AppriseTarget
from appliance.notify.message import NotificationMessage, SendResult, is_good_news
from appliance.types import Severity

if TYPE_CHECKING:
    from apprise import NotifyBase

# apprise opens its own connections, so the kernel cannot be asked for their bytes: handshake, TLS, headers, close.
ESTIMATE_BYTES = 8192
_TYPES: dict[Severity, str] = {"info": "info", "warning": "warning", "alert": "failure"}
_STATUS = re.compile(r"error=(\d{3})\b")

logger = logging.getLogger(__name__)


class AppriseSender:
    """The way to one apprise service.

    Owner: one task. State: the service as apprise loaded it, and if the thread that sends has come back, as apprise
    blocks. A thread that hangs is left alone, and no other message is sent meanwhile.
    """

    def __init__(self, target: AppriseTarget, clock: Clock) -> None:
        """Load the service; raise UsageError if apprise is not installed or does not know this kind of address."""
        self._host = target.host
        self._clock = clock
        self._service = load_service(target)
        # Connecting and reading may take `timeout_s` each, after what the service's rate limit makes us wait.
        self._limit_s = 2 * target.timeout_s + self._service.request_rate_per_sec + 1.0
        self._returned = threading.Event()
        self._returned.set()

    async def send(self, message: NotificationMessage) -> SendResult:
        """Never raises for what the service does."""
        if not self._returned.is_set():
            return SendResult(ok=False, error=f"{self._host} has not answered the message before")
        began, text = self._clock.monotonic(), _text(message)
        try:
            status = await asyncio.wait_for(self._send_in_thread(message, text), self._limit_s)
        except asyncio.TimeoutError:
            result = SendResult(ok=False, maybe=True, error=f"{self._host} did not answer within {self._limit_s:g} s")
        else:
            result = _result(self._host, status)
        payload = f"{message.title}\n{text}".encode()
        return replace(
            result,
            payload=payload,
            sent=len(payload) + len(message.image) * 3 // 2 + ESTIMATE_BYTES,  # as base64 at the worst
            seconds=self._clock.monotonic() - began,
        )

    async def close(self) -> None:
        """Do nothing: a message that is being sent has its own limits, and nothing else is open."""

    async def _send_in_thread(self, message: NotificationMessage, text: str) -> int | None:
        """Return the HTTP status: 200 if the service took the message, None if there was no answer."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[int | None] = loop.create_future()

        def report(status: int | None) -> None:
            if not done.done():
                done.set_result(status)

        def work() -> None:
            status = _notify(self._service, message, text)
            self._returned.set()  # before the report: the next message may follow it at once
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(report, status)

        # A daemon of its own: the executor's threads are waited for at the end, however long they hang.
        self._returned.clear()
        threading.Thread(target=work, name="notify apprise", daemon=True).start()
        return await done


def load_service(target: AppriseTarget) -> NotifyBase:
    """Load the service behind the target's URL; nothing is sent. Raise UsageError."""
    try:
        import apprise
    except ImportError:
        raise MissingDependency("needs the package apprise: pip install 'vedette[notify]'") from None
    log = logging.getLogger("apprise")  # its lines hold whole addresses, of which every part may be a secret
    log.propagate = False
    log.addHandler(logging.NullHandler())  # else Python prints them to stderr
    asset = apprise.AppriseAsset(app_id="Vedette", async_mode=False)
    service: Any = apprise.Apprise.instantiate(target.url.get_secret_value(), asset=asset, suppress_exceptions=True)
    if service is None:
        raise UsageError(
            f"apprise cannot use this {target.scheme}:// address: it is wrong, no service has that name, or the "
            f"service needs a package of its own (apprise --details)"
        )
    service.socket_connect_timeout = service.socket_read_timeout = target.timeout_s
    service.redirects = False
    loaded: NotifyBase = service
    return loaded


class _StatusListener(logging.Handler):
    """Reads the HTTP status out of apprise's log lines of one thread: apprise returns only whether it worked."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.status: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = _STATUS.search(record.getMessage()) if record.thread == self._thread else None
        if found:
            self.status = int(found[1])


def _notify(service: NotifyBase, message: NotificationMessage, text: str) -> int | None:
    from apprise import AppriseAttachment, NotifyFormat, NotifyType
    from apprise.attachment.memory import AttachMemory

    kind = "success" if is_good_news(message) else _TYPES[message.severity]
    make: Any = AttachMemory
    image = make(message.image, name="still.jpg", mimetype="image/jpeg") if message.image else None
    listener, log = _StatusListener(), logging.getLogger("apprise")
    log.addHandler(listener)
    try:
        taken = service.notify(
            body=text, title=message.title, notify_type=NotifyType(kind), body_format=NotifyFormat.TEXT,
            attach=AppriseAttachment(image) if image else None,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - a service's own code may fail in any way, and its traceback name secrets
        logger.warning("apprise failed in an unexpected way: %s", type(error).__name__)
        return listener.status
    finally:
        log.removeHandler(listener)
    return 200 if taken else listener.status


def _text(message: NotificationMessage) -> str:
    snooze = f"Snooze: {message.snooze}" if message.snooze else ""
    return "\n".join(filter(None, (message.text, message.link, snooze)))


def _result(host: str, status: int | None) -> SendResult:
    if status == 200:
        return SendResult(ok=True, status=status)
    if status is None:
        return SendResult(ok=False, maybe=True, error=f"{host} could not be reached or broke the connection")
    if status in {401, 403}:
        return SendResult(ok=False, status=status, error=f"{host} refuses us ({status}): check the token in `url`")
    return SendResult(ok=False, status=status, maybe=status >= 500, error=f"{host} answered {status}")
