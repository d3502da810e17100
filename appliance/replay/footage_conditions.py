"""Conditions of footage as written after `--with` (rain:40mm, drop:5%): kinds, parser, the set with its seed, help."""

from __future__ import annotations

import argparse
import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from appliance.base.errors import UsageError

When = Literal["window", "moment"]
"""window: from a time, until a time, or always. moment: at a time, which must be given."""


@dataclass(frozen=True, slots=True)
class ConditionKind:
    """One kind of weather or fault."""

    name: str
    description: str  # what the amount means, for `--with help`
    example: str
    unit: str  # written after the number
    amount: float | None  # the usual strength; None: it has a duration instead
    amounts: tuple[float, float]  # the least and the greatest
    when: When = "window"
    duration_s: float | None = None  # how long a momentary one usually lasts
    stream: bool = False  # changes which frames come and when, not what is in them
    aliases: tuple[str, ...] = ()


def _momentary(name: str, description: str, example: str, usual_s: float, **more: Any) -> ConditionKind:
    return ConditionKind(
        name, description, example, "s", None, (0.05, 3600.0), when="moment", duration_s=usual_s, **more
    )


CONDITION_KINDS: tuple[ConditionKind, ...] = (
    ConditionKind("rain", "mm an hour: streaks near and far, and haze", "rain:40mm", "mm", 10, (1, 100)),
    ConditionKind("snow", "cm an hour, falling and drifting", "snow:5cm", "cm", 2, (0.1, 20)),
    ConditionKind("fog", "metres that one can see; upper rows count as far away", "fog:40m", "m", 80, (10, 2000)),
    ConditionKind(
        "night", "lux of the street lamps: dark, grainy, little colour", "night:0.3lux", "lux", 1, (0.05, 50)
    ),
    ConditionKind(
        "infrared", "metres that the camera's own light reaches", "ir:15m@20s", "m", 25, (5, 200), aliases=("ir",)
    ),
    ConditionKind("exposure", "stops too bright; below 0 too dark", "exposure:-2ev@10s-20s", "ev", 1.5, (-6, 6)),
    ConditionKind(
        "flash", "stops; headlights or lightning, over in half a second", "flash@10s", "ev", 3, (0.5, 6), when="moment"
    ),
    ConditionKind("dirt", "share of the window that is dirty", "dirt:25%", "%", 10, (1, 60)),
    ConditionKind(
        "insects", "how many are before the lens at a time", "insects:4", "", 2, (1, 20), aliases=("insect",)
    ),
    ConditionKind("blur", "pixels; out of focus", "blur:4px", "px", 2, (0.3, 20), aliases=("defocus",)),
    ConditionKind("shake", "pixels by which the mast trembles at most", "shake:6px", "px", 3, (0.5, 20)),
    ConditionKind("noise", "steps of 255; grain of the sensor", "noise:15", "", 8, (1, 60)),
    ConditionKind(
        "scale", "factor; a picture of so many pixels less", "scale:0.25", "", 0.5, (0.1, 0.95), aliases=("resolution",)
    ),
    ConditionKind("jpeg", "JPEG quality; compressed once more", "jpeg:10", "", 20, (1, 95), aliases=("compression",)),
    _momentary("black", "a black picture for so long", "black:2s@10s", 2),
    _momentary("freeze", "the same picture for so long", "freeze:2s@10s", 2, stream=True),
    _momentary("gap", "nothing comes for so long", "gap:3s@20s", 3, stream=True, aliases=("cut",)),
    ConditionKind("drop", "share of the frames that are lost", "drop:20%", "%", 5, (0.1, 95), stream=True),
    ConditionKind("jitter", "by which time stamps are wrong at most", "jitter:80ms", "ms", 30, (1, 500), stream=True),
    ConditionKind(
        "late", "now and then the link stands still so long", "late:1000ms", "ms", 300, (10, 5000), stream=True
    ),
)
KIND_BY_NAME = {name: kind for kind in CONDITION_KINDS for name in (kind.name, *kind.aliases)}


