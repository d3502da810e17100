"""What a person writes after `--with`, such as `rain:40mm,ir@20s,drop:5%`, and what it means."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.errors import UsageError
from appliance.weather.kinds import BY_NAME, KINDS, Kind

CONDITIONS_MAX = 40
CLEAR = "none"
_ITEM = re.compile(r"^(?P<name>[a-z_-]+)(?::(?P<amount>[^@]+))?(?:@(?P<when>.+))?$")
_NUMBER = re.compile(r"^(?P<value>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>[a-z%]*)$")
_CLOCK = re.compile(r"^(?:(\d{1,3}):)?(\d{1,3}):([0-5]?\d(?:\.\d+)?)$")
_UNITS = {"s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that goes wrong. amount: in the kind's unit (seconds for momentary ones); from t0 until t1, seconds of
    the footage."""

    kind: Kind
    amount: float
    t0: float = 0.0
    t1: float = math.inf

    def at(self, t: float) -> bool:
        """Whether it is so at second `t`."""
        return self.t0 <= t < self.t1

    @property
    def words(self) -> str:
        """As it would be written in full; `condition(words)` gives it back."""
        if self.kind.when == "moment":
            return f"{self.kind.name}:{self.amount:g}{self.kind.unit}@{self.t0:g}s"
        until = f"-{self.t1:g}s" if self.t1 < math.inf else ""
        since = f"@{self.t0:g}s{until}" if self.t0 > 0 or until else ""
        return f"{self.kind.name}:{self.amount:g}{self.kind.unit}{since}"


def conditions(items: Iterable[str]) -> tuple[Condition, ...]:
    """All of `items`, each perhaps several with commas between; in one order, however they were written.

    `none` is clear weather. Raises UsageError with what would be right.
    """
    texts = [part.strip().lower() for item in items for part in item.split(",") if part.strip()]
    if len(texts) > CONDITIONS_MAX:
        raise UsageError(f"{len(texts)} kinds of weather at once are too many; at most {CONDITIONS_MAX}")
    if CLEAR in texts:
        if len(texts) > 1:
            raise UsageError(f"`{CLEAR}` is clear weather: write it alone")
        return ()
    order = [kind.name for kind in KINDS]
    found = {condition(text) for text in texts}
    return tuple(sorted(found, key=lambda each: (order.index(each.kind.name), each.t0, each.amount)))


def condition(text: str) -> Condition:
    """`rain`, `rain:40mm`, `ir@20s`, `fog:50m@10s-30s`, `freeze:2s@1:05`. Raises UsageError."""
    match = _ITEM.match(text)
    if match is None:
        raise UsageError(f"`{text}` is no weather: write a name, as in rain, rain:40mm, ir@20s or drop:5%")
    kind = _kind(match["name"])
    default = kind.seconds if kind.amount is None else kind.amount
    amount = default if match["amount"] is None else _amount(match["amount"], kind, text)
    assert amount is not None, "each kind has a strength or a length"
    if kind.when == "moment":
        return _moment(kind, amount, match["when"], text)
    return Condition(kind, amount, *_window(match["when"], text))


def _kind(name: str) -> Kind:
    if name in BY_NAME:
        return BY_NAME[name]
    near = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.5)
    meant = f", did you mean `{near[0]}`?" if near else f"; there is: {', '.join(kind.name for kind in KINDS)}."
    raise UsageError(f"there is no weather `{name}`{meant} (`--with help` explains them)")


def _amount(text: str, kind: Kind, item: str) -> float:
    match = _NUMBER.match(text)
    usual = kind.example or kind.name
    if match is None:
        raise UsageError(f"`{item}`: `{text}` is no strength; write `{usual}`")
    value, unit = float(match["value"]), match["unit"]
    if kind.unit == "s" and unit == "ms":
        value, unit = value * _UNITS["ms"], "s"
    if kind.unit == "ms" and unit == "s":
        value, unit = value / _UNITS["ms"], "ms"
    if unit not in ("", kind.unit):
        counted = f"counted in {kind.unit}" if kind.unit else "a plain number"
        raise UsageError(f"`{item}`: {kind.name} is {counted}, as in `{usual}`")
    if not kind.least <= value <= kind.most:
        raise UsageError(f"`{item}`: {kind.name} goes from {kind.least:g}{kind.unit} to {kind.most:g}{kind.unit}")
    return value


def _moment(kind: Kind, amount: float, when: str | None, item: str) -> Condition:
    if when is None:
        raise UsageError(f"`{item}`: say when, as in `{kind.example}`")
    t0 = _time(when, item)
    return Condition(kind, amount, t0, t0 + (1.0 if kind.seconds is None else amount))


def _window(when: str | None, item: str) -> tuple[float, float]:
    if when is None:
        return 0.0, math.inf
    begin, _, end = when.partition("-")
    t0, t1 = _time(begin, item), _time(end, item) if end else math.inf
    if t1 <= t0:
        raise UsageError(f"`{item}`: it ends before it begins")
    return t0, t1


def _time(text: str, item: str) -> float:
    clock = _CLOCK.match(text)
    if clock is not None:
        hours, minutes, seconds = clock.groups()
        return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)
    match = _NUMBER.match(text)
    if match is None or match["unit"] not in ("", *_UNITS) or match["value"].startswith(("-", "+")):
        raise UsageError(f"`{item}`: `{text}` is no time; write seconds (20s) or m:ss (1:05)")
    return float(match["value"]) * _UNITS.get(match["unit"], 1.0)
