"""What the dashboard has done to recorded video in a sandbox of low priority (`sandbox.Sandbox`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

from appliance.explain.span_task import SpanTask, decode_task
from appliance.lab.jobs.span_replay import replayed_explanation

NICE = 15  # recording and live detection come first


def replay_span(values: dict[str, Any]) -> Generator[float, None, dict[str, Any]]:
    """Yields the share that is done; returns what `span_replay.replayed_explanation` finds. values: a SpanTask."""
    return (yield from replayed_explanation(_begun(values)))


def _begun(values: dict[str, Any]) -> SpanTask:
    with contextlib.suppress(OSError):
        os.nice(NICE)
    task = decode_task(values)
    if task.model_folder:
        os.environ["VEDETTE_MODELS"] = task.model_folder
    return task
