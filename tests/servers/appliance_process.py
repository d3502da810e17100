"""One appliance as a person runs it: `vedette run` in a process of its own, asked over HTTP."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.unmeasured import UNMEASURED
from tests.support.waiting import until

START_S_MAX = 120.0
STOP_S_MAX = 100.0


class ApplianceProcess:
    """`with ApplianceProcess(folder, site) as box:`; `site` is the site file's text without storage and dashboard.

    Where it names no detector, the appliance runs the usual network as most do, and measures nothing first.

    kill() is kill -9 of the core alone; start() begins again on the same folder. The log of all lives is `log`.
    """

    def __init__(self, folder: Path, site: str) -> None:
        self.folder = folder
        self.config = folder / "site.yaml"
        detector = "" if "detector:" in site else f"detector: {json.dumps(UNMEASURED)}\n"
        self.config.write_text(f"storage: {{dir: {folder / 'data'}}}\ndashboard: {{port: 0}}\n{detector}{site}")
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    @property
    def log(self) -> str:
        return (self.folder / "box.log").read_text() if (self.folder / "box.log").exists() else ""

    @property
    def url(self) -> str:
        """Of the dashboard of this life, without the last slash."""
        return self._url

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        before = len(self.log)
        with (self.folder / "box.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "appliance", "run", "--config", str(self.config)], stderr=log, stdout=log
            )
        address = re.compile(r"dashboard at (http://\S+?)/?\s")
        found = until(lambda: address.search(self.log, before) or not self.running, START_S_MAX, lambda: self.log)
        assert isinstance(found, re.Match), self.log
        self._url = found.group(1)

    def get(self, path: str) -> Any:
        """The JSON at `path` of the API."""
        return json.loads(self.page(f"/api/v1{path}"))

    def page(self, path: str) -> str:
        """The text at `path`."""
        with urllib.request.urlopen(self._url + path, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_S_MAX)

    def __enter__(self) -> ApplianceProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            raise
