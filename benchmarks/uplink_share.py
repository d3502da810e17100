"""Use of a site's uplink, all protocol included, as a share of the bytes of its cameras, on labelled footage.

    python -m benchmarks.uplink_share                          # all cases, one after the other: 13 minutes
    python -m benchmarks.uplink_share --cases mixed --seconds 120 --json share.json
    python -m benchmarks.uplink_share --cases boxes-quiet boxes-busy --cameras 1

The run has the appliance as its users run it, cameras over RTSP, a real nats-server and a worker with its default
judge, which requests more evidence where it is unsure. Bytes are the savings ledger's, from the first connection to the
last, beside the counter of the site's interface where namespaces are allowed (root). An incident is what the site's own
rules and alert policy make of the true boxes; it was escalated when an escalation left whose event or images lie in it.
In the cases `boxes-...` the site is `image_free`, so escalations carry facts alone. The budgets are 2 % of camera bytes
with every incident escalated, and for boxes only 3 kbit/s a camera when quiet, 10 when busy. Exit code 1 means that a
budget was missed.

With root the site lives in a network namespace and the cloud in another: packets are then as large as on a cable, and
the kernel's own counter of the interface stands beside the ledger. Without, all is on loopback, where segments are of
64 KB: fewer headers than on a cable.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from appliance import config
from appliance.base import yamlfile
from benchmarks import byte_balance
from benchmarks.byte_balance import ROOT, ByteBalance, LabelledCamera
from benchmarks.ingest import cameras as camera_server
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.netns import Cable, cable, why_not
from tests.support.waiting import until

SHARE_MAX = 0.02
QUIET_KBIT_S_MAX, BUSY_KBIT_S_MAX = 3.0, 10.0
UP_S_MAX = 180.0
PETS = ROOT / "tests" / "replay" / "pets.scenario.yaml"
PORT = 4222
START_S_MAX = 180.0
STOP_S_MAX = 120.0
CommandPrefix = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One run. image_free: escalations carry facts alone; kbit_s_max: of one camera, None: the share is limited."""

    name: str
    scene: str
    image_free: bool = False
    kbit_s_max: float | None = None


CASES = {
    each.name: each
    for each in (
        Case("quiet", "quiet"),
        Case("mixed", "mixed"),
        Case("busy", "busy"),
        Case("pets", "pets"),
        Case("boxes-quiet", "quiet", image_free=True, kbit_s_max=QUIET_KBIT_S_MAX),
        Case("boxes-busy", "busy", image_free=True, kbit_s_max=BUSY_KBIT_S_MAX),
    )
}


@dataclass(frozen=True, slots=True)
class UplinkEnds:
    """The two ends of the uplink.

    `site` and `hub` are the prefix of a command that runs at that end. `kernel` returns the bytes that the site's
    interface has sent, None without a counter.
    """

    address: str
    site: CommandPrefix
    hub: CommandPrefix
    kernel: Callable[[], int | None]


@contextlib.contextmanager
def uplink_ends() -> Iterator[UplinkEnds]:
    """Yield a cable where namespaces are allowed, else loopback."""
    if why_not():
        yield UplinkEnds("127.0.0.1", (), (), lambda: None)
        return
    with cable() as there:
        yield UplinkEnds(there.address, _inside(there, there.site), _inside(there, there.hub), there.sent_by_site)


def _inside(there: Cable, namespace: str) -> CommandPrefix:
    return tuple(map(str, there.inside(namespace)))


@contextlib.contextmanager
def cloud(uplink: UplinkEnds, folder: Path, engine: str) -> Iterator[str]:
    """Run a broker and a worker with its default judge, and yield the broker's address.

    `engine` is the worker file's section.
    """
    with contextlib.ExitStack() as stack:
        if uplink.hub:
            url = stack.enter_context(_far_broker(uplink, folder / "nats"))
        else:
            server = NatsServer(find_nats_servers()[0], folder / "nats").start()
            stack.callback(server.stop)
            url = server.url
        config = folder / "worker.yaml"
        config.write_text(f"nats: {{url: '{url}'}}\nengine: {engine}\nworker: {{name: w1}}\n")
        stack.enter_context(_worker(uplink, config))
        yield url


@contextlib.contextmanager
def _far_broker(uplink: UplinkEnds, folder: Path) -> Iterator[str]:
    folder.mkdir(parents=True)
    config, log = folder / "server.conf", folder / "server.log"
    store = json.dumps(str(folder / "store"))
    config.write_text(f"listen: {uplink.address}:{PORT}\njetstream {{ store_dir: {store} }}\n")
    with started([*uplink.hub, str(find_nats_servers()[0].path), "-c", str(config)], log):
        until(lambda: "Server is ready" in log.read_text(), START_S_MAX, "the broker is ready")
        yield f"nats://{uplink.address}:{PORT}"


@contextlib.contextmanager
def _worker(uplink: UplinkEnds, config: Path) -> Iterator[None]:
    log = config.with_suffix(".log")
    with started([*uplink.hub, sys.executable, "-m", "cloud_worker", "run", "--config", str(config)], log):
        until(lambda: "waiting for questions" in log.read_text(), START_S_MAX, "the worker is ready")
        yield


