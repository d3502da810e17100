"""Polls a running appliance once a second: each camera's state and packets, memory, restarts of ingest."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ingest.process_tree import own_bytes, pss_bytes

_SAMPLE = re.compile(r'^(vedette_\w+)(?:\{camera="([^"]+)"\})? (\S+)$', re.MULTILINE)
ANSWER_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StatusSample:
    """One poll. t: UTC seconds; states, packets: by camera; empty where the dashboard did not answer.

    own_bytes: memory of each process that it shares with no file, see `process_tree.own_bytes`.
    """

    t: float
    states: dict[str, str]
    packets: dict[str, float]
    ingest_starts: float
    pss_bytes: int
    own_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> bool:
        return bool(self.states)


def poll(url: str, pid: int) -> StatusSample:
    """Poll the dashboard at `url` of the appliance whose core process is `pid`."""
    t = time.time()
    try:
        states = {each["name"]: each["state"] for each in json.loads(_page(f"{url}/api/v1/cameras"))}
        samples = _SAMPLE.findall(_page(f"{url}/metrics"))
    except (OSError, urllib.error.URLError):
        return StatusSample(t, {}, {}, 0.0, pss_bytes(pid), own_bytes(pid))
    packets = {camera: float(value) for name, camera, value in samples if name == "vedette_camera_packets_total"}
    starts = next((float(value) for name, _, value in samples if name == "vedette_ingest_starts_total"), 0.0)
    return StatusSample(t, states, packets, starts, pss_bytes(pid), own_bytes(pid))


def gaps(url: str, camera: str) -> list[dict[str, Any]]:
    """Return the gaps that the appliance shows for a camera."""
    found: list[dict[str, Any]] = json.loads(_page(f"{url}/api/v1/cameras/{camera}"))["gaps"]
    return found


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
        text: str = answer.read().decode()
    return text
