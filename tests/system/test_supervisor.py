"""The supervisor keeps a real child process alive, takes its lines, and never lets it outlive us."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.base.clock import SystemClock
from appliance.config import IngestConfig, SiteConfig
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.ingest_trial import IngestRefused, IngestTooSlow
from appliance.types import CameraState, IngestMessage, NetworksAnswer, NetworksCommand
from tests.support.waiting import until

CONFIG = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://viewer:hunter2@127.0.0.1/x"}}})
TALKS = """
    import json, os, sys
    plan = json.loads(sys.stdin.readline())
    out = os.fdopen(int(sys.argv[sys.argv.index("--fd") + 1]), "wb", buffering=0)
    def say(reason):
        line = {"type": "state", "camera": "gate", "state": "live", "t": 1.0, "reason": reason}
        out.write(json.dumps(line).encode() + b"\\n")
"""


class Listener:
    """Collects what the supervisor delivers; tests wait on it with a deadline."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.deaths: list[str] = []

    def take(self, message: IngestMessage) -> None:
        assert isinstance(message, CameraState)
        self.reasons.append(message.reason)

    def lost(self, reason: str, *, intended: bool = False) -> None:
        self.deaths.append(reason)

    def wait_for(self, count: int, *, deaths: int = 0) -> None:
        until(lambda: len(self.reasons) >= count and len(self.deaths) >= deaths, 20, lambda: str(vars(self)))


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def supervise(tmp_path: Path, listener: Listener) -> Iterator[object]:
    running: list[tuple[IngestSupervisor, threading.Thread]] = []

    def start(script: str) -> IngestSupervisor:
        path = tmp_path / "child.py"
        path.write_text(textwrap.dedent(TALKS) + textwrap.dedent(script))
        command = (sys.executable, str(path))
        supervisor = IngestSupervisor(CONFIG.for_ingest(), SystemClock(), command)
        thread = threading.Thread(target=supervisor.run, args=(listener,))
        thread.start()
        running.append((supervisor, thread))
        return supervisor

    yield start
    for supervisor, thread in running:
        supervisor.stop()
        thread.join(60)
        assert not thread.is_alive()


WAITS_FOR_THE_END = "say(str(os.getpid()))\nsys.stdin.read()\n"


def test_the_plan_reaches_the_child_with_its_secrets_on_standard_input(supervise: object, listener: Listener) -> None:
    supervise('say(plan["cameras"]["gate"]["url"] + " " + " ".join(sys.argv))\nsys.stdin.read()\n')  # type: ignore[operator]
    listener.wait_for(1)
    url, _, arguments = listener.reasons[0].partition(" ")
    assert url == "rtsp://viewer:hunter2@127.0.0.1/x"
    assert "hunter2" not in arguments