@contextlib.contextmanager
def started(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that is ended by SIGTERM and writes its counters then.

    Raise AssertionError if it does not end.
    """
    with log.open("ab") as sink:
        child = subprocess.Popen(list(command), stdout=sink, stderr=sink, cwd=ROOT)
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise AssertionError(
                f"{command[-1]} did not end within {STOP_S_MAX:.0f} s: its counters are not complete"
            ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    found, wrong = [], False
    for name in chosen.cases:
        case = CASES[name]
        cameras = _cameras_of(case, chosen)
        if not cameras:
            print(f"{name}: its footage is not here, skipped", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder:
            totals = run(case, cameras, Path(folder), chosen.seconds, chosen.engine)
        found.append(totals)
        print(report(totals, case), flush=True)
        wrong = wrong or bool(faults(totals, case))
    if chosen.json:
        rows = [{**asdict(each), "share": each.share, "kbit_s": each.kbit_s} for each in found]
        chosen.json.write_text(json.dumps(rows, indent=1))
    return int(wrong)


def run(case: Case, cameras: Sequence[LabelledCamera], folder: Path, seconds: float, engine: str) -> ByteBalance:
    """Run one site from its start to its end.

    `seconds` count after its cameras' first frames; footage marked `once` runs once.
    """
    if any(each.once for each in cameras):
        seconds = min(each.length / each.fps for each in cameras)
    films, fps = {each.camera: each.film for each in cameras}, {each.camera: each.fps for each in cameras}
    with (
        uplink_ends() as uplink,
        cloud(uplink, folder, engine) as url,
        camera_server.served(films, fps, uplink.site) as served,
    ):
        site = folder / "site.yaml"
        site.write_text(site_file(cameras, url, served.port, folder / "data", image_free=case.image_free))
        settings = yamlfile.load(site, config.SiteConfig)
        log, before, began = folder / "box.log", uplink.kernel(), time.time()
        with started([*uplink.site, sys.executable, "-m", "appliance", "run", "--config", str(site)], log) as box:
            until(lambda: box.poll() is not None or all(each.begun for each in served.taken.values()), UP_S_MAX)
            if box.poll() is not None:
                raise SystemExit(f"the appliance ended: {log.read_text()[-2000:]}")
            first_t = max(each.t(0) for each in served.taken.values())
            time.sleep(max(0.0, first_t + seconds - time.time()))
            end_t = time.time()
        ended, after = time.time(), uplink.kernel()
        incidents = {
            each.camera: byte_balance.incidents_of(settings, each, served.taken[each.camera], first_t, end_t)
            for each in cameras
        }
        if complaints := re.findall(r"^.*(?:Traceback|internal error).*$", log.read_text(), re.MULTILINE):
            print(*complaints, sep="\n", file=sys.stderr)
    kernel = None if before is None or after is None else after - before
    return byte_balance.balance(case.name, folder / "data", ended - began, kernel, incidents)


def site_file(cameras: Sequence[LabelledCamera], broker: str, port: int, data: Path, *, image_free: bool) -> str:
    """Write the site file's text; other keys keep their defaults."""
    sections: dict[str, Mapping[str, Any]] = {
        each.camera: {**each.section, "url": f"rtsp://127.0.0.1:{port}/{each.camera}"} for each in cameras
    }
    text: str = yaml.safe_dump(
        {
            "site": {"name": "bench", "image_free": image_free},
            "storage": {"dir": str(data), "disk_free_min_mb": 100},
            "dashboard": {"port": 0},
            "cameras": sections,
            "uplink": {"url": broker},
        },
        default_flow_style=None,
        sort_keys=False,
    )
    return text


def faults(totals: ByteBalance, case: Case) -> list[str]:
    """Return the budgets that were missed."""
    wrong = [] if totals.received else ["no byte came from the cameras"]
    if totals.found < totals.incidents:
        wrong.append(f"{totals.incidents - totals.found} of {totals.incidents} incidents were not asked about")
    if case.kbit_s_max is None and totals.share > SHARE_MAX:
        wrong.append(f"{totals.share:.2%} is over {SHARE_MAX:.0%}, most of it {totals.largest}")
    if case.kbit_s_max is not None and totals.kbit_s > case.kbit_s_max:
        wrong.append(f"{totals.kbit_s:.2f} kbit/s is over {case.kbit_s_max:g}, most of it {totals.largest}")
    return wrong


def report(totals: ByteBalance, case: Case) -> str:
    """Return a run as text."""
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(totals.by_kind.items(), key=lambda each: -each[1]))
    against = (
        f", the interface counted {totals.kernel} ({totals.sent / totals.kernel - 1:+.2%})" if totals.kernel else ""
    )
    lines = [
        f"{totals.case}: {totals.cameras} cameras, {totals.seconds:.0f} s: {totals.received} bytes in, "
        f"{totals.sent} up: {totals.share:.2%}, {totals.kbit_s:.2f} kbit/s a camera{against}",
        f"  {totals.found} of {totals.incidents} incidents asked about; questions: {totals.questions}, "
        f"{totals.settled} of them settled",
        f"  bytes: {kinds or 'none'}",
        *(f"  not asked about: {each}" for each in totals.missed),
        *(f"  MISSED: {each}" for each in faults(totals, case)),
    ]
    return "\n".join(lines)


def _cameras_of(case: Case, chosen: argparse.Namespace) -> tuple[LabelledCamera, ...]:
    if case.scene == "pets":
        return byte_balance.of_scenario(PETS, chosen.footage)
    return byte_balance.of_scene(case.scene, chosen.footage, chosen.lines, chosen.cameras)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uplink_share",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--seconds", type=float, default=150.0, help="of footage that may be played again (150)")
    parser.add_argument("--cameras", type=int, default=2, help="of rendered footage (2)")
    parser.add_argument("--lines", type=int, default=720, choices=(360, 720, 1080))
    parser.add_argument("--engine", default="{kind: redetect}", help="section `engine` of the worker file")
    parser.add_argument("--footage", type=Path, default=ROOT / "benchmarks" / "out" / "footage", help="made once, kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
