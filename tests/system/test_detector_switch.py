"""Another network takes over while real cameras go on: no gap, and what fails never decides."""

from __future__ import annotations

import errno
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from appliance.base.backoff import Backoff
from appliance.base.clock import ManualClock, SystemClock
from appliance.base.errors import PreconditionError
from appliance.bundle.bundle_store import BundleStore, incoming
from appliance.bundle.manifest import BundleRef
from appliance.bundle.rollout import advance_rollout, begin_rollout, rollout_of
from appliance.config import SiteConfig
from appliance.core import ingest_supervisor
from appliance.core.detector_switch import FAILS_AFTER, WORKS_AFTER, DetectorSwitch
from appliance.core.ingest_supervisor import IngestStatus, IngestSupervisor
from appliance.core.ingest_trial import IngestTooSlow, IngestTrial, NetworkTrial
from appliance.detect.bundle_maker import describe_file, describe_network, install_files
from appliance.sensors.linux_sensors import MemoryReading
from appliance.types import CameraState, FrameBoxes, Gap, SegmentRow, StreamHeader
from tests.servers.rtsp import FaultyRtspServer
from tests.support import candidate_networks as candidates
from tests.support.scripted_sources import clip
from tests.support.waiting import PATIENCE, until

CAMERAS = ("gate", "yard")
GAP_S_MAX = 1.5  # between two examined frames of a camera: a second, and a busy machine
noise = partial(candidates.noisy, share=1e-4)


def install(store: BundleStore, version: str, write: Callable[[Path], None], folder: Path) -> BundleRef:
    """Install `night@VERSION`, whose file `write` makes of vedette-nano."""
    path = folder / f"night-{version}.onnx"
    write(path)
    manifest, files = describe_network("vedette-nano", version)
    data = path.read_bytes()
    described = describe_file(path.name, data)
    entry = manifest.model.model_copy(update={"file": path.name, "sha256": described.sha256, "variants": {}})
    files = {path.name: data, manifest.card: files[manifest.card]}
    kept = {path.name: described, manifest.card: manifest.files[manifest.card]}
    manifest = manifest.model_copy(update={"name": "night", "entries": {"night": entry}, "files": kept})
    install_files(store, manifest, files)
    return manifest.ref


