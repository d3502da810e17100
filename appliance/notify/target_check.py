"""Checks the notification targets: without sending (`vedette check`) or with a test message (`vedette notify test`)."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from appliance import config
from appliance.base.clock import SystemClock
from appliance.base.errors import UsageError
from appliance.config import AppriseTarget, HttpTarget, NtfyTarget, PushTarget, Target, WebhookTarget
from appliance.config.values import Finding
from appliance.notify.apprise_sender import load_service
from appliance.notify.http_sender import load_tls_ca
from appliance.notify.message import MessageBuilder, SendResult
from appliance.notify.notifier import new_sender
from appliance.notify.push_means import PushMeans

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
            yield Finding(f"notify.{name}", "ok", "browsers subscribe on the dashboard's page People told")
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
    try:
        sender = new_sender(name, target, clock, push)
    except UsageError as error:
        raise UsageError(f"notify.{name}: {error}") from None
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
