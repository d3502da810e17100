"""When a second network examines frames and when it waits: with a scripted child and ingest process.

tests/system/test_shadow.py has real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.base.clock import ManualClock
from appliance.base.local_files import live_memory
from appliance.bundle.bundle_store import BundleStore
from appliance.bundle.rollout import begin_shadow
from appliance.canary.proof_store import ProofStore
from appliance.config import SiteConfig
from appliance.core import shadow_trial
from appliance.core.ingest_supervisor import IngestStatus
from appliance.core.shadow_trial import METER_S, REPORT_EVERY, REST_S, ShadowSources, ShadowTrial
from appliance.detect.bundle_maker import describe_network, install_files
from appliance.health.load_shedding import LoadShedding, SheddingStep
from appliance.sensors.appliance_sensors import SensorStatus
from appliance.sensors.linux_sensors import NOTHING, MemoryReading
from appliance.types import IngestHealth, SampleCommand, SampledFrame


class Child:
    """A sandbox that answers at once. `open`: those that are not closed."""

    open: set[Child] = set()
    pid = 0

    def __init__(self, *given: object) -> None:
        self.open.add(self)
        self.measured_s = -1.0  # it has not loaded a network

    def call(self, function: str, values: Mapping[str, Any], **limits: float) -> dict[str, Any]:
        if function == "load_network":
            self.measured_s = values["measure_s"]
            return {"model": values["detector"]["model"], "side": 320, "memory_mb": 50.0, "cpu_ms": 20.0, "wall_ms": 20}
        return {"light": "day", "cpu_ms": 20.0, "objects": []}

    def close(self) -> None:
        self.open.discard(self)


class Site:
    """What the shadow reads. Ingest is idle and hands over a frame each time it is asked."""

    def __init__(self, root: Path) -> None:
        self.root, self.store, self.clock = root, BundleStore(root / "bundles"), ManualClock()
        self.memory, self.shed, self.is_switching = MemoryReading(), LoadShedding(), False
        self.draws: float | None = None  # watts of the candidate; None: there is no meter
        health = IngestHealth(t=1.0, detector_ms=20.0, queue=0, rss_bytes=1)
        self.status, self._frames = IngestStatus(pid=1, health=health), 0
        self.config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
        manifest, files = describe_network("vedette-nano", "2")
        install_files(self.store, manifest, files)
        self.ref = manifest.ref
        begin_shadow(self.store, self.ref)

    def trial(self) -> ShadowTrial:
        sources = ShadowSources(
            lambda: self.shed, lambda: SensorStatus(NOTHING, self.memory, self.watts()), lambda: self.is_switching
        )  # fmt: skip
        self.made = ShadowTrial(self.root, lambda: self.config, self.store, self, sources, self.clock)  # type: ignore[arg-type]
        return self.made

    def watts(self) -> float | None:
        """What a power meter says: 3 W at rest, 2 more with the network in force, `draws` more with the candidate."""
        if self.draws is None:
            return None
        return 3.0 + any(each.measured_s > 0 for each in Child.open) * (self.draws if self.made._is_candidate else 2.0)

    def sample(self, command: SampleCommand, wait_s: float, stop: threading.Event) -> SampledFrame:
        self._frames += 1
        model = self.config.detector.model
        return SampledFrame(id=command.id, camera=command.camera, t=1e9 + self._frames, model=model, size=(4, 2))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(shadow_trial, "Sandbox", Child)
    Child.open.clear()
    yield Site(tmp_path)
    folder = live_memory(tmp_path)
    if folder is not None:
        folder.rmdir()


def short_of_memory(site: Site) -> None:
    site.memory = MemoryReading(available_bytes=10_000_000)


def hot(site: Site) -> None:
    site.shed = LoadShedding(heat=SheddingStep(1, "83 degrees"))


def loaded(site: Site) -> None:
    assert site.status.health is not None
    site.status = replace(site.status, health=replace(site.status.health, load=0.8))


def switching(site: Site) -> None:
    site.is_switching = True


@pytest.mark.parametrize(
    ("happens", "reason"),
    [
        (short_of_memory, "10 MB of memory are left"), (hot, "83 degrees"), (loaded, "at work 80% of the time"),
        (switching, "its network replaced"),
    ],
)  # fmt: skip
def test_it_gives_way_first_and_comes_back(site: Site, happens: Callable[[Site], None], reason: str) -> None:
    trial, before = site.trial(), (site.memory, site.shed, site.status, site.is_switching)
    trial.run_once()
    assert (trial.status.progress, len(Child.open)) == ("looking", 1)
    happens(site)
    trial.run_once()
    assert (trial.status.progress, len(Child.open)) == ("waiting", 0)
    assert reason in trial.status.reason
    site.memory, site.shed, site.status, site.is_switching = before
    site.clock.advance(REST_S - 1)
    trial.run_once()
    assert (trial.status.progress, len(Child.open)) == ("waiting", 0), "to load networks is a load itself"
    site.clock.advance(2)
    trial.run_once()
    assert (trial.status.progress, len(Child.open)) == ("looking", 1)


def test_where_memory_is_short_no_child_is_begun_and_it_says_what_helps(site: Site) -> None:
    site.memory = MemoryReading(available_bytes=100_000_000)
    trial = site.trial()
    trial.run_once()
    assert (trial.status.progress, Child.open) == ("waiting", set())
    assert "MB are left" in trial.status.reason
    assert "raise the memory" in trial.status.reason
    site.memory = MemoryReading(available_bytes=500_000_000)
    trial.run_once()
    assert trial.status.progress == "looking"


def test_an_appliance_that_was_restarted_goes_on_where_it_was(site: Site) -> None:
    trial = site.trial()
    for _ in range(6):
        trial.run_once()
    trial.stop()
    again = site.trial()
    again.run_once()
    assert again.status.frames == 7


def test_one_that_takes_over_half_as_much_energy_again_leaves_where_power_is_measured(site: Site) -> None:
    """A stand-in for a meter: here is none, so joules of a real one are unmeasured."""
    site.draws = 10.0
    trial = site.trial()
    trial.run_once()
    (child,) = Child.open
    assert child.measured_s == METER_S
    for _ in range(REPORT_EVERY - 1):
        assert site.store.in_force().quarantined == {}
        trial.run_once()
    assert "times the energy" in site.store.in_force().quarantined[site.ref]
    report = ProofStore(site.root).of(str(site.ref), "live")
    assert report is not None
    assert report.costs is not None
    assert [each.joules for each in report.costs] == [pytest.approx(0.04), pytest.approx(0.2)], "20 ms of 2 W and 10 W"
    trial.run_once()
    assert (Child.open, trial.status.progress) == (set(), "")