class Site:
    """Two RTSP cameras that loop, the real ingest process, its supervisor and the switch, each in its thread."""

    def __init__(self, folder: Path, try_s_max: float = 300.0, blames: bool = True) -> None:
        self.heard: list[tuple[float, Any]] = []
        self.memory = MemoryReading()
        self._blames = blames  # networks on probation for lives of ingest that were short
        self.store = BundleStore(folder / "models" / "bundles")
        incoming(self.store.root)  # the folder is there when ingest confines itself
        film = clip(folder / "film.mp4", 100, fps=10, gop=10)
        self.cameras = FaultyRtspServer.in_thread(dict.fromkeys(CAMERAS, film))
        self.cameras.__enter__()
        site = {
            "storage": {"dir": str(folder / "data"), "segment_s": 2, "disk_free_min_mb": 0},
            "health": {"ignore": ["moved"]},  # the film is stripes that change with every picture: no view to learn
            "detector": {"backend": "onnx", "device": "cpu", "precision": "fp32"},  # nothing is measured
            # Twice a second is often enough: every frame of the film is a change, and would be examined.
            "cameras": {
                name: {"url": self.cameras.url(name), "detect": {"heartbeat_s": 0.5, "fps": 2}} for name in CAMERAS
            },
        }
        config, clock = SiteConfig.model_validate(site).for_ingest(), SystemClock()
        self.supervisor = IngestSupervisor(config, clock, replace_network=self._leave_probation)
        self.switch = DetectorSwitch(
            config, self.store, self.supervisor, clock, lambda: self.memory, lambda ref: False,
            try_s_max=try_s_max,
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self.supervisor.run, args=(self,)), threading.Thread(target=self.switch.run)
        ]  # fmt: skip
        for thread in self._threads:
            thread.start()

    def take(self, message: Any) -> None:
        self.heard.append((time.monotonic(), message))

    def lost(self, reason: str, *, intended: bool = False) -> None:
        pass

    def _leave_probation(self, reason: str) -> bool:
        return self._blames and bool(self.store.end_probation(reason))

    def end(self) -> None:
        self.switch.stop()
        self.supervisor.stop()
        for thread in self._threads:
            thread.join(60)
        self.cameras.__exit__(None, None, None)

    def of(self, kind: type, since: int = 0) -> list[Any]:
        return [message for _, message in tuple(self.heard[since:]) if isinstance(message, kind)]

    def is_examined_by(self, network: str, since: int = 0) -> bool:
        """Every camera has boxes after a header of this network, which is its last one."""
        heard = [message for _, message in tuple(self.heard)]
        for camera in CAMERAS:
            of_camera = [message for message in heard if getattr(message, "camera", "") == camera]
            begins = [at for at, message in enumerate(of_camera) if isinstance(message, StreamHeader)]
            if not begins or not of_camera[begins[-1]].model.startswith(network):
                return False
            if not any(isinstance(each, FrameBoxes) and each.looked for each in of_camera[begins[-1] :]):
                return False
        return bool(self.of(FrameBoxes, since))

    def network_of(self, camera: str) -> str:
        """The model of its last header that boxes followed."""
        heard = [message for _, message in tuple(self.heard) if getattr(message, "camera", "") == camera]
        begins = [at for at, message in enumerate(heard) if isinstance(message, StreamHeader)]
        seen = any(isinstance(each, FrameBoxes) and each.looked for each in heard[begins[-1] :])
        return heard[begins[-1]].model if seen else ""

    def longest_gap_s(self, camera: str, since: int) -> float:
        """Between two examined frames, by the camera's clock."""
        times: list[float] = [each.t for each in self.of(FrameBoxes, since) if each.camera == camera and each.looked]
        return max(b - a for a, b in itertools.pairwise(times))


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Site]]:
    monkeypatch.setenv("VEDETTE_MODELS", str(tmp_path / "models"))
    made: list[Site] = []

    def site(**given: Any) -> Site:
        made.append(Site(tmp_path, **given))
        until(lambda: made[-1].is_examined_by("vedette-nano"), 20)
        return made[-1]

    yield site
    for each in made:
        each.end()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that several tests share: when each begins, all cameras are examined by what comes with Vedette."""
    folder = tmp_path_factory.mktemp("lasting")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VEDETTE_MODELS", str(folder / "models"))
        made = Site(folder)
        until(lambda: made.is_examined_by("vedette-nano"), 20)
        yield made
        made.end()


@pytest.mark.timeout(600)
def test_cameras_go_on_while_another_network_takes_over_and_again(lasting: Site, tmp_path: Path) -> None:
    site, starts, began = lasting, lasting.supervisor.starts, len(lasting.heard)
    before = {camera: site.network_of(camera).partition("@")[0] for camera in CAMERAS}
    for version in ("1", "2"):  # the second round as the first
        write = partial(candidates.changed, change=partial(noise, seed=int(version)))
        site.store.put_in_force(install(site.store, version, write, tmp_path), state="probation")
        until(lambda version=version: site.is_examined_by(f"night-{version}"), 60, lambda: site.switch.status)  # type: ignore[misc]
    site.store.roll_back()  # both were on probation: what was proven before is what comes with Vedette
    until(lambda: site.is_examined_by("vedette-nano", len(site.heard) - 1), 60, lambda: site.switch.status)
    assert site.supervisor.starts == starts
    assert site.of(Gap, began) == []
    assert {each.state for each in site.of(CameraState, began)} <= {"live"}, "no camera was lost"
    for camera in CAMERAS:
        models = [each.model.partition("@")[0] for each in site.of(StreamHeader, began) if each.camera == camera]
        assert models == ["night-1", "night-2", before[camera]]
        assert site.longest_gap_s(camera, began) < GAP_S_MAX * PATIENCE
        rows = {each.path: each for each in site.of(SegmentRow, began) if each.camera == camera}
        begins = sorted(each.t_start for each in rows.values())
        assert len(begins) > 2, "it records all the time"


@pytest.mark.timeout(600)
def test_one_camera_gets_a_network_of_its_own_and_the_other_is_not_touched(lasting: Site, tmp_path: Path) -> None:
    site, began = lasting, len(lasting.heard)
    ref = install(site.store, "4", partial(candidates.changed, change=partial(noise, seed=4)), tmp_path)
    site.store.put_in_force(ref, "gate", state="probation")
    until(lambda: site.network_of("gate").startswith("night-4"), 60, lambda: site.switch.status)
    before = len(site.heard)
    until(lambda: {each.camera for each in site.of(FrameBoxes, before) if each.looked} == set(CAMERAS), 20)
    assert [each for each in site.of(StreamHeader, began) if each.camera == "yard"] == [], "its session went on"
    pid = site.supervisor.status.pid
    os.kill(pid, signal.SIGKILL)  # the next process has both from its start
    until(lambda: site.supervisor.status.pid not in (0, pid), 20)
    started = len(site.heard)
    until(lambda: {each.camera for each in site.of(FrameBoxes, started) if each.looked} == set(CAMERAS), 20)
    assert site.network_of("gate").startswith("night-4")
    assert site.network_of("yard").startswith("vedette-nano")
    site.store.roll_back("gate")
    until(lambda: site.is_examined_by("vedette-nano"), 60, lambda: site.switch.status)


@pytest.mark.parametrize("fault", ["refused", "fails", "hangs"])
def test_a_network_that_does_not_come_up_is_put_in_quarantine_and_nothing_else_happens(
    request: pytest.FixtureRequest, tmp_path: Path, fault: str
) -> None:
    changes = {"fails": candidates.fails, "hangs": candidates.hangs}
    write = partial(candidates.changed, change=changes[fault]) if fault in changes else candidates.truncated
    site = request.getfixturevalue("make")(try_s_max=15.0) if fault == "hangs" else request.getfixturevalue("lasting")
    began, starts = len(site.heard), site.supervisor.starts
    ref = install(site.store, {"refused": "7", "fails": "8", "hangs": "9"}[fault], write, tmp_path)
    site.store.put_in_force(ref, state="probation")
    until(lambda: ref in site.store.in_force().quarantined, 90)
    until(lambda: site.switch.fault, 10)
    assert site.switch.status.progress == "refused"
    before = len(site.heard)
    until(lambda: site.is_examined_by("vedette-nano", before), 30)
    assert site.store.in_force().everywhere is None
    assert (site.supervisor.starts, site.of(Gap, began)) == (starts, [])
    assert site.of(StreamHeader, began) == [], "no session ended"


def test_where_memory_is_short_ingest_is_started_anew_and_it_says_so(lasting: Site, tmp_path: Path) -> None:
    site, starts = lasting, lasting.supervisor.starts
    site.memory = MemoryReading(available_bytes=65_000_000)
    write = partial(candidates.changed, change=partial(noise, seed=1))
    site.store.put_in_force(install(site.store, "3", write, tmp_path), state="probation")
    until(lambda: site.is_examined_by("night-3"), 60, lambda: site.switch.status)
    assert site.supervisor.starts == starts + 1
    assert "two networks need" in site.switch.status.reason
    assert "started anew" in site.switch.fault
    site.memory = MemoryReading()
    site.store.roll_back()
    until(lambda: site.is_examined_by("vedette-nano"), 60, lambda: site.switch.status)


KILLS = [pytest.param(26, 3, id="few")] + [
    pytest.param(seed, 25, id=f"part-{seed}-of-8", marks=pytest.mark.slow) for seed in range(1, 9)
]  # 200 in all; a run that was cut goes on with the parts that are left


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("seed", "kills"), KILLS)
def test_kill_9_of_ingest_at_any_moment_of_a_switch_leaves_a_network_that_works(
    make: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kills: int
) -> None:
    """The core's part of a switch is the pointer alone, which tests/system/test_bundle_kill.py kills."""
    monkeypatch.setattr(ingest_supervisor, "Backoff", lambda *_: Backoff(0.5, 0.5))  # the pause is no part of a switch
    site, drawn = make(blames=False), random.Random(seed)
    refs = [
        install(site.store, version, partial(candidates.changed, change=partial(noise, seed=int(version))), tmp_path)
        for version in ("1", "2")
    ]
    for number in range(kills):
        ref = refs[number % 2]
        site.heard.clear()  # another network is another session: its header is still to come
        site.store.put_in_force(ref, state="probation")
        threading.Event().wait(drawn.uniform(0, 4.0))  # a switch takes some three seconds
        pid = site.supervisor.status.pid
        if pid:
            os.kill(pid, signal.SIGKILL)
        until(lambda ref=ref: site.is_examined_by(f"night-{ref.version}"), 60, lambda: site.switch.status)  # type: ignore[misc]
        assert site.store.in_force().quarantined == {}, "a kill is no fault of the network"
        site.store.settle(proven=True)


