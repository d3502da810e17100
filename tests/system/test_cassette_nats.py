"""A cassette recorded over a real nats-server from a real worker process, and played back with nobody there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import yaml

from appliance.__main__ import main
from appliance.detect import detector_loader
from tests.servers.nats import NatsServer
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub, openai_stub
from tests.servers.worker import WorkerProcess
from tests.support.block_footage import BrightBlock
from tests.support.scripted_verdicts import after_header, asking, visits
from tests.support.waiting import until

NOBODY = "nats://127.0.0.1:1"


@pytest.fixture
def broker(one_broker: NatsServer) -> NatsServer:
    return one_broker


@pytest.fixture
def footage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a clip of two visits and a site file without an uplink; the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(detector_loader, "load", lambda settings: BrightBlock())
    visits(tmp_path / "visits.mp4")
    plain = asking().model_dump(mode="json", include={"cameras", "detector"}, exclude_none=True)
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(plain))
    return tmp_path


def worker(folder: Path, broker: NatsServer, stub: OpenAiStub) -> WorkerProcess:
    config = folder / "worker.yaml"
    config.write_text(
        f"nats: {{url: '{broker.url}'}}\n"
        f"engine: {{kind: openai, url: '{stub.url}', model: {MODEL}, api_key: {KEY}}}\n"
        "worker: {ack_wait_s: 5, retry_s: 0.1}\n"
    )
    started = WorkerProcess(config)
    until(lambda: "waiting for questions" in started.log(), 30, "the worker's start")
    return started


def replay(*options: str) -> int:
    return main(["replay", "visits.mp4", "--config", "site.yaml", "--json", *options])


@pytest.mark.parametrize(("mode", "step"), [("good", 0), ("needs frame", 1)])
def test_what_was_recorded_once_is_played_for_ever_with_no_server_running(
    broker: NatsServer, footage: Path, capsys: pytest.CaptureFixture[str], mode: str, step: int
) -> None:
    """A judge that is content with cut-outs, and one that asks to see the whole picture first."""
    with openai_stub() as stub:
        stub.mode = mode
        working = worker(footage, broker, stub)
        try:
            record = ("--record-verdicts", "c.jsonl", "--cloud", broker.url)
            assert replay(*record, "--log", "recorded.jsonl") == 0, working.log()
            reported = json.loads(capsys.readouterr().out)
            assert [each["decision"] for each in reported["verdicts"]] == ["confirmed", "confirmed"]
            assert {(each["engine"], each["model"], each["step"]) for each in reported["verdicts"]} == {
                ("openai", MODEL, step)
            }
            asked = len(stub.requests)
            assert asked >= 2
            assert stub.complaints == []
            assert replay(*record) == 0
            assert len(stub.requests) == asked, "what is on the cassette is not asked again"
        finally:
            assert working.end(signal.SIGTERM) == 0
    broker.stop()
    recorded = after_header((footage / "recorded.jsonl").read_bytes())
    logs = set()
    for number, speed in enumerate(("max", "20", "max")):
        assert replay("--verdicts", "c.jsonl", "--log", f"{number}.jsonl", "--speed", speed) == 0
        logs.add((footage / f"{number}.jsonl").read_bytes())
    (log,) = logs
    assert after_header(log) == recorded
    assert b'"type":"verdict"' in log
    header, first, *_ = map(json.loads, (footage / "c.jsonl").read_text().splitlines())
    assert header["judges"][0]["engine"] == "openai"
    assert set(first["stages"]) >= {"send", "queue", "fetch", "model"}
    assert first["total_s"] >= first["stages"]["send"] + first["stages"]["model"] - 0.01
    assert first["bytes"] > 1000


def test_a_broker_without_a_worker_is_reported_in_one_sentence(
    broker: NatsServer, footage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay("--record-verdicts", "c.jsonl", "--cloud", broker.url) == 1
    assert "no worker has made the streams yet (start vedette-worker run)" in capsys.readouterr().err


def test_no_broker_at_all_is_reported_in_one_sentence(
    footage: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("appliance.uplink.verdict_client.CONNECT_S_MAX", 2.0)
    assert replay("--record-verdicts", "c.jsonl", "--cloud", NOBODY) == 1
    assert "127.0.0.1:1: nothing answers there (connection refused)" in capsys.readouterr().err


def test_a_worker_that_never_answers_is_not_waited_for_for_ever(
    broker: NatsServer, footage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with openai_stub() as stub:
        working = worker(footage, broker, stub)
        stub.mode = "hang"
        try:
            assert replay("--record-verdicts", "c.jsonl", "--cloud", broker.url, "--verdict-wait", "1") == 1
            assert "no verdict came in time on 1 question in a row: is a worker running" in capsys.readouterr().err
        finally:
            stub.release()
            working.end(signal.SIGKILL)
