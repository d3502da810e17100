"""Polls a running appliance once a second: each camera's state and packets, memory, restarts of ingest."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from benchmarks.ingest.process_tree import memory_kinds, pss_bytes

_SAMPLE = re.compile(r'^(vedette_\w+)(?:\{camera="([^"]+)"\})? (\S+)$', re.MULTILINE)
ANSWER_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class StatusSample:
    """One poll. t: UTC seconds; states, packets: by camera; empty where the dashboard did not answer.

    own_bytes: heap and anonymous memory of each process; kinds: see `process_tree.memory_kinds`.
    """

    t: float
    states: dict[str, str]
    packets: dict[str, float]
    ingest_starts: float
    pss_bytes: int
    own_bytes: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def memory_bytes(self) -> int:
        """All kinds of all processes; the proportional set size in a record that has no kinds."""
        return sum(sum(each.values()) for each in self.kinds.values()) or self.pss_bytes

    @property
    def answered(self) -> bool:
        return bool(self.states)


def poll(url: str, pid: int) -> StatusSample:
    """Poll the dashboard at `url` of the appliance whose core process is `pid`."""
    t, pss, kinds = time.time(), pss_bytes(pid), memory_kinds(pid)
    own = {name: found["heap"] + found["anonymous"] for name, found in kinds.items()}
    try:
        states = {each["name"]: each["state"] for each in json.loads(_page(f"{url}/api/v1/cameras"))}
        samples = _SAMPLE.findall(_page(f"{url}/metrics"))
    except (OSError, urllib.error.URLError):
        return StatusSample(t, {}, {}, 0.0, pss, own, kinds)
    packets = {camera: float(value) for name, camera, value in samples if name == "vedette_camera_packets_total"}
    starts = next((float(value) for name, _, value in samples if name == "vedette_ingest_starts_total"), 0.0)
    return StatusSample(t, states, packets, starts, pss, own, kinds)


def gaps(url: str, camera: str) -> list[dict[str, Any]]:
    """Return the gaps that the appliance shows for a camera."""
    found: list[dict[str, Any]] = json.loads(_page(f"{url}/api/v1/cameras/{camera}"))["gaps"]
    return found


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=ANSWER_S_MAX) as answer:
        text: str = answer.read().decode()
    return text
