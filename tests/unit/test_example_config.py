"""The example site file holds every key, each with its default, and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from appliance import config

EXAMPLE = Path(__file__).parents[2] / "deploy" / "vedette.example.yaml"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in models_in(argument)]


def keys_of(model: type[BaseModel]) -> set[str]:
    keys = set(model.model_fields)
    for field in model.model_fields.values():
        for inner in models_in(field.annotation):
            keys |= keys_of(inner)
    return keys


def written_keys(node: Any) -> set[str]:
    if isinstance(node, dict):
        return set(node) | {key for value in node.values() for key in written_keys(value)}
    if isinstance(node, list):
        return {key for value in node for key in written_keys(value)}
    return set()


def test_the_example_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GATE_PASSWORD", raising=False)
    site = config.load(EXAMPLE)
    assert site.cameras["gate"].rules[0].name == "intruder"


def test_the_example_holds_every_key() -> None:
    missing = keys_of(config.SiteConfig) - written_keys(yaml.safe_load(EXAMPLE.read_text()))
    assert not missing, f"deploy/vedette.example.yaml lacks {sorted(missing)}"


@pytest.mark.parametrize("section", ["storage", "detector", "alerts", "escalation", "costs", "dashboard"])
def test_the_example_shows_the_defaults(section: str) -> None:
    site = config.load(EXAMPLE)
    model = config.SiteConfig.model_fields[section].annotation
    assert model is not None
    assert getattr(site, section) == model()


def test_every_key_has_a_comment_or_stands_in_a_commented_line() -> None:
    bare = {"enabled", "connect_timeout_s", "site", "storage", "detector", "cameras", "alerts", "dashboard", "rules",
            "zone", "severities", "port", "yard", "door", "detect", "days"}  # fmt: skip
    for line in EXAMPLE.read_text().splitlines():
        key = line.strip().removeprefix("- ").split(":")[0]
        if line.strip() and not line.strip().startswith(("#", "- {")) and key not in bare:
            assert "#" in line, f"no comment: {line}"