def test_some_cameras_get_it_first_then_all_and_a_quarantine_ends_it(tmp_path: Path) -> None:
    store, counted = BundleStore(tmp_path / "bundles"), Counted()
    cameras = {name: {"url": "rtsp://127.0.0.1/x"} for name in CAMERAS}
    config = SiteConfig.model_validate({"cameras": cameras}).for_ingest()
    agreed: set[BundleRef] = set()
    good, bad = (
        install(store, v, partial(candidates.changed, change=partial(noise, seed=1)), tmp_path) for v in ("1", "2")
    )
    begin_rollout(store, good, ["gate"])
    switch = DetectorSwitch(config, store, counted, SystemClock(), MemoryReading, agreed.__contains__)  # type: ignore[arg-type]
    switch.run_once()
    assert store.in_force().everywhere is None
    with pytest.raises(PreconditionError, match="is being rolled out"):
        begin_rollout(store, bad, ["gate"])
    counted.answered = WORKS_AFTER
    switch.run_once()
    assert store.in_force().everywhere is None, "it answered, and nothing shows that it sees"
    agreed.add(good)
    switch.run_once()
    table = store.in_force()
    assert table.everywhere is not None
    assert (table.everywhere.bundle, table.everywhere.state, table.cameras) == (good, "probation", {})
    assert rollout_of(store) is None

    store.settle(proven=True)
    begin_rollout(store, bad, ["yard"])
    store.quarantine(bad, "a trial calls it worse")
    assert "has ended" in advance_rollout(store)
    assert {store.in_force().of(name).bundle for name in CAMERAS} == {good}  # type: ignore[union-attr]
    assert (rollout_of(store), advance_rollout(store)) == (None, "")


