"""A second network examines live frames beside the one in force: it decides nothing, and its faults are its own.

tests/unit/test_shadow_trial.py says when it gives way, and what its energy is.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import SystemClock
from appliance.bundle.bundle_store import BundleStore, incoming
from appliance.bundle.rollout import begin_shadow, end_shadow, shadow_of
from appliance.canary.proof_store import ProofStore
from appliance.config import SiteConfig
from appliance.core import shadow_trial
from appliance.core.detector_switch import DetectorSwitch
from appliance.core.ingest_supervisor import IngestSupervisor
from appliance.core.shadow_trial import ShadowSources, ShadowTrial
from appliance.health.load_shedding import NOTHING_SHED
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.sensors.linux_sensors import NOTHING, MemoryReading
from appliance.types import Gap
from tests.servers.rtsp import FaultyRtspServer
from tests.support import candidate_networks as candidates
from tests.support.waiting import until
from tests.system.test_detector_switch import install

CLIP = Path(__file__).parents[2] / "fixtures" / "clips" / "gate.mp4"
noise = partial(candidates.changed, change=partial(candidates.noisy, share=1e-4, seed=1))
blind = partial(candidates.changed, change=partial(candidates.blind_at_night, mean_min=2.0))


class Appliance:
    """One RTSP camera, the real ingest process, the switch, and the shadow, which looks as often as it can."""

    def __init__(self, folder: Path, cpu_s: float = 60.0) -> None:
        self.folder, self.heard = folder, []
        self.heard: list[Any]
        self.store = BundleStore(folder / "models" / "bundles")
        incoming(self.store.root)
        self.server = FaultyRtspServer.in_thread({"gate": CLIP})
        self.server.__enter__()
        site = {
            "storage": {"dir": str(folder / "data"), "segment_s": 2, "disk_free_min_mb": 0},
            "detector": {"backend": "onnx", "device": "cpu", "precision": "fp32"},
            "cameras": {"gate": {"url": self.server.url("gate"), "detect": {"heartbeat_s": 0.5, "fps": 2}}},
        }
        config, clock, root = SiteConfig.model_validate(site).for_ingest(), SystemClock(), folder / "data"
        self.proofs, self.kills = ProofStore(root), 0
        self.supervisor = IngestSupervisor(config, clock, replace_network=lambda reason: False)
        self.switch = DetectorSwitch(config, self.store, self.supervisor, clock, MemoryReading, self.proofs.agrees)
        sources = ShadowSources(
            lambda: NOTHING_SHED, lambda: SensorStatus(NOTHING, MemoryReading(), None),
            lambda: self.switch.status.progress in ("trying", "loading"),
        )  # fmt: skip
        self.shadow = ShadowTrial(
            root, lambda: self.switch.settings, self.store, self.supervisor, sources, clock, cpu_s=cpu_s, nice=0
        )
        self.ends = threading.Event()
        self._threads = [
            threading.Thread(target=self.supervisor.run, args=(self,)), threading.Thread(target=self.switch.run),
            threading.Thread(target=self._compare),
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def _compare(self) -> None:
        while not self.ends.wait(0.05):
            self.shadow.run_once()

    def take(self, message: Any) -> None:
        self.heard.append(message)

    def lost(self, reason: str, *, intended: bool = False) -> None:
        pass

    @property
    def child(self) -> int:
        """Process id of the sandbox; 0: there is none."""
        found = self.shadow._child
        return 0 if found is None else found.pid

    def end(self) -> None:
        self.ends.set()
        self.shadow.stop()
        self.switch.stop()
        self.supervisor.stop()
        for thread in self._threads:
            thread.join(60)
        self.server.__exit__(None, None, None)


@pytest.fixture(scope="module", autouse=True)
def a_loaded_appliance_compares_as_well() -> Iterator[None]:
    """Beside other tests the detector is at work most of the time, for which the shadow would give way."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shadow_trial, "LOAD_MAX", float("inf"))
        yield


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Appliance]]:
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path / "models"))
    made: list[Appliance] = []

    def appliance(**given: Any) -> Appliance:
        made.append(Appliance(tmp_path, **given))
        return made[-1]

    yield appliance
    for each in made:
        each.end()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    folder = tmp_path_factory.mktemp("lasting")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VEDETTE_MODELS", str(folder / "models"))
        made = Appliance(folder)
        yield made
        made.end()


@pytest.fixture
def site(lasting: Appliance) -> Iterator[Appliance]:
    """An appliance that several tests share: nothing is compared when one begins, and ingest is started anew only where
    a test killed it."""
    yield lasting
    end_shadow(lasting.store)
    until(lambda: not lasting.shadow.status.progress and lasting.child == 0, 60, lambda: lasting.shadow.status)
    assert lasting.supervisor.starts == 1 + lasting.kills


@pytest.mark.timeout(600)
def test_an_equal_one_agrees_and_neither_kill_costs_more_than_its_own_child(
    site: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_trial, "REST_S", 1.0)
    ref = install(site.store, "1", noise, tmp_path)
    begin_shadow(site.store, ref)
    until(lambda: site.shadow.status.frames >= 4, 60, lambda: site.shadow.status)
    assert site.shadow.status.memory_bytes > 0
    os.kill(site.child, signal.SIGKILL)
    seen = site.shadow.status.frames
    until(lambda: site.shadow.status.frames >= seen + 4, 60, lambda: site.shadow.status)
    os.kill(site.supervisor.status.pid, signal.SIGKILL)
    site.kills += 1
    seen = site.shadow.status.frames
    until(lambda: site.shadow.status.frames >= seen + 4, 60, lambda: site.shadow.status)
    until(lambda: (found := site.proofs.of(str(ref), "live")) and found.judgement.objects > 0, 60)
    report = site.proofs.of(str(ref), "live")
    assert report is not None
    assert report.judgement.outcome != "worse", report.judgement
    assert report.judgement.lost == 0
    assert report.costs is not None
    assert report.costs[1].cpu_ms
    assert site.store.in_force().everywhere is None, "it decides nothing"
    assert site.supervisor.starts == 1 + site.kills, "its own kill alone"


@pytest.mark.timeout(600)
def test_a_blind_one_on_probation_answers_and_is_not_proven_but_leaves(site: Appliance, tmp_path: Path) -> None:
    ref = install(site.store, "2", blind, tmp_path)
    site.store.put_in_force(ref, state="probation")
    until(lambda: ref in site.store.in_force().quarantined, 180, lambda: site.shadow.status)
    assert "it loses" in site.store.in_force().quarantined[ref]
    assert site.store.in_force().everywhere is None
    report = site.proofs.of(str(ref), "live")
    assert report is not None
    assert {each.found for each in report.differing} == {"old"}
    assert not [each for each in site.heard if isinstance(each, Gap)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["fails", "hangs"])
def test_one_that_fails_or_hangs_is_stopped_and_ingest_goes_on(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(shadow_trial, "FAILURES_MAX", 2)  # again, and not once more: each try starts two children
    change = {"fails": candidates.fails, "hangs": candidates.hangs}[fault]
    site = request.getfixturevalue("make")(cpu_s=2.0) if fault == "hangs" else request.getfixturevalue("site")
    ref = install(site.store, "3", partial(candidates.changed, change=change), tmp_path)
    begin_shadow(site.store, ref)
    until(lambda: ref in site.store.in_force().quarantined, 180, lambda: site.shadow.status)
    until(lambda: shadow_of(site.store) is None and site.child == 0, 20)
    assert site.supervisor.starts == 1 + site.kills
