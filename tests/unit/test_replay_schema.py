"""The published schema of the replay log says what is written, and refuses what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.base.errors import UsageError
from appliance.replay.replay_log_writer import CameraSettings, log_schema
from appliance.replay.replay_result import read_log

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "appliance" / "replay" / "log.schema.json"
GOLDEN = ROOT / "fixtures" / "golden" / "yard.hog.jsonl"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
    "boolean": (bool,),
}
KNOWN = {
    *("$ref", "anyOf", "oneOf", "const", "enum", "type", "properties", "required", "additionalProperties"),
    *(
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "maxLength",
    ),
    *("pattern", "title", "description", "default", "discriminator", "$defs", "$schema", "format"),
}


def faults(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "") -> Iterator[str]:
    """What JSON Schema 2020-12 says against `value`: the keywords that this schema uses, and no others."""
    assert set(schema) <= KNOWN, f"the checker does not know {set(schema) - KNOWN}"
    if "$ref" in schema:
        yield from faults(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, at)
    for word in ("anyOf", "oneOf"):
        fitting = [not list(faults(value, each, root, at)) for each in schema.get(word, ())]
        if fitting and (not any(fitting) or (word == "oneOf" and sum(fitting) != 1)):
            yield f"{at}: fits {sum(fitting)} of {word}"
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is none of {schema['enum']}"
    wanted = schema.get("type")
    if wanted and (not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "boolean")):
        yield f"{at}: {value!r} is no {wanted}"
    elif isinstance(value, dict):
        yield from object_faults(value, schema, root, at)
    elif isinstance(value, list):
        yield from list_faults(value, schema, root, at)
    elif isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)) or not re.search(schema.get("pattern", ""), value):
            yield f"{at}: {value!r} is too long or of another form"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        inside = schema.get("exclusiveMinimum", value - 1) < value < schema.get("exclusiveMaximum", value + 1)
        if not low <= value <= high or not inside:
            yield f"{at}: {value} is out of range"


def object_faults(value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{at}: lacks {name}" for name in schema.get("required", ()) if name not in value)
    for name, item in value.items():
        if name in properties:
            yield from faults(item, properties[name], root, f"{at}.{name}")
        elif extra is False:
            yield f"{at}: {name} is unknown"
        elif isinstance(extra, dict):
            yield from faults(item, extra, root, f"{at}.{name}")


def list_faults(value: list[Any], schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        yield f"{at}: {len(value)} items"
    first = schema.get("prefixItems", [])
    for index, item in enumerate(value):
        yield from faults(item, first[index] if index < len(first) else schema.get("items", {}), root, f"{at}[{index}]")


def test_the_published_schema_is_what_is_written(update: bool) -> None:
    if update:
        PUBLISHED.write_text(json.dumps(log_schema(), indent=1, ensure_ascii=False) + "\n")
    assert json.loads(PUBLISHED.read_text()) == log_schema()


def test_every_line_of_the_golden_log_is_as_the_schema_says() -> None:
    schema = json.loads(PUBLISHED.read_text())
    lines = [json.loads(line) for line in GOLDEN.read_bytes().splitlines()]
    assert {line["type"] for line in lines} == {"header", "boxes", "event", "route", "alert", "end"}
    for number, line in enumerate(lines, start=1):
        assert not list(faults(line, schema, schema)), f"line {number}"
    assert not list(faults(lines[0], {"$ref": "#/$defs/LogHeader"}, schema))


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("boxes", "t", "late"),
        ("boxes", "type", "box"),
        ("boxes", "objects", [{"track": 1, "label": "person", "score": 0.5, "box": [0, 0, 1]}]),
        ("event", "severity", "dire"),
        ("route", "bytes", 1.5),
        ("end", "frames", None),
    ],
)
def test_the_schema_refuses_what_is_never_written(kind: str, name: str, value: object) -> None:
    schema = json.loads(PUBLISHED.read_text())
    line = next(line for line in map(json.loads, GOLDEN.read_bytes().splitlines()) if line["type"] == kind)
    assert list(faults({**line, name: value}, schema, schema))


def test_the_golden_log_is_read_back_whole() -> None:
    log = read_log(GOLDEN)
    assert log.complete
    (result,) = log.results()
    assert (result.end.frames, result.end.examined, result.end.camera) == (930, 105, "gate")
    assert len(result.events) >= 4


def test_an_old_log_is_refused_with_the_way_to_a_new_one(tmp_path: Path) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text('{"type":"header","schema":1,"camera":"gate","clip":"a.mp4","model":"m","size":[8,8],"run":"r"}\n')
    with pytest.raises(UsageError, match=r"older Vedette.*make it anew with vedette replay CLIP .*--log"):
        read_log(old)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("not json\n", "its first line is no header"),
        ('{"type":"boxes"}\n', "its first line is no header"),
        ('{"type":"header","log":"vedette.replay","version":4,"vedette":"9.0"}\n', r"version 4 \(Vedette 9.0\)"),
        ('{"type":"header","log":"vedette.replay","version":2}\n', "first line cannot be understood: camera"),
    ],
)
def test_what_is_no_log_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_log(path)


def test_a_damaged_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:4], b'{"type":"boxes"}\n', *lines[5:]]))
    with pytest.raises(UsageError, match="line 5 cannot be understood"):
        read_log(path)


def test_a_camera_without_limits_and_ignored_zones_is_written_as_it_always_was() -> None:
    """Golden logs of before these keys stay byte for byte what they are."""
    rule = {"name": "r", "kind": "enter", "zone": "yard"}
    plain = {"detect": {}, "zones": {"yard": [[0, 0], [1, 0], [1, 1]]}, "lines": {}, "rules": [rule]}
    assert CameraSettings.model_validate(plain).unused == {"ignore": True, "rules": {0: {"height_min", "height_max"}}}
    limited = {**plain, "ignore": ["yard"], "rules": [{**rule, "height_min": 0.1}]}
    assert CameraSettings.model_validate(limited).unused == {"rules": {0: {"height_max"}}}