class Counted:
    """A supervisor that says how many frames a camera's network answered, and has no time to try one. Nothing runs."""

    def __init__(self) -> None:
        self.answered = self.failed = self.restarts = 0
        self.config: Any = None
        self.status, self.trial = IngestStatus(pid=1), self

    def adopt(self, config: Any) -> None:
        self.config = config

    def examined(self, camera: str) -> Any:
        return self

    def restart(self) -> None:
        self.restarts += 1

    def run(self, *args: Any, **named: Any) -> Any:
        raise IngestTooSlow("it did not load within 3600 s, 12 s of CPU time")


class Tried(Counted):
    """A supervisor that has tried a network: 50 MB."""

    def run(self, *args: Any, **named: Any) -> NetworkTrial:
        return NetworkTrial({"": self.config.detector}, {"": 50_000_000})


def test_without_memory_for_two_networks_ingest_is_started_anew_and_it_says_so(tmp_path: Path) -> None:
    store, tried, memory = BundleStore(tmp_path / "bundles"), Tried(), MemoryReading(available_bytes=65_000_000)
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    ref = install(store, "1", partial(candidates.changed, change=partial(noise, seed=1)), tmp_path)
    switch = DetectorSwitch(config, store, tried, SystemClock(), lambda: memory, lambda ref: True)  # type: ignore[arg-type]
    store.put_in_force(ref, state="probation")
    switch.run_once()
    assert (tried.restarts, switch.status.progress) == (1, "restarted")
    assert "two networks need 139 MB of memory at once, and 65 MB are left" in switch.status.reason
    assert "started anew" in switch.fault
    switch.run_once()
    assert (tried.restarts, store.in_force().quarantined) == (1, {}), "once, and the network is not blamed"


def test_a_network_for_which_a_busy_board_had_no_time_is_taken_back_and_not_blamed(tmp_path: Path) -> None:
    store, counted = BundleStore(tmp_path / "bundles"), Counted()
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    ref = install(store, "1", partial(candidates.changed, change=partial(noise, seed=1)), tmp_path)
    switch = DetectorSwitch(config, store, counted, SystemClock(), MemoryReading, lambda ref: True)  # type: ignore[arg-type]
    store.put_in_force(ref, state="probation")
    switch.run_once()
    assert (store.in_force().everywhere, store.in_force().quarantined) == (None, {})
    assert "not blamed" in switch.fault
    switch.run_once()
    store.put_in_force(ref, state="probation")  # it may be tried again


