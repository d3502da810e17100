"""`vedette models prove`: a network tried on this site's recording and scenarios, and what follows from the outcome."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.base.child_modules import JOB_FUNCTIONS
from appliance.base.clock import SystemClock
from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import DetectorError, ModelError, SourceError, UsageError
from appliance.bundle.manifest import BundleRef
from appliance.canary.frame_survey import FootageFile
from appliance.canary.opponent import detector_with, opponent
from appliance.canary.proof_store import ProofReport, ProofStore, apply_outcome
from appliance.canary.trial import (
    LIMITS,
    STILL_S_MAX,
    WALL_S_MAX,
    CameraFootage,
    CandidateTrial,
    JobCall,
    TrialPlan,
    known_objects,
)
from appliance.config import IngestConfig, load
from appliance.detect import detector as detectors
from appliance.detect.model_files import bundle_store, model_folders, pull_folder
from appliance.detect.runtime_choice import as_at_run_time
from appliance.keep.scenario_store import ScenarioStore
from appliance.sandbox.sandbox import Sandbox, SandboxFolders
from appliance.store.archive import StorageArchive
from appliance.store.paths import PREROLL, SCENARIOS, SEGMENTS

SCENARIOS_MAX = 50  # the newest; each takes its length twice


def prove_command(
    candidate: str, site_file: Path, *, hours: float, cameras: Sequence[str], decide: bool, as_json: bool
) -> int:
    """Try the candidate and print the outcome. Returns 0 if it is better, else 1.

    Raises UsageError, ModelError, SourceError, PreconditionError.
    """
    site = load(site_file).for_ingest()
    if decide and "@" not in candidate:
        raise UsageError(f"--decide is for bundles: name a version, as in {candidate}@2")
    plan, call = trial_of(site, candidate, cameras or tuple(site.cameras), hours)
    root = site.storage.dir
    report = CandidateTrial(plan, call).run(SystemClock().now())
    ProofStore(root).put(report)
    done = apply_outcome(bundle_store(), BundleRef.parse(candidate), report) if decide else ""
    if as_json:
        print(json.dumps({**report_json(report), "done": done}, indent=1))
    else:
        print("\n".join([*report_lines(report), *filter(None, [done])]))
    return 0 if report.judgement.outcome == "better" else 1


def trial_of(site: IngestConfig, candidate: str, cameras: Sequence[str], hours: float) -> tuple[TrialPlan, JobCall]:
    """Return the trial of a network on the last hours and the kept scenarios, and what runs its jobs.

    Raise UsageError: there is no such camera; ModelError; SourceError: nothing is recorded.
    """
    unknown = set(cameras) - site.cameras.keys()
    if unknown:
        raise UsageError(f"there is no camera `{min(unknown)}` in the site file")
    root = site.storage.dir
    table = bundle_store().in_force()
    named = {name: opponent(site, table, name, candidate) for name in cameras}
    whole = opponent(site, table, "", candidate)
    settings = {
        model: as_at_run_time(detector_with(site.detector, model), root)
        for model in (whole, candidate, *named.values())
    }
    archive, now = StorageArchive(root), settings[whole]
    pieces = (_footage(archive, name, hours, settings[named[name]]) for name in cameras)
    footage = tuple(each for each in pieces if each is not None)
    if not footage:
        raise SourceError(f"nothing is recorded of the last {hours:g} hours in {root}")
    scenarios = kept_scenarios(root, cameras=None)
    # The child that tries them has no environment, and would look for no bundle of this user.
    plan = TrialPlan(candidate, now, settings[candidate], footage, scenarios, model_folder=str(pull_folder()))
    return plan, job_call(root, _places(*settings.values()))


def kept_scenarios(root: Path, cameras: Collection[str] | None) -> tuple[str, ...]:
    """Return the files of the newest kept scenarios of these cameras; None: of all."""
    kept = [
        each
        for each in ScenarioStore(root / SCENARIOS, SystemClock()).all()
        if each.card and (cameras is None or each.card.camera in cameras)
    ]
    return tuple(str(each.folder.resolve() / f"{each.name}.scenario.yaml") for each in kept[:SCENARIOS_MAX])


def job_call(root: Path, models: Sequence[Path], wall_s: float = WALL_S_MAX) -> JobCall:
    """Return what runs a job in a child of its own that may read the recording, the scenarios and the networks.

    wall_s: the longest that a job may take.
    """
    readable = tuple((root / name).resolve() for name in (SEGMENTS, PREROLL, SCENARIOS))

    def call(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        raises = (SourceError, ModelError, DetectorError)
        sandbox = Sandbox(JOB_FUNCTIONS, LIMITS, SandboxFolders(readable=(*readable, *models)), raises=raises)
        try:
            return sandbox.call(function, dict(values), wall_s=wall_s, cpu_s=cpu_s, still_s=STILL_S_MAX)
        finally:
            sandbox.close()

    return call


def _places(*settings: DetectorConfig) -> tuple[Path, ...]:
    """Return the folders of the networks. Raise ModelError if one is not here, or runs on a device of its own."""
    folders = [each for each in model_folders() if each.is_dir()]
    for each in settings:
        if each.backend == "hailo":
            raise ModelError("a Hailo device serves one process: a network on it is not tried beside the live one")
        found = detectors.locate(each)
        folders += [found.path.parent] if found is not None else []
        folders += [each.labels.parent] if each.labels else []
    store = bundle_store().root
    return tuple(dict.fromkeys(each.resolve() for each in (*folders, *([store] if store.is_dir() else []))))


def _footage(archive: StorageArchive, camera: str, hours: float, now: DetectorConfig) -> CameraFootage | None:
    """Return the newest hours of a camera, on which `now` is in force; None: nothing is recorded."""
    span = archive.span(camera)
    if span is None:
        return None
    t0, t1 = max(span[0], span[1] - hours * 3600), span[1]
    rows = [row for row in archive.segments(camera, t0, t1) if row.complete]
    files = tuple(FootageFile(str((archive.root / row.path).resolve()), row.t_start) for row in rows)
    return CameraFootage(camera, files, known_objects(archive.events(camera, t0, t1)), now) if files else None


def report_json(report: ProofReport) -> dict[str, Any]:
    judgement = report.judgement
    return {
        "candidate": report.candidate, "outcome": judgement.outcome, "reasons": list(judgement.reasons),
        "lacking": list(judgement.lacking), "networks": list(report.networks), "frames": report.frames,
        "objects": judgement.objects, "lost": judgement.lost, "gained": judgement.gained, "wins": judgement.wins,
        "losses": judgement.losses, "cpu_ratio": judgement.cpu_ratio, "footage_s": report.footage_s,
        "wall_s": report.wall_s, "unread": list(report.unread),
    }  # fmt: skip


def report_lines(report: ProofReport, what: str = "objects") -> Iterator[str]:
    judgement = report.judgement
    yield f"{report.candidate}: {judgement.outcome}"
    yield from (f"  {each}" for each in (*judgement.reasons, *judgement.lacking))
    ratio = "" if judgement.cpu_ratio is None else f", {judgement.cpu_ratio:.2f} times the CPU time"
    yield (
        f"  {report.frames} frames of {report.footage_s / 3600:.1f} h in {report.wall_s / 60:.1f} min: "
        f"{judgement.objects} {what}, {judgement.lost} lost, {judgement.gained} gained{ratio}"
    )
    yield from (f"  not read: {each}" for each in report.unread)
