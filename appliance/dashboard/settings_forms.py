"""The forms of settings: kinds, defaults and limits from the models of the site file, words from settings_words.txt.

Also what a change costs, in sentences for before it is saved: what is deleted at once, and what room it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from appliance.config import DashboardSections, SiteConfig
from appliance.dashboard.schemas import ApiModel
from appliance.detect.class_labels import COCO_NAME
from appliance.store.alerts import teaching_alerts
from appliance.store.database import Database
from appliance.store.quotas import CameraLimits, StorageLimits, StorageUsage, WriteRates, read_usage, read_write_rates
from appliance.store.retention import evidence_beyond, recording_beyond
from appliance.web.templating import size
from appliance.web.texts import gettext as _
from appliance.wire import LANGUAGES

FieldKind = Literal["switch", "number", "whole", "choice", "choices", "text", "list", "secret"]
SCALES = {"%": 100.0, "KiB": 1 / 1024}
"""By unit: how much larger a value is shown than it stands in the file."""
ONE_CAMERA = "cameras.*."
IMAGES_AN_ALERT = 6  # as `vedette export --per-alert` takes them where nothing else is asked for
SAME = 0.02  # of the room that recording takes: less is no change that a person would see
_WORDS = Path(__file__).with_name("settings_words.txt")


@dataclass(frozen=True, slots=True)
class FieldWords:
    """The texts of a key for people. `cameras.*.` begins the keys of each camera."""

    key: str
    label: str
    unit: str
    effect: str


@dataclass(frozen=True, slots=True)
class FormWords:
    """A form. section: the key of a section that may be absent; '': it is always there."""

    name: str
    title: str
    sentence: str
    section: str
    fields: tuple[FieldWords, ...]


class FieldItem(ApiModel):
    """A field of a form as a page shows it.

    value, default: in the unit of the form; a secret's are empty. written: the file names the key. low, high: limits
    (None: there is none); above: the lowest itself is refused. empty: nothing is a value, too. path: the key's parts,
    where one of them is a name of any text.
    """

    key: str
    label: str
    unit: str
    effect: str
    kind: FieldKind
    value: Any
    default: Any
    written: bool
    scale: float = 1.0
    low: float | None = None
    high: float | None = None
    above: bool = False
    choices: tuple[str, ...] = ()
    empty: bool = False
    path: tuple[str, ...] = ()


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield [part.strip() for part in line.split("|")]


@cache
def forms() -> Mapping[str, FormWords]:
    """Return all forms by name, in the order of the page."""
    found: dict[str, FormWords] = {}
    fields: dict[str, list[FieldWords]] = {}
    heads: dict[str, tuple[str, str, str]] = {}
    for first, second, third, *fourth in _rows(_WORDS.read_text(encoding="utf-8")):
        if first.startswith("["):
            name, _, title = first[1:].partition("] ")
            heads[name], fields[name] = (title, second, third), []
        else:
            fields[name].append(FieldWords(first, second, third, *fourth))
    for name, (title, sentence, section) in heads.items():
        found[name] = FormWords(name, title, sentence, section, tuple(fields[name]))
    return found


@cache
def _schema() -> dict[str, Any]:
    return SiteConfig.model_json_schema()


def _resolved(node: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema that a node stands for, and whether it may be null."""
    if "$ref" in node:
        beside = {name: value for name, value in node.items() if name != "$ref"}
        return _resolved(_schema()["$defs"][node["$ref"].rpartition("/")[2]])[0] | beside, False
    options = node.get("anyOf", ())
    kept = [each for each in options if each.get("type") != "null"]
    if options and len(kept) == 1:
        return {**node, **_resolved(kept[0])[0]}, len(kept) < len(options)
    return node, False


def schema_of(key: str) -> tuple[dict[str, Any], bool]:
    """Return the JSON schema of a dotted key, and whether it may be null. Raise KeyError if there is no such key."""
    node, empty = _schema(), False
    for part in key.split("."):
        step = next(iter(node["patternProperties"].values())) if part == "*" else node["properties"][part]
        node, empty = _resolved(step)
    return node, empty


def _kind(node: dict[str, Any]) -> FieldKind:
    if "enum" in node:
        return "choice"
    kind = node.get("type")
    if kind == "array":
        items = _resolved(node["items"])[0]
        return "choices" if "enum" in items else "switch" if items.get("type") == "object" else "list"
    named: dict[str | None, FieldKind] = {"boolean": "switch", "number": "number", "integer": "whole"}
    return "secret" if node.get("format") == "password" else named.get(kind, "text")


