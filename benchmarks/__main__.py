"""`make bench`: the budgets of docs/design.md that one machine can measure by itself, as a table and JSON.

Times are CPU time of this process (the machines are shared and noisy), the median of several rounds; speed against
real time is for orientation only.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance import config, wire
from appliance.alerts.pipeline import Pipeline
from appliance.base import json_lines, yamlfile
from appliance.base.clock import ManualClock
from appliance.detect import detector_loader
from appliance.replay.replay_routing import router_context_of
from appliance.router.decide import RouterCase, decide, expected_bytes
from appliance.router.escalation_planner import EscalationPlanner
from appliance.store.alerts import AlertStore
from appliance.store.database import Database
from appliance.types import (
    Alert,
    AlertChange,
    CalibratedChance,
    Event,
    FrameBoxes,
    RouteInputs,
    StreamHeader,
    TrackedObject,
)
from tests.support.clip_replay import replay

ROOT = Path(__file__).parents[1]
ROUNDS = 5
SITE = """
cameras:
  yard:
    url: file:yard.mp4
    zones: {yard: [[0.1, 0.3], [0.9, 0.3], [0.9, 0.98], [0.1, 0.98]]}
    lines: {door: [[0.5, 0.2], [0.5, 0.9]]}
    rules:
      - {name: enters, kind: enter, zone: yard}
      - {name: leaves, kind: exit, zone: yard}
      - {name: loiters, kind: dwell, zone: yard, seconds: 10}
      - {name: crosses, kind: line, line: door}
