"""`vedette models prove` and `vedette advise`: networks tried on this site's recording and scenarios."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.base.child_processes import JOB_FUNCTIONS
from appliance.base.clock import SystemClock
from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, ModelError, PreconditionError, SourceError, UsageError
from appliance.bundle.manifest import BundleRef
from appliance.canary.candidate_comparison import Judgement
from appliance.canary.candidate_trial import (
    LIMITS,
    STILL_S_MAX,
    WALL_S_MAX,
    CameraFootage,
    CandidateTrial,
    JobCall,
    TrialPlan,
    known_objects,
)
from appliance.canary.candidates import opponent
from appliance.canary.frame_survey import FootageFile
from appliance.canary.proof_store import ProofReport, ProofStore, apply_outcome
from appliance.config import IngestConfig, load
from appliance.detect import detector_loader
from appliance.detect.model_files import bundle_store, model_bundles, model_folders, present_models, pull_folder
from appliance.detect.runtime_choice import as_at_run_time
from appliance.sandbox.sandbox import Sandbox, SandboxFolders
from appliance.scenario.scenario_store import ScenarioStore
from appliance.store.paths import PREROLL, SCENARIOS, SEGMENTS
from appliance.store.storage_reader import StorageArchive

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
    some = cameras if cameras and site.cameras.keys() - set(cameras) else None
    done = apply_outcome(bundle_store(), BundleRef.parse(candidate), report, some) if decide else ""
    if as_json:
        print(json.dumps({**report_json(report), "done": done}, indent=1))
    else:
        print("\n".join([*report_lines(report), *filter(None, [done])]))
    return 0 if report.judgement.outcome == "better" else 1


def trial_of(site: IngestConfig, candidate: str, cameras: Sequence[str], hours: float) -> tuple[TrialPlan, JobCall]:
    """Return the trial of a network on the last hours and the kept scenarios, and what runs its jobs.

    Raise UsageError: there is no such camera; ModelError; PreconditionError: nothing is recorded.
    """
    unknown = set(cameras) - site.cameras.keys()
    if unknown:
        raise UsageError(f"there is no camera `{min(unknown)}` in the site file")
    root = site.storage.dir
    table = bundle_store().in_force()
    named = {name: opponent(site, table, name, candidate) for name in cameras}
    whole = opponent(site, table, "", candidate)
    settings = {
        model: as_at_run_time(site.detector.with_model(model), root) for model in (whole, candidate, *named.values())
    }
    archive, now = StorageArchive(root), settings[whole]
    pieces = (_footage(archive, name, hours, settings[named[name]]) for name in cameras)
    footage = tuple(each for each in pieces if each is not None)
    if not footage:
        raise PreconditionError(f"nothing is recorded of the last {hours:g} hours in {root}")
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
        found = detector_loader.locate(each)
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


def advise_command(
    site_file: Path, *, hours: float, cameras: Sequence[str], models: Sequence[str], as_json: bool
) -> int:
    """Try the networks and print what each camera would gain. Returns 0. Raises UsageError, ModelError, SourceError."""
    site = load(site_file).for_ingest()
    chosen = tuple(cameras) or tuple(site.cameras)
    candidates = list(models) or networks_here(site)
    if not candidates:
        raise UsageError("no other network is here: vedette models list names what can be pulled")
    answered: dict[str, Any] = {}
    reports = []
    for candidate in candidates:
        plan, call = trial_of(site, candidate, chosen, hours)
        report = CandidateTrial(plan, _once(call, answered, plan.then.model)).run(SystemClock().now())
        ProofStore(site.storage.dir).put(report)
        reports.append(report)
    if as_json:
        print(json.dumps([_json(each) for each in reports], indent=1))
    else:
        print("\n".join(_lines(site, chosen, reports)))
    return 0


def networks_here(site: IngestConfig) -> list[str]:
    """Return the networks that could take the place of the one in force, but variants and what is in quarantine."""
    store = bundle_store()
    table, known = store.in_force(), model_bundles()
    variants = {name for entry in known.values() for name in entry.variants.values()}
    versions = [str(ref) for ref in store.installed() if ref not in table.quarantined]
    now = opponent(site, table, "", "")
    return [each for each in (*present_models(), *versions) if each not in variants and each != now]


def _once(call: JobCall, answered: dict[str, Any], candidate: str) -> JobCall:
    """Return `call` that asks the network in force once about a camera's recording, however many candidates come."""

    def asked(function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        if function != "survey_frames" or values["detector"]["model"] == candidate:
            return call(function, values, cpu_s)
        key = json.dumps(values, sort_keys=True)
        if key not in answered:
            answered[key] = call(function, values, cpu_s)
        return answered[key]

    return asked


def _json(report: ProofReport) -> dict[str, Any]:
    rows = {
        camera: {
            "outcome": found.outcome, "reasons": list(found.reasons), "objects": found.objects, "lost": found.lost,
            "gained": found.gained, "cpu_ms": found.cpu_ms, "cpu_ratio": found.cpu_ratio,
        }
        for camera, found in report.cameras.items()
    }  # fmt: skip
    return {
        "network": report.candidate, "outcome": report.judgement.outcome, "reasons": list(report.judgement.reasons),
        "cameras": rows, "frames": report.frames, "footage_s": report.footage_s, "unread": list(report.unread),
    }  # fmt: skip


def _lines(site: IngestConfig, cameras: Sequence[str], reports: Sequence[ProofReport]) -> Iterator[str]:
    for camera in cameras:
        tried = [(each.candidate, each.cameras[camera]) for each in reports if camera in each.cameras]
        yield f"{camera}:" if tried else f"{camera}: nothing of it was tried"
        for name, found in tried:
            yield f"  {name:24} {_found(found, site.cameras[camera].detect.fps)}"
            if found.outcome == "better":
                yield f"  {'':24} cameras: {{{camera}: {{model: {name}}}}} puts it in force there"
    for each in reports:
        yield from (f"{each.candidate} failed: {reason}" for reason in each.judgement.reasons if not each.cameras)
        yield from (f"not read: {what}" for what in each.unread)


def _found(found: Judgement, fps: float) -> str:
    kept = f"finds {found.objects - found.lost} of {found.objects} and {found.gained} more"
    if found.cpu_ms is None or found.cpu_ratio is None:
        return f"{found.outcome}: {kept}"
    core = found.cpu_ms / 1000 * fps
    return f"{found.outcome}: {kept}, {found.cpu_ms:.0f} ms ({found.cpu_ratio:.1f}x), {core:.0%} of a core"
