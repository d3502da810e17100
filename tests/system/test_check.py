"""`vedette check` and the other commands as a person types them: one clear sentence a fault, the right exit code."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import onnxruntime as ort
import pytest

from appliance.__main__ import main
from tests.servers.rtsp import FaultyRtspServer, RtspServerThread
from tests.support.numbered_footage import numbered_image
from tests.support.scripted_sources import clip
from tests.support.unmeasured import UNMEASURED

VEDETTE = (sys.executable, "-m", "appliance")
PASSWORD = "hunter2-s3cret"


def vedette(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*VEDETTE, *arguments], cwd=cwd, capture_output=True, text=True, timeout=250, check=False)
    return free_of_secrets(done)


def called(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same in this process, which has imported it all already."""
    out, err, terminated, folder = io.StringIO(), io.StringIO(), signal.getsignal(signal.SIGTERM), Path.cwd()
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(each) for each in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        os.chdir(folder)
        signal.signal(signal.SIGTERM, terminated)
    return free_of_secrets(subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue()))


def free_of_secrets(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert PASSWORD not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip(tmp_path_factory.mktemp("film") / "film.mp4", 60, fps=20, gop=10)


@pytest.fixture
def server(film: Path) -> Iterator[RtspServerThread]:
    with FaultyRtspServer.in_thread({"main": film}, user="viewer", password=PASSWORD) as running:
        yield running


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, and which nobody else can take meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def site(folder: Path, url: str, extra: str = "") -> Path:
    path = folder / "site.yaml"
    text = f"cameras:\n  gate:\n    url: {url}\n    connect_timeout_s: 20\ndashboard: {{port: 0}}\n{extra}"
    path.write_text(text)
    return path


def test_a_site_that_is_ready_says_so(tmp_path: Path, server: RtspServerThread) -> None:
    done = vedette("check", site(tmp_path, server.url("main")), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "h264 320x240" in done.stdout.replace("\n", " ")
    assert "ready. Start it with: vedette run --config" in done.stdout
    assert "inferences a second when every camera moves" in " ".join(done.stdout.split())


def test_a_wrong_password_is_a_fault_of_the_file(tmp_path: Path, server: RtspServerThread) -> None:
    wrong = server.url("main").replace("viewer:", f"viewer:{PASSWORD}x")
    done = called("check", "--json", site(tmp_path, wrong), cwd=tmp_path)
    assert done.returncode == 2
    told = " ".join(json.loads(done.stdout)["problems"])
    assert "refused the password (401); check user and password in cameras.gate.url" in told


def test_an_unreachable_camera_and_broker_are_reported_and_are_not_the_files_fault(tmp_path: Path) -> None:
    with closed_port() as port:
        uplink = f'uplink: {{url: "nats://127.0.0.1:{port}"}}\n'
        path = site(tmp_path, f"rtsp://u:{PASSWORD}@127.0.0.1:{port}/x", uplink)
        done = called("check", "--json", path, cwd=tmp_path)
    assert done.returncode == 1
    told = json.loads(done.stdout)["problems"]
    assert told[0].startswith("cameras.gate.url: camera gate: 127.0.0.1")
    assert "alerts would wait in the outbox" in told[1]


def test_an_unknown_key_gets_its_line_the_nearest_name_and_exit_2(tmp_path: Path) -> None:
    done = called("check", site(tmp_path, "rtsp://127.0.0.1/x", "detectr: {}\n"), cwd=tmp_path)
    assert done.returncode == 2
    assert "line 6: detectr: unknown key; did you mean `detector`?" in done.stderr


def test_a_label_the_model_does_not_know_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(
        "cameras: {gate: {url: 'file:x.mp4', zones: {z: [[0,0],[1,0],[1,1]]},"
        " rules: [{name: r, kind: enter, zone: z, labels: [persn]}]}}\n"
    )
    done = called("check", "--no-probe", "--json", path, cwd=tmp_path)
    assert done.returncode == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem.startswith("line 1: cameras.gate.rules.0.labels.0: rule `r` wants `persn`")
    assert "so it never fires; did you mean `person`?" in problem


@pytest.mark.parametrize(
    ("version", "level", "text"),
    [
        (7, "ok", "video is decoded by processes with files, ports and system calls of their own alone"),
        (3, "warning", "Landlock of this kernel is older than Linux 6.7: what decodes live video can connect to any"),
        (-1, "warning", "this kernel has no Landlock"),
    ],
)
def test_what_the_kernel_lacks_to_confine_decoding_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, level: str, text: str
) -> None:
    monkeypatch.setattr("appliance.sandbox.confinement._landlock_version", lambda: version)
    done = called("check", "--no-probe", "--json", site(tmp_path, "file:x.mp4"), cwd=tmp_path)
    assert done.returncode == 0
    said = {each["about"]: each for each in json.loads(done.stdout)["findings"]}["confinement"]
    assert said["level"] == level
    assert text in said["text"]


def test_what_goes_into_a_pipe_is_neither_cut_nor_wrapped(tmp_path: Path) -> None:
    name = "a-very-long-name-of-a-storage-folder-that-is-wider-than-the-eighty-columns-of-a-terminal"
    path = site(tmp_path, "file:x.mp4", f"storage: {{dir: {name}}}\n")
    done = called("check", "--no-probe", path, cwd=tmp_path)
    assert any(line.startswith("ok") and name in line and "GB free" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("suffix", ["mkv", "flv", "mp4"])
def test_the_frame_rate_is_that_of_the_frames(tmp_path: Path, suffix: str) -> None:
    """Frames that come unevenly, in a container that counts milliseconds, were said to be a thousand a second."""
    made = uneven(tmp_path / f"uneven.{suffix}")
    done = called("check", "--json", site(tmp_path, f"file:{made}"), cwd=tmp_path)
    said = {each["about"]: each["text"] for each in json.loads(done.stdout)["findings"]}
    assert re.search(r"320x240, 1[0-2](\.\d+)? fps", said["cameras.gate.url"]), said["cameras.gate.url"]
    assert "decoding takes" in said["machine"]


def uneven(path: Path) -> Path:
    """Eleven frames a second in the mean, none of them in step."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=1000)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        stream.options = {"bf": "0"}
        for n in range(60):
            frame = av.VideoFrame.from_ndarray(numbered_image(n * 100), format="rgb24")
            frame.pts, frame.time_base = n * 90 + (n * 37) % 29, Fraction(1, 1000)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("model", "words"),
    [("absent.onnx", "absent.onnx"), ("text.onnx", "not a usable ONNX file"), ("nobody-made-this", "nobody-made-this")],
)
def test_a_model_that_cannot_be_used_is_reported_in_one_sentence(tmp_path: Path, model: str, words: str) -> None:
    (tmp_path / "text.onnx").write_text("this is not a network")
    path = site(tmp_path, "file:x.mp4", f"detector: {{model: {model}}}\n")
    for command in (("check", "--no-probe", path), ("run", "--config", path)):
        done = (vedette if command[0] == "run" else called)(*command, cwd=tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert words in (done.stdout + done.stderr).replace("\n", " ")


REFUSED = {"device: cuda": "pip install onnxruntime-gpu", "backend: tensorrt": "pip install 'tensorrt-cu12<11'"}


@pytest.mark.parametrize(
    ("detector", "command"),
    [
        ("device: cuda", "check"),
        ("device: cuda", "run"),
        ("device: cuda", "replay"),
        ("backend: tensorrt", "check"),
        pytest.param("backend: tensorrt", "run", marks=pytest.mark.slow),
        pytest.param("backend: tensorrt", "replay", marks=pytest.mark.slow),
    ],
)
def test_a_device_that_is_not_there_is_refused_wherever_a_detector_is_used(
    tmp_path: Path, film: Path, command: str, detector: str
) -> None:
    """With the default model, which used to become builtin:hog on the CPU, and `check` said that it was ready."""
    if "CUDAExecutionProvider" in ort.get_available_providers() or importlib.util.find_spec("tensorrt"):
        pytest.skip("this machine has NVIDIA's packages: it may come up")
    path = site(tmp_path, f"file:{film}", f"detector: {{{detector}}}\n")
    words = {
        "check": ("check", "--no-probe", path),
        "run": ("run", "--config", path),
        "replay": ("replay", film, "--config", path),
    }
    done = (vedette if command == "run" else called)(*words[command], cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert REFUSED[detector] in " ".join((done.stdout + done.stderr).split())


def test_the_network_of_the_second_look_is_checked_too(tmp_path: Path) -> None:
    path = site(tmp_path, "file:x.mp4", "second_look: {model: absent.onnx}\n")
    done = called("check", "--no-probe", "--json", path, cwd=tmp_path)
    assert done.returncode == 2
    assert "second_look.model: absent.onnx" in json.loads(done.stdout)["problems"][0]
    done = vedette("run", "--config", path, cwd=tmp_path)
    assert (done.returncode, "absent.onnx" in done.stderr) == (2, True)


def test_a_clip_that_is_no_video_ends_replay_with_1_and_a_reason(tmp_path: Path) -> None:
    (tmp_path / "notes.mp4").write_text("no video")
    done = called("replay", "notes.mp4", "--config", site(tmp_path, "file:x.mp4"), cwd=tmp_path)
    assert done.returncode == 1
    assert "notes.mp4 is not a video that can be read" in done.stdout + done.stderr


def test_replay_asks_which_camera_and_names_the_ones_there_are(tmp_path: Path, film: Path) -> None:
    path = site(tmp_path, "file:x.mp4")
    path.write_text(path.read_text().replace("cameras:\n", "cameras:\n  door: {url: 'file:y.mp4'}\n"))
    done = called("replay", film, "--config", path, cwd=tmp_path)
    assert done.returncode == 2
    assert "say which with --camera (door, gate)" in done.stderr
    done = called("replay", film, "--config", path, "--camera", "gaet", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no camera `gaet`" in done.stderr


def test_replay_writes_a_log_and_prints_json(tmp_path: Path, film: Path) -> None:
    path = site(tmp_path, "file:x.mp4", f"detector: {UNMEASURED}\n")
    done = called("replay", film, "--config", path, "--json", "--log", "out.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["frames"] == 60
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["type"] for line in lines[:2]] == ["header", "boxes"]


def test_a_taken_port_is_one_sentence_with_the_key(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = site(tmp_path, "file:x.mp4")
        path.write_text(path.read_text().replace("port: 0", f"port: {port}"))
        done = vedette("run", "--config", path, cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} is taken by another program: set dashboard.port" in done.stderr


@pytest.mark.parametrize("command", ["check", "run", "replay", "demo"])
def test_every_help_teaches_with_an_example(tmp_path: Path, command: str) -> None:
    done = called(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"  vedette {command}" in done.stdout
