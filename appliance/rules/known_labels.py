"""Rules that want a class which the network does not have: a sentence for each."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from appliance.config import Rule

LISTED_MAX = 12  # names in an error message


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
