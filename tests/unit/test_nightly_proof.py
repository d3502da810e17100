"""At night, networks that wait for proof are tried one after another, and cameras come first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

from appliance.base.child_processes import PARENT
from appliance.base.clock import ManualClock
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.manifest import BundleRef
from appliance.canary.candidate_comparison import Judgement, Outcome
from appliance.canary.candidates import BEGIN_HOUR, NightlyProof
from appliance.canary.proof_store import ProofReport, ProofStore
from appliance.detect.bundle_maker import describe_network, install_files
from appliance.health.load_shedding import LoadShedding, SheddingStep
from tests.support.waiting import until

DAY_S = 86_400.0


def install(store: BundleStore, version: str) -> BundleRef:
    manifest, files = describe_network("vedette-nano", version)
    install_files(store, manifest, files)
    return manifest.ref


def report(ref: BundleRef, outcome: Outcome) -> ProofReport:
    return ProofReport(str(ref), 1.0, Judgement(outcome), ("a", "b"), 9, 60.0, 6.0, ())


class Night:
    """A site whose trials only write down what they were asked for, and last until the file `go` is there."""

    def __init__(self, folder: Path) -> None:
        self.store = BundleStore(folder / "bundles")
        self.refs = [install(self.store, version) for version in ("1", "2", "3", "4")]
        self.noted, self.go = folder / "noted", folder / "go"
        script = folder / "prove.py"
        script.write_text(
            "import pathlib, sys, time\n"
            f"with open({str(self.noted)!r}, 'a') as file:\n    file.write(' '.join(sys.argv[1:]) + '\\n')\n"
            f"while not pathlib.Path({str(self.go)!r}).exists():\n    time.sleep(0.01)\n"
        )
        self.clock = ManualClock(datetime(2026, 3, 3, BEGIN_HOUR - 1, 59).astimezone().timestamp())
        self.shed = LoadShedding()
        self.proof = NightlyProof(
            folder, Path("site.yaml"), self.store, lambda: self.shed, self.clock, (sys.executable, str(script))
        )

    def lines(self) -> list[str]:
        return self.noted.read_text().splitlines() if self.noted.exists() else []


def test_what_waits_is_tried_once_a_night_and_what_is_known_is_not(tmp_path: Path) -> None:
    night = Night(tmp_path)
    on_probation, unsure, worse, _ = night.refs
    night.store.put_in_force(on_probation, "gate", state="probation")
    ProofStore(tmp_path).put(report(unsure, "not enough"))
    ProofStore(tmp_path).put(report(worse, "worse"))
    night.proof.run_once()
    assert night.lines() == [], "it is not night yet"
    night.clock.advance(120)
    night.proof.run_once()
    until(lambda: len(night.lines()) == 1)
    night.proof.run_once()  # the first one is still at work
    assert night.lines() == [f"models prove {on_probation} --config site.yaml --decide"]
    night.go.touch()
    until(lambda: night.proof.run_once() or len(night.lines()) == 2)  # type: ignore[func-returns-value]
    for _ in range(3):
        night.proof.run_once()
    night.proof.stop()
    assert [line.split()[2] for line in night.lines()] == [str(on_probation), str(unsure)]
    night.clock.advance(DAY_S)
    night.proof.run_once()
    until(lambda: len(night.lines()) == 3)
    night.proof.stop()


def test_a_trial_ends_when_the_appliance_sheds_load(tmp_path: Path) -> None:
    night = Night(tmp_path)
    night.store.put_in_force(night.refs[0], state="probation")
    night.clock.advance(120)
    night.proof.run_once()
    until(night.lines)
    child = night.proof._child
    assert child is not None
    night.shed = LoadShedding(heat=SheddingStep(1, "81 °C"))
    night.proof.run_once()
    assert child.returncode is not None
    night.shed = LoadShedding()
    night.proof.run_once()
    assert len(night.lines()) == 1, "not again in this night"


def test_a_trial_does_not_outlive_a_core_that_is_killed(tmp_path: Path) -> None:
    """Without systemd or a container around it nothing else would end the trial, which goes on beside the cameras."""
    trial, noted = tmp_path / "trial.py", tmp_path / "pid"
    trial.write_text(
        "import os, pathlib, time\nfrom appliance.base.child_processes import end_with_parent\nend_with_parent()\n"
        f"pathlib.Path({str(noted)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    core = (
        "import sys, time\nfrom pathlib import Path\n"
        "from appliance.canary.candidates import NightlyProof\n"
        f"proof = NightlyProof(Path('.'), Path('site.yaml'), None, None, None, (sys.executable, {str(trial)!r}))\n"
        "proof._start(('models', 'prove'))\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", core]) as parent:
        until(lambda: noted.exists() and noted.read_text(), 60)
        parent.send_signal(signal.SIGKILL)
    until(lambda: not is_running(int(noted.read_text())))


def is_running(pid: int) -> bool:
    """A process that was killed, and that nobody has reaped yet, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_command_ends_at_once_where_who_started_it_is_gone() -> None:
    gone = {**os.environ, PARENT: "1"}  # another process than the one that starts it here
    done = subprocess.run([sys.executable, "-m", "appliance", "--help"], env=gone, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
