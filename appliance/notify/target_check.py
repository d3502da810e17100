"""Checks the notification targets: without sending (`vedette check`), and with a test message (`vedette notify
test`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from appliance import config
from appliance.clock import SystemClock
from appliance.config import NtfyTarget, SiteConfig, Target, WebhookTarget
from appliance.errors import UsageError
from appliance.notify.http_sender import HttpSender, SendResult, load_tls_ca
from appliance.notify.message import MessageBuilder
from appliance.notify.ntfy_webhook import request_for

CONNECT_S_MAX = 3.0
TargetFinding = tuple[str, Literal["ok", "warning", "unreachable", "wrong"], str]
"""About which key, how it is, and what to do."""


def check_targets(site: SiteConfig, *, contact: bool) -> Iterator[TargetFinding]:
    """contact: whether each may be connected to."""
    wanted = {name: target for name, target in site.notify.items() if target.enabled}
    if wanted and not site.dashboard.public_url:
        yield "dashboard.public_url", "warning", "not set: messages carry no link to the alert's page"
    for name, target in wanted.items():
        yield from _static_findings(name, target, asked=site.uplink is not None)
    if contact and wanted:
        with ThreadPoolExecutor(len(wanted), thread_name_prefix="notify") as pool:
            yield from pool.map(_connect, wanted, wanted.values())


def _static_findings(name: str, target: Target, *, asked: bool) -> Iterator[TargetFinding]:
    about = f"notify.{name}"
    if target.tls_ca is not None:
        try:
            load_tls_ca(target.tls_ca)
        except UsageError as error:
            yield f"{about}.tls_ca", "wrong", str(error)
    if target.hold_s and not asked:
        yield f"{about}.hold_s", "warning", "has no effect without `uplink`: there is no verdict to wait for"
    if _bears_secret(target) and not target.local and target.url.startswith("http:"):
        yield f"{about}.url", "warning", "what it is told, and the password with it, can be read on the way: use https"


def _bears_secret(target: Target) -> bool:
    if isinstance(target, NtfyTarget):
        return target.token is not None
    return isinstance(target, WebhookTarget) and target.authorization is not None


def _connect(name: str, target: Target) -> TargetFinding:
    about, parts = f"notify.{name}", urlsplit(target.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((target.host, port), CONNECT_S_MAX) as connection:
            peer = connection.getpeername()[0]
    except OSError as error:
        reason = error.strerror or "no answer"
        return about, "unreachable", f"{target.host}:{port}: {reason}; messages would wait and be given up"
    if target.local and ipaddress.ip_address(peer.split("%")[0]).is_global:
        return f"{about}.local", "wrong", f"{target.host} is {peer}, which is not on this site's own network"
    return about, "ok", f"{target.host}:{port} answers; try it with: vedette notify test --target {name}"


def test_command(site_file: Path, name: str | None, *, as_json: bool) -> int:
    """Print what came back of each target; 0 when all took it, else 1. Raises ConfigError, UsageError."""
    site = config.load(site_file)
    failed = 0
    for each, target in _chosen(site, name).items():
        reply = asyncio.run(_send(site, each, target))
        failed += not reply.ok
        print(json.dumps(_as_json(each, reply)) if as_json else _result_text(each, target, reply), flush=True)
    return 1 if failed else 0


def _chosen(site: SiteConfig, name: str | None) -> Mapping[str, Target]:
    if not site.notify:
        raise UsageError("the site file has no `notify`: nobody is told (docs/notify.md)")
    if name is None:
        return site.notify
    if name not in site.notify:
        raise UsageError(f"there is no target `{name}` (there is: {', '.join(site.notify)})")
    return {name: site.notify[name]}


async def _send(site: SiteConfig, name: str, target: Target) -> SendResult:
    clock = SystemClock()
    post = HttpSender(target, clock)
    try:
        message = MessageBuilder(site.site.name, site.dashboard.public_url, lambda event: False).test(name, clock.now())
        return await post.send(request_for(target, message, clock.now()))
    finally:
        await post.close()


def _result_text(name: str, target: Target, reply: SendResult) -> str:
    if not reply.ok:
        return f"{name}: {reply.error}"
    off = "" if target.enabled else "; it is switched off (`enabled: false`)"
    return f"{name}: {target.host} took it ({reply.status}) in {reply.seconds * 1000:.0f} ms{off}"


def _as_json(name: str, reply: SendResult) -> dict[str, object]:
    return {
        "target": name,
        "ok": reply.ok,
        "status": reply.status,
        "error": reply.error,
        "seconds": round(reply.seconds, 3),
    }
