"""Derives the expectations of a kept scenario from reviewed events, and writes its file as a person would.

docs/scenarios.md has every key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from appliance.base.clock import iso_utc
from appliance.base.config_model import DetectorConfig
from appliance.config import AlertsConfig, CameraConfig
from appliance.types import Box, Event

ReviewedAs = Literal["right", "false"]
"""How a person reviewed an alert: it reported something, or it was a false alarm."""
EventStanding = Literal["right", "false", "held back", "open", "there already"]

TOLERANCE_S = 3.0  # a better detector reports earlier, a slower one later
APART_S = 1.5  # between what is right and what is false of the same kind
INSIDE_S = 1.0  # an event this near the end of the clip may come or not


@dataclass(frozen=True, slots=True)
class KnownEvent:
    """An event in the clip's time, and what is known of it.

    lead_s: how long its rule must have watched before; until: when the incident that it belongs to was over.
    """

    event: Event
    known: EventStanding
    lead_s: float = 0.0
    until: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptExpectation:
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

    def alike(self, other: KeptExpectation) -> bool:
        return (self.rule, self.label) == (other.rule, other.label)


@dataclass(frozen=True, slots=True)
class StoodThere:
    """An object that stood still when the clip began, for so many seconds by then."""

    label: str
    box: Box
    seconds: float


@dataclass(frozen=True, slots=True)
class KeptTruth:
    """The entries of `expect` and of `never`, each in order of time."""

    expect: tuple[KeptExpectation, ...]
    never: tuple[KeptExpectation, ...]


def derive_truth(events: Iterable[KnownEvent], clip: tuple[float, float]) -> KeptTruth:
    """Return the truth of a clip. events: all of its time; clip: from, to.

    A right event must come within TOLERANCE_S of its moment; one at the very edge of the clip may. Around false ones of
    a kind (rule and label) none may come. Windows of what is right and of what is false do not overlap.
    """
    known = sorted(events, key=lambda each: each.event.t)
    right = [_expected(each, clip) for each in known if each.known == "right"]
    never = _barred([each for each in known if each.known == "false"], right, clip)
    may = [
        replace(_expectation_of(each.event, clip), optional=True, note=_OPTIONAL_NOTES[each.known])
        for each in known if each.known not in ("right", "false")
    ]  # fmt: skip
    free = [trimmed for entry in may if (trimmed := _trimmed(entry, never)) is not None]
    must = [_trimmed(entry, never) or entry for entry in right]
    expect = sorted([*must, *free], key=lambda entry: (entry.at or 0.0, entry.optional))
    return KeptTruth(tuple(expect), tuple(never))


def _expectation_of(event: Event, clip: tuple[float, float]) -> KeptExpectation:
    at = _rounded(event.t - clip[0])
    return KeptExpectation(
        rule=event.rule,
        label=event.label,
        zone=event.zone,
        line=event.line,
        start=max(0.0, _rounded(at - TOLERANCE_S)),
        end=_rounded(at + TOLERANCE_S),
        at=at,
    )


def _expected(each: KnownEvent, clip: tuple[float, float]) -> KeptExpectation:
    entry, t = _expectation_of(each.event, clip), each.event.t
    if clip[0] + each.lead_s <= t <= clip[1] - INSIDE_S:
        return entry
    return replace(entry, optional=True, note="right, but at the edge of the clip")


_OPTIONAL_NOTES = {
    "held back": "a cooldown held it back",
    "open": "of another alert, which nobody has reviewed",
    "there already": "was there already when the clip begins",
}


def _barred(
    false: Sequence[KnownEvent], right: Sequence[KeptExpectation], clip: tuple[float, float]
) -> list[KeptExpectation]:
    """Return an entry for each kind, from before its first event to the end of the incident, clear of what is right."""
    kinds: dict[tuple[str, str], list[KnownEvent]] = {}
    for each in false:
        kinds.setdefault((each.event.rule, each.event.label), []).append(each)
    length = clip[1] - clip[0]
    found = []
    for same in kinds.values():
        entry = _expectation_of(same[0].event, clip)
        first, last = same[0].event.t - clip[0], same[-1].event.t - clip[0]
        over = max(max(each.event.t, each.until) for each in same) - clip[0]
        start, end = max(0.0, first - TOLERANCE_S), min(length, over + TOLERANCE_S)
        for other in right:
            if other.alike(entry) and other.at is not None:
                start = max(start, other.at + APART_S) if other.at < first else start
                end = min(end, other.at - APART_S) if other.at > last else end
        found.append(replace(entry, at=None, start=_rounded(min(start, first)), end=_rounded(max(end, last))))
    return found


def _trimmed(entry: KeptExpectation, never: Sequence[KeptExpectation]) -> KeptExpectation | None:
    """Return the part of an entry's window around its moment that no `never` of its kind covers; None: nothing."""
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