def test_the_child_gets_of_the_environment_what_it_needs_and_no_secret(
    supervise: object, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VEDETTE_TOKEN", "very-secret")
    monkeypatch.setenv("HOOK_SECRET", "very-secret")
    monkeypatch.setenv("VEDETTE_MODELS", "/models")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    supervise('say(" ".join(sorted(os.environ)) + str(os.environ))\nsys.stdin.read()\n')  # type: ignore[operator]
    listener.wait_for(1)
    assert "very-secret" not in listener.reasons[0]
    assert {"CUDA_VISIBLE_DEVICES", "VEDETTE_MODELS", "PATH", "PYTHONSAFEPATH"} <= set(
        listener.reasons[0].split("environ(")[0].split()
    )


def test_settings_that_come_while_a_child_is_being_started_reach_the_next_one(
    tmp_path: Path, listener: Listener
) -> None:
    path = tmp_path / "child.py"
    path.write_text(textwrap.dedent(TALKS) + 'say(",".join(plan["cameras"]))\nsys.stdin.read()\n')
    other = {"dock": CONFIG.for_ingest().cameras["gate"]}

    class Late(IngestConfig):
        """Is overtaken while it is handed to the child."""

        def model_dump_json(self, **options: object) -> str:  # type: ignore[override]
            supervisor.reconfigure(CONFIG.for_ingest().model_copy(update={"cameras": other}))
            return super().model_dump_json()

    late = Late.model_validate(CONFIG.for_ingest().model_dump())
    supervisor = IngestSupervisor(late, SystemClock(), (sys.executable, str(path)))
    thread = threading.Thread(target=supervisor.run, args=(listener,))
    thread.start()
    try:
        until(lambda: "dock" in listener.reasons, what="the new settings reach a child")
        assert listener.deaths == ["the ingest process is started anew with other settings"]
    finally:
        supervisor.stop()
        thread.join(60)


def test_a_killed_child_comes_back_and_the_death_is_reported_once(supervise: object, listener: Listener) -> None:
    supervise(WAITS_FOR_THE_END)  # type: ignore[operator]
    listener.wait_for(1)
    os.kill(int(listener.reasons[0]), signal.SIGKILL)
    listener.wait_for(2, deaths=1)
    assert listener.reasons[0] != listener.reasons[1]
    assert listener.deaths == ["the ingest process ended (signal 9); starting it again"]


def test_a_line_that_is_no_message_is_refused_and_counted(supervise: object, listener: Listener) -> None:
    supervisor = supervise('out.write(b"garbage\\n")\nsay("after")\nsys.stdin.read()\n')  # type: ignore[operator]
    listener.wait_for(1)
    assert listener.reasons == ["after"]
    assert supervisor.status.refused_lines == 1


def test_a_child_that_ends_by_itself_is_started_again_with_growing_pauses(
    supervise: object, listener: Listener
) -> None:
    supervisor = supervise('say("hello")\n')  # type: ignore[operator]
    listener.wait_for(2, deaths=2)
    assert supervisor.status.starts >= 2
    assert listener.deaths[0] == "the ingest process ended (exit code 0); starting it again"


def test_a_child_that_loads_for_long_is_not_taken_for_hung(
    supervise: object, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorRT builds an engine for minutes, with an empty line every second meanwhile."""
    script = """
        import time
        say("started")
        for _ in range(15):  # as signs_of_life does, but nothing is to be imported first
            out.write(b"\\n")
            time.sleep(0.2)
        say("loaded")
        sys.stdin.read()
    """
    supervisor = supervise(script)  # type: ignore[operator]
    listener.wait_for(1)
    monkeypatch.setattr("appliance.core.ingest_supervisor.SILENCE_S_MAX", 2.0)  # starting Python takes what it takes
    listener.wait_for(2)
    assert (listener.reasons, listener.deaths) == (["started", "loaded"], [])
    assert supervisor.status.refused_lines == 0


def test_a_child_that_reads_its_libraries_for_long_is_not_started_again_and_again(
    supervise: object, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with too much to do, or from a slow card: each new one would take as long, for ever."""
    monkeypatch.setattr("appliance.core.ingest_supervisor.SILENCE_S_MAX", 0.5)
    supervise('import time\ntime.sleep(1.5)\nsay("read")\nsys.stdin.read()\n')  # type: ignore[operator]
    listener.wait_for(1, deaths=1)
    assert listener.reasons[0] == "read", "the silence after its first word counts, not the one before"


def test_a_child_that_never_speaks_is_started_again(
    supervise: object, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.core.ingest_supervisor.START_S_MAX", 1.0)
    supervise("sys.stdin.read()\n")  # type: ignore[operator]
    listener.wait_for(0, deaths=1)
    assert listener.deaths[0] == "the ingest process said nothing for 1 s; starting it again"


def test_stopping_ends_the_child(supervise: object, listener: Listener) -> None:
    supervisor = supervise(WAITS_FOR_THE_END)  # type: ignore[operator]
    listener.wait_for(1)
    pid = int(listener.reasons[0])
    supervisor.stop()
    wait_until_gone(pid)
    assert listener.deaths == []


def test_what_the_child_says_while_it_ends_is_still_taken(
    supervise: object, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.core.ingest_supervisor.STOP_S_MAX", 50.0)
    supervisor = supervise("""
        say("live")
        sys.stdin.read()
        for n in range(5000):
            say("closing %d" % n)
    """)  # type: ignore[operator]
    listener.wait_for(1)
    supervisor.stop()
    listener.wait_for(5001)
    assert listener.reasons[-1] == "closing 4999"
    assert listener.deaths == []


def test_a_child_that_does_not_end_is_killed(
    supervise: object, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.core.ingest_supervisor.STOP_S_MAX", 0.5)
    supervisor = supervise("""
        say(str(os.getpid()))
        while True:
            say("I will not")
    """)  # type: ignore[operator]
    listener.wait_for(10)
    supervisor.stop()
    wait_until_gone(int(listener.reasons[0]))
    assert listener.deaths == []


def wait_until_gone(pid: int) -> None:
    def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    until(is_gone, what=f"process {pid} ends")


def test_a_child_that_refuses_its_configuration_is_not_started_again(tmp_path: Path, listener: Listener) -> None:
    script = tmp_path / "refuses.py"
    script.write_text("import sys; sys.exit(2)")
    supervisor = IngestSupervisor(CONFIG.for_ingest(), SystemClock(), (sys.executable, str(script)))
    with pytest.raises(IngestRefused):
        supervisor.run(listener)
    assert supervisor.status.starts == 1


def test_a_child_that_has_worked_is_started_again_even_if_it_refuses_later(
    supervise: object, listener: Listener
) -> None:
    supervise('say("hello")\nout.close()\nsys.exit(2)\n')  # type: ignore[operator]
    listener.wait_for(2, deaths=1)
    assert listener.deaths[0] == "the ingest process ended (exit code 2); starting it again"


def test_a_stop_ends_the_wait_for_a_switch_and_blames_no_network(supervise: object, listener: Listener) -> None:
    supervisor = supervise('say("hello")\nfor line in sys.stdin: say(json.loads(line)["type"])\n')  # type: ignore[operator]
    listener.wait_for(1)
    answers: list[NetworksAnswer | None] = []
    command = NetworksCommand(id="1", networks={}, cameras={})
    switching = threading.Thread(target=lambda: answers.append(supervisor.switch(command, 120.0)))
    switching.start()
    until(lambda: command.type in listener.reasons, what="the child has been asked")
    supervisor.stop()
    switching.join(60)
    assert answers == [None], "an answer that refuses would quarantine the network"


def test_what_the_child_writes_on_standard_error_is_kept_and_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        textwrap.dedent(TALKS)
        + 'print("12:00:00 warning ingest: odd", file=sys.stderr, flush=True)\nsay("a")\nsys.stdin.read()\n'
    )
    lines: list[str] = []
    supervisor = IngestSupervisor(
        CONFIG.for_ingest(), SystemClock(), (sys.executable, "-c", code), log_line=lines.append
    )  # fmt: skip
    listener = Listener()
    thread = threading.Thread(target=supervisor.run, args=(listener,))
    thread.start()
    listener.wait_for(1)
    until(lambda: bool(lines))
    supervisor.stop()
    thread.join(60)
    assert lines == ["12:00:00 warning ingest: odd"]
    assert "ingest: odd" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("script", "raised", "why"),
    [
        ("while True: pass", IngestRefused, "CPU time"),
        ("import time\nwhile True: time.sleep(0.4); sum(range(200_000))", IngestTooSlow, "CPU time"),
    ],
)
def test_a_trial_that_uses_much_cpu_hangs_and_one_that_has_little_is_slow(
    tmp_path: Path, script: str, raised: type[Exception], why: str
) -> None:
    path = tmp_path / "child.py"
    path.write_text(f"import sys\nsys.stdin.readline()\n{script}\n")
    supervisor = IngestSupervisor(CONFIG.for_ingest(), SystemClock(), (sys.executable, str(path)))
    with pytest.raises(raised, match=why) as found:
        supervisor.trial.run(CONFIG.for_ingest(), 1.5, wait_share=1.0 if raised is IngestTooSlow else 100.0)
    assert type(found.value) is raised
