"""Long work on recorded video that a person asks for: one job at a time, in a sandbox of low priority, cancellable."""

from __future__ import annotations

import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from appliance.base.child_processes import JOB_FUNCTIONS
from appliance.base.clock import Clock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import ModelError, SourceError, UsageError
from appliance.detect import detector_loader
from appliance.detect.model_files import model_folders
from appliance.sandbox.sandbox import Progress, Sandbox, SandboxError, SandboxFolders, SandboxLimits
from appliance.store.paths import PREROLL, SEGMENTS

logger = logging.getLogger(__name__)

BUG = "It was ended by a fault of Vedette's own: the log has it."
KEPT_MAX = 8  # jobs that are over, with their results
LIMITS = SandboxLimits(
    wall_s=3600.0,
    memory_bytes=3 * 1024**3,  # a network, its working memory and 17 reference frames of 8K
    file_bytes_max=0,
    reply_bytes_max=32 * 1024 * 1024,
)
JobKind = Literal["replay_span", "try_settings", "run_scenario", "run_scenarios", "prove_network"]
JobState = Literal["running", "done", "failed", "cancelled"]


class JobRunning(UsageError):
    """Another job is at work; only one is at a time."""


@dataclass(slots=True)
class RecordingJob:
    """One job. share: of it that is done, 0..1; error: why it failed, a sentence; result: as its function returned it.

    about: what the page that asked wants to know of it later, plain values.
    """

    id: str
    kind: JobKind
    camera: str
    began_t: float
    about: dict[str, Any] = field(default_factory=dict)
    state: JobState = "running"
    share: float = 0.0
    seconds: float = 0.0
    error: str = ""
    result: Any = None


class JobSandbox(Protocol):
    """The part of a `Sandbox` that a job uses."""

    def call(
        self, function: str, *values: Any, wall_s: float | None = None, progress: Progress | None = None
    ) -> Any: ...

    def close(self) -> None: ...


class RecordingJobs:
    """Runs one job at a time and keeps the last results; they are lost with a restart of the appliance.

    State: the jobs, the sandbox of the one that runs, counts by kind and outcome. Any thread may call; each job has a
    thread of its own (`lab job`), which only waits. The child ends with its job: nothing of it is left in memory.
    """

    def __init__(self, root: Path, clock: Clock, make: type[Sandbox] = Sandbox) -> None:
        """root: the storage folder."""
        self._root = root
        self._clock = clock
        self._make = make
        self._lock = threading.Lock()
        self._jobs: OrderedDict[str, RecordingJob] = OrderedDict()
        self._running: tuple[RecordingJob, JobSandbox, threading.Thread] | None = None
        self._cancelled = False  # is the one that runs to be
        self._closed = False
        self.counts: dict[tuple[JobKind, JobState], int] = {}

    def start(
        self,
        kind: JobKind,
        camera: str,
        task: dict[str, Any],
        models: Sequence[Path],
        about: dict[str, Any],
        *,
        wall_s: float = LIMITS.wall_s,
        ended: Callable[[RecordingJob], None] = lambda job: None,
    ) -> RecordingJob:
        """Begin a job; task: what its function is given; models: folders that it may read networks from.

        wall_s: the longest it may take. ended: called in the job's thread with the job as it ended, however it did,
        and before anybody else sees that it is over: who does finds what `ended` has done. Raises JobRunning.
        """
        readable = (self._root / SEGMENTS, self._root / PREROLL, *models)
        with self._lock:
            if self._running is not None or self._closed:
                raise JobRunning("another job is at work on the recording; wait for it, or cancel it")
            job = RecordingJob(secrets.token_hex(8), kind, camera, self._clock.now(), about)
            sandbox = self._make(
                JOB_FUNCTIONS, LIMITS, SandboxFolders(readable=readable), raises=(SourceError, ModelError)
            )
            work = partial(self._run, job, sandbox, partial(sandbox.call, kind, task, wall_s=wall_s), ended)
            thread = threading.Thread(target=work, name="lab job", daemon=True)
            self._running, self._cancelled = (job, sandbox, thread), False
            self._jobs[job.id] = job
            while len(self._jobs) > KEPT_MAX:
                self._jobs.popitem(last=False)
            thread.start()  # before anybody can cancel it
        return job

    def find(self, camera: str, job_id: str) -> RecordingJob | None:
        """Return the job of a camera, running or over."""
        with self._lock:
            job = self._jobs.get(job_id)
        return job if job is not None and job.camera == camera else None

    def newest(self, kind: JobKind) -> RecordingJob | None:
        """Return the last job of a kind that was begun, running or over."""
        with self._lock:
            return next((job for job in reversed(self._jobs.values()) if job.kind == kind), None)

    def cancel(self, job: RecordingJob) -> None:
        """End it now, if it runs; its child is killed. Returns when it is over."""
        with self._lock:
            running = self._running
            if running is None or running[0] is not job:
                return
            self._cancelled = True
        running[1].close()
        running[2].join(10.0)

    def close(self) -> None:
        """Cancel the job that runs and begin no further one: the dashboard stops."""
        with self._lock:
            self._closed = True
            running = self._running
        if running is not None:
            self.cancel(running[0])

    def _run(
        self, job: RecordingJob, sandbox: JobSandbox, call: Callable[..., Any], ended: Callable[[RecordingJob], None]
    ) -> None:
        began = self._clock.monotonic()

        def advance(share: Any) -> None:
            if isinstance(share, int | float) and 0 <= share <= 1:
                job.share = float(share)

        over = replace(job, state="done")
        try:
            over.result = call(progress=advance)
        except (SandboxError, SourceError, ModelError) as error:
            over.state, over.error = "failed", str(error)
        except Exception:  # a bug, at the top of this thread: the next job is not kept waiting for one that is over
            logger.exception("the job %s of %s failed", job.kind, job.camera)
            over.state, over.error = "failed", BUG
        sandbox.close()
        over.seconds = self._clock.monotonic() - began
        with self._lock:
            if self._cancelled:
                over.state, over.error, over.result = "cancelled", "It was cancelled.", None
        try:
            ended(over)
        finally:
            with self._lock:
                job.seconds, job.error, job.result, job.state = over.seconds, over.error, over.result, over.state
                self.counts[job.kind, job.state] = self.counts.get((job.kind, job.state), 0) + 1
                self._running = None


def model_places(settings: DetectorConfig) -> tuple[str, tuple[Path, ...]]:
    """Return the folder of the network's file ("": none), and all that must be readable to load it.

    Raise ModelError if it cannot run in a sandbox.
    """
    if settings.backend == "hailo":
        raise ModelError(
            "it runs on a Hailo device, which a job in a sandbox does not get; vedette replay decides again "
            "with it while the appliance is stopped, or while both share the device"
        )
    found = detector_loader.locate(settings)
    folders = [each for each in model_folders() if each.is_dir()]
    if settings.labels:
        folders.append(settings.labels.parent.resolve())
    if found is None:
        return "", tuple(folders)
    return str(found.path.parent.resolve()), (found.path.parent.resolve(), *folders)
