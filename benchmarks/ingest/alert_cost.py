"""What an alert costs: CPU seconds of the whole appliance, with a rule beside without one, on the same camera."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from appliance.base import machine
from benchmarks.ingest.measurement import MeasurementFailed, Setting, served_cameras
from tests.servers.appliance_process import ApplianceProcess

BAR_CPU_S = 0.4
START_S_MAX = 180.0  # a busy machine loads a network and connects in a minute; a loop of a scene takes another
# Alerts that end so soon, and of which so short a pause makes two, so that a minute has several.
SHORT_ALERT_S, MERGE_S = 12.0, 2.0
# A machine that is busy otherwise would put the re-checks off, and they are part of the cost.
NEVER_TOO_BUSY = ("escalation: {router: {load_max: 1000}}", "second_look: {detector_load_max: 1.0}")
RULES = "[{name: seen, kind: enter, zone: all, labels: [person, car]}]"


@dataclass(slots=True)
class AlertCost:
    """alerts: begun while measured. with_s, without_s: CPU seconds by process, with the rule and without it."""

    alerts: int = 0
    seconds: float = 0.0
    with_s: dict[str, float] = field(default_factory=dict)
    without_s: dict[str, float] = field(default_factory=dict)

    @property
    def cpu_s(self) -> float:
        """CPU seconds an alert."""
        return (sum(self.with_s.values()) - sum(self.without_s.values())) / max(1, self.alerts)

    @property
    def met(self) -> bool:
        """Whether there were alerts, and they cost no more than the bar."""
        return self.alerts > 0 and self.cpu_s <= BAR_CPU_S

    def report(self) -> str:
        """Write the figures for a person."""
        parts = sorted({*self.with_s, *self.without_s})
        shares = (
            f"{each} {(self.with_s.get(each, 0.0) - self.without_s.get(each, 0.0)) / max(1, self.alerts):.2f}"
            for each in parts
        )
        return (
            f"alerts: {self.alerts} in {self.seconds:.0f} s; {self.cpu_s:.2f} CPU-s each ({', '.join(shares)}), "
            f"bar {BAR_CPU_S:.2f}: {'met' if self.met else 'missed'}"
        )


def measure_alerts(setting: Setting, model: str, seconds: float, settle_s: float, footage: Path) -> AlertCost:
    """Run two appliances on the same cameras, one with a rule. Raise MeasurementFailed."""
    cost = AlertCost()
    with ExitStack() as stack:
        cameras = stack.enter_context(served_cameras(setting, footage))
        boxes = [
            stack.enter_context(
                ApplianceProcess(
                    Path(stack.enter_context(tempfile.TemporaryDirectory())),
                    _site(cameras.port, setting.cameras, model, rules),
                )
            )
            for rules in (RULES, "[]")
        ]
        for box in boxes:
            _await(lambda box=box: all(each["state"] == "live" for each in box.get("/cameras")), box)  # type: ignore[misc]
        # The first alert starts the sandbox, which stays.
        _await(lambda: any(each["clip"] for each in boxes[0].get("/alerts?limit=200")["alerts"]), boxes[0])
        time.sleep(settle_s)
        known, before, begun = _alert_ids(boxes[0]), [_cpu_s(box.pid) for box in boxes], time.monotonic()
        time.sleep(seconds)
        after = [_cpu_s(box.pid) for box in boxes]
        cost.seconds = time.monotonic() - begun
        cost.alerts = len(_alert_ids(boxes[0]) - known)
    cost.with_s, cost.without_s = (_difference(*each) for each in zip(before, after, strict=True))
    if not cost.alerts:
        raise MeasurementFailed(f"no alert in {seconds:.0f} s: take a scene with visits, or measure for longer")
    return cost


def _site(port: int, cameras: int, model: str, rules: str) -> str:
    everywhere = "[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]"
    alerts = f"alerts: {{length_max_s: {SHORT_ALERT_S}, merge_s: {MERGE_S}}}"
    lines = [f"detector: {{model: {model}, backend: onnx}}", alerts, *NEVER_TOO_BUSY, "cameras:"]
    lines += [
        f"  cam{k}: {{url: 'rtsp://127.0.0.1:{port}/cam{k}', zones: {{all: {everywhere}}}, rules: {rules}}}"
        for k in range(cameras)
    ]
    return "\n".join(lines) + "\n"


def _await(condition: Callable[[], bool], box: ApplianceProcess) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not condition():
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"no camera, or no alert with a clip, within {START_S_MAX:.0f} s: {box.log[-500:]}")
        time.sleep(0.5)


def _alert_ids(box: ApplianceProcess) -> set[str]:
    return {each["id"] for each in box.get("/alerts?limit=200")["alerts"]}


def _cpu_s(core: int) -> Counter[str]:
    """CPU seconds so far by process: core (with the children that it has reaped), ingest, media."""
    found: Counter[str] = Counter()
    for each in machine.usages(machine.process_family(core)):
        name = "core" if each.pid == core else "ingest" if "appliance.ingest" in each.command else "media"
        found[name] += each.cpu_s  # type: ignore[assignment]
    return found


def _difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: amount - before.get(name, 0.0) for name, amount in after.items()}
