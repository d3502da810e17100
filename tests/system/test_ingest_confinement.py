"""A live camera's decoder that was taken over reaches its cameras and its recording alone; it records all the same."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from appliance import config
from appliance.base.json_lines import decode_ingest, encode_command
from appliance.config import IngestConfig
from appliance.ingest import __main__ as ingest
from appliance.ingest.camera_probe import ProbeFailed, probe_camera
from appliance.types import CameraState, ConfigureCommand, FrameBoxes
from tests.servers.appliance_process import ApplianceProcess
from tests.servers.red_camera import ingest_of, one, rows
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.scripted_sources import clip
from tests.support.unmeasured import UNMEASURED
from tests.support.waiting import until

SECRET = "hunter2-s3cret"
ATTACKS = """
import ctypes, json, os, socket, subprocess, sys
from pathlib import Path
from appliance.config import IngestConfig
from appliance.sandbox.confinement import confine
from appliance.ingest.ingest_policy import IngestPolicy
given = json.loads(sys.stdin.readline())
assert confine(IngestPolicy(IngestConfig.model_validate(given["site"])).policy) == ("landlock", "seccomp")
libc, data, parent = ctypes.CDLL(None, use_errno=True), Path(given["site"]["storage"]["dir"]), os.getppid()
def of_libc(name, *values):
    if getattr(libc, name)(*values) < 0:
        raise OSError(ctypes.get_errno(), name)
def connect(port):
    socket.create_connection(("127.0.0.1", port), 5).close()
def sends_at_once():
    with socket.socket() as made:
        made.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", given["closed"]))
def serves():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
def serves_unbound():
    with socket.socket() as made:
        made.listen()
attacks = {
    "reads the database": lambda: (data / "vedette.db").read_bytes(),
    "reads the site file": lambda: Path(given["file"]).read_bytes(),
    "reads the secrets": lambda: Path(given["file"]).with_name("site.secrets").read_bytes(),
    "reads the parent's environment": lambda: Path(f"/proc/{parent}/environ").read_bytes(),
    "reads the parent's memory": lambda: open(f"/proc/{parent}/mem", "rb").read(1),
    "reads /etc/passwd": lambda: Path("/etc/passwd").read_bytes(),
    "lists the home": lambda: os.listdir(Path.home()),
    "writes beside": lambda: (data / "x").write_bytes(b""),
    "writes into evidence": lambda: (data / "evidence" / "x").write_bytes(b""),
    "replaces the database": lambda: (data / "segments" / "x").rename(data / "vedette.db"),
    "deletes the database": lambda: (data / "vedette.db").unlink(),
    "empties the database": lambda: os.truncate(data / "vedette.db", 0),
    "opens the site file to all": lambda: os.chmod(given["file"], 0o666),
    "starts a program": lambda: subprocess.run(["/bin/true"], check=True),
    "starts itself": os.fork,
    "connects elsewhere": lambda: connect(given["closed"]),
    "connects without connecting": sends_at_once,
    "connects by another protocol": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262),
    "sends raw packets": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 6),
    "asks the kernel": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    "serves": serves,
    "serves on any port": serves_unbound,
    "kills the parent": lambda: os.kill(parent, 0),
    "kills by thread": lambda: of_libc("tgkill", parent, parent, 0),
    "slows the parent down": lambda: os.setpriority(os.PRIO_PROCESS, parent, 0),
    "traces the parent": lambda: of_libc("ptrace", 0x4206, parent, 0, 0),
}
came = {}
(data / "segments" / "x").write_bytes(b"its own")
for name, attack in attacks.items():
    try:
        attack()
        came[name] = "done"
    except PermissionError as error:
        came[name] = ""
    except OSError as error:
        came[name] = str(error)
connect(given["open"])
socket.getaddrinfo("localhost", 554)
Path("/etc/hosts").read_bytes()
(data / "segments" / "x").unlink()
print(json.dumps(came))
"""


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("film") / "film.mp4", 60, fps=10, gop=10)


@pytest.fixture
def camera(film: Path) -> Iterator[RtspServerThread]:
    with FaultyRtspServer.in_thread({"main": film}, user="viewer", password=SECRET) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    if ctypes.CDLL(None).syscall(444, None, 0, 1) < 6:
        pytest.skip("this kernel's Landlock knows no ports or signals")


def probing() -> str:
    """What the kernel says of the process that tries a camera now; '': there is none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = (folder / "status").read_text()
            if f"\nPPid:\t{os.getpid()}\n" in status and b"camera_probe" in (folder / "cmdline").read_bytes():
                return status
    return ""


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def recorded_s(box: ApplianceProcess) -> float:
    return float(one(box, "SELECT coalesce(max(t_end), 0) FROM segment"))


