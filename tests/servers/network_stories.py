"""What people do with Vedette, as stories that run inside a watched network: tests/system/test_nothing_leaves.py.

python -m tests.servers.network_stories STORY FOLDER

Imports nothing of Vedette, since that would switch off for all children what they must switch off themselves.
`prepare`, which runs outside, makes what the stories need.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.servers.appliance_process import ApplianceProcess
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable
RTSP_PORT, NATS_PORT = 8554, 4222  # the network is ours alone
CAMERA = f"rtsp://127.0.0.1:{RTSP_PORT}/gate"
PASSWORD = "a long enough password"
SITE = """
detector: {{model: '{model}'{more}}}
cameras:
  gate:
    url: '{camera}'
    detect: {{fps: 5, heartbeat_s: 0.1}}
    zones: {{yard: [[0, 0], [1, 0], [1, 1], [0, 1]]}}
    rules: [{{name: intruder, kind: enter, zone: yard, severity: alert, at_start: report}}]
alerts: {{merge_s: 1, pre_roll_s: 1, post_roll_s: 1}}
"""
RECEIVER = "receiver.example"
NOTIFIED = f"notify: {{phone: {{kind: webhook, url: 'http://{RECEIVER}/alerts'}}}}\n"
SCENARIO = """
clip: film.mp4
detector: {{model: '{model}'}}
cameras:
  gate:
    zones: {{yard: [[0, 0], [1, 0], [1, 1], [0, 1]]}}
    rules: [{{name: intruder, kind: enter, zone: yard, at_start: report}}]
expect: [{{rule: intruder, at: 0.4, between: [0, 3]}}]
"""
WORKER = """
nats: {{url: 'nats://127.0.0.1:{port}'}}
engine: {{kind: redetect, model: '{model}'}}
"""
Story = Callable[[Path], None]


def run(*words: str | Path, code: int = 0, stdin: str = "", expects: str = "", cwd: Path = ROOT) -> str:
    """Run a command, whose words are printed. Fails unless it ends with `code` and says what was expected."""
    print("$", *words, flush=True)
    done = subprocess.run(
        [str(each) for each in words], input=stdin, capture_output=True, text=True, timeout=200, check=False, cwd=cwd
    )
    out = done.stdout + done.stderr
    assert done.returncode == code, f"exit code {done.returncode}: {out}"
    assert expects in out, out
    return done.stdout


def vedette(*words: str | Path, **expected: Any) -> str:
    return run(PYTHON, "-m", "appliance", *words, **expected)


@contextlib.contextmanager
def program(*words: str | Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program beside the story, ended with it."""
    with log.open("wb") as output:
        started = subprocess.Popen([str(each) for each in words], stdout=output, stderr=output, cwd=ROOT)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(100)


def camera(folder: Path) -> contextlib.AbstractContextManager[object]:
    return program(
        PYTHON, "-m", "appliance.demo.rtsp_server", "--port", str(RTSP_PORT), f"gate={folder / 'film.mp4'}",
        log=folder / "rtsp.log",
    )  # fmt: skip


def site_text(folder: Path, more: str = "") -> str:
    return SITE.format(model=folder / "red.onnx", camera=CAMERA, more=more)


def box(folder: Path, text: str) -> ApplianceProcess:
    made = ApplianceProcess(folder, text)
    made.config.write_text(made.config.read_text().replace("dir:", "disk_free_min_mb: 0, dir:"))
    return made