# `${…}` in a file is taken from the reader's environment; this stands for a plain `$`.
_DOLLAR = "${VEDETTE_DOLLAR:-$}"
_HEAD = """\
# Kept from alert {alert} of camera {camera}, {begin} to {end}, reviewed as {word}.
# The moments below are those at which the appliance reported. Correct them to what you see in the clip, and take out
# what it should not have said twice: a scenario that only repeats a report proves that nothing changed, no more.
# The clip shows people: it is personal data, to be kept as long as it is needed and given to nobody else.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioContent:
    """The contents of a scenario file.

    begin, end: the clip's camera time (UTC seconds); lacks: what the clip lacks; stood: what stood there when it began,
    None: that is not known, the camera's session began with it.
    """

    name: str
    note: str
    clip: str
    alert: str
    reviewed_as: ReviewedAs
    begin: float
    end: float
    lacks: str
    camera_name: str
    camera: CameraConfig
    alerts: AlertsConfig
    detector: DetectorConfig
    truth: KeptTruth
    complete: bool
    stood: tuple[StoodThere, ...] | None = None


def scenario_text(content: ScenarioContent) -> str:
    """Return the file's text: of the camera everything that decides, and neither its address nor its password."""
    kind = "a false alarm" if content.reviewed_as == "false" else "right"
    head = _HEAD.format(
        alert=_one_line(content.alert),
        camera=content.camera_name,
        begin=iso_utc(content.begin),
        end=iso_utc(content.end),
        word=kind,
    )
    if content.lacks:
        head += f"# What the clip lacks: {_one_line(content.lacks)}.\n"
    body = yaml.safe_dump(
        _literal(_sections(content)), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return head + body


def _sections(content: ScenarioContent) -> dict[str, Any]:
    kept = {"detect", "zones", "lines", "rules", *(["ignore"] if content.camera.ignore else [])}
    section = content.camera.model_dump(mode="json", exclude_none=True, include=kept)
    sections: dict[str, Any] = {"name": content.name}
    if content.note:
        sections["note"] = content.note
    sections |= {
        "clip": content.clip,
        "cameras": {content.camera_name: section},
        "alerts": content.alerts.model_dump(mode="json", exclude_none=True),
        "detector": content.detector.model_dump(mode="json", exclude_none=True),
    }
    if content.stood is not None:
        stood = [{"label": each.label, "box": list(each.box), "seconds": each.seconds} for each in content.stood]
        sections["stood_before"] = {content.camera_name: stood}
    for key, entries in (("expect", content.truth.expect), ("never", content.truth.never)):
        if entries:
            sections[key] = [_entry_yaml(entry) for entry in entries]
    sections["others"] = "never" if content.complete else "allowed"
    return sections


def _entry_yaml(entry: KeptExpectation) -> dict[str, Any]:
    found: dict[str, Any] = {"rule": entry.rule, "label": entry.label}
    found |= {key: place for key, place in (("zone", entry.zone), ("line", entry.line)) if place}
    if entry.at is not None and not entry.optional:
        found["at"] = entry.at
    found["between"] = [entry.start, entry.end]
    if entry.optional:
        found["count"] = {"min": 0, "max": 1}
    if entry.note:
        found["note"] = entry.note
    return found


def _literal(value: Any) -> Any:
    """Return `value` with every `${` in a text escaped, so that it is read as it stands."""
    if isinstance(value, Mapping):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value.replace("${", f"{_DOLLAR}{{") if isinstance(value, str) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())
