"""What a reviewed alert says of its clip: which events must come, which must not, and which may. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from appliance.types import Event

Word = Literal["right", "false"]
"""What a person said of an alert: something to be told of happened, or nothing did."""
Known = Literal["right", "false", "held back", "open", "there already"]

AROUND_S = 3.0  # a better detector finds somebody earlier, a slower one later
APART_S = 1.5
INSIDE_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """An event in the clip's time, and what is known of it.

    lead_s: how long its rule must have watched before; until: when the incident that it belongs to was over.
    """

    event: Event
    known: Known
    lead_s: float = 0.0
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of a scenario, times in seconds since the clip's first frame. optional: it may come or not."""

    rule: str
    label: str
    zone: str = ""
    line: str = ""
    start: float
    end: float
    at: float | None = None
    optional: bool = False
    note: str = ""

    def alike(self, other: Entry) -> bool:
        return (self.rule, self.label) == (other.rule, other.label)


@dataclass(frozen=True, slots=True)
class Truth:
    """The entries of `expect` and of `never`, each in order of time."""

    expect: tuple[Entry, ...]
    never: tuple[Entry, ...]


def truth_of(seen: Iterable[Seen], clip: tuple[float, float]) -> Truth:
    """The truth of a clip. seen: every event of its time; clip: from, to.

    A right event must come within AROUND_S of its moment; one at the very edge of the clip may. Around false ones of
    a kind (rule and label) none may come. Windows of what is right and of what is false do not overlap.
    """
    told = sorted(seen, key=lambda each: each.event.t)
    right = [_expected(each, clip) for each in told if each.known == "right"]
    never = _barred([each for each in told if each.known == "false"], right, clip)
    may = [_optional(each, clip) for each in told if each.known not in ("right", "false")]
    free = [trimmed for entry in may if (trimmed := _trimmed(entry, never)) is not None]
    must = [_trimmed(entry, never) or entry for entry in right]
    expect = sorted([*must, *free], key=lambda entry: (entry.at or 0.0, entry.optional))
    return Truth(tuple(expect), tuple(never))


def _entry(event: Event, clip: tuple[float, float], note: str = "") -> Entry:
    at = _rounded(event.t - clip[0])
    return Entry(
        rule=event.rule,
        label=event.label,
        zone=event.zone,
        line=event.line,
        start=max(0.0, _rounded(at - AROUND_S)),
        end=_rounded(at + AROUND_S),
        at=at,
        note=note,
    )


def _expected(each: Seen, clip: tuple[float, float]) -> Entry:
    entry, t = _entry(each.event, clip), each.event.t
    if clip[0] + each.lead_s <= t <= clip[1] - INSIDE_S:
        return entry
    return replace(entry, optional=True, note="right, but at the edge of the clip")


_MAY = {
    "held back": "a cooldown held it back",
    "open": "of another alert, which nobody has reviewed",
    "there already": "was there already when the clip begins",
}


def _optional(each: Seen, clip: tuple[float, float]) -> Entry:
    return replace(_entry(each.event, clip), optional=True, note=_MAY[each.known])


def _barred(false: Sequence[Seen], right: Sequence[Entry], clip: tuple[float, float]) -> list[Entry]:
    """One entry for each kind, from before its first event until the incident was over; clear of what is right."""
    kinds: dict[tuple[str, str], list[Seen]] = {}
    for each in false:
        kinds.setdefault((each.event.rule, each.event.label), []).append(each)
    length = clip[1] - clip[0]
    found = []
    for same in kinds.values():
        entry = _entry(same[0].event, clip)
        first, last = same[0].event.t - clip[0], same[-1].event.t - clip[0]
        over = max(max(each.event.t, each.until) for each in same) - clip[0]
        start, end = max(0.0, first - AROUND_S), min(length, over + AROUND_S)
        for other in right:
            if other.alike(entry) and other.at is not None:
                start = max(start, other.at + APART_S) if other.at < first else start
                end = min(end, other.at - APART_S) if other.at > last else end
        found.append(replace(entry, at=None, start=_rounded(min(start, first)), end=_rounded(max(end, last))))
    return found


def _trimmed(entry: Entry, never: Sequence[Entry]) -> Entry | None:
    """The part of an entry's window around its moment that no `never` of its kind covers; None: all is covered."""
    for other in never:
        if not other.alike(entry) or entry.at is None:
            continue
        if other.start <= entry.at <= other.end:
            return None
        if other.end < entry.at:
            entry = replace(entry, start=max(entry.start, other.end))
        else:
            entry = replace(entry, end=min(entry.end, other.start))
    return entry


def _rounded(seconds: float) -> float:
    return round(seconds, 2)
