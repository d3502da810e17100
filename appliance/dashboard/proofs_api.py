"""`/api/v1/proofs`: the trials of networks on this site's recording against the one in force, and the differences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends
from pydantic import Field, ValidationError

from appliance.base.errors import ModelError
from appliance.base.local_files import DiskWriteError
from appliance.canary.candidate_comparison import Outcome
from appliance.canary.candidates import CandidateStore, opponent
from appliance.canary.proof_store import PROOF_REPORT, ProofReport, ProofStore
from appliance.config import DecisionConfig
from appliance.dashboard.exports_api import Log
from appliance.dashboard.models_api import NameModel
from appliance.dashboard.recording_jobs import JobRunning, JobState, RecordingJob, RecordingJobs, model_places
from appliance.dashboard.schemas import API, ApiModel
from appliance.detect.model_files import bundle_store
from appliance.detect.runtime_choice import with_remembered_runtime
from appliance.store.storage_reader import StorageArchive
from appliance.web.problems import Problem, refused_as
from appliance.web.routes import RouteList, provided

PIECE_FILES = 60  # segments that are tried in one step: with files of 4 s, four minutes

router = RouteList(prefix=f"{API}/proofs", tags=["settings"])


class DifferingItem(ApiModel):
    """A frame in which only one of both is sure of an object. found: `old` (the network in force) or `new`."""

    camera: str
    t: float
    kind: str
    found: str
    frame: str
    timeline: str


class CameraTrialItem(ApiModel):
    """A trial on one camera's own recording; fields as in `ProofItem`. cpu_ms: of an inference of the candidate."""

    outcome: Outcome
    objects: int
    lost: int
    gained: int
    cpu_ratio: float | None
    cpu_ms: float | None


class CostItem(ApiModel):
    """Cost of a network. memory_mb: MiB; cpu_ms, joules: of an inference; null: not measured, as without a meter."""

    memory_mb: float
    cpu_ms: float | None
    joules: float | None


class ProofItem(ApiModel):
    """A trial. networks: in force, then the candidate. cpu_ratio: CPU time of an inference against the other's.

    objects: those that the network in force is sure of; lost: of them those that the candidate does not see; gained:
    those that only the candidate is sure of. wins, losses: known alerts and kept scenarios that only one gets right.
    footage_s, wall_s: seconds of recording, and of the clock. source: `live`: frames were compared as they came.
    agreement: by kind of object, the share of what the network in force is sure of that the candidate sees.
    """

    candidate: str
    made_t: float
    outcome: Outcome
    reasons: tuple[str, ...]
    lacking: tuple[str, ...]
    networks: tuple[str, str]
    frames: int
    objects: int
    lost: int
    gained: int
    wins: int
    losses: int
    cpu_ratio: float | None
    footage_s: float
    wall_s: float
    source: str
    agreement: dict[str, float]
    costs: tuple[CostItem, ...]
    differing: list[DifferingItem]
    cameras: dict[str, CameraTrialItem]

    @classmethod
    def of(cls, report: ProofReport) -> ProofItem:
        differing = []
        for each in report.differing:
            camera = quote(each.camera, safe="")
            frame = f"{API}/cameras/{camera}/frame?t={each.t:.1f}&size=small"
            timeline = f"/cameras/{camera}/timeline?t={each.t:.1f}"
            differing.append(DifferingItem.of_row(each, frame=frame, timeline=timeline))
        found = report.judgement
        judged = {name: getattr(found, name) for name in cls.model_fields if hasattr(found, name)}
        kinds = {name.removeprefix("kind "): share for name, share in found.shares.items() if name.startswith("kind ")}
        agreement = {kind: 1 - lost / n for kind, (lost, n) in kinds.items() if n}
        costs = tuple(CostItem.of_row(each) for each in report.costs or ())
        cameras = {name: CameraTrialItem.of_row(each) for name, each in report.cameras.items()}
        return cls.of_row(report, **judged, differing=differing, agreement=agreement, costs=costs, cameras=cameras)


class TryModel(NameModel):
    """hours: of the newest recording of each camera."""

    hours: Annotated[float, Field(gt=0, le=24)] = 3.0


class NetworkTrialItem(ApiModel):
    """A trial that runs, or the last one. share: of it that is done, 0..1. error: why it failed; '': it did not."""

    model: str
    state: JobState
    share: float
    error: str

    @classmethod
    def of(cls, job: RecordingJob) -> NetworkTrialItem:
        return cls(model=job.about["model"], state=job.state, share=job.share, error=job.error)


