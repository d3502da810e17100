"""`vedette judge`: what fits a machine and costs, and a server that is started, tried with an image, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.base.errors import UsageError
from appliance.cli.judge_command import MODELS, LocalMachine, advise, best, find_server, server_command
from appliance.config import EdgeCostConfig
from tests.support.ports import quiet_port
from tests.support.waiting import until

# A llama-server as far as it is asked: it needs a moment to load, lists its alias and answers about an image.
SERVER = """#!{python}
import json, os, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
open({seen!r}, "w").write(json.dumps([sys.argv[1:], os.getpriority(os.PRIO_PROCESS, 0), os.getpid()]))
began = time.monotonic()
class Handler(BaseHTTPRequestHandler):
    def say(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status); self.send_header("Content-Length", str(len(data))); self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        loading = time.monotonic() - began < 1.5
        self.say(503, {{"error": "loading"}}) if loading else self.say(200, {{"data": [{{"id": options["--alias"]}}]}})
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        sees = body["messages"][0]["content"][0]["type"] == "image_url"
        self.say(200 if sees else 400, {{"choices": []}})
    def log_message(self, *_): pass
HTTPServer((options["--host"], int(options["--port"])), Handler).serve_forever()
"""


def test_the_largest_that_fits_and_answers_in_time_is_advised() -> None:
    pi, laptop, gpu = LocalMachine(4.0, 4, False), LocalMachine(12.0, 16, False), LocalMachine(30.0, 16, True)
    names = [best(advise(each, EdgeCostConfig()), 60.0) for each in (LocalMachine(1.0, 4, False), pi, laptop, gpu)]
    assert [each and each.model.name for each in names] == [None, "smolvlm2-2.2b", "qwen3-vl-4b", "qwen3-vl-8b"]
    (first, *_, last) = advise(pi, EdgeCostConfig())
    assert (first.why_not, last.why_not) == ("", "5.5 GB of memory more are needed")
    assert first.answer_s == pytest.approx((2500 / 20 + 100 / 3.75) * 2.2 / 4)
    hour = 150 / (3 * 8766) + 0.009 * 0.10
    assert first.money == pytest.approx(first.answer_s / 3600 * hour), "the device amortised, and its power"


def test_the_command_brings_the_model_or_takes_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = (tmp_path / "m.gguf", tmp_path / "p.gguf")
    assert server_command(("llama-server",), MODELS[0], 8000)[5:7] == ("-hf", MODELS[0].repository)
    assert server_command(("llama-server",), MODELS[0], 8000, files)[5:9] == (
        "--model",
        str(files[0]),
        "--mmproj",
        str(files[1]),
    )
    package = (sys.executable, "-m", "llama_cpp.server")
    assert "--clip_model_path" in server_command(package, MODELS[0], 8000, files)
    with pytest.raises(UsageError, match="give --file MODEL"):
        server_command(package, MODELS[0], 8000)
    monkeypatch.setenv("VEDETTE_LLAMA_SERVER", "/opt/llama-server")
    assert find_server() == ("/opt/llama-server",)


def test_it_is_started_with_the_lowest_priority_tried_and_ended_with_the_command(tmp_path: Path) -> None:
    binary, seen, port = tmp_path / "llama-server", tmp_path / "seen", quiet_port()
    binary.write_text(SERVER.format(python=sys.executable, seen=str(seen)))
    binary.chmod(0o755)
    command = [sys.executable, "-m", "appliance", "judge", "--start", "--model", "qwen3-vl-2b", "--port", str(port)]
    environment = {**os.environ, "VEDETTE_LLAMA_SERVER": str(binary)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True
    ) as judge:
        assert judge.stdout is not None
        lines = [judge.stdout.readline() for _ in range(2)]
        assert f"ready: qwen3-vl-2b at http://127.0.0.1:{port}/v1" in lines[1], lines
        arguments, _, pid = json.loads(seen.read_text())
        assert arguments[arguments.index("-hf") + 1].startswith("Qwen/Qwen3-VL-2B")
        assert os.getpriority(os.PRIO_PROCESS, pid) == 19
        judge.send_signal(signal.SIGTERM)
        assert judge.wait(30) == 0
    until(lambda: not Path(f"/proc/{pid}").exists(), 20, "the server has ended")


def test_without_a_server_or_with_half_a_model_it_says_what_to_do(tmp_path: Path) -> None:
    bare = {**os.environ, "PATH": str(tmp_path)}
    bare.pop("VEDETTE_LLAMA_SERVER", None)
    for arguments, code, says in (
        (["--start", "--model", "qwen3-vl-2b"], 2, "no llama.cpp server is installed"),
        (["--start", "--file", "m.gguf"], 2, "--file and --mmproj belong together"),
        (["--start", "--model", "gpt"], 2, "--model gpt: not known; one of smolvlm2-2.2b"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "appliance", "judge", *arguments],
            env=bare,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, says in done.stderr) == (code, True), done.stderr
