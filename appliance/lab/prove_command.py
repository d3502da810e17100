"""`vedette models prove`: a network tried on this site's recording and scenarios, and what follows from the outcome."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.base.child_modules import JOB_FUNCTIONS
from appliance.base.clock import SystemClock
from appliance.base.detector_config import DetectorConfig
from appliance.base.errors import DetectorError, ModelError, SourceError, UsageError
from appliance.bundle.manifest import BundleRef
from appliance.canary.frame_survey import FootageFile
from appliance.canary.proof_store import ProofReport, ProofStore, apply_outcome
from appliance.canary.trial import (
    LIMITS,
    CameraFootage,
    CandidateTrial,
    JobCall,
    TrialPlan,
    known_objects,
)
from appliance.config import load
from appliance.detect import detector as detectors
from appliance.detect.model_files import bundle_store, model_folders, pull_folder
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
    site = load(site_file)
    now, root = site.detector, site.storage.dir
    then = now.model_copy(update={"model": candidate, "precision": "auto"})
    if decide and "@" not in candidate:
        raise UsageError(f"--decide is for bundles: name a version, as in {candidate}@2")
    unknown = set(cameras) - site.cameras.keys()
    if unknown:
        raise UsageError(f"there is no camera `{min(unknown)}` in {site_file}")
    places = _places(now, then)
    footage = tuple(_footage(StorageArchive(root), cameras or tuple(site.cameras), hours))
    if not footage:
        raise SourceError(f"nothing is recorded of the last {hours:g} hours in {root}")
    kept = [each for each in ScenarioStore(root / SCENARIOS, SystemClock()).all() if each.card][:SCENARIOS_MAX]
    scenarios = tuple(str(each.folder.resolve() / f"{each.name}.scenario.yaml") for each in kept)
    # The child that tries them has no environment, and would look for no bundle of this user.
    plan = TrialPlan(candidate, now, then, footage, scenarios, model_folder=str(pull_folder()))
    report = CandidateTrial(plan, job_call(root, places)).run(SystemClock().now())
    ProofStore(root).put(report)
    done = apply_outcome(bundle_store(), BundleRef.parse(candidate), report) if decide else ""
    if as_json:
        print(json.dumps({**_json(report), "done": done}, indent=1))
    else:
        print("\n".join([*_lines(report), *filter(None, [done])]))
    return 0 if report.judgement.outcome == "better" else 1


def job_call(root: Path, models: Sequence[Path]) -> JobCall:
    """Return what runs a job in a child of its own that may read the recording, the scenarios and the networks."""
    readable = tuple((root / name).resolve() for name in (SEGMENTS, PREROLL, SCENARIOS))

    def call(function: str, values: Mapping[str, Any], wall_s: float) -> Any:
        raises = (SourceError, ModelError, DetectorError)
        sandbox = Sandbox(JOB_FUNCTIONS, LIMITS, SandboxFolders(readable=(*readable, *models)), raises=raises)
        try:
            return sandbox.call(function, dict(values), wall_s=wall_s)
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


def _footage(archive: StorageArchive, cameras: Sequence[str], hours: float) -> Iterator[CameraFootage]:
    for camera in cameras:
        span = archive.span(camera)
        if span is None:
            continue
        t0, t1 = max(span[0], span[1] - hours * 3600), span[1]
        rows = [row for row in archive.segments(camera, t0, t1) if row.complete]
        files = tuple(FootageFile(str((archive.root / row.path).resolve()), row.t_start) for row in rows)
        if files:
            yield CameraFootage(camera, files, known_objects(archive.events(camera, t0, t1)))


def _json(report: ProofReport) -> dict[str, Any]:
    judgement = report.judgement
    return {
        "candidate": report.candidate, "outcome": judgement.outcome, "reasons": list(judgement.reasons),
        "lacking": list(judgement.lacking), "networks": list(report.networks), "frames": report.frames,
        "objects": judgement.objects, "lost": judgement.lost, "gained": judgement.gained, "wins": judgement.wins,
        "losses": judgement.losses, "cpu_ratio": judgement.cpu_ratio, "footage_s": report.footage_s,
        "wall_s": report.wall_s, "unread": list(report.unread),
    }  # fmt: skip


def _lines(report: ProofReport) -> Iterator[str]:
    judgement = report.judgement
    yield f"{report.candidate}: {judgement.outcome}"
    yield from (f"  {each}" for each in (*judgement.reasons, *judgement.lacking))
    ratio = "" if judgement.cpu_ratio is None else f", {judgement.cpu_ratio:.2f} times the CPU time"
    yield (
        f"  {report.frames} frames of {report.footage_s / 3600:.1f} h in {report.wall_s / 60:.1f} min: "
        f"{judgement.objects} objects, {judgement.lost} lost, {judgement.gained} gained{ratio}"
    )
    yield from (f"  not read: {each}" for each in report.unread)
