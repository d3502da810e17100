"""Waiting for what other threads and processes do: on a condition, with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 20.0, what: str = "", *, every_s: float = 0.01) -> None:
    """Return once `condition()` is true, or fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s: {what or condition}"
        threading.Event().wait(every_s)
