"""A running appliance without a file descriptor left: all of it goes on, and the dashboard answers later."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.waiting import holds, until

FILES_MAX = 60
CLIP = next((Path(__file__).parents[2] / "fixtures" / "clips").glob("*.mp4"))
SITE = """
storage: {{dir: {folder}/data}}
dashboard: {{port: 0}}
detector: {{backend: onnx, device: cpu, precision: int8}}
cameras:
  yard: {{url: "file:{clip}", rules: []}}
"""


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(urllib.request.urlopen(url, timeout=20).status == 200)
    return False


@pytest.mark.timeout(240)
def test_silent_connections_beyond_all_descriptors_end_nothing(tmp_path: Path) -> None:
    """1,010 of them had ended recording, detection and alerts within six seconds."""
    config, log = tmp_path / "site.yaml", tmp_path / "log"
    config.write_text(SITE.format(folder=tmp_path, clip=CLIP))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "appliance", "run", "--config", str(config)],
            stderr=out,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX)),  # noqa: PLW1509
        )
    try:
        port = until(lambda: re.search(r"dashboard at http://\S+:(\d+)/", log.read_text()), 60)[1]
        address = ("127.0.0.1", int(port))
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_connection(address, 5))
            until(lambda: len(os.listdir(f"/proc/{process.pid}/fd")) >= FILES_MAX - 1, 20, "there is none left")
            holds(lambda: process.poll() is None, 4, lambda: log.read_text()[-3000:])
        url = f"http://127.0.0.1:{address[1]}/healthz"
        until(lambda: answers(url), 30, "it answers again")
        assert "stopped by a bug" not in log.read_text()
        assert log.stat().st_size < 100_000
        open_to_others = [each for each in (tmp_path / "data").rglob("*") if each.lstat().st_mode & 0o077]
        assert not open_to_others, "recordings show people: they are nobody else's on the machine"
        until(lambda: list((tmp_path / "data" / "segments").rglob("*.mp4")), what="it is recorded")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
