"""Says what a rule can report: its place and labels, its event, and labels that the network does not know."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from appliance.config import LineRule, Rule
from appliance.types import Event, TrackedObject

LISTED_MAX = 12  # names in an error message


def rule_place(rule: Rule) -> tuple[str, str]:
    """Return the zone and the line that a rule watches; one of them is ''."""
    return ("", rule.line) if isinstance(rule, LineRule) else (rule.zone, "")


def can_report(rule: Rule, name: str, zone: str, line: str, label: str) -> bool:
    """Return True if a rule of this name, place and label is meant; '' matches anything."""
    meant = zip((name, zone, line), (rule.name, *rule_place(rule)), strict=True)
    return all(one in ("", other) for one, other in meant) and (not label or label in rule.labels)


def rule_event(camera: str, rule: Rule, found: TrackedObject, t: float, id_: str = "") -> Event:
    """Return the event of a rule about an object in the frame of time `t`."""
    zone, line = rule_place(rule)
    return Event(
        camera=camera, rule=rule.name, kind=rule.kind, track=found.track, label=found.label, t=t, score=found.score,
        box=found.box, zone=zone, line=line, severity=rule.severity, id=id_,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class UnknownLabel:
    """rule, label: their places among the camera's rules and the rule's labels. never: the rule cannot fire at all."""

    rule: int
    label: int
    text: str
    never: bool


def unknown_labels(rules: Sequence[Rule], known: Sequence[str]) -> Iterator[UnknownLabel]:
    """Yield the labels that the rules of a camera want and a network with these classes cannot find."""
    for number, rule in enumerate(rules):
        never = not set(rule.labels) & set(known)
        for place, label in enumerate(rule.labels):
            if label not in known:
                text = f"rule `{rule.name}` wants `{label}`, and the network has no such class"
                text += ", so it never fires" if never else ""
                yield UnknownLabel(number, place, f"{text}; {_hint(label, known)}", never)


def _hint(label: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(label, known, n=1)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"it knows: {', '.join(known[:LISTED_MAX])}{'…' if len(known) > LISTED_MAX else ''}"
