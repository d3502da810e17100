"""The target of the attacks, and the tally of its answers.

The target is `vedette run`, `vedette-worker run` and a nats-server with the accounts of deploy/nats/hub.conf.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.servers.nats import NatsServer, find_nats_servers
from tests.support.ports import quiet_port

ROOT = Path(__file__).resolve().parents[2]
SITE = "depot-7"
TOKEN = "attack-token-0123456789"
CAMERA_SECRET = "cam-secret-6f1d"
CANARY = "canary-3a9c4b-outside"
START_S_MAX = 240.0


class Target:
    """Owner of three processes and their folder. `port` is the dashboard's, `status` the worker's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "outside.txt").write_text(CANARY)
        self._broker = NatsServer(find_nats_servers()[0], folder / "nats", extra=_accounts()).start()
        self.workers_url = self._broker.url_of("worker", "worker")
        self.site_url = self._broker.url_of(SITE, SITE)
        self.status = quiet_port()
        self._processes = {"worker": self._worker(), "core": self._core()}
        self.port = self._dashboard_port()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
        self._broker.stop()

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def alive(self) -> dict[str, bool]:
        return {name: process.poll() is None for name, process in self._processes.items()}

    def memory_mb(self, name: str) -> float:
        """Resident now, of the process alone."""
        text = Path(f"/proc/{self._processes[name].pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", text)[0]) / 1024

    def get(self, path: str, timeout_s: float = 30.0) -> tuple[int, bytes]:
        """Get a path of the dashboard, with the token."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}", "Accept": "*/*"}
        )
        return _answer(request, timeout_s)

    def worker_ready(self) -> tuple[int, str]:
        status, body = _answer(urllib.request.Request(f"http://127.0.0.1:{self.status}/readyz"), 10.0)
        return status, body.decode(errors="replace")

    def json(self, path: str) -> Any:
        return json.loads(self.get(path)[1])

    def _worker(self) -> subprocess.Popen[bytes]:
        config = {
            "nats": {"url": self.workers_url},
            "engine": {"kind": "redetect"},
            "status": {"port": self.status},
            "worker": {"media_wait_s": 0.1, "concurrency": 8, "retry_s": 0.1, "deliveries_max": 2},
        }
        path = self.folder / "worker.yaml"
        path.write_text(json.dumps(config))
        return self._start("worker", "cloud_worker", "run", "--config", str(path))

    def _core(self) -> subprocess.Popen[bytes]:
        zone = [[0, 0], [1, 0], [1, 1], [0, 1]]
        rules = [
            {"name": "inside", "kind": "enter", "zone": "all", "severity": "alert"},
            {"name": "stays", "kind": "dwell", "zone": "all", "seconds": 1, "severity": "alert"},
        ]
        clip = ROOT / "fixtures" / "family" / "crowd.mp4"  # the first person comes after a second
        config = {
            "site": {"name": SITE},
            "storage": {"dir": str(self.folder / "data")},
            "dashboard": {"port": 0, "token": TOKEN},
            "uplink": {"url": self.site_url},
            "detector": {"backend": "onnx", "device": "cpu", "precision": "int8"},  # nothing is measured first
            "cameras": {
                "yard": {"url": f"file:{clip}", "zones": {"all": zone}, "rules": rules},
                "away": {"url": f"rtsp://viewer:{CAMERA_SECRET}@127.0.0.1:9/x"},
            },
        }
        path = self.folder / "site.yaml"
        path.write_text(json.dumps(config))
        return self._start("core", "appliance", "run", "--config", str(path))

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "ATTACK_CANARY": CANARY}
            return subprocess.Popen(
                [sys.executable, "-m", *command], stdout=log, stderr=log, cwd=self.folder, env=environment
            )

    def _dashboard_port(self) -> int:
        deadline = time.monotonic() + START_S_MAX
        while not (found := re.search(r"dashboard at http://\S+?:(\d+)", self.log("core"))):
            if not all(self.alive().values()) or time.monotonic() > deadline:
                raise RuntimeError(self.log("core")[-2000:] + self.log("worker")[-2000:])
            time.sleep(0.1)
        return int(found.group(1))


def _accounts() -> str:
    """Return the accounts of the example hub as they stand there, with the users' names as passwords."""
    text = (ROOT / "deploy" / "nats" / "hub.conf").read_text()
    lines = text[text.index("# accounts {") :].splitlines()
    block = "\n".join(line.removeprefix("# ") for line in lines)
    return block.replace("$VEDETTE_WORKER_PASSWORD", "worker").replace("$VEDETTE_DEPOT_7_PASSWORD", SITE)


def _answer(request: urllib.request.Request, timeout_s: float) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


DOORS_KEPT = 50


@dataclass
class Tally:
    """The count of one part of the attack. Any thread may count.

    `errors` are answers of 500 and above, and log lines of a bug. `hangs`: nothing came in time, and the connection
    stayed. `doors` says in words what an attacker got without a right to it.
    """

    name: str
    tries: int = 0
    errors: int = 0
    hangs: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    doors: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, answer: str, what: str = "") -> None:
        with self._lock:
            self.tries += 1
            self.answers[answer] += 1
            if answer.startswith("5") and answer not in {"503", "501"}:
                self.errors += 1
                self.faults.append(f"{answer}: {what[:300]}")
            if answer == "hang":
                self.hangs += 1
                self.faults.append(f"hang: {what[:300]}")

    def door(self, words: str) -> None:
        with self._lock:
            if len(self.doors) < DOORS_KEPT:
                self.doors.append(words[:300])

    def error(self, words: str) -> None:
        with self._lock:
            self.errors += 1
            self.faults.append(words[:300])

    @property
    def clean(self) -> bool:
        return not (self.errors or self.hangs or self.doors)

    def line(self) -> str:
        most = ", ".join(f"{name} {count}" for name, count in self.answers.most_common(9))
        return f"{self.name:<22} {self.tries:>7} {self.errors:>5} {self.hangs:>6} {len(self.doors):>6}  {most}"
