"""What all tests share: where the reference data is, and `--update` to accept new golden files."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import logging
import os
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests.support.clock_steps import ClockSteps
from tests.weekly import WEEKLY

if TYPE_CHECKING:
    from appliance.web.visitor import Visitor

ROOT = Path(__file__).parents[1]
BROWSER = ROOT / "tests" / "browser"
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30  # free in it and of the machine's: ten times of what a run keeps at a time

# A shared machine may be slow at any moment; pytest-timeout guards against what hangs.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write what was found as the new golden files")
    parser.addoption("--not-run", action="store_true", help="say at the end what was skipped, by reason")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print with `--not-run` how many tests were skipped, grouped by the reason, with their files."""
    if not config.getoption("--not-run"):
        return
    why: dict[str, Counter[str]] = defaultdict(Counter)
    for report in terminalreporter.getreports("skipped"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        file = report.nodeid.split("::")[0] + ("" if "::" in report.nodeid else " (whole file)")
        why[reason.removeprefix("Skipped: ")][file] += 1
    terminalreporter.section("what did not run, and why")
    for reason, files in sorted(why.items(), key=lambda each: -each[1].total()):
        terminalreporter.line(f"{files.total()} x {reason}")
        for file, count in sorted(files.items()):
            terminalreporter.line(f"    {count} in {file}")
    if not why:
        terminalreporter.line("everything ran")


def pytest_configure(config: pytest.Config) -> None:
    """Keep garbage collection from what collection makes, which stays: to look through it is some 4 % of a run.

    Folders of the tests lie in memory where there is room: a site that is built flushes some fifty times, and
    waiting for a disk is half of its time. The product flushes all the same.

    Pytest rewrites the assertions of a whole package that brings a plug-in: of 440 modules, on a fresh clone.
    """
    config.pluginmanager.register(ClockSteps())
    config.pluginmanager.rewrite_hook._must_rewrite.discard("appliance")  # type: ignore[attr-defined]
    gc.disable()
    if _room_in_memory():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def _room_in_memory() -> bool:
    try:
        found = os.statvfs(MEMORY)
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    available = next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
    runs_programs = not found.f_flag & os.ST_NOEXEC  # some tests write programs; a container's shared memory runs none
    return runs_programs and min(found.f_bavail * found.f_frsize, available) > MEMORY_BYTES_MIN


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Loads, in one of several processes, its share of the test files first.

    Pytest rewrites each file once and keeps it. All processes load all files, and would rewrite them all at once in
    step; so one finds what another has done.
    """
    worker = getattr(collector.config, "workerinput", None)
    if worker is None or not isinstance(collector, pytest.Session):
        return
    named = [Path(argument.split("::")[0]) for argument in collector.config.args]
    files = sorted({file for each in named for file in ([each] if each.is_file() else each.rglob("test_*.py"))})
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting the file says it again
            importlib.import_module(file.stem)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.browser_beside import BrowserBeside

    return BrowserBeside(config, log)


@pytest.fixture(scope="session")
def update(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The reference data folder; skips where it is absent."""
    folder = Path(os.environ.get("VEDETTE_SHARED", ROOT / ".." / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("the reference data folder (../shared/data or $VEDETTE_SHARED/data) is not there")
    return folder


@pytest.fixture
def set_visitor() -> Iterator[Callable[[Visitor, str], None]]:
    """Sets the visitor whom the code under test answers; tests that follow in this thread are the owner's again."""
    from appliance.web import visitor

    yield visitor.set_visitor
    visitor.set_visitor(visitor.OWNER, "")


@pytest.fixture(scope="session", autouse=True)
def one_loop_for_requests() -> Iterator[None]:
    """A test client that is no context starts, with each request, a thread with a loop: two fifths of its work."""
    client = getattr(sys.modules.get("starlette.testclient"), "TestClient", None)
    if client is None:
        yield
        return
    from anyio.from_thread import BlockingPortal, start_blocking_portal

    with contextlib.ExitStack() as opened, pytest.MonkeyPatch.context() as patched:
        portal = functools.cache(lambda: opened.enter_context(start_blocking_portal()))

        @contextlib.contextmanager
        def portal_of(self: object) -> Iterator[BlockingPortal]:
            yield getattr(self, "portal", None) or portal()

        patched.setattr(client, "_portal_factory", portal_of)
        yield


@pytest.fixture(scope="session", autouse=True)
def new_databases_are_copied() -> Iterator[None]:
    """The steps of the schema end in the same empty database each time: a copy takes a fifth of opening one.

    The first of a process, a file that has tables, and steps that a test names are migrated as ever.
    """
    database = sys.modules.get("appliance.store.database")
    if database is None:
        yield
        return
    steps_run = database.migrate
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)) as empty:

        def migrate(connection: sqlite3.Connection, steps: tuple[str, ...] = database.STEPS) -> int:
            is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if steps is database.STEPS and is_new and database.version_of(empty):
                empty.backup(connection)
                return len(steps)
            steps_run(empty)
            return int(steps_run(connection, steps))

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(database, "migrate", migrate)
            yield


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command tried in this process sets up logging to a stderr that is gone when its test is."""
    loggers = [logging.getLogger(name) for name in ("", "appliance", "cloud_worker")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


# The files that take longest, the longest first (`make test ARGS=--durations=80`): with files side by side, one of them
# begun late would keep one core busy while the others have nothing left.
LONGEST = (
    "test_architecture.py", "test_detector_switch.py",
    "test_shadow.py", "test_accessibility.py", "test_pages.py", "test_timeline_page.py", "test_camera_editor.py",
    "test_recording_outlives_peers.py", "test_health_live.py", "test_detectors.py", "test_live_page.py",
    "test_misbehaving_peers.py", "test_keep.py", "test_roles_pages.py",
    "test_reconfigure_live.py", "test_sound.py", "test_escalation_nats.py",
    "test_family.py", "test_rtsp_server.py", "test_history_checker.py", "test_camera_setup.py",
    "test_review_pages.py", "test_sandbox.py", "test_demo.py", "test_regions.py", "test_replay_verdicts.py",
    "test_nothing_leaves.py", "test_mqtt.py", "test_settings_pages.py", "test_worker_queue.py", "test_check.py",
    "test_lab_layer.py", "test_rtsp_ingest.py", "test_full_disk.py", "test_decode_policy_live.py",
    "test_local_judge_live.py", "test_ingest_process.py", "test_tamper_detector.py", "test_live_feed.py",
    "test_live_video.py", "test_onvif_pages.py", "test_first_run.py", "test_storage_policy.py",
    "test_rtsp_faults.py", "test_pool_nats.py", "test_why_page.py",
    "test_ingest_confinement.py", "test_redacted_clip.py", "test_attack.py", "test_keyframe_policy.py",
    "test_store_power_cut.py", "test_replay_resume.py", "test_page_races.py", "test_streams.py",
    "test_misbehaving_broker.py", "test_export.py", "test_vocabulary.py", "test_dashboard_api.py",
    "test_scenario_curve.py", "test_supervisor.py", "test_uplink_nats.py", "test_source_size.py",
    "test_track_identity.py", "test_dashboard_tls.py", "test_pets_accuracy.py", "test_keyboard.py",
    "test_scenario_run.py", "test_faults_told.py", "test_outage.py", "test_dashboard_models.py", "test_chaos.py",
    "test_second_engine.py",
    "test_access.py", "test_keep_start.py", "test_notify_page.py", "test_overload.py", "test_lack_of_files.py",
    "test_onvif.py", "test_service_levels.py", "test_system_page.py", "test_cassette_nats.py",
    "test_scenarios_page.py", "test_windows.py", "test_evidence_steps_nats.py", "test_wiring.py",
    "test_variants.py", "test_health_pages.py", "test_broker_link.py", "test_canary.py",
    "test_replay_conditions.py", "test_overload_nats.py", "test_own_network.py", "test_renditions.py",
    "test_savings_page.py", "test_dashboard_connections.py", "test_shown_secrets.py", "test_tensorrt.py",
    "test_evidence.py", "test_openapi.py", "test_render_family.py", "test_motion_gate.py",
)  # fmt: skip
# Unit tests that take more than 1.3 s of CPU a file (tests/support/cpu_times.py counts it): `make test-quick` leaves
# them out.
THOROUGH = (
    "test_keyframe_policy.py", "test_train_data.py", "test_architecture.py", "test_tamper_detector.py",
    "test_dashboard_api.py", "test_access.py", "test_render_practice.py", "test_lab_layer.py", "test_bench.py",
    "test_evaluate_command.py", "test_dashboard_auth.py", "test_openapi.py", "test_backup.py", "test_cascade.py",
    "test_evidence.py", "test_frame_transform.py", "test_dashboard_tls.py", "test_evaluate.py",
    "test_frame_selector.py", "test_camera_analysis.py", "test_escalation_evidence.py", "test_render.py",
    "test_render_family.py", "test_motion_gate.py", "test_variants.py", "test_reconcile.py", "test_renditions.py",
    "test_track_identity.py", "test_dashboard_connections.py", "test_timeline.py", "test_install_script.py",
    "test_dashboard_settings.py", "test_sandbox.py", "test_model_download.py", "test_shown_secrets.py",
    "test_second_factor.py", "test_review.py", "test_notify_targets_api.py", "test_trials.py",
    "test_dashboard_scenarios.py", "test_site_editor.py", "test_live_feed.py", "test_benchmark_ingest.py",
    "test_sign_in_throttle.py", "test_recording_reader.py", "test_recordings.py", "test_router_maintenance.py",
    "test_printed_commands.py", "test_memory_bound.py", "test_documents.py", "test_wheel.py", "test_recorder.py",
    "test_train_network.py", "test_hardware_decode.py", "test_train_augment.py", "test_source_size.py",
    "test_redacted_clip.py", "test_canary.py", "test_vocabulary.py", "test_dashboard_models.py",
    "test_service_levels.py", "test_wiring.py", "test_evaluate_kinds.py", "test_incidents.py",
    "test_vehicle_handover.py", "test_library_telemetry.py", "test_texts.py", "test_sound.py",
    "test_hailo_recipe.py", "test_rule_trial.py", "test_runtime_choice.py", "test_line_polygon_geometry.py",
    "test_exports.py", "test_camera_changes.py", "test_analyze_api.py", "test_router.py",
    "test_command_line_border.py", "test_merge_policy.py", "test_tracker.py", "test_inference_scheduler.py",
    "test_judge_command.py", "test_malloc.py", "test_calibration.py", "test_outbox.py", "test_cli.py",
    "test_trial_replay.py", "test_detection_rate.py", "test_drift.py", "test_backup_api.py", "test_hailo.py",
    "test_arming.py", "test_judges.py", "test_packet_sizes.py", "test_bundle_commands.py", "test_check_load.py",
    "test_rules_engine.py", "test_latency_lowest.py", "test_k8s.py", "test_letterbox.py", "test_checker_silence.py",
    "test_config.py",
)  # fmt: skip


def pytest_collection_finish() -> None:
    """Collect garbage more seldom than Python does, which looks through a tree that grows again and again: of parsing
    all sources that was three fifths."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files begin, and the browser's come last in a process that has others, too: Playwright keeps an event
    loop running in this thread until the session ends."""
    place = {name: n for n, name in enumerate(LONGEST)}
    where: dict[Path, tuple[bool, int]] = {}  # a file of which there are many items is looked at once
    for item in items:
        if item.path not in where:
            where[item.path] = (item.path.is_relative_to(BROWSER), place.get(item.path.name, len(place)))
        if item.path.name in THOROUGH:
            item.add_marker("thorough")
        if item.nodeid.removeprefix("tests/") in WEEKLY:
            item.add_marker("slow")
    items.sort(key=lambda item: where[item.path])
