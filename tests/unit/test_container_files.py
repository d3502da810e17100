"""The files that containers are built from and run by: what they name is there, pinned, and runs without rights.

No engine runs where this was written: docs/install.md says what buildah has built.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance import config
from appliance.__main__ import commands
from appliance.base import yamlfile
from appliance.cli.command_table import build_parser
from cloud_worker.config import OpenAiEngine, WorkerConfig
from cloud_worker.worker import ARCHIVE_DRAIN_S
from tests.servers.nats import find_nats_servers

ROOT = Path(__file__).parents[2]
DOCKER, COMPOSE = ROOT / "deploy" / "docker", ROOT / "deploy" / "compose"
FILES = sorted(DOCKER.glob("*.Dockerfile"))
BOXES = {"appliance": "cpu", "intel": "cpu", "nvidia": "nvidia", "jetson": "jetson", "pi": "pi"}

# Devices that detection, decoding and sensors open; the HEVC decoder of a Pi has other numbers on each system.
DEVICES: dict[str, set[str]] = {
    "appliance": set(), "nvidia": set(), "jetson": set(), "intel": {"/dev/dri"},
    "pi": {"/dev/hailo0", "/dev/vcio", "/dev/dma_heap", "${HEVC_VIDEO", "${HEVC_MEDIA"},
}  # fmt: skip
# Packages that decode.hardware needs in the image (docs/decode.md); NVDEC comes with PyAV and the runtime.
DECODES_BY: dict[str, set[str]] = {
    "appliance": set(), "nvidia": set(), "jetson": {"ffmpeg"}, "pi": {"ffmpeg"},
    "intel": {"ffmpeg", "intel-media-va-driver", "libmfx-gen1.2", "libvpl2"},
}  # fmt: skip


def instructions(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines())]


def of(path: Path, word: str) -> list[str]:
    return [rest for each, rest in instructions(path) if each == word]


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_one_for_each_kind_of_box_and_for_the_worker() -> None:
    assert [path.stem for path in FILES] == ["cpu", "jetson", "nvidia", "pi", "worker"]


def test_libraries_tell_nobody(dockerfile: Path) -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in " ".join(of(dockerfile, "ENV")).split()


def test_a_base_has_a_version_and_can_be_named_by_digest(dockerfile: Path) -> None:
    (base,) = [each for each in of(dockerfile, "ARG") if "IMAGE=" in each]
    name, _, image = base.partition("=")
    assert re.search(r":(?!latest)[\w.-]*\d", image), image
    assert "sha256" not in image, "none that nobody here has seen"
    assert {each.split(" ")[0] for each in of(dockerfile, "FROM")} == {f"${{{name}}}"}


def test_packages_come_by_hash_or_by_version_and_none_under_agpl(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    pins = dict(each.split("=", 1) for each in of(dockerfile, "ARG") if "IMAGE=" not in each)
    pip = [
        part
        for run in of(dockerfile, "RUN")
        for part in re.split(r"&&|;", run)
        if "pip install" in part or "pip wheel" in part
    ]
    assert pip
    for command in pip:
        assert "--no-cache-dir" in command
        for word in command.partition(" install " if " install " in command else " wheel ")[2].split():
            if word.startswith("-") or word.endswith(".lock") or word in (".", "/wheel", "/wheel/*.whl"):
                continue
            name, _, version = word.strip('"').partition("==")
            assert version.strip("$") in pins, f"{name} has no version"
    assert "--require-hashes -r deploy/requirements.lock" in text or dockerfile.stem == "jetson", (
        "whose Python has no lock"
    )
    assert not re.search(r"ultralytics|\[(export|dev|train|lab)\b", text)


def test_what_is_copied_is_there_and_reaches_the_builder(dockerfile: Path) -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = [line[1:] for line in ignore if line.startswith("!")]
    assert "*" in ignore
    assert all((ROOT / each).exists() for each in let_in)
    for rest in of(dockerfile, "COPY"):
        for source in rest.split(" ")[:-1]:
            if rest.startswith("--from") or source == ".":
                break
            assert (ROOT / source).is_file()
            assert any(fnmatch(source, f"{each}*") for each in let_in), source
    needed = re.findall(r'^"?([\w./-]+)"? = "appliance/', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert needed
    for path in (*needed, "appliance", "cloud_worker", "README.md", "LICENSE", "NOTICE", "pyproject.toml"):
        assert any(path == each or path.startswith(f"{each}/") for each in let_in), f"the wheel needs {path}"


def test_an_image_runs_as_nobody_and_says_how_it_is(dockerfile: Path) -> None:
    words = instructions(dockerfile)
    last = words[max(index for index, (word, _) in enumerate(words) if word == "FROM") :]
    assert ("USER", "10001:10001") in last
    (check,) = [rest for word, rest in last if word == "HEALTHCHECK"]
    (entry,) = [yaml.safe_load(rest) for word, rest in last if word == "ENTRYPOINT"]
    if dockerfile.stem == "worker":
        assert (entry, "/healthz" in check) == (["vedette-worker"], True)
    else:
        assert (entry, "appliance.upgrade" in check) == (["vedette-start"], True)


HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: pip install '.[dev]'")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([str(HADOLINT), *map(str, FILES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_first_start_writes_a_site_file_that_vedette_takes_and_later_ones_leave_it(tmp_path: Path) -> None:
    (tmp_path / "vedette").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "vedette").chmod(0o755)
    script = (DOCKER / "start.sh").read_text().replace("/etc/vedette/", f"{tmp_path}/")
    environment = {"PATH": f"{tmp_path}:{os.defpath}"}
    for _ in range(2):
        done = subprocess.run(
            ["sh"], input=script, env=environment, capture_output=True, text=True, check=True, timeout=30
        )
        build_parser(commands()).parse_args(done.stdout.split())
        site = tmp_path / "site.yaml"
        assert site.stat().st_mode & 0o077 == 0, "it may hold passwords"
        assert str(config.load(site).storage.dir) == "/var/lib/vedette"
        assert (config.load(site).dashboard.host, config.load(site).dashboard.port) == ("0.0.0.0", 8080)
        assert "# mine" in site.read_text() or site.write_text(site.read_text() + "# mine\n")


def services(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """With what `extends` brings, merged as Compose does: maps by key, lists one after the other."""
    for name, service in yaml.safe_load(path.read_text())["services"].items():
        if "extends" in service:
            base = dict(services(path.parent / service["extends"]["file"]))[service["extends"]["service"]]
            yield name, merged(base, {key: each for key, each in service.items() if key != "extends"})
        else:
            yield name, service


def merged(base: Any, own: Any) -> Any:
    if isinstance(base, dict) and isinstance(own, dict):
        return {
            key: merged(base[key], own[key]) if key in base and key in own else {**base, **own}[key]
            for key in {**base, **own}
        }
    return [*base, *own] if isinstance(base, list) and isinstance(own, list) else own


@pytest.mark.parametrize("name", BOXES)
def test_the_appliance_of_each_box_runs_its_image_and_may_do_nothing_else(name: str) -> None:
    ((_, service),) = services(COMPOSE / f"{name}.yaml")
    built = COMPOSE / service["build"]["context"] / service["build"]["dockerfile"]
    assert built.resolve() == DOCKER / f"{BOXES[name]}.Dockerfile"
    assert service["image"] == f"vedette:{BOXES[name]}"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in service
    assert "network_mode" not in service
    volumes = {volume.split(":")[1]: volume.split(":")[0] for volume in service["volumes"]}
    assert set(volumes) == {"/var/lib/vedette", "/etc/vedette"}
    assert set(volumes.values()) == set(yaml.safe_load((COMPOSE / f"{name}.yaml").read_text())["volumes"])
    assert service["ports"] == ["8080:8080"]
    assert {each.partition(":")[0] for each in service.get("devices", [])} == DEVICES[name]
    assert all(each.partition(":")[0] == each.rpartition(":")[2] or "${" in each for each in service.get("devices", []))
    assert ("nvidia" in str([service.get("deploy"), service.get("runtime")])) == (name in {"nvidia", "jetson"})
    assert service["environment"] == {"TZ": "${TZ:-UTC}"}
    packages = {word for kind, rest in instructions(built) if kind == "RUN" for word in rest.split()}
    assert packages >= DECODES_BY[name]
    assert "tzdata" in packages or "python:3" in "".join(of(built, "ARG")), "Python's image has it; TZ needs it"


def test_compose_asks_the_nvidia_driver_for_all_that_the_image_does() -> None:
    """Docker puts what a reservation names in place of the image's NVIDIA_DRIVER_CAPABILITIES."""
    ((_, service),) = services(COMPOSE / "nvidia.yaml")
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    (wanted,) = re.findall(r"NVIDIA_DRIVER_CAPABILITIES=(\S+)", (DOCKER / "nvidia.Dockerfile").read_text())
    assert set(device["capabilities"]) == {"gpu", *wanted.split(",")}


