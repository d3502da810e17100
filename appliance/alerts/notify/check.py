"""What `vedette check` says of the targets: nothing is sent to them."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal
from urllib.parse import urlsplit

from appliance.alerts.notify.post import trusting
from appliance.config import NtfyTarget, SiteConfig, Target, WebhookTarget
from appliance.errors import UsageError

CONNECT_S_MAX = 3.0
Said = tuple[str, Literal["ok", "warning", "unreachable", "wrong"], str]
"""About which key, how it is, and what to do."""


def targets(site: SiteConfig, *, contact: bool) -> Iterator[Said]:
    """contact: whether each may be connected to."""
    wanted = {name: target for name, target in site.notify.items() if target.enabled}
    if wanted and not site.dashboard.public_url:
        yield "dashboard.public_url", "warning", "not set: messages carry no link to the alert's page"
    for name, target in wanted.items():
        yield from _file(name, target, asked=site.uplink is not None)
    if contact and wanted:
        with ThreadPoolExecutor(len(wanted), thread_name_prefix="notify") as pool:
            yield from pool.map(_answers, wanted, wanted.values())


def _file(name: str, target: Target, *, asked: bool) -> Iterator[Said]:
    about = f"notify.{name}"
    if target.tls_ca is not None:
        try:
            trusting(target.tls_ca)
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


def _answers(name: str, target: Target) -> Said:
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