@cache
def secret_keys() -> frozenset[str]:
    """Return the keys of forms whose values are kept in the secrets file."""
    keys = (each.key for form in forms().values() for each in form.fields)
    return frozenset(key for key in keys if _kind(schema_of(key)[0]) == "secret")


def _shown(value: Any, kind: FieldKind, scale: float) -> Any:
    if kind == "secret" or value is None or isinstance(value, SecretStr):
        return None
    if kind in ("number", "whole") and not isinstance(value, bool):
        return float(f"{value * scale:.10g}")
    if kind in ("choices", "list"):
        return [str(each) for each in value]
    if kind == "choice" and isinstance(value, bool):
        return str(value).lower()
    return bool(value) if kind == "switch" else str(value)


def _at(data: Any, parts: Sequence[str]) -> Any:
    """Return the value at a path in models, or in what the file says; None: there is none."""

    def step(node: Any, part: str) -> Any:
        return node.get(part) if isinstance(node, Mapping) else getattr(node, part, None)

    return reduce(step, parts, data)


def field_of(
    words: FieldWords, config: SiteConfig, written: Mapping[str, Any], choices: Mapping[str, Sequence[str]]
) -> FieldItem:
    """Return one field with its value. choices: of keys whose model does not say them.

    What the file says is a choice even where it is not offered, such as a file of one's own: the page has to show it.
    """
    camera = words.key.split(".")[1] if words.key.startswith("cameras.") else ""
    node, empty = schema_of(words.key.replace(f"cameras.{camera}.", ONE_CAMERA, 1) if camera else words.key)
    kind, scale = _kind(node), SCALES.get(words.unit, 1.0)
    given = choices.get(words.key)
    if given is not None:
        kind = "choices" if kind in ("choices", "list") else "choice"
    elif kind in ("choice", "choices"):
        given = [str(each) for each in (node if kind == "choice" else _resolved(node["items"])[0])["enum"]]
    if kind == "switch" and empty:
        kind, given = "choice", ("true", "false")
    path = words.key.split(".")
    value, low = _at(config, path), node.get("minimum", node.get("exclusiveMinimum"))
    high = node.get("maximum", node.get("exclusiveMaximum"))
    default = _shown(node.get("default"), kind, scale)
    if value is None and path[0] in ("uplink", "mqtt") and _at(config, path[:1]) is None:
        value = node.get("default")
    shown = _shown(value, kind, scale)
    if kind == "choice" and shown is not None and shown not in (given or ()):
        given = [*(given or ()), shown]
    return FieldItem(
        key=words.key, label=words.label, unit=words.unit, effect=words.effect, kind=kind,
        value=shown, default=default, written=_at(written, path) is not None, scale=scale,
        low=None if low is None else low * scale, high=None if high is None else high * scale,
        above="exclusiveMinimum" in node, choices=tuple(given or ()), empty=empty,
    )  # fmt: skip


def fields_of(
    form: FormWords, config: SiteConfig, written: Mapping[str, Any], networks: Sequence[str], camera: str = ""
) -> list[FieldItem]:
    """Return the fields of a form. networks: the installed ones. camera: that the keys of one are meant for."""
    choices: dict[str, Sequence[str]] = {
        "site.language": sorted(LANGUAGES),
        "detector.model": networks,
        "second_look.model": networks,
        "detector.labels": [COCO_NAME],
        "arming.default": config.arming.names,
    }
    if camera:
        choices[f"cameras.{camera}.privacy.mask"] = list(config.cameras[camera].zones)
    meant = [
        FieldWords(each.key.replace(ONE_CAMERA, f"cameras.{camera}.", 1), each.label, each.unit, each.effect)
        for each in form.fields
    ]
    return [field_of(each, config, written, choices) for each in meant]


def zone_fields(config: SiteConfig, camera: str) -> list[FieldItem]:
    """Return a field for each zone of a camera: how many days pictures and clips of alerts in it are kept."""
    own = config.cameras[camera]
    usual = f"{config.storage.evidence_days:g}"
    return [
        FieldItem(
            key=f"cameras.{camera}.quota.zone_days.{zone}", label=zone, unit="days",
            effect=_("Empty: {n} days, as elsewhere.").format(n=usual), kind="number",
            value=own.quota.zone_days.get(zone), default=None, written=zone in own.quota.zone_days,
            low=0, high=3650, above=True, path=("cameras", camera, "quota", "zone_days", zone),
        )
        for zone in own.zones
    ]  # fmt: skip


