"""The weather and the faults there are: names, what their strength means, and what is usual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

When = Literal["window", "moment"]
"""window: from a time, until a time, or always. moment: at a time, which must be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of weather or fault. amount None: it has no strength. unit is written after the number.

    seconds: how long a momentary one lasts unless said otherwise, None for those that have a strength instead.
    stream: it changes which frames come and when, not what is in them.
    """

    name: str
    says: str
    unit: str = ""
    amount: float | None = None
    least: float = 0.0
    most: float = 0.0
    when: When = "window"
    seconds: float | None = None
    stream: bool = False
    also: tuple[str, ...] = ()
    example: str = ""


def _strength(name: str, says: str, example: str, unit: str, usual: float, span: tuple[float, float]) -> Kind:
    least, most = span
    return Kind(name=name, says=says, example=example, unit=unit, amount=usual, least=least, most=most)


def _moment(name: str, says: str, example: str, usual_s: float) -> Kind:
    return Kind(
        name=name, says=says, example=example, unit="s", seconds=usual_s, least=0.05, most=3600.0, when="moment"
    )


KINDS: tuple[Kind, ...] = (
    _strength("rain", "mm an hour: streaks near and far, and haze", "rain:40mm", "mm", 10, (1, 100)),
    _strength("snow", "cm an hour, falling and drifting", "snow:5cm", "cm", 2, (0.1, 20)),
    _strength("fog", "metres that one can see; upper rows count as far away", "fog:40m", "m", 80, (10, 2000)),
    _strength("night", "lux of the street lamps: dark, grainy, little colour", "night:0.3lux", "lux", 1, (0.05, 50)),
    replace(
        _strength("infrared", "metres that the camera's own light reaches", "ir:15m@20s", "m", 25, (5, 200)),
        also=("ir",),
    ),
    _strength("exposure", "stops too bright; below 0 too dark", "exposure:-2ev@10s-20s", "ev", 1.5, (-6, 6)),
    replace(
        _strength("flash", "stops; headlights or lightning, over in half a second", "flash@10s", "ev", 3, (0.5, 6)),
        when="moment",
    ),
    _strength("dirt", "share of the window that is dirty", "dirt:25%", "%", 10, (1, 60)),
    replace(
        _strength("insects", "how many are before the lens at a time", "insects:4", "", 2, (1, 20)), also=("insect",)
    ),
    replace(_strength("blur", "pixels; out of focus", "blur:4px", "px", 2, (0.3, 20)), also=("defocus",)),
    _strength("shake", "pixels by which the mast trembles at most", "shake:6px", "px", 3, (0.5, 20)),
    _strength("noise", "steps of 255; grain of the sensor", "noise:15", "", 8, (1, 60)),
    replace(
        _strength("scale", "factor; a picture of so many pixels less", "scale:0.25", "", 0.5, (0.1, 0.95)),
        also=("resolution",),
    ),
    replace(_strength("jpeg", "JPEG quality; compressed once more", "jpeg:10", "", 20, (1, 95)), also=("compression",)),
    _moment("black", "a black picture for so long", "black:2s@10s", 2),
    replace(_moment("freeze", "the same picture for so long", "freeze:2s@10s", 2), stream=True),
    replace(_moment("gap", "nothing comes for so long", "gap:3s@20s", 3), stream=True, also=("cut",)),
    replace(_strength("drop", "share of the frames that are lost", "drop:20%", "%", 5, (0.1, 95)), stream=True),
    replace(
        _strength("jitter", "by which time stamps are wrong at most", "jitter:80ms", "ms", 30, (1, 500)), stream=True
    ),
    replace(
        _strength("late", "now and then the link stands still so long", "late:1000ms", "ms", 300, (10, 5000)),
        stream=True,
    ),
)
BY_NAME = {name: kind for kind in KINDS for name in (kind.name, *kind.also)}
