"""What `--with help` prints."""

from __future__ import annotations

from appliance.weather.kinds import KINDS, Kind

HEAD = """\
Weather and faults for recorded footage: `--with rain,night,drop:5%`. The truth of the footage stays valid.
Each is NAME[:STRENGTH][@FROM[-UNTIL]]; times are seconds (20s) or m:ss. The same --seed gives the same weather, at
any speed. `none` is clear weather.
"""


def weather_help() -> str:
    """A table of all kinds, and examples."""
    pictures = [_line(kind) for kind in KINDS if not kind.stream]
    streams = [_line(kind) for kind in KINDS if kind.stream]
    return "\n".join([HEAD, "In the picture:", *pictures, "", "In the stream:", *streams, ""])


def _line(kind: Kind) -> str:
    amount = kind.seconds if kind.amount is None else kind.amount
    names = ", ".join((kind.name, *kind.also))
    usual = f"{amount:g}{kind.unit}"
    return f"  {names:<20}{usual:>7}  {kind.example:<22} {kind.says}"