CONDITIONS_MAX = 40  # of one set; each is applied to every frame
SEED_MAX = 2**32 - 1  # numpy's seeds have 32 bits
NO_CONDITIONS_WORD = "none"
_ITEM = re.compile(r"^(?P<name>[a-z_-]+)(?::(?P<amount>[^@]+))?(?:@(?P<when>.+))?$")
_NUMBER = re.compile(r"^(?P<value>[+-]?\d+(?:\.\d+)?)\s*(?P<unit>[a-z%]*)$")
_CLOCK = re.compile(r"^(?:(\d{1,3}):)?(\d{1,3}):([0-5]?\d(?:\.\d+)?)$")
_UNITS = {"s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class FootageCondition:
    """One thing that is wrong with the footage from t0 until t1 (seconds of the footage)."""

    kind: ConditionKind
    amount: float  # in the kind's unit; seconds for momentary ones
    t0: float = 0.0
    t1: float = math.inf

    def at(self, t: float) -> bool:
        """Return whether it holds at second `t`."""
        return self.t0 <= t < self.t1

    @property
    def text(self) -> str:
        """As it would be written in full; `parse_condition(text)` gives it back."""
        if self.kind.when == "moment":
            return f"{self.kind.name}:{self.amount:.15g}{self.kind.unit}@{self.t0:.15g}s"
        until = f"-{self.t1:.15g}s" if self.t1 < math.inf else ""
        since = f"@{self.t0:.15g}s{until}" if self.t0 > 0 or until else ""
        return f"{self.kind.name}:{self.amount:.15g}{self.kind.unit}{since}"


def parse_conditions(items: Iterable[str]) -> tuple[FootageCondition, ...]:
    """Parse all `items`, each perhaps several with commas between; in the order of CONDITION_KINDS, then of time.

    `none` is clear weather. Raises UsageError with what would be right.
    """
    texts = [part.strip().lower() for item in items for part in item.split(",") if part.strip()]
    if len(texts) > CONDITIONS_MAX:
        raise UsageError(f"{len(texts)} kinds of weather at once are too many; at most {CONDITIONS_MAX}")
    if NO_CONDITIONS_WORD in texts:
        if len(texts) > 1:
            raise UsageError(f"`{NO_CONDITIONS_WORD}` is clear weather: write it alone")
        return ()
    order = [kind.name for kind in CONDITION_KINDS]
    found = {parse_condition(text) for text in texts}
    return tuple(sorted(found, key=lambda each: (order.index(each.kind.name), each.t0, each.amount, each.t1)))


def parse_condition(text: str) -> FootageCondition:
    """Parse `rain`, `rain:40mm`, `ir@20s`, `fog:50m@10s-30s`, `freeze:2s@1:05`. Raises UsageError."""
    match = _ITEM.match(text)
    if match is None:
        raise UsageError(f"`{text}` is no weather: write a name, as in rain, rain:40mm, ir@20s or drop:5%")
    kind = _known_kind(match["name"])
    default = kind.duration_s if kind.amount is None else kind.amount
    amount = default if match["amount"] is None else _amount(match["amount"], kind, text)
    assert amount is not None, "each kind has a strength or a length"
    if kind.when == "moment":
        return _momentary_condition(kind, amount, match["when"], text)
    return FootageCondition(kind, amount, *_window(match["when"], text))


def _known_kind(name: str) -> ConditionKind:
    if name in KIND_BY_NAME:
        return KIND_BY_NAME[name]
    near = difflib.get_close_matches(name, KIND_BY_NAME, n=1, cutoff=0.5)
    meant = (
        f", did you mean `{near[0]}`?" if near else f"; there is: {', '.join(kind.name for kind in CONDITION_KINDS)}."
    )
    raise UsageError(f"there is no weather `{name}`{meant} (`--with help` explains them)")


def _amount(text: str, kind: ConditionKind, item: str) -> float:
    match = _NUMBER.match(text)
    if match is None:
        raise UsageError(f"`{item}`: `{text}` is no strength; write `{kind.example}`")
    value, unit = float(match["value"]), match["unit"]
    if kind.unit == "s" and unit == "ms":
        value, unit = value * _UNITS["ms"], "s"
    if kind.unit == "ms" and unit == "s":
        value, unit = value / _UNITS["ms"], "ms"
    if unit not in ("", kind.unit):
        counted = f"counted in {kind.unit}" if kind.unit else "a plain number"
        raise UsageError(f"`{item}`: {kind.name} is {counted}, as in `{kind.example}`")
    least, most = kind.amounts
    if not least <= value <= most:
        raise UsageError(f"`{item}`: {kind.name} goes from {least:g}{kind.unit} to {most:g}{kind.unit}")
    return value


def _momentary_condition(kind: ConditionKind, amount: float, when: str | None, item: str) -> FootageCondition:
    if when is None:
        raise UsageError(f"`{item}`: say when, as in `{kind.example}`")
    t0 = _time(when, item)
    return FootageCondition(kind, amount, t0, t0 + (1.0 if kind.duration_s is None else amount))


def _window(when: str | None, item: str) -> tuple[float, float]:
    if when is None:
        return 0.0, math.inf
    begin, _, end = when.partition("-")
    t0, t1 = _time(begin, item), _time(end, item) if end else math.inf
    if t1 <= t0:
        raise UsageError(f"`{item}`: it ends before it begins")
    return t0, t1


def clock_seconds(text: str) -> float | None:
    """Return the seconds of `m:ss` or `h:mm:ss`; None: it is neither."""
    clock = _CLOCK.match(text)
    if clock is None:
        return None
    hours, minutes, seconds = clock.groups()
    return int(hours or 0) * 3600 + int(minutes) * 60 + float(seconds)


def _time(text: str, item: str) -> float:
    if (clock_s := clock_seconds(text)) is not None:
        return clock_s
    match = _NUMBER.match(text)
    if match is None or match["unit"] not in ("", *_UNITS) or match["value"].startswith(("-", "+")):
        raise UsageError(f"`{item}`: `{text}` is no time; write seconds (20s) or m:ss (1:05)")
    return float(match["value"]) * _UNITS.get(match["unit"], 1.0)


@dataclass(frozen=True, slots=True)
class ConditionSet:
    """The conditions of a replay in their fixed order, and the seed of all randomness in them."""

    conditions: tuple[FootageCondition, ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, items: Iterable[str], seed: int = 0) -> ConditionSet:
        """Parse them as written after `--with`. Without a condition the seed is 0. Raises UsageError."""
        found = parse_conditions(items)
        return cls(found, seed) if found else NO_CONDITIONS

    @property
    def texts(self) -> tuple[str, ...]:
        """Each condition in full; `parse(texts, seed)` gives the set back."""
        return tuple(each.text for each in self.conditions)

    @property
    def image_conditions(self) -> tuple[FootageCondition, ...]:
        """Those that change what is in a frame."""
        return tuple(each for each in self.conditions if not each.kind.stream)

    @property
    def stream_conditions(self) -> tuple[FootageCondition, ...]:
        """Those that change which frames come, and when."""
        return tuple(each for each in self.conditions if each.kind.stream)

    def __str__(self) -> str:
        return describe_conditions(self.texts, self.seed)


def describe_conditions(texts: Iterable[str], seed: int) -> str:
    """Write `rain:10mm, drop:5% (seed 7)`; "" for clear weather."""
    text = ", ".join(texts)
    return f"{text} (seed {seed})" if text and seed else text


NO_CONDITIONS = ConditionSet()


def parse_seed(text: str) -> int:
    """Parse a whole number that numpy's generators take."""
    if not text.isascii() or not text.isdigit() or int(text) > SEED_MAX:
        raise argparse.ArgumentTypeError(f"`{text}` is no seed: write a whole number from 0 to {SEED_MAX}")
    return int(text)


_HELP_HEAD = """\
Weather and faults for recorded footage: `--with rain,night,drop:5%`. The truth of the footage stays valid.
Each is NAME[:STRENGTH][@FROM[-UNTIL]]; times are seconds (20s) or m:ss. The same --seed gives the same weather, at
any speed. `none` is clear weather.
"""


def conditions_help() -> str:
    """Return a table of all kinds, and examples."""
    image = [_help_line(kind) for kind in CONDITION_KINDS if not kind.stream]
    stream = [_help_line(kind) for kind in CONDITION_KINDS if kind.stream]
    return "\n".join([_HELP_HEAD, "In the picture:", *image, "", "In the stream:", *stream, ""])


def _help_line(kind: ConditionKind) -> str:
    amount = kind.duration_s if kind.amount is None else kind.amount
    names = ", ".join((kind.name, *kind.aliases))
    usual = f"{amount:g}{kind.unit}"
    return f"  {names:<20}{usual:>7}  {kind.example:<22} {kind.description}"
