"""The worker file: every key shown, wrong ones named, secrets kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from appliance.base import yamlfile
from appliance.base.errors import ConfigError
from cloud_worker import config
from cloud_worker.__main__ import main

EXAMPLE = Path(__file__).parents[2] / "deploy" / "vedette-worker.example.yaml"


def models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in get_args(annotation) for found in models_in(argument)]


def keys_of(model: type[BaseModel]) -> set[str]:
    inner = [found for field in model.model_fields.values() for found in models_in(field.annotation)]
    return set(model.model_fields).union(*map(keys_of, inner))


def uncommented() -> str:
    """The example with its second engine in the place of the first."""
    kept, engine = [], False
    for line in EXAMPLE.read_text().splitlines():
        engine = line.startswith("engine:") or (engine and line.startswith("  "))
        if not engine:
            bare = line.removeprefix("# ").split(" #")[0]
            kept.append(bare if line.startswith(("# engine:", "#   ")) else line)
    return "\n".join(kept)


def test_the_example_is_the_default() -> None:
    assert config.load(EXAMPLE) == config.WorkerConfig(engine=config.RedetectEngine(kind="redetect"))


@pytest.mark.parametrize("text", ["", "nats: {url: 'nats://127.0.0.1:1'}\n", "engine:\n"])
def test_a_worker_that_is_not_told_what_judges_refuses_to_start(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    assert main(["check", "--config", str(path)]) == 2
    assert main(["run", "--config", str(path)]) == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert "engine: is missing" in said
    assert all(part in said for part in ("kind: openai", "kind: redetect", "deploy/vlm")), "the remedy"


def test_the_engine_alone_is_enough(tmp_path: Path) -> None:
    (tmp_path / "least.yaml").write_text("engine: {kind: redetect}\n")
    assert config.load(tmp_path / "least.yaml").engine.kind == "redetect"


def keys_in(value: object) -> set[str]:
    """Every key of a file, however deep."""
    if not isinstance(value, dict):
        return set()
    return {*value, *(key for each in value.values() for key in keys_in(each))}


def test_the_example_shows_every_key_of_both_engines() -> None:
    first, second = yaml.safe_load(EXAMPLE.read_text()), yaml.safe_load(uncommented())
    shown = keys_in(first) | keys_in(second)
    shown |= set(re.findall(r"[{ ](\w+): ", next(line for line in EXAMPLE.open() if "tokens:" in line)))
    several = [line.removeprefix("##").removeprefix(" ") for line in EXAMPLE.open() if line.startswith("##")]
    file = yamlfile.loads("".join(several), config.WorkerConfig)
    assert (file.engines[0].name, file.engine) == ("h200", file.engines[0].engine), "`engine` may be left out"
    shown |= keys_in(yaml.safe_load("".join(several))["engines"][0])
    assert keys_of(config.WorkerConfig) <= shown
    assert yamlfile.loads(uncommented(), config.WorkerConfig).engine.kind == "openai"


def test_every_key_of_the_example_has_a_comment() -> None:
    for line in EXAMPLE.read_text().splitlines():
        if line.startswith(("  ", "#   ")) and ":" in line:
            assert " # " in line, line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("engin: {}", "line 1: engin: unknown key; did you mean `engine`?"),
        ("worker:\n  concurency: 4", "line 2: worker.concurency: unknown key; did you mean `concurrency`?"),
        ("worker: {concurrency: 0}", "line 1: worker.concurrency: must be greater than or equal to 1"),
        ("nats: {url: 'http://x'}", "line 1: nats.url: must begin with nats://, tls://, ws:// or wss://"),
        ("engine: {kind: openai, model: m}", "engine.url: this key is required"),
        ("engine: {kind: openai, model: m, url: x}", "engine.url: must be an address such as http://127.0.0.1:8000/v1"),
        ("engine: {kind: openai, model: m, url: 'http://x/v1', score_min: 1}", "engine.score_min: unknown key"),
        ("engine: {kind: oracle}", "line 1: engine: kind must be openai (a language model's server) or redetect"),
        ("engine: {model: m}", "line 1: engine: kind must be openai (a language model's server) or redetect"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line_and_the_remedy(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    assert main(["check", "--config", str(path)]) == 2
    assert says in capsys.readouterr().err


def test_secrets_stay_out_of_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-very-secret")
    text = """
nats: {url: 'nats://worker:pass-secret@hub:4222', token: '${KEY}'}
engine: {kind: openai, url: 'http://u:url-secret@vlm:8000/v1', model: m, api_key: '${KEY}'}
"""
    loaded = yamlfile.loads(text, config.WorkerConfig)
    for shown in (repr(loaded), str(loaded), str(loaded.nats), json.dumps(repr(loaded.engine))):
        assert "-secret" not in shown
    assert isinstance(loaded.engine, config.OpenAiEngine)
    assert loaded.engine.api_key is not None
    assert loaded.engine.api_key.get_secret_value() == "sk-very-secret"


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NATS_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="NATS_TOKEN is not set"):
        yamlfile.loads("nats: {token: '${NATS_TOKEN}'}", config.WorkerConfig)


def test_check_says_in_one_sentence_that_there_is_no_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text("nats: {url: 'nats://127.0.0.1:9', token: token-secret}\nengine: {kind: redetect}\n")
    assert main(["check", "--config", str(path), "--json"]) == 1
    out = capsys.readouterr().out
    assert json.loads(out)["problems"] == ["the broker at 127.0.0.1:9: nothing answers there (connection refused)"]
    assert "secret" not in out


def test_a_model_file_that_is_missing_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text("engine: {kind: redetect, model: /no/such/model.onnx}")
    assert main(["run", "--config", str(path)]) == 2
    assert "/no/such/model.onnx" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["run"], ["check"], ["dead-letters"]])
def test_help_teaches_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert "vedette-worker" in capsys.readouterr().out.split("usage")[1][20:]


def test_engines_have_names_of_their_own_and_stay_where_they_may_be(tmp_path: Path) -> None:
    def refused(text: str) -> str:
        with pytest.raises(ConfigError) as error:
            yamlfile.loads(text, config.WorkerConfig)
        return str(error.value)

    one = "{name: one, engine: {kind: redetect}, region: us}"
    assert "two have the same name" in refused(f"engines: [{one}, {one}]\n")
    assert "fallback.residency allows eu" in refused(f"engines: [{one}]\nfallback: {{residency: [eu]}}\n")