uplink: {url: "nats://127.0.0.1:4222"}
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number beside its budget (None: no budget, for comparison over time)."""

    what: str
    value: float
    unit: str
    budget: float | None


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    options.add_argument("--model", default="auto", help="detector for the replay figure")
    options.add_argument("--clip", type=Path, default=ROOT / "fixtures" / "clips" / "yard.mp4")
    chosen = options.parse_args()
    site = yamlfile.loads(SITE, config.SiteConfig)
    figures = [*boundary(), *decisions(site), *commits(), *replays(site, chosen.clip, chosen.model)]
    for figure in figures:
        budget = "" if figure.budget is None else f"budget {figure.budget:g} {figure.unit}"
        print(f"{figure.what:<66} {figure.value:>10.4g} {figure.unit:<12} {budget}")
    if chosen.json:
        about = {"python": platform.python_version(), "machine": platform.machine()}
        chosen.json.write_text(json.dumps({**about, "figures": [asdict(figure) for figure in figures]}, indent=1))
    return 0


def boundary() -> list[Figure]:
    """FrameBoxes with 10 objects over the process boundary: encode and decode."""
    boxes = crowd(0)
    once = cpu_ms(lambda: json_lines.decode_ingest(json_lines.encode_ingest(boxes)), 2000)
    return [
        Figure("FrameBoxes with 10 objects, encode + decode", once, "ms", 1.0),
        Figure("FrameBoxes with 10 objects, size on the channel", len(json_lines.encode_ingest(boxes)), "bytes", None),
    ]


def decisions(site: config.SiteConfig) -> list[Figure]:
    """Rules and alert policy for one frame with 10 walking objects and 4 rules; the router for one alert."""
    camera = site.cameras["yard"]
    pipeline = Pipeline("yard", camera, site.alerts)
    pipeline.feed(StreamHeader(camera="yard", clip="", model="m", size=(1280, 720), run="r"))
    times = [call_ms(lambda n=n: pipeline.feed(crowd(n))) for n in range(3000)]
    context = router_context_of(site.for_decisions())
    planner = EscalationPlanner("yard", camera.rules, context)
    planner.begin(StreamHeader(camera="yard", clip="", model="m", size=(1280, 720), run="r"))
    observed = [call_ms(lambda n=n: planner.observe(crowd(n))) for n in range(3000)]
    planned = [call_ms(lambda n=n: planner.plan(opened(n), 0.0)) for n in range(3000)]
    costs = tuple(context.budget.cost(each) for each in expected_bytes(site.escalation))
    cases = [
        RouterCase(alert=f"a{n}", rule="enters", escalate=True, uplink=True, inputs=inputs, costs=costs)
        for n, inputs in enumerate(RouteInputs(calibrated=CalibratedChance(chance=n / 3000)) for n in range(3000))
    ]
    routed = [call_ms(lambda case=case: decide(case, site.escalation)) for case in cases]
    return [
        Figure("rules + alert policy, one frame of 10 objects, median", statistics.median(times), "ms", None),
        Figure("rules + alert policy, one frame of 10 objects, p99", percentile(times, 0.99), "ms", None),
        Figure("router, one decision, p99", percentile(routed, 0.99), "ms", 0.2),
        Figure(
            "router, one alert with its inputs, escalation and route, median", statistics.median(planned), "ms", None
        ),
        Figure("router, one frame of 10 objects, median", statistics.median(observed), "ms", None),
    ]


def opened(n: int) -> AlertChange:
    """Return a new alert about one person of the crowd."""
    track = 1 + n % 10
    alert = Alert(
        camera="yard", id=f"a{n}", rules=("enters",), severity="warning", t_start=0.0, t_end=None, tracks=(track,)
    )
    event = Event(camera="yard", rule="enters", kind="enter", track=track, label="person", t=0.0, zone="yard")
    return AlertChange("opened", alert, event)


def commits() -> list[Figure]:
    """Alert, event, evidence rows and escalation in one durable transaction (synchronous=FULL) on this disk."""
    with tempfile.TemporaryDirectory() as folder:
        db = Database(Path(folder) / "vedette.db", ManualClock())
        alerts = AlertStore(db)
        times = [call_ms(lambda n=n: commit(alerts, n)) for n in range(200)]
        db.close()
    return [Figure("alert + escalation, one durable transaction, median", statistics.median(times), "ms", None)]


def commit(alerts: AlertStore, n: int) -> None:
    alert = Alert(camera="yard", id=f"a{n}", rules=("r",), severity="alert", t_start=float(n), t_end=None, tracks=(n,))
    event = Event(camera="yard", rule="r", kind="enter", track=n, label="person", t=float(n), id=f"e{n}")
    escalation = wire.Escalation(
        id=f"esc-{n}", site="s", camera="yard", alert=alert.id, rule="r", kind="enter", label="person",
        severity="alert", t=float(n), created_t=float(n),
    )  # fmt: skip
    alerts.apply(AlertChange("opened", alert, event), escalation=escalation, priority="high")


def replays(site: config.SiteConfig, clip: Path, model: str) -> list[Figure]:
    """Run the whole pixel path on a clip, as fast as possible."""
    if not clip.exists():
        print(f"no {clip}: replay is not measured", file=sys.stderr)
        return []
    loaded = detector_loader.load(site.detector.model_copy(update={"model": model}))
    results = [replay(clip, site.for_decisions(), "yard", loaded, log=None, progress=None) for _ in range(2)]
    cpu_s = min(result.cost.cpu_s for result in results)
    minutes = results[0].end.t / 60
    return [
        Figure(f"replay of {clip.name} with {loaded.name}, CPU-s per minute of footage", cpu_s / minutes, "s", None),
        Figure(f"replay of {clip.name} with {loaded.name}, times real time", results[0].end.t / cpu_s, "x", None),
    ]


def crowd(n: int) -> FrameBoxes:
    """Return ten people walking to and fro, at 5 fps."""
    objects = tuple(
        TrackedObject(
            track=k, label="person", score=0.8, box=(x := ((n * 7 + k * 97) % 800) / 1000, 0.4, x + 0.05, 0.7)
        )
        for k in range(1, 11)
    )
    return FrameBoxes(camera="yard", seq=n, frame=n * 3, t=n / 5, looked=True, objects=objects)


def cpu_ms(call: Callable[[], object], times: int) -> float:
    """Return the median over `ROUNDS` of the CPU milliseconds of one call."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(times):
            call()
        rounds.append((time.process_time() - began) / times * 1000)
    return statistics.median(rounds)


def call_ms(call: Callable[[], object]) -> float:
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * 1000


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


if __name__ == "__main__":
    sys.exit(main())
