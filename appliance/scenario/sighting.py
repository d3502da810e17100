"""Why an event was missed, as far as the looks of its time tell: who was seen, where, and how surely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from appliance.config import Camera, DwellRule, LineRule, Rule
from appliance.replay.report import clock_time
from appliance.rules.geometry import Polygon, foot
from appliance.scenario.expect import Miss, Pattern
from appliance.scenario.verdict import Moment
from appliance.track.association import overlap
from appliance.track.birth import GUESS
from appliance.track.trace import BEGIN
from appliance.types import Box, FrameBoxes, TrackedObject

TRACKS_MAX = 200
# Where nobody was found the pictures show the beginning, the middle and the end of the time.
_SHARES = (0.2, 0.5, 0.8)


@dataclass(slots=True)
class _Stay:
    first: float
    last: float


class Sighting:
    """One miss. Fed every look of its camera in order; state: the best look so far and who was inside the zone.

    zone and line: what the rules that could have reported it watch, "" if none.
    """

    def __init__(self, miss: Miss, camera: Camera, footage_s: float) -> None:
        self._pattern = miss.wanted.pattern
        self._at, self._box = miss.wanted.at, miss.wanted.box
        self._at_look: FrameBoxes | None = None
        self._start = min(self._pattern.start, footage_s)
        self._end = min(self._pattern.end, footage_s)
        self._footage_s = footage_s
        self._rules = tuple(rule for rule in camera.rules if _concerns(self._pattern, rule))
        labels = {label for rule in self._rules for label in rule.labels}
        self._labels = {self._pattern.label} if self._pattern.label else labels
        zones = {rule.zone for rule in self._rules if not isinstance(rule, LineRule)}
        self.zone = next(iter(sorted(zones)), "")
        self.line = next((rule.line for rule in self._rules if isinstance(rule, LineRule)), "")
        self._zones = [Polygon(points) for name, points in camera.zones.items() if name in zones]
        self._looks = self._unlooked = 0
        self._best: tuple[FrameBoxes, TrackedObject] | None = None
        self._best_inside: tuple[FrameBoxes, TrackedObject] | None = None
        self._inside: dict[int, _Stay] = {}
        self._targets = [self._start + share * (self._end - self._start) for share in _SHARES]
        self._nearest: list[FrameBoxes | None] = [None] * len(_SHARES)

    def look(self, frame: FrameBoxes) -> None:
        if not self._start <= frame.t <= self._end:
            return
        self._looks += 1
        self._unlooked += not frame.looked
        if self._at is not None and (
            self._at_look is None or abs(frame.t - self._at) < abs(self._at_look.t - self._at)
        ):
            self._at_look = frame
        for index, target in enumerate(self._targets):
            before = self._nearest[index]
            if before is None or abs(frame.t - target) < abs(before.t - target):
                self._nearest[index] = frame
        for found in frame.objects:
            if found.label in self._labels:
                self._seen(frame, found)

    def _seen(self, frame: FrameBoxes, found: TrackedObject) -> None:
        self._best = _better(self._best, frame, found)
        if not any(zone.contains(foot(found.box)) for zone in self._zones):
            return
        self._best_inside = _better(self._best_inside, frame, found)
        stay = self._inside.get(found.track)
        if stay is not None:
            stay.last = frame.t
        elif len(self._inside) < TRACKS_MAX:
            self._inside[found.track] = _Stay(frame.t, frame.t)

    def moments(self) -> tuple[Moment, ...]:
        """The look at the true moment, if that is known; the best look, inside the zone if there was one; else three
        looks spread over the time."""
        if self._at_look is not None:
            return (_moment(self._at_look, self._focus(self._at_look), self._box),)
        best = self._best_inside or self._best
        if best is not None:
            return (_moment(best[0], best[1].track),)
        looks = {look.frame: look for look in self._nearest if look is not None}
        return tuple(_moment(look, None) for look in looks.values())

    def _focus(self, look: FrameBoxes) -> int | None:
        """Who of that look is meant: who overlaps the true box most; without one, the surest of the right kind."""
        alike = [found for found in look.objects if found.label in self._labels]
        if self._box is not None and alike:
            shared = overlap(np.array([self._box], float), np.array([found.box for found in alike], float))[0]
            return alike[int(shared.argmax())].track if shared.max() > 0 else None
        inside = [found for found in alike if any(zone.contains(foot(found.box)) for zone in self._zones)]
        return max(inside or alike, key=lambda found: found.score).track if alike else None

    def sentence(self) -> str:
        """What the looks say, in one sentence."""
        who = _either(sorted(self._labels))
        if self._pattern.start > self._footage_s:
            return f"the clip ends before that, at {clock_time(self._footage_s)}"
        if self._looks == self._unlooked:
            return (
                "nobody looked in this time: the detector did not answer" if self._looks else "no frame fell due then"
            )
        if self._best is None:
            return (
                f"no {who} was followed in any of the {self._looks} looks of this time "
                f"(a track begins from a score of {BEGIN:.2f} on, of who walks from {GUESS:.2f} on)"
            )
        if self._zones and self._best_inside is None:
            return f"a {who} was found ({_told(self._best)}), but never stood in the zone"
        seen = self._best_inside or self._best
        floor = min((rule.score_min for rule in self._rules), default=0.0)
        if seen[1].score < floor:
            return f"the best {who} scored {_told(seen)}; the rule wants {floor:.2f}"
        if self._zones:
            return self._inside_words(who)
        return f"a {who} was found ({_told(seen)}), but none was followed across the line"

    def _inside_words(self, who: str) -> str:
        longest = max(self._inside.values(), key=lambda stay: stay.last - stay.first)
        stay_s, tracks = longest.last - longest.first, len(self._inside)
        told = f"a {who} was in the zone from {clock_time(longest.first)} for {stay_s:.1f} s"
        wanted = [rule.seconds for rule in self._rules if isinstance(rule, DwellRule)]
        if wanted and stay_s < min(wanted):
            told += f" of the {min(wanted):g} s that the rule wants"
        if tracks > 1:
            return f"{told}, and {tracks} different tracks were: does the tracker lose them?"
        return f"{told} (track {next(iter(self._inside))}), but the rule did not fire"


def _concerns(pattern: Pattern, rule: Rule) -> bool:
    zone, line = ("", rule.line) if isinstance(rule, LineRule) else (rule.zone, "")
    return (
        pattern.rule in ("", rule.name)
        and pattern.zone in ("", zone)
        and pattern.line in ("", line)
        and (not pattern.label or pattern.label in rule.labels)
    )


def _better(
    best: tuple[FrameBoxes, TrackedObject] | None, frame: FrameBoxes, found: TrackedObject
) -> tuple[FrameBoxes, TrackedObject]:
    return (frame, found) if best is None or found.score > best[1].score else best


def _told(seen: tuple[FrameBoxes, TrackedObject]) -> str:
    return f"{seen[1].score:.2f} at {clock_time(seen[0].t)}, track {seen[1].track}"


def _moment(look: FrameBoxes, focus: int | None, truth: Box | None = None) -> Moment:
    return Moment(camera=look.camera, t=look.t, frame=look.frame, objects=look.objects, focus=focus, truth=truth)


def _either(labels: list[str]) -> str:
    """`bus, car or truck`."""
    return " or ".join([*([", ".join(labels[:-1])] if labels[1:] else []), *labels[-1:]]) or "object"


def nearest_words(miss: Miss) -> str:
    """Where an event of the same kind came instead, if one did."""
    event, pattern = miss.nearest, miss.wanted.pattern
    if event is None:
        return ""
    early, late = pattern.start - event.t, event.t - pattern.end
    apart = f"{early:.1f} s too early" if early > 0 else f"{late:.1f} s too late"
    return f"one came at {clock_time(event.t)}, {apart}"
