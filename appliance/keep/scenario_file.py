"""The scenario file of a kept alert, as a person would have written it: docs/scenarios.md has every key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from appliance.clock import iso_utc
from appliance.config import Alerts, Camera
from appliance.keep.truth import Entry, Truth, Word
from appliance.model import Detector

# What stands in ${…} would be taken from the environment of whoever reads the file; this says `$` and nothing else.
_DOLLAR = "${VEDETTE_DOLLAR:-$}"
_HEAD = """\
# Kept from alert {alert} of camera {camera}, {begin} to {end}, reviewed as {word}.
# The moments below are those at which the appliance reported. Correct them to what you see in the clip, and take out
# what it should not have said twice: a scenario that only repeats a report proves that nothing changed, no more.
# The clip shows people: it is personal data, to be kept as long as it is needed and given to nobody else.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """All that a scenario file says. begin, end: the clip's camera time (UTC seconds); lacks: what the clip lacks."""

    name: str
    note: str
    clip: str
    alert: str
    word: Word
    begin: float
    end: float
    lacks: str
    camera_name: str
    camera: Camera
    alerts: Alerts
    detector: Detector
    truth: Truth
    complete: bool


def scenario_text(frozen: Frozen) -> str:
    """The file's text. Of the camera everything that decides, and neither its address nor its password."""
    kind = "a false alarm" if frozen.word == "false" else "right"
    head = _HEAD.format(
        alert=_one_line(frozen.alert),
        camera=frozen.camera_name,
        begin=iso_utc(frozen.begin),
        end=iso_utc(frozen.end),
        word=kind,
    )
    if frozen.lacks:
        head += f"# What the clip lacks: {_one_line(frozen.lacks)}.\n"
    body = yaml.safe_dump(
        _literal(_content(frozen)), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return head + body


def _content(frozen: Frozen) -> dict[str, Any]:
    section = frozen.camera.model_dump(mode="json", exclude_none=True, include={"detect", "zones", "lines", "rules"})
    content: dict[str, Any] = {"name": frozen.name}
    if frozen.note:
        content["note"] = frozen.note
    content |= {
        "clip": frozen.clip,
        "cameras": {frozen.camera_name: section},
        "alerts": frozen.alerts.model_dump(mode="json", exclude_none=True),
        "detector": frozen.detector.model_dump(mode="json", exclude_none=True),
    }
    for key, entries in (("expect", frozen.truth.expect), ("never", frozen.truth.never)):
        if entries:
            content[key] = [_entry(entry) for entry in entries]
    content["others"] = "never" if frozen.complete else "allowed"
    return content


def _entry(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = {"rule": entry.rule, "label": entry.label}
    said |= {key: place for key, place in (("zone", entry.zone), ("line", entry.line)) if place}
    if entry.at is not None and not entry.optional:
        said["at"] = entry.at
    said["between"] = [entry.start, entry.end]
    if entry.optional:
        said["count"] = {"min": 0, "max": 1}
    if entry.note:
        said["note"] = entry.note
    return said


def _literal(value: Any) -> Any:
    """`value` with every `${` in a text written so that it is read as it stands."""
    if isinstance(value, Mapping):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    return value.replace("${", f"{_DOLLAR}{{") if isinstance(value, str) else value


def _one_line(text: str) -> str:
    return " ".join(text.split())