def test_the_hub_joins_a_broker_a_worker_and_one_model_server(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = dict(services(COMPOSE / "hub.yaml"))
    monkeypatch.setenv("VEDETTE_NATS_TOKEN", "x" * 32)
    worker = yamlfile.load(COMPOSE / "hub-worker.yaml", WorkerConfig)
    assert isinstance(worker.engine, OpenAiEngine)
    assert worker.nats.url == "nats://nats:4222"
    assert worker.engine.url == "http://vlm:8000/v1"
    models = {name: each for name, each in hub.items() if name in ("vllm", "llama")}
    for each in models.values():
        assert each["networks"]["default"]["aliases"] == ["vlm"]
        assert worker.engine.model in each["command"], "the name that it serves"
        assert each["ports"] == ["127.0.0.1:8000:8000"]
    assert all(len(set(each["profiles"])) == len(each["profiles"]) for each in models.values()), "Compose refuses it"
    assert {name: each["profiles"][-1] for name, each in models.items()} == {"vllm": "gpu", "llama": "cpu"}
    assert f":{worker.status.port}:" in f":{hub['worker']['ports'][0]}:"
    assert int(hub["worker"]["stop_grace_period"][:-1]) > worker.worker.drain_s + ARCHIVE_DRAIN_S
    assert hub["nats"]["ports"] == ["${HUB_ADDRESS:-127.0.0.1}:4222:4222"], "closed until somebody opens it"
    assert hub["nats"]["healthcheck"]["start_period"] == "5m", "as long as the startup probe of deploy/k8s allows"
    for name in ("nats", "worker"):
        assert (hub[name]["read_only"], hub[name]["cap_drop"]) == (True, ["ALL"])
    assert all(":latest" not in each.get("image", "") for each in hub.values())


@pytest.mark.skipif(not find_nats_servers(), reason="no nats-server")
def test_nats_takes_the_hubs_configuration() -> None:
    server = find_nats_servers()[0]
    done = subprocess.run(
        [str(server.path), "-c", str(COMPOSE / "hub-nats.conf"), "-t"],
        env={"VEDETTE_NATS_TOKEN": "x" * 32}, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


PLATFORMS = {  # of each image: the Python of its base, and the wheels that it takes
    "nvidia": [("3.12", "x86_64"), ("3.12", "aarch64")],
    "jetson": [("3.10", "aarch64")],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "python", "machine"), [(name, *each) for name, all_ in PLATFORMS.items() for each in all_]
)
def test_the_registry_has_what_an_image_pins(name: str, python: str, machine: str, tmp_path: Path) -> None:
    """`tensorrt-cu13` is a source package that asks NVIDIA's index when it is built: only its version is looked up."""
    path = DOCKER / f"{name}.Dockerfile"
    pins = dict(each.split("=", 1) for each in of(path, "ARG") if "=" in each)
    names = [(package, pins[pin]) for package, pin in re.findall(r'"([\w\[\],-]+)==\$(\w+)"', path.read_text())]
    assert names
    tags = [f"manylinux_2_{minor}_{machine}" for minor in (35, 34, 31, 28, 27, 24)] + [f"manylinux2014_{machine}"]
    for package, version in names:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        if package.startswith("tensorrt"):
            listed = subprocess.run([*pip, "index", "versions", package], capture_output=True, text=True, check=False)
            assert version in listed.stdout
            continue
        command = [*pip, "download", "--quiet", "--no-deps"]
        command += ["--only-binary", ":all:", "--python-version", python, "--dest", str(tmp_path)]
        command += [word for tag in tags for word in ("--platform", tag)]
        done = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-500:]
