"""Cost and recall of Vedette's ingest, beside the usual ways, with the same network on the same cameras.

    python -m benchmarks.ingest --quick              # 720p, one stream; quiet, mixed, busy; 2 cameras; all at once
    python -m benchmarks.ingest --rounds 3           # the same, one contender after the other
    python -m benchmarks.ingest --full --rounds 3 --json out.json
    python -m benchmarks.ingest --scenes quiet --lines 1080 --streams 2 --cameras 16 --rounds 3
    python -m benchmarks.ingest --scenes alerts      # CPU seconds an alert: the appliance with a rule and without one
    python -m benchmarks.ingest --scenes mixed --latency lowest normal thrifty --rounds 3
    python -m benchmarks.ingest.yolo11n_like yolo11n-like.onnx
    python -m benchmarks.ingest --model yolo11n-like.onnx --ways onnx openvino-bf16

The figures are CPU seconds a camera-minute (all processes), peak memory, frames examined, recall of labelled objects,
and time to the first box. Every contender watches the same frames (RTSP over TCP, served by a process that is not
counted), one after the other in each round, or all at the same time with --together. CPU is counted by the kernel
between two moments, so other load on the machine changes it little, and ratios of one run hardly. `detector` is the
detector's part: scaling, network and tracking. Figures are medians of rounds.

Exit status: 0 every bar that was measured is met; 1 one was missed, or something could not be measured. What is not
comparable, as the machine was too busy, is held against no bar of the ratios.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from appliance.base import machine
from benchmarks.ingest import report
from benchmarks.ingest.cameras import MeasurementFailed, Setting, prepare, served
from benchmarks.ingest.contender import (
    ROOT,
    ContenderFactory,
    everything,
    ultralytics,
    vedette,
    vedette_at,
    vedette_with,
)
from benchmarks.ingest.footage import SCENES, SIZES
from benchmarks.ingest.measurement import Measured, Terms, measure
from tests.servers.appliance_process import ApplianceProcess

ALERTS = "alerts"
LATENCIES = ("lowest", "normal", "thrifty")
OURS, FLOOR, OTHERS = "vedette", "(a) everything", "(b) ultralytics"
FULL = [
    *(Setting(scene, lines, 1, cameras) for scene in SCENES for lines in (720, 1080) for cameras in (1, 4)),
    *(Setting(scene, 720, 1, 1, gop_s=4) for scene in SCENES),
    *(Setting(scene, lines, 2, cameras) for scene in SCENES for lines in (720, 1080) for cameras in (1, 8)),
    Setting("quiet", 720, 2, 16),
    Setting("quiet", 720, 1, 16),
]

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


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    settings = FULL if chosen.full else _settings(chosen)
    chosen.together = chosen.together or chosen.quick
    contenders = _contenders(chosen)
    terms = Terms({"model": chosen.model, "threads": 1}, chosen.fps, chosen.seconds, chosen.settle, chosen.record)
    rows: list[report.Row] = []
    failed = False
    for setting in settings:
        prepare(setting, chosen.footage)
        for name, rounds, error in _rounds(setting, contenders, terms, chosen):
            if rounds:
                rows.append(report.row(setting, name, rounds))
                print(report.line(rows[-1]), flush=True)
            if error:
                failed = True
                print(f"{name}: {error}", file=sys.stderr)
    print()
    if rows:
        print(report.table(rows))
        comparison = report.ratios(rows, OURS, FLOOR)
        failed = failed or report.is_missed(comparison)
        print(comparison)
    cost = _alert_cost(chosen)
    failed = failed or (_has_alerts(chosen) and not (cost and cost.met))
    if chosen.json:
        about = {
            "command": ["python", "-m", "benchmarks.ingest", *(sys.argv[1:] if arguments is None else arguments)],
            "python": platform.python_version(), "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)),
            "terms": asdict(terms),
        }  # fmt: skip
        chosen.json.write_text(json.dumps({**about, "rows": [asdict(each) for each in rows],
                                           "alerts": cost and asdict(cost)}, indent=1))  # fmt: skip
    return int(failed)


def _has_alerts(chosen: argparse.Namespace) -> bool:
    return chosen.full or ALERTS in (chosen.scenes or (ALERTS,))


def _alert_cost(chosen: argparse.Namespace) -> AlertCost | None:
    """Measure and print what an alert costs, if that scene is wanted; None also where it cannot be measured."""
    if not _has_alerts(chosen):
        return None
    setting = Setting("busy", (chosen.lines or (720,))[0], 1, 1)
    try:
        cost = measure_alerts(setting, chosen.model, chosen.seconds, chosen.settle, chosen.footage)
    except MeasurementFailed as error:
        print(f"alerts: {error}", file=sys.stderr)
        return None
    print(cost.report(), flush=True)
    return cost


def measure_alerts(setting: Setting, model: str, seconds: float, settle_s: float, footage: Path) -> AlertCost:
    """Run two appliances on the same cameras, one with a rule. Raise MeasurementFailed."""
    cost = AlertCost()
    with ExitStack() as stack:
        cameras = stack.enter_context(served(prepare(setting, footage)[0]))
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


def _rounds(
    setting: Setting, contenders: dict[str, ContenderFactory], terms: Terms, chosen: argparse.Namespace
) -> list[tuple[str, list[Measured], str]]:
    """Return the rounds of each contender, interleaved, and its last error."""
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    wrong = dict.fromkeys(contenders, "")

    def one(name: str) -> None:
        try:
            found[name].append(measure(setting, contenders[name], terms, chosen.footage))
        except MeasurementFailed as error:
            wrong[name] = str(error)

    for k in range(chosen.rounds):
        order = list(contenders) if k % 2 == 0 else list(reversed(contenders))
        with ThreadPoolExecutor(len(contenders) if chosen.together else 1) as pool:
            list(pool.map(one, order))
    return [(name, found[name], wrong[name]) for name in contenders]


def _settings(chosen: argparse.Namespace) -> list[Setting]:
    every = itertools.product(
        [each for each in chosen.scenes or SCENES if each != ALERTS],
        chosen.lines or (720,),
        chosen.streams or (1,),
        chosen.cameras or (2,),
    )
    return [Setting(scene, lines, streams, cameras, chosen.gop) for scene, lines, streams, cameras in every]


def _contenders(chosen: argparse.Namespace) -> dict[str, ContenderFactory]:
    contenders: dict[str, ContenderFactory] = {
        **{f"{OURS} {latency}": vedette_at(latency) for latency in chosen.latency},
        **{f"{OURS} {way}": vedette_with(way) for way in chosen.ways},
    } or {OURS: vedette}
    if not chosen.alone:
        contenders[FLOOR] = everything
    if chosen.ultralytics:
        python = shutil.which(chosen.ultralytics)
        if python is None:
            print(f"{OTHERS} is skipped: there is no {chosen.ultralytics}", file=sys.stderr)
        elif os.spawnl(os.P_WAIT, python, python, "-c", "import ultralytics"):
            print(f"{OTHERS} is skipped: {chosen.ultralytics} has no package ultralytics (AGPL-3.0)", file=sys.stderr)
        else:
            contenders[OTHERS] = ultralytics(python)
    elif chosen.full:
        print(f"{OTHERS} is skipped: name a Python that has ultralytics with --ultralytics", file=sys.stderr)
    return contenders


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingest", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="contenders at the same time, one round: 2-3 minutes")
    parser.add_argument("--full", action="store_true", help="every setting of the table; hours")
    parser.add_argument("--scenes", nargs="+", choices=(*SCENES, ALERTS))
    parser.add_argument("--lines", nargs="+", type=int, choices=sorted(SIZES), help="of the main stream (720)")
    parser.add_argument("--streams", nargs="+", type=int, choices=(1, 2), help="2: detect on a sub-stream, record")
    parser.add_argument("--cameras", nargs="+", type=int, help="how many at once (2)")
    parser.add_argument("--gop", type=int, default=2, choices=(1, 2, 4), help="seconds between key frames (2)")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=32.0, help="measured in each slot (32)")
    parser.add_argument("--settle", type=float, default=8.0, help="seconds before that, not counted (8)")
    parser.add_argument("--together", action="store_true", help="all contenders at the same time, paired")
    parser.add_argument("--alone", action="store_true", help="Vedette only")
    parser.add_argument("--fps", type=float, default=5.0, help="looks a second (5)")
    parser.add_argument("--model", default="vedette-nano", help="network, by name or .onnx file")
    parser.add_argument(
        "--latency",
        nargs="+",
        default=(),
        choices=LATENCIES,
        help="each a contender (default: its own)",
    )
    parser.add_argument(
        "--ways", nargs="+", default=(), metavar="BACKEND-PRECISION",
        help="each a contender with its network run so (openvino-bf16); (a) keeps ONNX Runtime",
    )  # fmt: skip
    parser.add_argument("--record", action="store_true", help="Vedette also records one-stream cameras")
    parser.add_argument("--ultralytics", metavar="PYTHON", help="a Python with ultralytics, to run (b) with")
    parser.add_argument("--footage", type=Path, default=ROOT / "benchmarks" / "out" / "footage", help="made once, kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
