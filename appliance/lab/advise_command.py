"""`vedette advise`: every network that is here, tried on each camera's own recording: found, lost and paid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from appliance.base.clock import SystemClock
from appliance.base.errors import UsageError
from appliance.canary.judge import Judgement
from appliance.canary.opponent import opponent
from appliance.canary.proof_store import ProofReport, ProofStore
from appliance.canary.trial import CandidateTrial, JobCall
from appliance.config import IngestConfig, load
from appliance.detect.model_files import bundle_store, model_bundles, present_models
from appliance.lab.prove_command import trial_of


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