def test_a_moment_without_free_files_neither_blames_a_network_nor_takes_it_out_of_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, counted = BundleStore(tmp_path / "bundles"), Counted()
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    refs = [install(store, v, partial(candidates.changed, change=partial(noise, seed=1)), tmp_path) for v in "12"]
    store.put_in_force(refs[0])
    switch = DetectorSwitch(config, store, counted, SystemClock(), MemoryReading, lambda ref: True)  # type: ignore[arg-type]

    def lacking(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as short:
        short.setattr(Path, "read_bytes", lacking)
        switch.run_once()
    assert (switch.status.progress, switch.fault) == ("", "")
    store.put_in_force(refs[1], state="probation")
    counted.trial = IngestTrial(("vedette",), SystemClock(), threading.Event())  # type: ignore[assignment]
    with monkeypatch.context() as short:
        short.setattr(subprocess, "Popen", lacking)
        switch.run_once()
    assert store.in_force().quarantined == {}


def test_a_rollout_that_a_pin_stops_is_told_once_a_minute_and_not_each_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, counted, clock = BundleStore(tmp_path / "bundles"), Counted(), ManualClock()
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    refs = [install(store, v, partial(candidates.changed, change=partial(noise, seed=1)), tmp_path) for v in "12"]
    store.put_in_force(refs[0])
    store.settle(pinned=True)
    begin_rollout(store, refs[1], ["gate"])
    store.settle("gate", proven=True)
    switch = DetectorSwitch(config, store, counted, clock, MemoryReading, lambda ref: True)  # type: ignore[arg-type]
    for _ in range(50):
        switch.run_once()
        clock.advance(1.0)
    assert len([each for each in caplog.records if "pinned" in each.message]) == 1
    assert rollout_of(store) is not None


def test_an_appliance_that_ends_during_a_trial_takes_no_network_back(tmp_path: Path) -> None:
    store, counted, ending = BundleStore(tmp_path / "bundles"), Counted(), threading.Event()
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    ref = install(store, "1", partial(candidates.changed, change=partial(noise, seed=1)), tmp_path)
    loads = (sys.executable, "-c", "import time; time.sleep(60)")
    counted.trial = IngestTrial(loads, SystemClock(), ending)  # type: ignore[assignment]
    switch = DetectorSwitch(config, store, counted, SystemClock(), MemoryReading, lambda ref: True)  # type: ignore[arg-type]
    before = store.put_in_force(ref, state="probation")
    ending.set()
    switch.run_once()
    assert store.in_force().everywhere == before, "the next start tries it"
    assert not switch.fault


def test_a_network_on_probation_is_proven_by_its_answers_and_leaves_without_any(tmp_path: Path) -> None:
    store, counted = BundleStore(tmp_path / "bundles"), Counted()
    config = SiteConfig.model_validate({"cameras": {"gate": {"url": "rtsp://127.0.0.1/x"}}}).for_ingest()
    refs = [install(store, v, partial(candidates.changed, change=partial(noise, seed=1)), tmp_path) for v in "12"]
    store.put_in_force(refs[0], state="probation")
    agreed: set[BundleRef] = set()
    switch = DetectorSwitch(config, store, counted, SystemClock(), MemoryReading, agreed.__contains__)  # type: ignore[arg-type]
    counted.answered = WORKS_AFTER - 1
    switch.run_once()
    assert store.in_force().everywhere.state == "probation"  # type: ignore[union-attr]
    counted.answered = WORKS_AFTER
    switch.run_once()
    assert store.in_force().everywhere.state == "probation", "a blind one answers, too"  # type: ignore[union-attr]
    agreed.add(refs[0])
    switch.run_once()
    assert store.in_force().everywhere.state == "proven"  # type: ignore[union-attr]
    store.put_in_force(refs[1], state="probation")
    switch = DetectorSwitch(config, store, counted, SystemClock(), MemoryReading, agreed.__contains__)  # type: ignore[arg-type]
    counted.answered, counted.failed = 0, FAILS_AFTER
    switch.run_once()
    slot = store.in_force().everywhere
    assert slot is not None
    assert (slot.bundle, refs[1] in store.in_force().quarantined) == (refs[0], True)
    assert "answered none" in switch.fault
