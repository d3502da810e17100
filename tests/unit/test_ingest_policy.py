"""What the ingest process may reach follows from its configuration; what is replaced below it is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.base.local_files import live_memory
from appliance.config import IngestConfig
from appliance.detect.accelerators import Accelerator
from appliance.ingest import __main__ as ingest
from appliance.ingest import ingest_policy
from appliance.ingest.ingest_policy import IngestPolicy
from appliance.ingest.ingest_resources import IngestNeeds, port_of
from appliance.sandbox.confinement import LACKS, NO_SECCOMP, missing_confinement, program_files

USUAL = {554, 322, 8554}


def site(folder: Path, **sections: Any) -> IngestConfig:
    cameras = {"gate": {"url": "rtsp://camera/main"}}
    return IngestConfig.model_validate({"storage": {"dir": folder / "data"}, "cameras": cameras, **sections})


@pytest.mark.parametrize(
    ("url", "port"),
    [
        ("rtsp://camera/main", 554),
        ("rtsps://camera/main", 322),
        ("rtsp://user:pass@[fe80::1]:7447/x", 7447),
        ("rtsp://camera:99999/x", None),
        ("file:/clip.mp4", None),
    ],
)
def test_the_port_of_a_camera(url: str, port: int | None) -> None:
    assert port_of(url) == port


def test_a_camera_that_is_added_needs_a_new_start_for_what_is_out_of_reach_alone(tmp_path: Path) -> None:
    def needs(**camera: Any) -> IngestNeeds:
        return IngestNeeds.of(site(tmp_path, cameras={"gate": {"url": "rtsp://camera:7447/main"}, "new": camera}))

    before = needs(url="rtsp://camera:7447/main")
    assert before.ports == USUAL | {7447}
    for fits in (
        {"url": "rtsp://other:7447/main"},
        {"url": "rtsp://other:8554/main", "detect_url": "rtsps://other/sub"},
        {"url": "rtsp://other/main", "enabled": False},
    ):
        assert before.covers(needs(**fits)), fits
    for does_not in (
        {"url": "rtsp://other:5541/main"},
        {"url": "rtsp://other/main", "detect_url": "rtsp://other:5541/sub"},
        {"url": "rtsp://other:5541/main", "enabled": False},
        {"url": "file:/clip.mp4"},
        {"url": "rtsp://other/main", "decode": {"hardware": "vaapi"}},
    ):
        assert not before.covers(needs(**does_not)), does_not


def test_it_writes_into_its_own_folders_and_starts_nothing(tmp_path: Path) -> None:
    policy = IngestPolicy(site(tmp_path)).policy
    data = tmp_path / "data"
    assert set(policy.writable) == {data / each for each in ("segments", "substreams", "parked", "preroll")} | {
        Path(os.devnull),
        live_memory(data),
    }
    assert policy.made_in == (data,)
    assert policy.ports == USUAL | {53}
    assert (policy.programs, policy.devices) == ((), ())
    assert not [each for each in (*policy.readable, *policy.listed) if tmp_path.is_relative_to(each)]
    assert Path("/etc") not in policy.readable
    assert Path("/proc") not in policy.readable


def test_networks_and_files_that_stand_for_cameras_are_read(tmp_path: Path) -> None:
    for name in ("yard.onnx", "yard.onnx.data", "yardstick.txt", "site.yaml", "clip.mp4"):
        (tmp_path / name).touch()
    cameras = {"gate": {"url": f"file:{tmp_path}/clip.mp4"}}
    readable = IngestPolicy(
        site(tmp_path, cameras=cameras, detector={"model": f"{tmp_path}/yard.onnx"})
    ).policy.readable
    assert {each.name for each in readable if each.parent == tmp_path} >= {"yard.onnx", "yard.onnx.data", "clip.mp4"}
    assert tmp_path / "site.yaml" not in readable


def test_hardware_opens_devices_and_its_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nexec true\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/vendor/lib")
    policy = IngestPolicy(site(tmp_path, decode={"hardware": "vaapi", "ffmpeg": str(program)})).policy
    assert {program, Path("/bin/sh")} <= set(policy.programs)
    assert Path(sys.executable) not in policy.programs
    assert Path("/opt/vendor/lib") in policy.readable
    assert tmp_path / ".nv/ComputeCache" in policy.writable


def test_an_accelerator_is_within_reach_unless_the_site_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_policy, "accelerators", lambda: (Accelerator("hailo", "/dev/hailo0"),))
    hailo = {"python": sys.executable}
    for detector in ({"hailo": hailo}, {"backend": "hailo", "device": "cpu", "hailo": hailo}):
        policy = IngestPolicy(site(tmp_path, detector=detector)).policy
        assert Path("/sys") in policy.readable
        assert policy.programs[0] == Path(sys.executable)
    policy = IngestPolicy(site(tmp_path, detector={"device": "cpu"})).policy
    assert (policy.programs, policy.devices, Path("/sys") in policy.readable) == ((), (), False)


def test_what_was_replaced_below_it_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 192.0.2.1\n")
    monkeypatch.setattr(ingest_policy, "RESOLVER_FILES", (resolver,))
    policy = IngestPolicy(site(tmp_path))
    assert not policy.is_outdated(names_fail=True)
    (tmp_path / "new").write_text("nameserver 192.0.2.2\n")
    (tmp_path / "new").rename(resolver)
    assert not policy.is_outdated(names_fail=False), "cameras go on as long as their names are known"
    assert policy.is_outdated(names_fail=True)
    (tmp_path / "data" / "segments").rmdir()
    assert policy.is_outdated(names_fail=False)
    (tmp_path / "data" / "segments").mkdir()
    assert not IngestPolicy(site(tmp_path)).is_outdated(names_fail=True)


def test_a_storage_folder_that_cannot_be_made_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    policy = IngestPolicy(site(tmp_path))
    assert not policy.is_outdated(names_fail=False)
    (tmp_path / "data").unlink()
    (tmp_path / "data" / "segments").mkdir(parents=True)
    assert policy.is_outdated(names_fail=False), "the disk is there now"


@pytest.mark.parametrize(("held", "is_watched"), [((), False), (("seccomp",), False), (("landlock",), True)])
def test_a_kernel_without_landlock_is_told_and_nothing_is_out_of_reach_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    held: tuple[str, ...],
    is_watched: bool,
) -> None:
    """What is replaced there, sub-streams at each start among it, must not end the process again and again."""
    monkeypatch.setattr(ingest, "confine", lambda policy: held)
    assert (ingest.give_up_all_else(site(tmp_path)) is not None) is is_watched
    assert "live video is decoded with less protection" in caplog.text


STARTS = """
import subprocess, sys
from pathlib import Path
from appliance.sandbox.confinement import ConfinementPolicy, confine, library_policy, program_files
from dataclasses import replace
programs = tuple(program_files(Path(sys.argv[1])))
held = confine(replace(library_policy(), programs=programs, readable=(*library_policy().readable, Path("/bin"))))
assert held == ("landlock", "seccomp"), held
print(subprocess.run([sys.argv[1]], stdout=subprocess.PIPE, check=True).stdout.decode().strip())
try:
    subprocess.run([sys.argv[2]], check=True)
except PermissionError:
    print("refused")
"""


def test_a_decoder_that_is_configured_is_started_and_no_other_program(tmp_path: Path) -> None:
    if missing_confinement():
        pytest.skip("this kernel does not confine wholly")
    script = tmp_path / "ffmpeg"
    script.write_text("#!/bin/sh\necho frames\n")
    script.chmod(0o755)
    command = [sys.executable, "-c", STARTS, str(script), "/bin/cat"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["frames", "refused"], done.stderr
    assert list(program_files(tmp_path / "no such")) == [tmp_path / "no such"]


@pytest.mark.parametrize("version", range(-1, 8))
def test_what_the_kernel_lacks_is_told_in_words(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    monkeypatch.setattr("appliance.sandbox.confinement._landlock_version", lambda: version)
    expected = [text for since, text in LACKS if since > version]
    assert missing_confinement() == tuple(expected[:1] if version < 1 else expected)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert missing_confinement()[-1] == NO_SECCOMP