def cost_of(db: Database, before: DashboardSections, after: DashboardSections) -> list[str]:
    """Return what the change deletes at once and what room and looks it takes. Raise StoreError."""
    old, new = (StorageLimits.of(each.storage, each.decisions.cameras) for each in (before, after))
    found = [*_inferences(before, after), *_training(db, before, after)]
    if old == new:
        return found
    with db.read() as connection:
        usage, rates = read_usage(connection), read_write_rates(connection, db.clock.now())
    return [*_deleted(db, old, new, usage), *_room(old, new, rates), *found]


def _deleted(db: Database, old: StorageLimits, new: StorageLimits, usage: StorageUsage) -> Iterator[str]:
    shorter = [name for name in usage.cameras("continuous") if new.camera(name).keep_s < old.camera(name).keep_s]
    gone = sum(recording_beyond(db, name, new.camera(name).keep_s) for name in shorter)
    if gone:
        yield _("{size} of recording is then too old and is deleted at once.").format(size=size(gone))
    alerts, bytes_gone = evidence_beyond(db, new)
    alerts_before, _bytes = evidence_beyond(db, old)
    if alerts > alerts_before:
        text = _("Pictures and clips of {n} alerts ({size}) are then too old and are deleted at once.")
        yield text.format(n=alerts, size=size(bytes_gone))
    over = usage.bytes() - gone - bytes_gone - new.size_bytes
    if over > 0 and new.size_bytes < old.size_bytes:
        yield _("{size} of the oldest recording is deleted at once to make room.").format(size=size(over))


def _room(old: StorageLimits, new: StorageLimits, rates: WriteRates) -> Iterator[str]:
    """Say what room the continuous recording then takes where a camera's length of it changes, or begins or ends."""
    names = sorted({*new.cameras, *old.cameras})
    kept_s, kept_s_before = ({name: _recorded_s(each.camera(name)) for name in names} for each in (new, old))
    if kept_s == kept_s_before:
        return
    rate = {name: rates.rate(name, "continuous") for name in names}
    needed, needed_before = (
        sum((rate[name] or 0.0) * each[name] for name in names) for each in (kept_s, kept_s_before)
    )
    if any(rate[name] is None for name in names if kept_s[name]):
        yield _("How much room the recording then takes is not yet known: that needs an hour of video.")
    elif abs(needed - needed_before) > SAME * needed_before:
        text = _("At today's rate the recording then takes {new} instead of {old}; all together may take {most}.")
        yield text.format(new=size(needed), old=size(needed_before), most=size(new.size_bytes))
        if needed > new.size_bytes:
            yield _("That is more than there may be: the oldest recording goes before its time.")


def _recorded_s(limits: CameraLimits) -> float:
    """Return how long a continuous recording is kept, in seconds; 0 where there is none."""
    return limits.keep_s if limits.mode == "continuous" else 0.0


def _inferences(before: DashboardSections, after: DashboardSections) -> Iterator[str]:
    """Say how often the detector looks where that changes."""
    old, new = (
        sum(each.detect.fps for each in config.decisions.cameras.values() if each.enabled) for config in (before, after)
    )
    if old != new and old:
        text = _("While something moves everywhere, the detector looks {new} times a second instead of {old} times.")
        yield text.format(new=f"{new:g}", old=f"{old:g}")


def _training(db: Database, before: DashboardSections, after: DashboardSections) -> Iterator[str]:
    """Say how many pictures the consent of a camera is about, where it is given or taken back."""
    old, new = before.decisions.cameras, after.decisions.cameras
    for name in (each for each in new if each in old and old[each].training != new[each].training):
        alerts = teaching_alerts(db, name)
        text = (
            _("{n} answered alerts of {camera}, with up to {pictures} pictures, may then train a network.")
            if new[name].training
            else _("{n} answered alerts of {camera}, with up to {pictures} pictures, then train no network any more.")
        )
        yield text.format(n=alerts, camera=after.decisions.shown(name), pictures=alerts * IMAGES_AN_ALERT)
