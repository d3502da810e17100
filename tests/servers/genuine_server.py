"""A model server of somebody else, in a process of its own."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import until

STOP_S_MAX = 30.0


@contextmanager
def answering(
    command: Sequence[str | Path], port: int, log: Path, environment: Mapping[str, str], start_s_max: float
) -> Iterator[str]:
    """Start it, wait until it answers, and yield the address that a worker is given."""
    with log.open("wb") as sink:
        child = subprocess.Popen(command, stdout=sink, stderr=sink, env=environment, cwd=log.parent)

    def is_up() -> bool:
        assert child.poll() is None, f"the server ended:\n{log.read_text(errors='replace')[-4000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        until(is_up, start_s_max, f"{log.stem} answers", every_s=0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        child.terminate()
        try:
            child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
