"""Nothing leaves a site but what its site file names: every command and process, in a network that writes all down.

Telemetry of a library is found by no look at our own sources, so this is asked of what runs: which names the resolver
is asked for, which addresses are sent to, and what is left in the home folder (a device id shows a library that would
send, before it does). It fails, rather than skips, where it cannot run: it holds a promise of SECURITY.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from appliance.__main__ import commands
from appliance.base.child_processes import JOB_FUNCTIONS, MEDIA_FUNCTIONS, SANDBOX
from cloud_worker.__main__ import _parser as worker_parser
from tests.servers import network_stories, watched_network
from tests.servers.nats import find_nats_servers
from tests.servers.red_camera import red_clip
from tests.servers.watched_network import Watched, role, watch
from tests.support import hailo_files
from tests.support.tiny_networks import Thing, yolo

PERSON = Thing((40, 20, 70, 110), 0.9, 0)
RUNS = {"appliance run", "appliance.ingest"}
MEDIA_CHILD, LAB_JOB = f"{SANDBOX} {MEDIA_FUNCTIONS}", f"{SANDBOX} {JOB_FUNCTIONS}"
# Each story, with the processes that must have been seen while it was told.
PROCESSES = {
    "edge_only": {*RUNS, "appliance check", "appliance egress", MEDIA_CHILD, LAB_JOB},
    "first_run": {*RUNS, "appliance.ingest.camera_probe", "appliance.detect.runtime_choice"},
    "openvino": {*RUNS, "appliance check"},
    "notified": {"appliance notify test"},
    "replay": {"appliance replay", "appliance replay diff"},
    "hailo": {"appliance replay", "hailo_child.py"},
    "models": {
        f"appliance models {each}"
        for each in ("list", "verify", "pull", "export", "publish", "install", "pin", "rollback", "rollout", "prune",
                     "shadow")
    } | {"appliance judge"},
    "discover": {"appliance cameras discover"},
    "worker": {
        "nats-server", "cloud_worker run", "cloud_worker check", "cloud_worker dead-letters list",
        "cloud_worker dead-letters show", "cloud_worker dead-letters requeue",
        "cloud_worker erase", "cloud_worker judge",
    },
    "demo": {*RUNS, "appliance demo", "cloud_worker run", "nats-server"},
    "offline_tools": set(),
    "users": {f"appliance users {each}" for each in ("add", "list", "passwd", "remove", "unlock")},
    "store": {
        *RUNS, *(f"appliance scenario {each}" for each in ("keep", "list", "delete")), "appliance calibrate",
        "appliance export", "appliance cassette from-store", "appliance diagnostics", "appliance backup",
        "appliance restore", "appliance models prove", "appliance advise",
        "appliance candidate",
    },
    "lab": {
        *(f"appliance scenario {each}" for each in ("run", "compare", "curve")), "appliance tune", "appliance evaluate",
        "appliance bench", "appliance.lab.bench_measurement", "appliance cassette check",
        "appliance cassette agree", "pytest",
    },
}  # fmt: skip
SLOW = {"users", "store", "lab", "demo"}  # the same libraries and processes again, started by more commands
# What a story contacts beyond this machine, because that is what it was asked for.
ASKED_FOR = {
    "notified": {network_stories.RECEIVER},  # a target in the site file
    "discover": {"239.255.255.250", "ff02::c"},  # WS-Discovery of ONVIF, in the local network
}


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    reason = watched_network.why_not()
    assert not reason, reason


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A film, a network for each runtime that knows what is in it, and a labelled picture."""
    folder = tmp_path_factory.mktemp("things")
    red_clip(folder / "film.mp4")
    yolo(folder / "red.onnx", [PERSON], ["person"])
    hailo_files.nms(folder / "red.hef", [PERSON])
    for each in ("images", "labels"):
        (folder / "set" / each).mkdir(parents=True)
    cv2.imwrite(str(folder / "set" / "images" / "a.png"), np.zeros((128, 128, 3), np.uint8))
    (folder / "set" / "labels" / "a.txt").write_text("0 .4 .5 .2 .7\n")
    (folder / "set" / "data.yaml").write_text("train: images\nnc: 1\nnames: [person]\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path, things: Path) -> Path:
    made = shutil.copytree(things, tmp_path / "told")
    hailo_files.FakeDevice(made)
    return made


def told(name: str, folder: Path) -> Watched:
    """What the story did."""
    command = [sys.executable, "-m", "tests.servers.network_stories", name, folder]
    servers = find_nats_servers()
    return watch(folder / "watched", command, environment={"NATS_SERVER": str(servers[0].path) if servers else ""})


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in PROCESSES]
)
def test_nothing_is_looked_up_contacted_or_left_but_what_was_asked_for(name: str, folder: Path) -> None:
    seen = told(name, folder)
    assert seen.code == 0, seen.output
    asked_for = ASKED_FOR.get(name, set())
    assert {what: by for what, by in seen.contacted.items() if what not in asked_for} == {}
    assert seen.contacted or not asked_for
    assert seen.at_home == []
    assert seen.lost == 0
    assert {role(each) for each in seen.processes} >= PROCESSES[name]


PLANTED = {
    "a name": ("socket.getaddrinfo('planted.example', 443)", "planted.example"),
    "an address": ("socket.socket().connect_ex(('192.0.2.9', 4433))", "192.0.2.9"),
    "a datagram": ("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.8', 123))", "192.0.2.8"),
    "another resolver": ("socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))", "8.8.8.8"),
    "the next protocol": ("socket.socket(socket.AF_INET6).connect_ex(('2001:db8::1', 443))", "2001:db8::1"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_found_also_in_a_child_of_a_child(what: str, folder: Path) -> None:
    code, found = PLANTED[what]
    child = [sys.executable, "-c", f"import socket; {code}"]
    seen = watch(folder / "watched", [sys.executable, "-c", f"import subprocess; subprocess.run({child})"])
    assert list(seen.contacted) == [found]


@pytest.mark.parametrize(
    ("library", "left"),
    [
        ("onnxruntime", ".cache/Microsoft/DeveloperTools/.onnxruntime/deviceid"),
        ("openvino", "intel/openvino_ga_cid"),
    ],
)
def test_a_library_as_it_comes_is_found(library: str, left: str, folder: Path) -> None:
    """The libraries are still as they are, so what keeps them quiet is ours; if this fails they have changed."""
    loads = "onnxruntime.InferenceSession" if library == "onnxruntime" else "print"
    code = f"import {library}; {loads}({str(folder / 'red.onnx')!r})"
    assert left in watch(folder / "raw", [sys.executable, "-c", code]).at_home
    seen = watch(folder / "ours", [sys.executable, "-c", f"import appliance; {code}"])
    assert (seen.code, seen.at_home, seen.contacted) == (0, [], {})


def _verbs(parser: argparse.ArgumentParser, before: str = "") -> Iterator[str]:
    """Each command of a parser: its words."""
    families = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for family in families:
        for name, below in family.choices.items():
            yield from _verbs(below, f"{before}{name} ")
    if not families:
        yield before.rstrip()


def test_every_command_has_a_story() -> None:
    """A new one fails here until it is told in tests/servers/network_stories.py."""
    named = {f"appliance {each.name}" for each in commands()}
    ours = {each for each in named if not any(other.startswith(f"{each} ") for other in named)}  # families only group
    verbs = {f"cloud_worker {each}" for each in _verbs(worker_parser())}
    assert "cloud_worker dead-letters list" in verbs
    covered = {each for seen in PROCESSES.values() for each in seen}
    assert not (ours | verbs) - covered
