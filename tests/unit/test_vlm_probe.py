"""What `vedette demo --vlm` finds out before it starts anything, and what it says when the server is another one."""

from __future__ import annotations

import io
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.base.clock import ManualClock
from appliance.base.errors import UsageError
from appliance.demo import demo_config, demo_vlm
from appliance.demo.demo_config import VLM_KEY, worker_file
from appliance.demo.demo_console import DemoConsole
from appliance.demo.demo_run import DETECTOR_JUDGES, DemoOptions, make_plan
from appliance.demo.demo_vlm import VlmServer, find_local_vlm, probe_vlm
from cloud_worker import config as worker_config

ROOT = Path(__file__).parents[2]


class Scripted(ThreadingHTTPServer):
    """Serves the models of `names`; answers a question with `answer`."""

    def __init__(self, *names: str, answer: tuple[int, object] = (200, {"choices": []}), models: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.names, self.answer, self.models = names, answer, models
        self.asked: list[tuple[str, str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_GET(self) -> None:
        self._say(self.server.models, {"data": [{"id": name} for name in self.server.names]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers.get("Authorization", ""), body))
        self._say(*self.server.answer)

    def _say(self, status: int, body: object) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


def test_it_finds_the_only_model_and_shows_it_a_picture() -> None:
    with Scripted("qwen") as server:
        assert probe_vlm(server.url, None, "sk-1") == VlmServer(f"{server.url}/v1", "qwen")
        ((path, key, body),) = server.asked
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer sk-1", "qwen")
    assert body["response_format"]["type"] == "json_schema", "as the worker will ask"
    assert body["messages"][0]["content"][0]["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")


def test_an_answer_that_no_parser_can_follow_is_no_json() -> None:
    with Scripted("qwen", answer=(500, b"[" * 100_000)) as server, pytest.raises(UsageError, match="answer 500"):
        probe_vlm(server.url, None)


def test_a_path_of_its_own_is_kept() -> None:
    with Scripted("qwen") as server:
        assert probe_vlm(f"{server.url}/api/v3/", None).url == f"{server.url}/api/v3"
        assert server.asked[0][0] == "/api/v3/chat/completions"


@pytest.mark.parametrize(
    ("names", "wanted", "says"),
    [
        (("a", "b"), None, "serves several models; choose with --vlm-model (make: VLM_MODEL=) one of a, b"),
        (("a",), "b", "does not serve `b`; choose with --vlm-model (make: VLM_MODEL=) one of a"),
        ((), None, "no OpenAI-compatible server"),
        (tuple("abcdefgh"), None, "one of a, b, c, d, e …"),
    ],
)
def test_a_model_that_is_not_served_is_named(names: tuple[str, ...], wanted: str | None, says: str) -> None:
    with Scripted(*names) as server, pytest.raises(UsageError) as refused:
        probe_vlm(server.url, wanted)
    assert says in str(refused.value)
    assert server.url in str(refused.value)


def test_one_that_takes_no_pictures_is_refused_with_the_remedy() -> None:
    complaint = {"error": {"message": "image input is not supported - hint: if this is unexpected, provide the mmproj"}}
    with Scripted("text", answer=(500, complaint)) as server, pytest.raises(UsageError) as refused:
        probe_vlm(server.url, None)
    assert "text does not answer about a picture by a JSON schema (answer 500: image input is not supported" in str(
        refused.value
    )
    assert "--mmproj" in str(refused.value)


def test_a_wrong_key_names_the_variable() -> None:
    with (
        Scripted("m", models=401) as server,
        pytest.raises(UsageError, match="put it into the environment as VLM_API_KEY"),
    ):
        probe_vlm(server.url, None)


def test_a_server_that_is_not_there_or_says_nothing_is_told_with_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_vlm, "CONNECT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UsageError, match=r"no answer within 0.2 s; deploy/vlm/README.md says how to start one"):
            probe_vlm(f"http://127.0.0.1:{port}", None)
    with pytest.raises(UsageError, match=r"nothing answers there \(connection refused\); deploy/vlm/README.md"):
        probe_vlm(f"http://127.0.0.1:{port}", None)


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://h/", "http://", "http://h:port", "http://u:secret@h", "http://h/?k=v"]
)
def test_an_address_that_is_none_is_refused_without_a_secret(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        probe_vlm(url, None)
    assert "secret" not in str(refused.value)


def test_the_worker_file_asks_that_model_and_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "worker.yaml"
    path.write_text(worker_file("nats://127.0.0.1:1", None, VlmServer("http://h:1/v1", "qwen"), with_key=True))
    assert "sk-" not in path.read_text()
    monkeypatch.setenv(VLM_KEY, "sk-1")
    engine = worker_config.load(path).engine
    assert isinstance(engine, worker_config.OpenAiEngine)
    assert (engine.url, engine.model, engine.images_max) == ("http://h:1/v1", "qwen", 2)
    assert engine.api_key is not None
    assert engine.api_key.get_secret_value() == "sk-1"


def test_the_plan_says_in_one_line_what_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VLM_KEY, raising=False)
    console = DemoConsole(ManualClock(), as_json=True)
    assert make_plan(DemoOptions(port=0, vlm="none"), tmp_path, console).judge == DETECTOR_JUDGES
    assert "not confirm" in DETECTOR_JUDGES
    assert "vedette judge" in DETECTOR_JUDGES
    assert "\n" not in DETECTOR_JUDGES
    with Scripted("qwen") as server:
        plan = make_plan(DemoOptions(port=0, vlm=server.url), tmp_path, console)
        assert plan.judge == f"Judged by the vision-language model qwen at {server.url}/v1."
    assert yaml.safe_load((tmp_path / "worker.yaml").read_text())["engine"]["model"] == "qwen"
    with pytest.raises(UsageError, match="--vlm-model needs --vlm"):
        make_plan(DemoOptions(port=0, vlm_model="qwen"), tmp_path, console)


def test_a_server_on_this_machine_is_found_by_itself_and_gets_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VLM_KEY, "sk-1")
    with Scripted("qwen") as sees, Scripted("text", answer=(400, {"error": "no images"})) as blind, Scripted() as other:
        ports = (other.server_port, blind.server_port, sees.server_port)
        assert find_local_vlm(None, ports) == (VlmServer(f"{sees.url}/v1", "qwen"), "")
        missing, why = find_local_vlm(None, ports[:2])
        assert missing is None
        assert why.startswith(
            f"{blind.url}/v1: text does not answer about a picture by a JSON schema (answer 400: no images)"
        )
        assert sees.asked[0][1] == "", "nobody knows who listens there"
        monkeypatch.setattr(demo_vlm.find_local_vlm, "__defaults__", (ports,))
        out = io.StringIO()
        plan = make_plan(DemoOptions(port=0), tmp_path, DemoConsole(ManualClock(), as_json=False, out=out))
    assert plan.judge == f"Judged by the vision-language model qwen at {sees.url}/v1."
    assert "found a model server on this machine: qwen" in out.getvalue()
    assert "api_key" not in yaml.safe_load((tmp_path / "worker.yaml").read_text())["engine"]


def test_nothing_is_started_for_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing answers there"):
        make_plan(DemoOptions(vlm="http://127.0.0.1:9"), tmp_path, DemoConsole(ManualClock(), as_json=True))
    assert not (tmp_path / "worker.yaml").exists()


def test_the_recipe_is_what_the_worker_and_the_readme_say() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "vlm" / "compose.yaml").read_text())
    readme = (ROOT / "deploy" / "vlm" / "README.md").read_text()
    assert set(compose["services"]) == {"cpu", "gpu", "vllm"}
    for name, service in compose["services"].items():
        assert service["ports"] == ["127.0.0.1:8000:8000"], "not open to the network"
        assert f"--profile {name}" in readme
        assert service["profiles"] == [name]
        assert "vlm" in service["command"], "the name that the README's worker section asks for"
    (section,) = [part for part in readme.split("\n\n") if part.lstrip().startswith("engine: {kind: openai")]
    settings = worker_config.yamlfile.loads(section, worker_config.WorkerConfig)
    assert isinstance(settings.engine, worker_config.OpenAiEngine)
    assert settings.engine.model == "vlm"
    assert settings.engine.images_max == demo_config._SMALL_COMPUTER["images_max"]
