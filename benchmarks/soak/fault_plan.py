"""The faults of a soak, when and for how long: made from a seed, so that a failed soak can be repeated."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Kind = Literal["stall", "hang", "drip", "off", "cut", "reset", "garbage", "noise", "jump"]
LASTING: tuple[Kind, ...] = ("stall", "hang", "drip")
AT_ONCE: tuple[Kind, ...] = ("cut", "reset", "garbage", "noise", "jump")
RECOVER_S = 45.0
LAST_S = (15.0, 40.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """camera '': the server of all cameras is off (`off`). Seconds since the plan began; momentary: both equal."""

    kind: Kind
    camera: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """apart_s: from a camera's recovery to its next fault, uniformly; off_apart_s: the same for the whole server."""

    apart_s: tuple[float, float]
    off_apart_s: tuple[float, float]
    first_s: tuple[float, float]
    last_s: tuple[float, float] = LAST_S
    recover_s: float = RECOVER_S


LONG = Pace(apart_s=(20.0, 180.0), off_apart_s=(420.0, 900.0), first_s=(20.0, 120.0))
SHORT = Pace(apart_s=(1.0, 3.0), off_apart_s=(1e9, 1e9), first_s=(2.0, 5.0), last_s=(11.0, 12.0), recover_s=25.0)


def make(cameras: list[str], seconds: float, pace: Pace, seed: int) -> list[Fault]:
    """Return all faults by their start; each ends, and can be recovered from, before `seconds` are over.

    Each camera has every kind in a new order before one repeats. Faults that would overlap with the server being off,
    or with the recovery from that, are left out.
    """
    chance = random.Random(seed)
    off = list(_offs(seconds, pace, chance))
    found = list(off)
    for camera in cameras:
        own = _of_camera(camera, seconds, pace, chance)
        found += [each for each in own if not any(_meet(each, other, pace.recover_s) for other in off)]
    return sorted(found, key=lambda fault: (fault.start_s, fault.camera))


def _offs(seconds: float, pace: Pace, chance: random.Random) -> list[Fault]:
    found: list[Fault] = []
    start_s = chance.uniform(*pace.off_apart_s)
    while (end_s := start_s + chance.uniform(*pace.last_s)) + pace.recover_s <= seconds:
        found.append(Fault("off", "", round(start_s, 2), round(end_s, 2)))
        start_s = end_s + pace.recover_s + chance.uniform(*pace.off_apart_s)
    return found


def _of_camera(camera: str, seconds: float, pace: Pace, chance: random.Random) -> list[Fault]:
    found: list[Fault] = []
    deck: list[Kind] = []
    start_s = chance.uniform(*pace.first_s)
    while True:
        if not deck:
            deck = [*LASTING, *AT_ONCE]
            chance.shuffle(deck)
        kind = deck.pop()
        end_s = start_s + (chance.uniform(*pace.last_s) if kind in LASTING else 0.0)
        if end_s + pace.recover_s > seconds:
            return found
        found.append(Fault(kind, camera, round(start_s, 2), round(end_s, 2)))
        start_s = end_s + pace.recover_s + chance.uniform(*pace.apart_s)


def _meet(one: Fault, other: Fault, apart_s: float) -> bool:
    return one.start_s < other.end_s + apart_s and other.start_s < one.end_s + apart_s
