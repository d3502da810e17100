"""The manifests say what the code means: names, ports, paths, keys, streams and times."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest
import yaml

from appliance import yamlfile
from appliance.wire import STREAM_ESCALATION
from cloud_worker import stream_setup
from cloud_worker.__main__ import main
from cloud_worker.config import OpenAiEngine, StreamsConfig, WorkerConfig
from cloud_worker.worker import ARCHIVE_DRAIN_S
from tests.servers.nats import NatsServer, find_nats_servers

FOLDER = Path(__file__).parents[2] / "deploy" / "k8s"
BINARIES = find_nats_servers()


def manifests() -> dict[str, dict[str, Any]]:
    found = [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]
    return {each["kind"]: each for each in found}


ALL = manifests()
POD = ALL["Deployment"]["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
WORKER_FILE = ALL["ConfigMap"]["data"]["worker.yaml"]


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> WorkerConfig:
    """The worker file, read as the worker reads it, with the environment that the deployment gives it."""
    for each in CONTAINER["env"]:
        monkeypatch.setenv(each["name"], "x" * 12)
    return yamlfile.loads(WORKER_FILE, WorkerConfig)


def test_there_is_what_it_takes() -> None:
    assert set(ALL) == {"Namespace", "ConfigMap", "Deployment", "ScaledObject", "Secret", "NetworkPolicy"}
    assert {each["metadata"].get("namespace", "vedette") for each in ALL.values()} == {"vedette"}


def policies() -> dict[str, Any]:
    found = yaml.safe_load_all((FOLDER / "network.yaml").read_text())
    return {each["metadata"]["name"]: each["spec"] for each in found}


def ports_of(rules: list[dict[str, Any]], app: str = "", namespace: str = "") -> set[int]:
    """Those that are open between a pod and one with this label, or from a namespace of this name."""
    peers = [{"podSelector": {"matchLabels": {"app": app}}},
             {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]  # fmt: skip
    return {
        port["port"] for rule in rules for port in rule.get("ports", ())
        if any(peer in peers for peer in (*rule.get("to", ()), *rule.get("from", ())))
    }  # fmt: skip


def test_nothing_but_what_the_worker_file_names_may_be_reached(settings: WorkerConfig) -> None:
    found = policies()
    assert found["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    worker = found["vedette-worker"]
    assert worker["podSelector"]["matchLabels"] == ALL["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert isinstance(settings.engine, OpenAiEngine)
    broker, model = urlsplit(settings.nats.url), urlsplit(settings.engine.url)
    assert ports_of(worker["egress"], app="nats") == {broker.port}
    assert (
        ports_of(worker["egress"], app="vllm") == {model.port} == ports_of(found["vllm"]["ingress"], "vedette-worker")
    )
    assert ports_of(worker["ingress"], namespace="monitoring") == {settings.status.port}


def test_the_brokers_monitoring_is_for_the_autoscaler_alone() -> None:
    (trigger,) = ALL["ScaledObject"]["spec"]["triggers"]
    port = urlsplit(trigger["metadata"]["url"]).port
    rules = policies()["nats"]["ingress"]
    assert ports_of(rules, namespace="keda") == {port}
    assert port not in {each["port"] for rule in rules if "from" not in rule for each in rule["ports"]}


def test_the_worker_file_is_a_valid_one(settings: WorkerConfig) -> None:
    assert isinstance(settings.engine, OpenAiEngine)
    assert settings.archive.bucket is not None


def test_every_secret_of_the_file_is_in_the_environment_and_in_the_secret() -> None:
    wanted = set(re.findall(r"\$\{(\w+)\}", WORKER_FILE))
    given = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in CONTAINER["env"]}
    assert set(given) == wanted
    assert {each["name"] for each in given.values()} == {ALL["Secret"]["metadata"]["name"]}
    assert {each["key"] for each in given.values()} == set(ALL["Secret"]["stringData"])
    assert not any(ALL["Secret"]["stringData"].values()), "no secret in git"


def test_the_command_exists_and_finds_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    name, command, *options = CONTAINER["command"]
    assert (name, command) == ("vedette-worker", "run")
    with pytest.raises(SystemExit) as ended:
        main([command, *options[:-1], "/no/such/file", "--help"])
    assert ended.value.code == 0
    capsys.readouterr()
    (mount,) = [each for each in CONTAINER["volumeMounts"] if each["name"] == "config"]
    assert options[-1] == f"{mount['mountPath']}/worker.yaml"


def test_ports_and_paths_are_those_of_the_status_server(settings: WorkerConfig) -> None:
    (port,) = CONTAINER["ports"]
    assert (port["name"], port["containerPort"], settings.status.host) == ("status", settings.status.port, "0.0.0.0")
    assert {CONTAINER[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")} == {"status"}
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/healthz", "a model that is away must not restart workers"
    notes = ALL["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert (notes["prometheus.io/port"], notes["prometheus.io/path"]) == (str(settings.status.port), "/metrics")


def test_a_pod_is_not_killed_while_it_drains(settings: WorkerConfig) -> None:
    assert POD["terminationGracePeriodSeconds"] > settings.worker.drain_s + ARCHIVE_DRAIN_S


def test_the_scaler_scales_this_deployment() -> None:
    scaled = ALL["ScaledObject"]["spec"]
    assert scaled["scaleTargetRef"]["name"] == ALL["Deployment"]["metadata"]["name"]
    (trigger,) = scaled["triggers"]
    assert trigger["type"] == "metrics-api"
    assert f'"{STREAM_ESCALATION}"' in trigger["metadata"]["valueLocation"]
    assert float(trigger["metadata"]["targetValue"]) > 0


@pytest.mark.parametrize("binary", BINARIES, ids=str)
def test_the_scaler_reads_the_backlog_of_a_real_server(binary: Any, tmp_path: Path) -> None:
    """The very address path and value of the manifest, asked of nats-server's monitoring with questions waiting."""
    server = NatsServer(binary, tmp_path / "nats", extra="http: 127.0.0.1:-1").start()
    try:
        asyncio.run(seven_questions(server.url))
        (trigger,) = ALL["ScaledObject"]["spec"]["triggers"]
        path = trigger["metadata"]["url"].split(":8222", 1)[1]
        with urllib.request.urlopen(f"{server.monitoring}{path}", timeout=60) as answer:
            found = json.loads(answer.read())
    finally:
        server.stop()
    assert gjson(found, trigger["metadata"]["valueLocation"]) == 7


async def seven_questions(url: str) -> None:
    client = await nats.connect(url)
    await stream_setup.ensure_streams(client.jetstream(), StreamsConfig())
    for n in range(7):
        await client.jetstream().publish(f"vedette.depot-{n}.escalation.high", b"{}")
    await client.close()


def gjson(value: Any, path: str) -> Any:
    """The part of GJSON's paths that the manifest uses: names, and the first of a list that has `name=="…"`."""
    for name, wanted in re.findall(r'#\(name=="([^"]+)"\)|([^.#]+)', path):
        value = next(each for each in value if each["name"] == name) if name else value[wanted]
    return value
