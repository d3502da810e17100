"""Pages from Jinja2 templates: autoescaped, undefined names are errors, times and sizes as people write them; CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup
from starlette.responses import HTMLResponse, Response

from appliance.base.clock import iso_utc
from appliance.web import assets, texts
from appliance.web.assets import asset, scripts
from appliance.web.texts import N_, number
from appliance.web.texts import gettext as _
from appliance.web.visitor import visitor


@dataclass(frozen=True, slots=True)
class Navigation:
    """The pages that every page leads to: address and name, marked with `N_`; `more` of them in a menu, by group."""

    main: Sequence[tuple[str, str]] = ()
    more: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()


_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet runs instead of showing it
_KEY = re.compile(r" in cameras\.[\w-]+\.\w+")


class _CompiledTemplates(BytecodeCache):
    """Keeps the code of each template: a site whose settings changed has new `Templates`, but the same files."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], CodeType] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._kept.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        if bucket.code is not None:
            self._kept[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _CompiledTemplates()


class Templates:
    """Owner of the template environment. site: its name, shown on each page. editable: its settings can be changed."""

    def __init__(
        self,
        site: str,
        *,
        navigation: Navigation,
        guarded: Callable[[], bool],
        may: Callable[[str, str], bool],
        editable: bool = False,
        troubles: Callable[[], Sequence[object]] = tuple,
        has_uplink: bool = True,
        shown: Callable[..., str] = str,
    ) -> None:
        """guarded: whether one must sign in now. may: whether the visitor may ask a route, by method and path.

        troubles: what is wrong now and the visitor may know, with what helps; it stands on each page. has_uplink False:
        nothing is said of what the cloud was not asked. shown: returns the name for people of an id, and of an id
        within it.
        """
        self.site = site
        self._environment = Environment(
            loader=FileSystemLoader(assets.folders("templates")), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True, auto_reload=False, extensions=["jinja2.ext.i18n"],
            bytecode_cache=_COMPILED,
        )  # fmt: skip
        self._environment.install_gettext_callables(  # type: ignore[attr-defined]
            texts.gettext, texts.ngettext, newstyle=True
        )
        self._environment.policies["ext.i18n.trimmed"] = True
        self._environment.globals.update(site=site, guarded=guarded, may=may, editable_site=editable, visitor=visitor)
        self._environment.globals.update(navigation=navigation, troubles=troubles, has_uplink=has_uplink)
        self._environment.globals.update(
            catalogue=texts.catalogue, languages=texts.catalogues, script_of=texts.script_of
        )
        self._environment.globals.update(tell=texts.tell, asset=asset, scripts=scripts)
        self._environment.filters.update(when=when, size=size, span=span, lasting=lasting, shown=shown)
        self._environment.filters.update(diff=diff, tell=texts.tell, number=figure, digits=number)
        self._environment.filters.update(
            percent=percent, score=score, money=money, joules=joules, without_key=without_key
        )

    def page(self, name: str, **values: Any) -> HTMLResponse:
        """Render template `name`. A page is never cached: it holds the state of now."""
        return HTMLResponse(self._environment.get_template(name).render(values))


def when(t: float, style: str = "clock") -> Markup:
    """Return a `<time>` element. The page's script rewrites it in the viewer's zone; without it, it shows UTC.

    style: clock (12:01:10), ago (2 min ago), recent (12:01, 2 min ago), since (12:01, or yesterday 12:01), moment
    (12:01:10, or yesterday 12:01:10), full (21 Nov, 12:01:10).
    """
    stamp = iso_utc(t)
    return Markup('<time datetime="{}" data-style="{}">{} UTC</time>').format(stamp, style, stamp[11:19])


def without_key(reason: str) -> str:
    """Return a reason without the key of the site file that it names: pages lead to a form instead."""
    return _KEY.sub("", reason)


def diff(text: str) -> Markup:
    """Return a unified difference with its lines marked as new or gone."""
    kinds = {"+": "new", "-": "gone"}
    return Markup("").join(
        Markup('<span class="{}">{}\n</span>').format(kinds.get(line[:1], ""), line) for line in text.splitlines()
    )


def size(amount: float) -> str:
    """Bytes in decimal units, as network tariffs count them: `4.2 MB`."""
    if amount < 0:
        return f"−{size(-amount)}"
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            digits = 0 if unit == "B" or amount >= 99.95 else 1 if amount >= 9.995 else 2
            return number(f"{amount:.{digits}f} {unit}")
        amount /= 1000
    return number(f"{amount:.2f} TB")


def span(seconds: float) -> str:
    """Return a duration in at most two units: `32 s`, `4 min 10 s`, `2 h 5 min`, `3 d 4 h`."""
    if seconds < 9.95:
        return number(f"{seconds:.1f} s")
    whole = round(seconds)
    for big, small, big_s, small_s in ((N_("d"), "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= big_s:
            rest = whole % big_s // small_s
            return f"{whole // big_s} {_(big)}" + (f" {rest} {_(small)}" if rest else "")
    return f"{whole} s"


def lasting(seconds: float) -> str:
    """How long something lasted, in whole seconds: an alert's end is no more exact than that."""
    if seconds < 1:
        return _("a moment")
    return f"{round(seconds)} s" if seconds < 59.5 else span(seconds)


def money(amount: float) -> str:
    """In the owner's currency, which has no name here: two significant digits below one, else two places."""
    if amount == 0:
        return "0"
    return number(f"{amount:,.2f}" if amount >= 0.995 else f"{amount:.2g}" if amount >= 0.0001 else "< 0.0001")


def figure(value: float, digits: int = 0) -> str:
    """Return a number with its thousands set apart and this many decimals."""
    return number(f"{value:,.{digits}f}")


def score(value: float) -> str:
    """Return a detector's score as the boxes show it: `91 %`."""
    return f"{value:.0%}".replace("%", " %")


def joules(amount: float) -> str:
    """`870 J`, `3.6 kJ`, `1.25 MJ`."""
    for factor, unit in ((1e6, "MJ"), (1e3, "kJ")):
        if amount >= factor:
            return f"{amount / factor:.3g} {unit}"
    return f"{amount:.0f} J"


def percent(share: float) -> str:
    """Return a share with the digits that matter: `0.42 %`, `12 %`."""
    amount = share * 100
    if amount < 0:
        return f"−{percent(-share)}"
    if amount == 0:
        return "0 %"
    if amount < 0.01:
        return number("< 0.01 %")
    if amount < 1 or 99.9 <= amount < 100:
        return number(f"{min(amount, 99.99):.2f} %")
    return number(f"{amount:.1f} %" if amount < 10 or 99 <= amount < 100 else f"{amount:.0f} %")


def csv_file(name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Response:
    """Return a CSV (RFC 4180) to download. A text that a spreadsheet would run as a formula gets a quote before it."""
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(header)
    out.writerows([_inert(each) for each in row] for row in rows)
    return Response(
        text.getvalue(), media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )  # fmt: skip


def _inert(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
