"""`vedette egress`: prints the audit of what left the site, as a table or JSON lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape

from appliance import config
from appliance.base.clock import iso_utc, parse_moment
from appliance.base.console import text_console
from appliance.base.errors import UsageError
from appliance.store.audit import AuditRow, audit_rows
from appliance.store.paths import DATABASE


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A selection of audit rows; times as they were typed."""

    t_from: str | None = None
    t_to: str | None = None
    camera: str | None = None
    with_pixels: bool = False


def egress_command(site_file: Path, audit_filter: AuditFilter, *, as_json: bool) -> int:
    """Print what left. Returns 0. Raises ConfigError, StoreError, UsageError."""
    site = config.load(site_file)
    t0 = float("-inf") if audit_filter.t_from is None else parse_moment(audit_filter.t_from)
    t1 = float("inf") if audit_filter.t_to is None else parse_moment(audit_filter.t_to)
    if t1 <= t0:
        raise UsageError(f"--to {audit_filter.t_to} is not after --from {audit_filter.t_from}")
    rows = audit_rows(site.storage.dir.absolute() / DATABASE, t0, t1, audit_filter.camera)
    wanted = (row for row in rows if row.kind not in {"facts", "notice"} or not audit_filter.with_pixels)
    if as_json:
        for row in wanted:
            print(json.dumps(_as_json(row)))
    else:
        _print(wanted, text_console(soft_wrap=True))
    return 0


def _as_json(row: AuditRow) -> dict[str, str | int]:
    return {
        "time": iso_utc(row.t),
        "camera": row.camera,
        "kind": row.kind,
        "bytes": row.bytes,
        "escalation": row.escalation,
        "sha256": row.sha256,
        "why": row.why,
    }


def _print(rows: Iterable[AuditRow], console: Console) -> None:
    """Print line by line: a site may have sent more than fits into memory."""
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for row in rows:
        count[row.kind] += 1
        size[row.kind] += row.bytes
        what = f"{iso_utc(row.t)}  {row.camera:<12}  {row.kind:<6}  {row.bytes:>9,}  {row.sha256[:12]}  {row.why}"
        console.print(escape(what))
    if not count:
        console.print("nothing left in that time")
        return
    parts = ", ".join(f"{count[kind]} {kind} ({decimal(size[kind])})" for kind in sorted(count))
    console.print(f"{count.total()} things left: {parts}; {decimal(size.total())} in all, without what carried them")
