"""Every key of the site file that an owner may want has a form, in words; twelve stay in the file, with reasons."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.config import SiteConfig
from appliance.dashboard.costs_api import _asking_items, _price_items
from appliance.dashboard.settings_forms import FieldWords, field_of, fields_of, forms, schema_of
from appliance.settings.site_editor import FILE_KEYS, SERVED_MODEL

ROOT = Path(__file__).parents[2]
EXAMPLE = yaml.safe_load((ROOT / "deploy" / "vedette.example.yaml").read_text())
IN_THE_FILE = {
    "decode.ffmpeg": "a program", "detector.hailo.python": "a program",
    "storage.*dir": "a folder", "sensors.root": "a folder", "uplink.urls": "pairs of an address and its region",
    "dashboard.certificate*": "files with a key", "uplink.credentials": "a file with a key",
    "uplink.nkey": "a file with a key", "*.tls_*": "files with a key",
    "dashboard.enabled": "without it there is no page to switch it on again",
    "arming.profiles*": "lists of names; people choose among profiles on the pages",
    "arming.schedule": "a week of profiles",
}  # fmt: skip
# Changed on pages of their own: the camera's settings and editor, and Notifications, whose targets have kinds.
ELSEWHERE = {
    "cameras.*": {"url", "detect_url", "onvif", "title", "enabled", "audio", "record", "zones", "ignore", "lines"},
    "cameras.*.rules": {
        "name", "title", "kind", "zone", "line", "seconds", "direction", "at_start", "labels", "score_min",
        "height_min", "height_max", "severity", "cooldown_s", "schedule", "escalate", "ask", "severity_on_verdict",
    },
}  # fmt: skip


def keys(node: Any, above: str = "") -> set[str]:
    if not isinstance(node, dict):
        return {above}
    return {key for name, value in node.items() for key in keys(value, f"{above}.{name}".lstrip("."))}


def test_every_key_of_the_example_has_a_form_but_for_twelve() -> None:
    site = SiteConfig.model_validate({"cameras": {}})
    formed = {each.key for form in forms().values() for each in form.fields}
    formed |= {
        each.key for each in (*_price_items(site.costs, site.escalation.prices), *_asking_items(site.escalation.prices))
    }
    formed |= {"costs.currency", "alerts.adjoining"}  # on pages of their own
    found = keys({name: value for name, value in EXAMPLE.items() if name not in ("cameras", "notify")})
    camera = dict(EXAMPLE["cameras"]["gate"])
    for rule in camera.pop("rules"):
        assert set(rule) <= ELSEWHERE["cameras.*.rules"]
    found |= keys({key: value for key, value in camera.items() if key not in ELSEWHERE["cameras.*"]}, "cameras.*")
    sections = {"escalation.off_peak"}  # whose keys have forms, and which is absent in the example
    without = {
        key for key in found - formed - sections if not any(fnmatchcase(key, pattern) for pattern in IN_THE_FILE)
    }
    assert not without, f"no form has {sorted(without)}"
    assert len(IN_THE_FILE) <= 12
    assert all(any(fnmatchcase(key, pattern) for key in found) for pattern in IN_THE_FILE), "an exception without a key"


def test_each_form_reads_each_of_its_keys_with_its_default_and_limits() -> None:
    site = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://a/b"}}, "storage": {"keep_hours": 72}})
    written = {"storage": {"keep_hours": 72}}
    shown = {each.key: each for form in forms().values() for each in fields_of(form, site, written, ["auto"], "gate")}
    hours = shown["storage.keep_hours"]
    assert (hours.value, hours.default, hours.written) == (72, 24, True)
    assert (hours.low, hours.above, hours.high) == (0, True, 87600)
    share = shown["detector.score_min"]
    assert (share.value, share.default, share.scale, share.high) == (10, 10, 100, 100)
    assert shown["escalation.crop_bytes_max"].value == 12  # KiB
    assert shown["uplink.over_mb_day"].choices == ("urgent", "wait")
    assert shown["cameras.gate.detect.fps"].value == 5
    assert shown["mqtt.password"].kind == "secret"
    assert shown["decode.hardware"].kind == "choice"


@pytest.mark.parametrize("fallback", [True, False])
def test_a_switch_that_may_be_empty_shows_what_the_file_says(*, fallback: bool) -> None:
    gate = {"url": "rtsp://a/b", "decode": {"fallback": fallback}}
    site = SiteConfig.model_validate({"cameras": {"gate": gate}})
    words = FieldWords("cameras.gate.decode.fallback", "Fallback", "", "")
    item = field_of(words, site, {"cameras": {"gate": gate}}, {})
    assert (item.value, item.choices) == (str(fallback).lower(), ("true", "false"))


def test_what_the_file_says_is_shown_though_it_is_not_offered() -> None:
    """Names of classes, or a network for the recheck, that come from a file of one's own."""
    detector = {"labels": "/etc/vedette/names.txt", "model": "mine.onnx"}
    data = {"cameras": {}, "detector": detector, "second_look": {"model": "large.onnx"}}
    site = SiteConfig.model_validate(data)
    shown = {each.key: each for each in fields_of(forms()["detection"], site, data, ["auto", "vedette-nano"])}
    for key, value in (
        ("detector.labels", "/etc/vedette/names.txt"),
        ("detector.model", "mine.onnx"),
        ("second_look.model", "large.onnx"),
    ):
        assert shown[key].value == shown[key].choices[-1] == value


def test_every_choice_that_has_a_value_shows_it() -> None:
    site = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://a/b"}}})
    for form in forms().values():
        for each in fields_of(form, site, {}, ["auto"], "gate"):
            assert each.kind != "choice" or each.value in (None, *each.choices), each.key


def test_a_form_never_names_a_key_that_only_the_file_changes() -> None:
    chosen = {"detector.labels", "detector.model", "second_look.model", "cameras.*.model"}  # of what is installed
    formed = {each.key for form in forms().values() for each in form.fields} - chosen - {SERVED_MODEL}
    assert not [key for key in formed if any(fnmatchcase(key, pattern) for pattern in FILE_KEYS)]


def test_no_word_of_a_form_is_a_key() -> None:
    """A person reads words; keys are in the file."""
    for form in forms().values():
        for each in form.fields:
            assert each.key not in f"{each.label} {each.effect}"
            assert each.label[:1].isupper()
            schema_of(each.key)


def test_a_secret_is_shown_as_none() -> None:
    mqtt = {"url": "mqtt://h:1", "user": "a", "password": "geheim-wort"}
    site = SiteConfig.model_validate({"cameras": {}, "mqtt": mqtt})
    item = field_of(FieldWords("mqtt.password", "Password", "", ""), site, {"mqtt": {"password": "x"}}, {})
    assert item.value is None
    assert item.written
    assert "geheim" not in item.model_dump_json()
