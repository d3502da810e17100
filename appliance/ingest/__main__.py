"""`python -m appliance.ingest`: reads the configuration (one JSON line) from stdin and runs the cameras until it ends.

Started by `appliance.core.ingest_supervisor`. It ends when stdin does (the parent is gone) or at SIGTERM, and within
END_S_MAX whatever hangs: nothing outlives the core. Messages go to the file descriptor named by `--fd`, or to stdout.
With `--record-on` cameras are recorded even if the detector does not start. With `--try` only the detector is
loaded. Exit codes: 0 asked to stop, or loaded, 1 something is broken and a new start may help, 2 wrong use or
configuration.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import av
from pydantic import ValidationError

from appliance.base.child_processes import signal_at_parents_end
from appliance.base.clock import SystemClock
from appliance.base.errors import DetectorError, MissingDependency, ModelError, UsageError
from appliance.base.json_lines import WireError, decode_command, first_problem
from appliance.base.process_memory import free_import_leftovers, hold_little, share_methods, spare_what_stays
from appliance.base.telemetry import configure_logging
from appliance.base.threads import Service, ServiceGroup
from appliance.config import DetectorConfig, IngestConfig, RecheckConfig, rule_labels
from appliance.detect import detector_loader, runtime_choice
from appliance.detect.detector import AbsentDetector, ObjectDetector
from appliance.detect.detector_loader import recheck_settings
from appliance.detect.runtime_choice import runtime_options, table_lines
from appliance.inference.inference_worker import DetectorHung
from appliance.ingest.camera_detectors import SHARED, NetworkTable
from appliance.ingest.core_channel import IngestChannel, signs_of_life
from appliance.ingest.hardware_decoders import HardwareDecoders
from appliance.ingest.ingest_policy import IngestPolicy, PolicyOutdated
from appliance.ingest.process import IngestProcess, rss_bytes
from appliance.sandbox.confinement import confine
from appliance.track.tracker import Tracker

CONFIG_BYTES_MAX = 8 * 1024 * 1024  # above base.yamlfile.FILE_BYTES_MAX; more comes from no site file
COMMAND_BYTES_MAX = CONFIG_BYTES_MAX  # one of them is the cameras' section
END_S_MAX = 10.0  # of closing segments; who has not ended then leaves: what is recorded survives a kill
TRIAL_NICE = 10  # of a process that only tries: cameras come first
THREAD_GONE_S_MAX = 0.5  # a busy kernel lists a thread that has ended for some milliseconds
ALARM_S = 15  # after which the kernel ends it, should even the line in the log hang

logger = logging.getLogger(__name__)


def main() -> int:
    arguments = sys.argv[1:]
    if arguments == ["--try"]:
        return try_settings()
    record_on = arguments[-1:] == ["--record-on"]
    try:
        out = _take_channel(_channel_fd(arguments[:-1] if record_on else arguments))
    except UsageError as error:
        print(f"vedette ingest: {error}", file=sys.stderr)
        return 2
    configure_logging()
    # FFmpeg's own log would print addresses with their passwords; what matters is in its error codes.
    av.logging.set_level(None)
    signal_at_parents_end(signal.SIGTERM)  # something else may hold our stdin open
    hold_little()
    share_methods()
    free_import_leftovers()
    try:
        site = _read_site()
        hardware = HardwareDecoders(site.decode)
        hardware.must_have(site.cameras)
        with signs_of_life(out, lambda: os._exit(0)):  # measures in child processes, which may do all
            settled = _settled_detector(site.detector, site)
            others = {each.model: _settled_detector(each, site) for each in site.own_networks()}
        policy = give_up_all_else(site)
        with signs_of_life(out, lambda: os._exit(0)):
            shared, recheck = _load_detectors(site, settled, record_on=record_on)
            loaded = {SHARED: shared, **_load_others(others)}
        ingest = IngestProcess(
            site,
            NetworkTable(loaded, {name: each.model for name, each in site.cameras.items() if each.model}),
            Tracker,
            IngestChannel(out),
            SystemClock(),
            load_recheck_detector=recheck,
            hardware=hardware,
            policy=policy,
        )
    except UsageError as error:
        print(f"vedette ingest: {error}", file=sys.stderr)
        return 2
    spare_what_stays()
    code = run_until_stopped(ingest)
    sys.stderr.flush()
    # Not sys.exit: a thread that hangs in a library must not keep a finished process alive.
    os._exit(code)


def run_until_stopped(ingest: IngestProcess) -> int:
    """Run the cameras until SIGTERM, the end of stdin or of the channel's reader, or until the detector hangs.

    SIGINT ends it, too. Return the exit code. Call it in the main thread, which waits in here, so that a signal can
    interrupt nothing else.
    """
    group = ServiceGroup(stop_s_max=END_S_MAX)

    def end(*_: object) -> None:
        signal.alarm(ALARM_S)
        group.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=_watch_stdin, args=(ingest, end), name="parent", daemon=True).start()
    group.start(Service("cameras", lambda: _run_cameras(ingest, group), ingest.stop, resumes=False))
    return group.wait()


def _channel_fd(arguments: Sequence[str]) -> int | None:
    """Return the N of `--fd N`, or None if it is not given.

    Raise UsageError for anything else. Only the supervisor calls this program, so half a megabyte of argparse would be
    too much.
    """
    match arguments:
        case []:
            return None
        case ["--fd", number] if number.isdigit():
            return int(number)
    raise UsageError(f"usage: python -m appliance.ingest [--fd N], not {' '.join(arguments)}")


def _take_channel(fd: int | None) -> int:
    """Return the descriptor for messages, and send all else that this process prints to stderr."""
    out = os.dup(1) if fd is None else fd
    os.set_inheritable(out, False)
    os.dup2(2, 1)
    return out


def _read_site() -> IngestConfig:
    line = sys.stdin.buffer.readline(CONFIG_BYTES_MAX)
    try:
        return IngestConfig.model_validate_json(line)
    except ValidationError as error:
        raise UsageError(f"configuration: {first_problem(error)}") from None


def try_settings() -> int:
    """Load what the configuration on stdin asks for, and end; the reason of a refusal is the last line of stderr.

    The last line of stdout is JSON: `networks`, the settings of each with nothing left open, and `memory_bytes`, by how
    much loading each made this process grow.
    """
    os.nice(TRIAL_NICE)
    configure_logging()
    signal_at_parents_end(signal.SIGTERM)  # something else may hold our stdin open
    try:
        site = _read_site()
        HardwareDecoders(site.decode).must_have(site.cameras)
        networks = {SHARED: site.detector, **{each.model: each for each in site.own_networks()}}
        settled = {name: _settled_detector(each, site) for name, each in networks.items()}
        grown = {name: _grown_by(settings) for name, settings in settled.items()}
        if site.second_look.model is not None:
            recheck = recheck_settings(site.second_look.model, site.detector)
            _grown_by(runtime_choice.with_remembered_runtime(recheck, Path(site.storage.dir)))
    except UsageError as error:
        print(f"vedette ingest: {error}", file=sys.stderr)
        return 2
    plain = {name: each.model_dump(mode="json") for name, each in settled.items()}
    print(json.dumps({"networks": plain, "memory_bytes": grown}))
    return 0


def _grown_by(settings: DetectorConfig) -> int:
    """Load a network and return by how many bytes this process grew for it. Raise UsageError."""
    before = rss_bytes()
    if settings.backend == "hailo" and not settings.hailo.multi_process_service:
        detector_loader.locate(settings)  # the process that runs holds the device
    else:
        try:
            network = detector_loader.load(settings)
            network.detect([runtime_choice.trial_frame(network)])
        except DetectorError as error:
            raise ModelError(f"it does not examine a frame: {error}") from None
    return rss_bytes() - before


_Detectors = tuple[ObjectDetector, Callable[[], ObjectDetector] | None]


def _load_detectors(site: IngestConfig, settled: DetectorConfig, *, record_on: bool) -> _Detectors:
    """Load the detector for all cameras and the one for re-checks.

    Raise ModelError, unless cameras are to be recorded all the same (`record_on`).
    """
    try:
        return detector_loader.load(settled), _recheck_detector(site.second_look, site.detector)
    except (ModelError, MissingDependency) as error:
        if not record_on:
            raise
        logger.error("%s", error)
        return AbsentDetector(str(error), rule_labels(site.cameras.values())), None


def _load_others(settled: Mapping[str, DetectorConfig]) -> dict[str, ObjectDetector]:
    """Load the networks that some cameras have for themselves; one that does not load leaves them the shared one."""
    loaded: dict[str, ObjectDetector] = {}
    for name, settings in settled.items():
        try:
            loaded[name] = detector_loader.load(settings)
        except (ModelError, MissingDependency) as error:
            logger.error("its cameras are examined by the network of all: %s", error)
    return loaded


def give_up_all_else(site: IngestConfig) -> IngestPolicy | None:
    """Keep only what cameras need, before the network starts its threads.

    Landlock holds only for threads that start later. Return None if this kernel has no Landlock: then no files are out
    of reach.
    """
    policy = IngestPolicy(site)
    others = _other_threads()
    held = confine(policy.policy)
    missing = {"landlock", "seccomp"} - set(held)
    if missing or others:
        why = " and ".join(sorted(missing)) or f"{others} threads that a library started before"
        logger.warning("live video is decoded with less protection: %s; see `vedette check`", why)
    return policy if "landlock" in held else None


def _other_threads() -> int:
    """Count the threads of this process beside this one; one that has ended is listed for a moment longer."""
    clock = SystemClock()
    until = clock.monotonic() + THREAD_GONE_S_MAX
    while True:
        others = len(os.listdir("/proc/self/task")) - 1 if os.path.exists("/proc/self/task") else 0
        if others <= 0 or clock.monotonic() > until:
            return max(others, 0)
        clock.sleep(0.01)


def _settled_detector(asked: DetectorConfig, site: IngestConfig) -> DetectorConfig:
    """Return a detector that the site file asks for, with the runtime that is fastest on this appliance."""
    folder = Path(site.storage.dir)
    settled = runtime_choice.settle_runtime(asked, folder)
    for line in table_lines(runtime_options(asked, runtime_choice.remembered_choice(asked, folder))):
        logger.info("detector.backend: auto: %s", line)
    return settled


def _recheck_detector(recheck: RecheckConfig, shared: DetectorConfig) -> Callable[[], ObjectDetector] | None:
    """Return a function that loads another network for re-checks; None if none is named.

    It is called with the first re-check. Raise ModelError if the network's file is not there.
    """
    if recheck.model is None:
        return None
    settings = recheck_settings(recheck.model, shared)
    detector_loader.make_ready(settings)
    return lambda: detector_loader.load(settings)


def _run_cameras(ingest: IngestProcess, group: ServiceGroup) -> None:
    """Run until the cameras are stopped, or nobody reads the channel any more.

    It also ends if the detector hangs or the policy is outdated.
    """
    try:
        ingest.run()
    except (DetectorHung, PolicyOutdated) as error:
        logger.error("%s; ending, to be started again", error)
        group.stop(1)
    else:
        group.stop()


def _watch_stdin(ingest: IngestProcess, end: Callable[[], None]) -> None:
    """Read commands of the core, a JSON line each. The process ends with its standard input."""
    with contextlib.suppress(OSError, ValueError):
        while line := sys.stdin.buffer.readline(COMMAND_BYTES_MAX):
            try:
                command = decode_command(line)
            except WireError as error:
                logger.warning("a command of the core was not understood: %s", error)
            else:
                ingest.handle_command(command)
    end()


if __name__ == "__main__":
    sys.exit(main())