class NetworkProver:
    """Begins trials of networks as jobs, and keeps what comes of them. Any thread may call."""

    def __init__(self, config: DecisionConfig, root: Path, jobs: RecordingJobs, proofs: ProofStore) -> None:
        self._config = config
        self._root = root.absolute()
        self._jobs = jobs
        self._proofs = proofs

    @property
    def newest(self) -> NetworkTrialItem | None:
        """The trial that runs, or the last one since the start; None: there was none."""
        job = self._jobs.newest("prove_network")
        return None if job is None else NetworkTrialItem.of(job)

    def tried(self) -> dict[str, ProofItem]:
        """Return the last trial of each network, with what its last one on the recording says of each camera."""
        found: dict[str, ProofItem] = {}
        for each in reversed(self._proofs.all()):
            item, before = ProofItem.of(each), found.get(each.candidate)
            if before is not None and not item.cameras:
                item = item.model_copy(update={"cameras": before.cameras})
            found[each.candidate] = item
        return found

    def start(self, wanted: TryModel, now_t: float) -> NetworkTrialItem:
        """Begin. Raise ModelError, JobRunning, or Problem: nothing is recorded."""
        in_force = opponent(self._config, bundle_store().in_force(), "", wanted.model)
        now = with_remembered_runtime(self._config.detector.with_model(in_force), self._root)
        then = self._config.detector.with_model(wanted.model)
        places = {place for each in (now, then) for place in model_places(each)[1]}
        footage = list(self._footage(wanted.hours))
        if not footage:
            raise Problem(409, "Nothing is recorded yet on which it could be tried.")
        settings = {"now": now.model_dump(mode="json"), "then": then.model_dump(mode="json")}
        task = {"plan": {"candidate": wanted.model, **settings, "footage": footage}, "made_t": now_t}
        about = {"model": wanted.model}
        job = self._jobs.start("prove_network", "", task, sorted(places), about, ended=self._keep)
        return NetworkTrialItem.of(job)

    def cancel(self) -> None:
        """End the trial that runs, if one does."""
        job = self._jobs.newest("prove_network")
        if job is not None:
            self._jobs.cancel(job)

    def _keep(self, job: RecordingJob) -> None:
        if job.state != "done":
            return
        try:
            self._proofs.put(PROOF_REPORT.validate_python(job.result))
        except DiskWriteError as error:
            job.state, job.error = "failed", f"The result could not be kept: {error}."
        except ValidationError:
            job.state, job.error = "failed", "The sandbox answered what makes no sense; nothing was compared."

    def _footage(self, hours: float) -> Iterator[dict[str, Any]]:
        """Yield pieces of a `TrialPlan`'s footage as plain values."""
        archive = StorageArchive(self._root)
        for camera in self._config.cameras:
            if (span := archive.span(camera)) is None:
                continue
            rows = [row for row in archive.segments(camera, span[1] - hours * 3600, span[1]) if row.complete]
            files = [{"path": str(self._root / row.path), "begin_t": row.t_start} for row in rows]
            for first in range(0, len(files), PIECE_FILES):
                yield {"camera": camera, "files": files[first : first + PIECE_FILES]}


ProofPart = Annotated[ProofStore, Depends(provided(ProofStore))]
CandidatesPart = Annotated[CandidateStore, Depends(provided(CandidateStore))]
ProverPart = Annotated[NetworkProver, Depends(provided(NetworkProver))]


@router.get("")
def proofs(store: ProofPart) -> list[ProofItem]:
    """Return the last trial of each network, newest first; the page of models and `vedette models prove` make them."""
    return [ProofItem.of(each) for each in store.all()]


@router.post("", status_code=202)
def try_network(prover: ProverPart, log: Log, wanted: TryModel) -> NetworkTrialItem:
    """Begin to try a network on the newest recording, beside the one in force. 409: another job is at work."""
    with refused_as({JobRunning: 409, ModelError: 422}):
        return prover.start(wanted, log.now)


@router.delete("")
def cancel_network_trial(prover: ProverPart) -> NetworkTrialItem | None:
    """End the trial that runs; nothing of it is kept."""
    prover.cancel()
    return prover.newest