_SESSION = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def post(running: ApplianceProcess, path: str, body: object) -> Any:
    request = urllib.request.Request(
        running.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with _SESSION.open(request, timeout=60) as answer:
        return json.load(answer)


def alerts(running: ApplianceProcess) -> list[Any]:
    return [each for each in running.get("/alerts")["alerts"] if each["t_end"] is not None and each["clip"]]


def fetch(running: ApplianceProcess, path: str) -> int:
    with _SESSION.open(running.url + path, timeout=60) as answer:
        return len(answer.read())


def leave_identifiers() -> None:
    """As libraries left them before their telemetry was off: they are to be gone in the end."""
    for name in ("intel/openvino_ga_cid", ".cache/Microsoft/DeveloperTools/.onnxruntime/deviceid"):
        left = Path.home() / name
        left.parent.mkdir(parents=True)
        left.write_text("11111111-2222")


def edge_only(folder: Path) -> None:
    """A camera over RTSP and no uplink: an alert, pages, what is played, and a span that is decided again."""
    leave_identifiers()
    with camera(folder), box(folder, site_text(folder)) as running:
        vedette("check", running.config, expects="edge only, nothing leaves this appliance")
        alert = until(lambda: alerts(running), 60)[-1]
        for page in ("/", "/cameras", "/live", "/system", "/storage", "/settings", f"/alerts/{alert['id']}"):
            assert fetch(running, page)
        for media in (alert["clip"], alert["still"], f"/api/v1/cameras/gate/frame?t={alert['t_start']}"):
            assert fetch(running, media)
        span = {"t_start": alert["t_start"], "t_end": alert["t_end"]}
        job = f"/cameras/gate/jobs/{post(running, '/api/v1/cameras/gate/why/replay', span)['id']}"
        until(lambda: running.get(job)["state"] != "running", 60)
        assert running.get(job)["state"] == "done", running.get(job)
        vedette("egress", "--config", running.config, expects="nothing left in that time")


def store(folder: Path) -> None:
    """The commands that work on what a box has stored."""
    with camera(folder), box(folder, site_text(folder)) as running:
        alert = until(lambda: alerts(running), 60)[-1]
        post(running, f"/api/v1/alerts/{alert['id']}/review", {"review": "reviewed"})
    at = ("--config", folder / "site.yaml")
    until(lambda: time.time() > alert["t_end"] + 3, what="a post-roll of 1 s is over, and was written 2 s ago at least")
    vedette("scenario", "keep", alert["id"], *at, "--name", "visit")
    vedette("scenario", "list", *at, expects="visit")
    vedette("scenario", "delete", "visit", *at)
    vedette("calibrate", *at)
    vedette("models", "prove", "vedette-nano", *at, code=1, expects="not enough")
    vedette("advise", *at, "--network", "vedette-nano-int8")
    vedette("candidate", "strict2", *at, "--set", "detector.score_min=0.6", expects="tried each night")
    vedette("candidate", "strict2", *at, "--now", code=1, expects="not enough")
    vedette("export", *at, "--format", "coco", "--to", folder / "exported")
    vedette("cassette", "from-store", folder / "store.jsonl", *at, code=2, expects="holds no verdict")
    vedette("diagnostics", *at, "--out", folder / "diagnostics.zip")
    vedette("backup", *at, "--out", folder / "site.backup")
    vedette("restore", folder / "site.backup", *at)


def users(folder: Path) -> None:
    """On a box that is not running."""
    at = ("--config", box(folder, site_text(folder)).config)
    vedette("users", "add", "anna", "--role", "admin", *at, stdin=f"{PASSWORD}\n")
    vedette("users", "passwd", "anna", *at, stdin=f"{PASSWORD} too\n")
    vedette("users", "unlock", "anna", *at)
    vedette("users", "list", *at, expects="anna")
    vedette("users", "remove", "anna", *at, code=2, expects="one admin")


def openvino(folder: Path) -> None:
    """The same camera with the other library, live and measured."""
    text = site_text(folder, ", backend: openvino, precision: fp32")
    with camera(folder), box(folder, text) as running:
        until(lambda: alerts(running), 60)
    vedette("check", "--no-probe", folder / "site.yaml")


def notified(folder: Path) -> None:
    """A site file that names one target off the site, which is all that is asked for and contacted."""
    made = box(folder, site_text(folder) + NOTIFIED)
    vedette("notify", "test", "--config", made.config)


def first_run(folder: Path) -> None:
    """No camera yet: the page that sets the box up, and the first camera tried, in a process of its own."""
    with camera(folder), box(folder, "detector: {backend: auto}\ncameras: {}\n") as running:
        until(lambda: "/setup" in running.log, 20)
        code = re.search(r"/setup +code (\S+)", running.log)
        assert code, running.log
        assert fetch(running, "/setup")
        post(running, "/setup", {"code": code.group(1), "site": "depot-7", "name": "anna", "password": PASSWORD})
        found = post(running, "/api/v1/setup/probe", {"url": CAMERA})
        assert found["codec"] == "h264", found


def replay(folder: Path) -> None:
    """Footage through the pipeline, and its log against itself."""
    config, log = box(folder, site_text(folder)).config, folder / "replay.jsonl"
    vedette("replay", folder / "film.mp4", "--config", config, "--log", log)
    vedette("replay", "diff", log, log)


def lab(folder: Path) -> None:
    """What else is done with footage, and a scenario as a test of pytest."""
    model, scenario = str(folder / "red.onnx"), folder / "gate.scenario.yaml"
    scenario.write_text(SCENARIO.format(model=model))
    vedette("scenario", "run", scenario)
    vedette("scenario", "compare", model, model, scenario, code=1, expects="not recommended")
    vedette("scenario", "curve", scenario, "--seeds", "1")
    vedette("tune", scenario, "--sweep", "rules.intruder.score_min=0.3,0.5")
    vedette("evaluate", model, "--yolo", folder / "set")
    vedette("bench", model, "--seconds", "0.2")
    (folder / "c.jsonl").write_text("")
    vedette("cassette", "check", folder / "c.jsonl", code=2)
    vedette("cassette", "agree", folder / "c.jsonl", folder / "c.jsonl", "--truth", scenario, code=2)
    run(PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder, expects="1 passed", cwd=folder)


def models(folder: Path) -> None:
    """The catalogue and bundles; what is pulled or installed comes from the server that is named."""
    vedette("judge")
    vedette("models", "list", expects="vedette-nano")
    vedette("models", "verify", "vedette-nano")
    with program(PYTHON, "-m", "http.server", "8081", "--bind", "127.0.0.1", "-d", ROOT / "models", log=folder / "l"):
        vedette("models", "pull", "vedette-nano", "--to", folder, "--mirror", "http://127.0.0.1:8081")
    os.environ["VEDETTE_MODELS"] = str(folder / "models")
    vedette("models", "export", "vedette-nano", folder / "nano-8", "--version", "8")
    repository = folder / "repository"
    vedette("models", "publish", folder / "nano-8", "--new", "--repository", repository, "--keys", folder / "keys")
    with program(PYTHON, "-m", "http.server", "8082", "--bind", "127.0.0.1", "-d", repository, log=folder / "l"):
        trusted = ("--from", "http://127.0.0.1:8082", "--root", repository / "metadata" / "1.root.json")
        vedette("models", "install", "vedette-nano@8", "--use", *trusted, expects="vedette-nano@8")
    vedette("models", "rollout", "vedette-nano@8", "--camera", "gate")
    vedette("models", "shadow", "--off")
    for word in ("pin", "rollback", "prune"):
        vedette("models", word)


def discover(folder: Path) -> None:
    """Asks the local network for cameras, which is what it is for."""
    vedette("cameras", "discover")


def worker(folder: Path) -> None:
    """A detector as judge, and a broker."""
    leave_identifiers()
    (folder / "worker.yaml").write_text(WORKER.format(port=NATS_PORT, model=folder / "red.onnx"))
    (folder / "nats.conf").write_text(
        f"listen: 127.0.0.1:{NATS_PORT}\njetstream {{ store_dir: {json.dumps(str(folder / 'store'))} }}\n"
    )
    at = ("--config", folder / "worker.yaml")
    work = (PYTHON, "-m", "cloud_worker")
    log = folder / "worker.log"
    with program(os.environ["NATS_SERVER"], "-c", folder / "nats.conf", log=folder / "nats.log"):
        until(lambda: "Server is ready" in (folder / "nats.log").read_text(), 30)
        run(*work, "check", *at)
        with program(*work, "run", *at, log=log):
            until(lambda: "waiting for questions" in log.read_text(), 60, log.read_text)
            run(*work, "dead-letters", "list", *at, expects="no dead letters")
            run(*work, "dead-letters", "show", "1", *at, code=2)
            run(*work, "dead-letters", "requeue", "1", *at, code=2)
            run(*work, "erase", folder / "worker.yaml", *at, code=2)
    run(*work, "judge", code=2)  # no engine comes


def demo(folder: Path) -> None:
    """Its start: broker, cameras, worker, appliance, until it has shown for some seconds."""
    words = ("demo", "--json", "--no-browser", "--port", "0", "--data", folder / "demo", "--clip", folder / "film.mp4")
    output = vedette(*words, "--model", folder / "red.onnx", "--seconds", "15")
    assert '"ready"' in output, output


def offline_tools(folder: Path) -> None:
    """The scripts that load ONNX Runtime by themselves."""
    for module in (
        "models.variants",
        "models.evaluation.cost",
        "benchmarks.ingest.contender",
        "fixtures.render.judge",
    ):
        run(PYTHON, "-c", LOAD.format(module=module, model=folder / "red.onnx"))


LOAD = "import {module}, onnxruntime; onnxruntime.InferenceSession('{model}')"


def hailo(folder: Path) -> None:
    """The helper that holds the device, under another Python (the device is a fake)."""
    config = box(folder, site_text(folder, HAILO.format(folder=folder)).replace("red.onnx", "red.hef")).config
    vedette("replay", folder / "film.mp4", "--config", config, "--log", folder / "hailo.jsonl")


HAILO = ", backend: hailo, hailo: {{python: '{folder}/python3'}}"

STORIES: dict[str, Story] = {
    each.__name__: each
    for each in (edge_only, first_run, openvino, notified, replay, hailo, models, discover, worker, demo, offline_tools,
                 users, store, lab)
}  # fmt: skip


if __name__ == "__main__":
    STORIES[sys.argv[1]](Path(sys.argv[2]))
