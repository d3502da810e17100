"""`vedette candidate`: settings, thresholds, prompts and models of verdicts that are tried at night, or at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from appliance.base import yamlfile
from appliance.base.clock import SystemClock
from appliance.base.errors import UsageError
from appliance.canary.candidate_store import CandidateStore, KeyChange, SettingsCandidate
from appliance.canary.proof_store import ProofReport, ProofStore
from appliance.lab.cassette_agreement import compared, of_people, play
from appliance.lab.prove_command import report_json, report_lines
from appliance.lab.settings_proof import SettingsProof
from appliance.settings.site_editor import SiteEditor, SiteProposal, digest_of
from appliance.settings.yaml_edit import REMOVED, SiteChange


@dataclass(frozen=True, slots=True)
class CandidateOptions:
    """The options of `vedette candidate`."""

    name: str = ""
    changes: Sequence[str] = ()
    cassettes: Sequence[str] = ()
    now: bool = False
    use: bool = False
    off: bool = False
    hours: float = 1.0
    as_json: bool = False


def candidate_command(site_file: Path, options: CandidateOptions) -> int:
    """Keep, list, try, use or take out a candidate. Return 0, or 1 if a trial does not call it better.

    Raise UsageError, ConfigError, StoreError, ModelError.
    """
    root = SiteEditor(site_file).read().config.storage.dir
    store, keep = CandidateStore(root), bool(options.changes or options.cassettes)
    asked = sum((keep, options.now, options.use, options.off))
    if not options.name and not asked:
        return _list(store, ProofStore(root), as_json=options.as_json)
    if not options.name or asked != 1 or (options.changes and options.cassettes):
        raise UsageError("name a candidate, and one of --set, --cassettes, --now, --use and --off")
    if keep:
        return _keep(site_file, store, options)
    if options.off:
        store.remove(options.name)
        return 0
    candidate = store.get(options.name)
    if options.use:
        SiteEditor(site_file).write(_proposal(site_file, candidate))
        store.remove(options.name)
        print(f"{site_file} is changed; a running appliance asks on its page Settings whether to take it")
        return 0
    report = _tried(root, site_file, candidate, options.hours)
    ProofStore(root).put(report)
    what = "escalations" if candidate.cassettes else "alerts"
    print(json.dumps(report_json(report), indent=1) if options.as_json else "\n".join(report_lines(report, what)))
    return 0 if report.judgement.outcome == "better" else 1


def _keep(site_file: Path, store: CandidateStore, options: CandidateOptions) -> int:
    cassettes = tuple(str(Path(each).resolve()) for each in options.cassettes)
    candidate = SettingsCandidate(name=options.name, changes=tuple(map(_parsed, options.changes)), cassettes=cassettes)
    if not cassettes:
        print(_proposal(site_file, candidate).diff, end="")
    for each in cassettes:
        play(Path(each))  # it can be read
    store.put(candidate)
    print(f"{options.name}: tried each night until it is better or worse, or at once: vedette candidate NAME --now")
    return 0


def _tried(root: Path, site_file: Path, candidate: SettingsCandidate, hours: float) -> ProofReport:
    made_t = SystemClock().now()
    if not candidate.cassettes:
        proposal = _proposal(site_file, candidate)
        sites = [each.config.for_decisions() for each in (proposal.before, proposal.after)]
        return SettingsProof(root, sites[0], sites[1], hours).run(candidate.report, made_t)
    first, second = (play(Path(each)) for each in candidate.cassettes)
    judgement = compared(first, second, of_people(site_file))
    return ProofReport(candidate.report, made_t, judgement, (first.judge, second.judge), 0, 0.0, 0.0, ())


def _list(store: CandidateStore, proofs: ProofStore, *, as_json: bool) -> int:
    rows = []
    for each in store.all():
        report = proofs.of(each.report)
        rows.append({"name": each.name, "outcome": report.judgement.outcome if report else "not tried yet"})
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        print("\n".join(f"{row['name']:40} {row['outcome']}" for row in rows) or "no candidate waits")
    return 0


def _parsed(text: str) -> KeyChange:
    """Return the change that KEY=VALUE asks for; without a value the key goes. Raise UsageError."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UsageError(f"--set {text}: write KEY=VALUE, such as detector.score_min=0.6")
    try:
        return KeyChange(path=tuple(key.split(".")), value=yaml.safe_load(value), remove=not value)
    except yaml.YAMLError:
        raise UsageError(f"--set {text}: the value is not YAML") from None


def _proposal(site_file: Path, candidate: SettingsCandidate) -> SiteProposal:
    """Return the change of the site file as it is now. Raise ConfigError, UsageError: there is nothing to change."""
    changes = [SiteChange(each.path, REMOVED if each.remove else each.value) for each in candidate.changes]
    proposal = SiteEditor(site_file).propose(changes, digest_of(yamlfile.read_text(site_file)))
    if not proposal.diff:
        raise UsageError(f"{candidate.name}: the site file has these values already")
    return proposal
