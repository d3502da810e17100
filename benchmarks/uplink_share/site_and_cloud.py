"""The parts of a site and of the cloud, started as their users start them; where allowed, with a cable between.

With root the site lives in a network namespace and the cloud in another: packets are then as large as on a cable, and
the kernel's own counter of the interface stands beside the ledger. Without, all is on loopback, where segments are of
64 KB: fewer headers than on a cable.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.ingest.recall_score import FrameClock
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.netns import Cable, cable, why_not
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PORT = 4222
START_S_MAX = 180.0
STOP_S_MAX = 120.0

CommandPrefix = tuple[str, ...]


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


@dataclass(slots=True)
class CameraServer:
    """The cameras' server. taken: by camera, when its frames were taken."""

    port: int
    taken: Mapping[str, FrameClock]


@contextlib.contextmanager
def camera_server(uplink: UplinkEnds, films: Mapping[str, tuple[Path, float]]) -> Iterator[CameraServer]:
    """Serve the cameras at the site's end. `films` holds file and rate by camera."""
    mounts = [f"{name}={path}" for name, (path, _) in films.items()]
    child = subprocess.Popen(
        [*uplink.site, sys.executable, "-m", "benchmarks.ingest.cameras", *mounts],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        port = json.loads(child.stdout.readline())["port"]
        served = CameraServer(port, {name: FrameClock(fps) for name, (_, fps) in films.items()})
        threading.Thread(target=_read_frame_times, args=(child, served), name="witness", daemon=True).start()
        yield served
    finally:
        child.terminate()
        child.wait(STOP_S_MAX)


def _read_frame_times(child: subprocess.Popen[bytes], served: CameraServer) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        message = json.loads(line)
        served.taken[message["camera"]].note(message["n"], message["t"])
