"""`vedette notify test`: does a message arrive, and if not, why."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from appliance import config
from appliance.alerts.notify.message import Composer
from appliance.alerts.notify.post import Post, Reply
from appliance.alerts.notify.request import request_for
from appliance.clock import SystemClock
from appliance.config import SiteConfig, Target
from appliance.errors import UsageError


def test_command(site_file: Path, name: str | None, *, as_json: bool) -> int:
    """Print what came back of each target; 0 when all took it, else 1. Raises ConfigError, UsageError."""
    site = config.load(site_file)
    failed = 0
    for each, target in _chosen(site, name).items():
        reply = asyncio.run(_send(site, each, target))
        failed += not reply.ok
        print(json.dumps(_as_json(each, reply)) if as_json else _words(each, target, reply), flush=True)
    return 1 if failed else 0


def _chosen(site: SiteConfig, name: str | None) -> Mapping[str, Target]:
    if not site.notify:
        raise UsageError("the site file has no `notify`: nobody is told (docs/notify.md)")
    if name is None:
        return site.notify
    if name not in site.notify:
        raise UsageError(f"there is no target `{name}` (there is: {', '.join(site.notify)})")
    return {name: site.notify[name]}


async def _send(site: SiteConfig, name: str, target: Target) -> Reply:
    clock = SystemClock()
    post = Post(target, clock)
    try:
        message = Composer(site.site.name, site.dashboard.public_url, lambda event: False).test(name, clock.now())
        return await post.send(request_for(target, message, clock.now()))
    finally:
        await post.close()


def _words(name: str, target: Target, reply: Reply) -> str:
    if not reply.ok:
        return f"{name}: {reply.error}"
    off = "" if target.enabled else "; it is switched off (`enabled: false`)"
    return f"{name}: {target.host} took it ({reply.status}) in {reply.seconds * 1000:.0f} ms{off}"


def _as_json(name: str, reply: Reply) -> dict[str, object]:
    return {
        "target": name,
        "ok": reply.ok,
        "status": reply.status,
        "error": reply.error,
        "seconds": round(reply.seconds, 3),
    }