def test_a_thread_that_has_just_ended_is_no_thread_that_a_library_started(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = iter([["1", "2"], ["1", "2"], ["1"]])
    monkeypatch.setattr("os.listdir", lambda _: next(listed))
    assert ingest._other_threads() == 0
    monkeypatch.setattr(ingest, "THREAD_GONE_S_MAX", 0.0)
    monkeypatch.setattr("os.listdir", lambda _: ["1", "2", "3"])
    assert ingest._other_threads() == 2


def test_the_ingest_process_of_a_running_box_is_confined_and_goes_on(tmp_path: Path, camera: RtspServerThread) -> None:
    text = f"cameras: {{gate: {{url: '{camera.url('main')}'}}}}\n"
    with ApplianceProcess(tmp_path, text) as box:
        until(lambda: box.get("/cameras/gate")["state"] == "live" and recorded_s(box) > 0, 60)
        ingest = ingest_of(box.pid)
        threads = list((Path("/proc") / str(ingest) / "task").iterdir())
        assert len(threads) > 4
        for each in threads:
            said = (each / "status").read_text()
            assert "\nNoNewPrivs:\t1\n" in said, each
            assert "\nSeccomp:\t2\n" in said, each
        assert "less protection" not in box.log

        camera.refuse()
        camera.cut()
        until(lambda: box.get("/cameras/gate")["state"] != "live", 40)
        camera.listen()
        until(lambda: box.get("/cameras/gate")["state"] == "live", 40)
        before = recorded_s(box)
        until(lambda: recorded_s(box) > before + 1, 40)
        assert ingest_of(box.pid) == ingest

        # Recording goes on in a folder that took the old one's place: a disk that was mounted again, say.
        (tmp_path / "data" / "segments").rename(tmp_path / "data" / "old")
        until(lambda: "files or folders that this process may use were replaced" in box.log, 60)
        until(lambda: any((tmp_path / "data" / "segments").rglob("*.mp4")), 60)
        assert rows(box, "PRAGMA integrity_check") == [("ok",)]


def test_what_was_taken_over_reaches_its_cameras_and_its_recording_alone(
    tmp_path: Path, camera: RtspServerThread
) -> None:
    data = tmp_path / "data"
    (data / "evidence").mkdir(parents=True)
    (data / "vedette.db").write_bytes(b"reviews")
    (tmp_path / "site.secrets").write_text(f"PASSWORD={SECRET}\n")
    file = tmp_path / "site.yaml"
    file.write_text(f"storage: {{dir: {data}}}\ncameras: {{gate: {{url: '{camera.url('main')}'}}}}\n")
    given = {
        "site": config.load(file).for_ingest().model_dump(mode="json"), "file": str(file), "open": camera.port,
        "closed": closed_port(),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", ATTACKS], input=json.dumps(given) + "\n", capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    came = json.loads(done.stdout)
    assert {name: said for name, said in came.items() if said} == {}
    assert len(came) == 26
    assert (data / "vedette.db").read_bytes() == b"reviews"


def test_the_real_process_reads_no_other_file_and_asks_no_other_port_as_a_camera(
    tmp_path: Path, film: Path, camera: RtspServerThread
) -> None:
    """Told to by a command, as code in it could be: the words of what it says differ from those of an open door."""
    secret = clip(tmp_path / "secret.mp4", 10, fps=10)
    (tmp_path / "site.yaml").write_text(
        f"cameras: {{gate: {{url: 'file:{film}'}}}}\nstorage: {{dir: {tmp_path}/data}}\ndetector: {UNMEASURED}"
    )
    reading, writing = os.pipe()
    site = config.load(tmp_path / "site.yaml").for_ingest()
    with subprocess.Popen(
        [sys.executable, "-m", "appliance.ingest", "--fd", str(writing)], stdin=subprocess.PIPE, pass_fds=(writing,),
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    ) as child:  # fmt: skip
        os.close(writing)
        assert child.stdin is not None
        child.stdin.write(site.model_dump_json().encode() + b"\n")
        cameras: dict[str, Any] = {"file": {"url": f"file:{secret}"}, "port": {"url": camera.url("main")}}
        child.stdin.write(
            encode_command(ConfigureCommand(cameras=IngestConfig(cameras=cameras).model_dump()["cameras"]))
        )
        child.stdin.flush()
        reasons: dict[str, str] = {}
        with os.fdopen(reading, "rb") as channel:
            for line in channel:
                said = decode_ingest(line) if line.strip() else None
                assert not (isinstance(said, FrameBoxes) and said.camera != "gate"), "a picture came"
                if isinstance(said, CameraState) and said.state == "lost" and said.camera != "gate":
                    reasons[said.camera] = said.reason
                if set(reasons) == {"file", "port"}:
                    break
            child.stdin.close()
            child.wait(60)
    assert "permission denied" in reasons["port"].lower()
    assert "denied" in reasons["file"].lower()


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="no OpenVINO")
@pytest.mark.skipif(
    sys.modules.get("openvino_telemetry", "") is not None,
    reason="OpenVINO's telemetry reads the home when it is loaded",
)
def test_another_back_end_loads_and_looks_confined(tmp_path: Path, film: Path) -> None:
    (tmp_path / "site.yaml").write_text(
        f"cameras: {{gate: {{url: 'file:{film}'}}}}\nstorage: {{dir: {tmp_path}/data}}\ndetector: {{backend: openvino}}"
    )
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "appliance.ingest", "--fd", str(writing)], stdin=subprocess.PIPE, pass_fds=(writing,)
    ) as child:
        os.close(writing)
        assert child.stdin is not None
        child.stdin.write(config.load(tmp_path / "site.yaml").for_ingest().model_dump_json().encode() + b"\n")
        child.stdin.flush()
        with os.fdopen(reading, "rb") as channel:
            came = (decode_ingest(line) for line in channel if line.strip())
            assert any(isinstance(said, FrameBoxes) and said.looked for said in came)
            child.stdin.close()
            child.wait(60)


def test_who_tries_a_camera_is_confined_to_it(film: Path, camera: RtspServerThread) -> None:
    with ThreadPoolExecutor(1) as one_thread:
        report = one_thread.submit(probe_camera, camera.url("main"))
        until(lambda: "\nSeccomp:\t2\n" in probing(), 60, "the process that tries it is confined")
    assert (report.result().codec, bool(report.result().image)) == ("h264", True)
    assert probe_camera(f"file:{film}").image
    with pytest.raises(ProbeFailed, match="401"):
        probe_camera(camera.url("main", credentials=False))
