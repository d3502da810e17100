"""Memory that core and ingest hold: `vedette run` with one camera over RTSP, by process, as PSS.

    python -m benchmarks.memory                        # 100 s with the bundled clip; bar: 200 MB
    python -m benchmarks.memory --alone                # with libraries that no other process has mapped
    python -m benchmarks.memory --alone --quiet        # nothing to report, so no sandbox that shares them either
    python -m benchmarks.memory --libraries            # and what it is mapped from
    python -m benchmarks.memory --alone --shadow       # then with a candidate in shadow; bars: 260 MB, 1.6 x CPU

The site is one that is used: recorded, with an alert, linked to a broker where a nats-server is installed, its
dashboard's pages opened once.

PSS (proportional set size) divides what processes share among them, so another Vedette, or its tests, on the machine
make the figure too small: `--alone` copies the libraries (300 MB) first. Sandboxes come and go and are listed apart.
The figure is the mean of the last third: by then the model is loaded, an alert was raised and its evidence is cut.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from appliance.base import machine
from appliance.base.child_processes import SHADOW_FUNCTIONS
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.rollout import begin_shadow
from appliance.canary.proof_store import file_of
from appliance.detect.bundle_maker import describe_network, install_files
from appliance.store.paths import PROOFS
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.rtsp import FaultyRtspServer
from tests.support.ports import quiet_port

ROOT = Path(__file__).parents[1]
CLIP = ROOT / "fixtures" / "clips" / "gate.mp4"
BAR_MB = 200.0
SHADOW_BAR_MB, SHADOW_BAR_CPU = 260.0, 1.6  # with a candidate in shadow; CPU time against the same site without
SHADOW_S_MAX = 600.0  # until it has compared its first frame, on a machine that does other things
PAGES = (
    "/", "/cameras", "/cameras/gate", "/system", "/savings", "/settings", "/api/v1/alerts", "/api/v1/cameras",
    "/api/v1/system", "/metrics", "/readyz",
)  # fmt: skip
EVERY_S = 2.0
NOT_READY = 503  # of /readyz, as where a busy machine keeps a camera from being live
MB = 1024 * 1024
COUNTED = ("core", "ingest", "shadow")
Measured = tuple[dict[str, float], dict[str, float]]
LEFT_OUT = {
    "appliance", "cloud_worker", "openvino", "playwright", "torch", "nvidia", "moto", "onnx", "sympy", "networkx",
    "mypy", "botocore", "cfnlint", "pip", "hypothesis", "scipy", "pycocotools", "transformers",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as folder,
        FaultyRtspServer.in_thread({"main": chosen.clip}) as camera,
        _broker(Path(folder) / "nats") as broker,
    ):
        paths = [*([copied_libraries(Path(folder))] if chosen.alone else []), ROOT]
        path = Path(folder) / "site.yaml"
        port = quiet_port()
        settings = site(camera.url("main"), Path(folder) / "data", chosen.backend, port, broker, quiet=chosen.quiet)
        path.write_text(yaml.safe_dump(settings))
        child = subprocess.Popen(
            [sys.executable, "-m", "appliance", "run", "--config", str(path)],
            env={
                **os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "VEDETTE_MODELS": str(Path(folder) / "m"),
            },
        )  # fmt: skip
        beside: Measured | None = None
        try:
            found, cpu = watch(child, chosen.seconds, f"http://127.0.0.1:{port}")
            if chosen.shadow:
                begin_comparison(Path(folder))
                beside = watch(child, chosen.seconds, "")
            libraries = {
                _name(each.command, each.pid == child.pid): by_library(each.pid)
                for each in machine.usages(machine.process_family(child.pid) if chosen.libraries else ())
            }
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait(30)
    whole = table(found, cpu)
    print(f"{'core + ingest':<16} {whole:>7.1f} MB, bar {BAR_MB:.0f}: {'met' if whole <= BAR_MB else 'missed'}")
    if beside is not None:
        print("with a candidate in shadow:")
        both, share = (
            table(*beside),
            sum(map(beside[1].get, COUNTED, (0.0,) * 3)) / sum(map(cpu.get, COUNTED, (0.0,) * 3)),
        )
        met = both <= SHADOW_BAR_MB and share <= SHADOW_BAR_CPU
        print(
            f"{'with the shadow':<16} {both:>7.1f} MB, bar {SHADOW_BAR_MB:.0f}; {share:.2f} x CPU, bar "
            f"{SHADOW_BAR_CPU}: {'met' if met else 'missed'}"
        )
        return 0 if met else 1
    for process, files in libraries.items():
        for name, kilobytes in files.items():
            print(f"  {process:<14} {kilobytes / 1024:>7.1f} MB  {name}")
    return 0 if whole <= BAR_MB else 1


def table(mb: Mapping[str, float], cpu: Mapping[str, float]) -> float:
    """Print memory and CPU by process; return the megabytes of those that count."""
    for name in sorted(mb):
        print(f"{name:<16} {mb[name]:>7.1f} MB  {100 * cpu.get(name, 0.0):>6.2f} % of a core")
    return sum(mb.get(name, 0.0) for name in COUNTED)


def begin_comparison(folder: Path) -> None:
    """Install vedette-nano as another version and have it compared live; return once it is."""
    store = BundleStore(folder / "m" / "bundles")
    manifest, files = describe_network("vedette-nano", "candidate")
    install_files(store, manifest, files)
    begin_shadow(store, manifest.ref)
    kept, deadline = file_of(folder / "data" / PROOFS, str(manifest.ref)), time.monotonic() + SHADOW_S_MAX
    while not (kept.exists() and kept.read_bytes().count(b"\n") > 1):
        if time.monotonic() > deadline:
            raise SystemExit("no frame was compared")
        time.sleep(1.0)


def site(url: str, data: Path, backend: str, port: int, broker: str, *, quiet: bool) -> Mapping[str, object]:
    """Return a site of one camera, recorded, with a rule unless it is quiet.

    It has a dashboard, and a broker where there is one.
    """
    everywhere = [[0, 0], [1, 0], [1, 1], [0, 1]]
    rules = [] if quiet else [{"name": "enters", "kind": "enter", "zone": "all"}]
    return {
        "storage": {"dir": str(data), "disk_free_min_mb": 0},
        "detector": {"backend": backend},
        "cameras": {"gate": {"url": url, "zones": {"all": everywhere}, "rules": rules}},
        "dashboard": {"port": port},
        **({"uplink": {"url": broker}} if broker else {}),
    }


def open_pages(address: str) -> None:
    """As somebody does who looks through the dashboard."""
    for path in PAGES:
        try:
            with urllib.request.urlopen(address + path, timeout=30) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            if error.code != NOT_READY:
                raise


@contextlib.contextmanager
def _broker(folder: Path) -> Iterator[str]:
    """Yield the address of a nats-server of our own; an empty one if none is installed."""
    binaries = find_nats_servers()
    if not binaries:
        print("no nats-server: the site is one without a broker")
        yield ""
        return
    server = NatsServer(binaries[0], folder).start()
    try:
        yield server.url
    finally:
        server.stop()


def copied_libraries(folder: Path) -> Path:
    """Copy the libraries that the appliance needs into files that no other process has mapped.

    The folder is named as sandbox.confinement knows one of packages, or the media sandbox may not read all of them.
    """
    installed, copy = Path(sysconfig.get_paths()["platlib"]), folder / "site-packages"
    shutil.copytree(installed, copy, ignore=lambda _, names: [each for each in names if _is_left_out(each)])
    return copy


def watch(child: subprocess.Popen[bytes], seconds: float, dashboard: str) -> Measured:
    """Return the megabytes by process, the mean of the last third of the time, and the cores that each used then.

    The dashboard's pages are opened half-way, if there is an address. Raise SystemExit: core or ingest did not last.
    """
    opened = not dashboard
    used: dict[str, list[tuple[float, float]]] = {}
    seen: dict[str, list[float]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end and child.poll() is None:
        time.sleep(EVERY_S)
        if not opened and time.monotonic() > end - seconds / 2:
            opened = True
            open_pages(dashboard)
        late = time.monotonic() > end - seconds / 3
        now: Counter[str] = Counter()
        cpu: defaultdict[str, float] = defaultdict(float)
        for each in machine.usages(machine.process_family(child.pid)):
            now[_name(each.command, each.pid == child.pid)] += each.memory_bytes
            cpu[_name(each.command, each.pid == child.pid)] += each.cpu_s
        for name, amount in now.items() if late else ():
            seen.setdefault(name, []).append(amount / MB)
            used.setdefault(name, []).append((time.monotonic(), cpu[name]))
    if missing := {"core", "ingest"} - seen.keys():
        raise SystemExit(f"nothing was measured of {' and '.join(sorted(missing))}: the lines above may say why")
    cores = {
        name: (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0]) for name, rows in used.items() if len(rows) > 1
    }
    return {name: statistics.mean(amounts) for name, amounts in seen.items()}, cores


def by_library(pid: int) -> dict[str, int]:
    """Return kB of PSS by mapped file, the largest first; what is mapped from no file is `heap and anonymous`."""
    sums: Counter[str] = Counter()
    name = ""
    for line in (machine.PROC / str(pid) / "smaps").read_text().splitlines():
        if head := re.match(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)$", line):
            name = Path(head[1]).name if head[1].startswith("/") else "heap and anonymous"
        elif line.startswith("Pss:"):
            sums[name] += int(line.split()[1])
    return dict(sums.most_common(12))


def _is_left_out(name: str) -> bool:
    """Large, and not of the appliance; `.pth` files and ourselves would lead elsewhere."""
    return name.split(".", maxsplit=1)[0] in LEFT_OUT or name.endswith(".pth") or name.startswith("__editable__")


def _name(command: str, is_core: bool) -> str:
    if is_core:
        return "core"
    if SHADOW_FUNCTIONS in command:
        return "shadow"
    return "ingest" if "appliance.ingest" in command else "media sandbox"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clip", type=Path, default=CLIP)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--quiet", action="store_true", help="the camera has no rule, so no picture is ever cut")
    parser.add_argument("--backend", default="onnx")
    parser.add_argument("--alone", action="store_true", help="copy the libraries first: 300 MB of disk")
    parser.add_argument("--shadow", action="store_true", help="then again, with a candidate in shadow")
    parser.add_argument("--libraries", action="store_true", help="what it is mapped from")
    return parser


if __name__ == "__main__":
    sys.exit(main())
