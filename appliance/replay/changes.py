"""What changed between two site files, as the headers of two replay logs tell it, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from appliance.replay.answers import AnsweredBy
from appliance.replay.header import CameraSettings, LogHeader, Replayed


def setting_changes(before: LogHeader, after: LogHeader) -> tuple[str, ...]:
    """One sentence part each: version, footage, model, thresholds, zones, lines, rules, alerts, escalation."""
    found: list[str] = []
    if before.vedette != after.vedette:
        found.append(f"Vedette {before.vedette} → {after.vedette}")
    found += _footage(before.replayed, after.replayed)
    one, other = before.settings, after.settings
    if one.detector.name != other.detector.name:
        found.append(f"model {one.detector.name} → {other.detector.name}")
    found += [f"detector.{text}" for text in _fields(one.detector, other.detector, skip=frozenset({"name", "labels"}))]
    if one.detector.labels != other.detector.labels and one.detector.name == other.detector.name:
        found.append("the detector's class names")
    found += [f"alerts.{text}" for text in _fields(one.alerts, other.alerts)]
    found += [f"escalation.{text}" for text in _fields(one.escalation, other.escalation)]
    if one.uplink != other.uplink:
        found.append("uplink " + ("added" if other.uplink else "removed"))
    if one.site != other.site:
        found.append(f"site.name {one.site} → {other.site}")
    if one.scheduled != other.scheduled:
        found.append("schedules are " + ("kept" if other.scheduled else "ignored") + " in the second")
    if one.verdicts != other.verdicts:
        found.append(f"verdicts by {_by(one.verdicts)} → {_by(other.verdicts)}")
    if (one.weather, one.seed) != (other.weather, other.seed):
        found.append(f"weather {one.weather_words or 'clear'} → {other.weather_words or 'clear'}")
    for name in [*one.cameras, *(each for each in other.cameras if each not in one.cameras)]:
        found += _camera(name, one.cameras.get(name), other.cameras.get(name))
    return tuple(found)


def _by(answered: AnsweredBy | None) -> str:
    if answered is None:
        return "nobody"
    digest = f" ({answered.digest}, {answered.match})" if answered.digest else ""
    return f"{answered}{digest}"


def _footage(before: tuple[Replayed, ...], after: tuple[Replayed, ...]) -> Iterator[str]:
    """Runs differ with the model too, so only names and times can tell that the footage is another."""
    one, other = (
        {each.camera: (each.clip, each.files, each.t_from, each.t_to) for each in group} for group in (before, after)
    )
    for camera in one.keys() & other.keys():
        if one[camera] != other[camera]:
            yield f"footage of {camera}: {one[camera][0]} → {other[camera][0]}"


def _camera(name: str, one: CameraSettings | None, other: CameraSettings | None) -> Iterator[str]:
    if one is None or other is None:
        yield f"camera {name} only in the {'second' if one is None else 'first'}"
        return
    for text in _fields(one.detect, other.detect):
        yield f"{name}: detect.{text}"
    yield from _named(name, "zone", one.zones, other.zones)
    yield from _named(name, "line", one.lines, other.lines)
    rules = [{rule.name: rule for rule in each.rules} for each in (one, other)]
    yield from _named(name, "rule", *rules)
    if list(rules[0]) != list(rules[1]) and set(rules[0]) == set(rules[1]):
        yield f"{name}: the order of the rules"


def _named(camera: str, what: str, one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[str]:
    for name in [*one, *(each for each in other if each not in one)]:
        if name not in other:
            yield f"{camera}: {what} `{name}` removed"
        elif name not in one:
            yield f"{camera}: {what} `{name}` added"
        elif one[name] != other[name]:
            yield _changed(camera, f"{what} `{name}`", one[name], other[name])


def _changed(camera: str, what: str, one: object, other: object) -> str:
    if isinstance(one, BaseModel) and isinstance(other, BaseModel):
        return f"{camera}: {what}: " + ", ".join(_fields(one, other))
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        moved = sum(a != b for a, b in zip(one, other, strict=True))
        return f"{camera}: {what}: {moved} of its {len(one)} points moved"
    return f"{camera}: {what} drawn anew"


def _fields(one: BaseModel, other: BaseModel, skip: frozenset[str] = frozenset()) -> list[str]:
    names = dict.fromkeys([*type(one).model_fields, *type(other).model_fields])
    pairs = [(name, getattr(one, name, None), getattr(other, name, None)) for name in names if name not in skip]
    return [f"{name} {_said(a)} → {_said(b)}" for name, a, b in pairs if a != b]


def _said(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, BaseModel):
        return "set" if value.model_fields_set else "default"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
