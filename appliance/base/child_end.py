"""The end of a child process: it is given time to end by itself, then killed."""

from __future__ import annotations

import contextlib
import subprocess

KILLED_S_MAX = 10.0  # a killed process is gone at once, but one that is stuck in a driver does not even die


def end_child(child: subprocess.Popen[bytes], *, asked_s: float = 0.0, killed_s: float = KILLED_S_MAX) -> None:
    """Kill a child, after `asked_s` in which one that was asked to end may do so; wait for `killed_s` at most."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(asked_s)
        return
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(killed_s)
