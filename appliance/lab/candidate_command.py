"""`vedette candidate`: settings, thresholds, prompts and models of verdicts that are tried at night, or at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from appliance.base import yamlfile
from appliance.base.clock import SystemClock, local_weekday_minute
from appliance.base.errors import EngineError, EngineUnavailable, UsageError
from appliance.canary.candidate_comparison import judged_alerts
from appliance.canary.candidate_trial import FAILURES, JobCall
from appliance.canary.candidates import CandidateStore, KeyChange, SettingsCandidate
from appliance.canary.proof_store import SHOWN_MAX, DifferingFrame, ProofReport, ProofStore
from appliance.config import CameraConfig, DecisionConfig, LocalJudgeConfig
from appliance.dashboard.recording_jobs import model_places
from appliance.detect.model_files import pull_folder
from appliance.detect.runtime_choice import as_at_run_time
from appliance.evidence.privacy import PrivacyEgressPolicy, PrivacyRules
from appliance.lab.cassette_command import DECISION_OF_REVIEW, compared, of_people, play
from appliance.lab.prove_command import job_call, kept_scenarios, report_json, report_lines
from appliance.replay.recording_tasks import (
    SCENARIOS_TASK,
    TRIAL_TASK,
    ScenariosTask,
    TrialSetup,
    TrialSpan,
    TrialTask,
    around_alert,
    merged_spans,
    without_secrets,
)
from appliance.settings.site_editor import SiteEditor, SiteProposal, digest_of
from appliance.store.alert_rows import AlertRow
from appliance.store.storage_reader import StorageArchive, settled_escalations
from appliance.types import Alert, Decision, Event
from appliance.uplink.local_judge import JudgeChild
from appliance.wire import Escalation

ALERTS_MAX = 50  # reviewed alerts of a camera, and escalations, the newest
NEAR_S = 5.0  # an alert of the store this near is the same
NIGHT_S = 4 * 3600.0  # the longest that a job may take

Known = tuple[bool, bool, bool | None]
"""Raised with the settings in force, raised with the changed ones, and whether it is right (`judged_alerts`)."""


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
        if options.as_json:
            print(json.dumps({"name": options.name, "waits": False}))
        return 0
    candidate = store.get(options.name)
    if options.use:
        SiteEditor(site_file).write(_proposal(site_file, candidate))
        store.remove(options.name)
        text = f"{site_file} is changed; a running appliance asks on its page Settings whether to take it"
        print(json.dumps({"name": options.name, "waits": False, "file": str(site_file)}) if options.as_json else text)
        return 0
    report = _tried(root, site_file, candidate, options.hours)
    ProofStore(root).put(report)
    what = "escalations" if candidate.cassettes else "alerts"
    print(json.dumps(report_json(report), indent=1) if options.as_json else "\n".join(report_lines(report, what)))
    return 0 if report.judgement.outcome == "better" else 1


def _keep(site_file: Path, store: CandidateStore, options: CandidateOptions) -> int:
    cassettes = tuple(str(Path(each).resolve()) for each in options.cassettes)
    candidate = SettingsCandidate(name=options.name, changes=tuple(map(_parsed, options.changes)), cassettes=cassettes)
    diff = "" if cassettes else _proposal(site_file, candidate).diff
    for each in cassettes:
        play(Path(each))  # it can be read
    store.put(candidate)
    if options.as_json:
        print(json.dumps({"name": options.name, "waits": True, "diff": diff, "cassettes": cassettes}))
        return 0
    if diff:
        print(diff)
    print(f"{options.name}: tried each night until it is better or worse, or at once with --now")
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
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: of 2001-02-30
        raise UsageError(f"--set {text}: the value is not YAML") from None


def _proposal(site_file: Path, candidate: SettingsCandidate) -> SiteProposal:
    """Return the change of the site file as it is now. Raise ConfigError, UsageError: there is nothing to change."""
    changes = [each.change() for each in candidate.changes]
    proposal = SiteEditor(site_file).propose(changes, digest_of(yamlfile.read_text(site_file)))
    if not proposal.diff:
        raise UsageError(f"{candidate.name}: the site file has these values already")
    return proposal


class SettingsProof:
    """One trial of settings. State: what was found so far. Owner: one thread, once."""

    def __init__(self, root: Path, now: DecisionConfig, then: DecisionConfig, hours: float) -> None:
        """now: in force. hours: of the newest recording of each camera that the change concerns."""
        self._root = root.resolve()
        self._now, self._then, self._hours = now, then, hours
        self._archive = StorageArchive(self._root)
        self._differing: list[DifferingFrame] = []
        self._unread: list[str] = []
        self._networks = ("", "")
        self._frames, self._footage_s = 0, 0.0

    def run(self, name: str, made_t: float) -> ProofReport:
        """Try them. Raise ModelError: the network of one side is not here."""
        began = SystemClock().monotonic()
        cameras = [each for each in self._now.cameras if self._concerns(each)]
        call = self._call(cameras)
        known = [pair for camera in cameras for pair in self._known_on(camera, call)]
        scenarios = self._scenarios(cameras, call)
        judge = self._then.escalation.local_judge
        verdicts = [] if judge.url is None else list(self._verdicts(judge))
        return ProofReport(
            candidate=name, made_t=made_t, judgement=judged_alerts(known, verdicts, scenarios),
            networks=self._networks, frames=self._frames, footage_s=self._footage_s,
            wall_s=SystemClock().monotonic() - began, differing=tuple(self._differing[:SHOWN_MAX]),
            unread=tuple(self._unread),
        )  # fmt: skip

    def _concerns(self, camera: str) -> bool:
        """Return whether the change decides anything about a camera that is there before and after."""
        if camera not in self._then.cameras:
            return False
        now, then = self._sites(camera)
        cameras = [_without_words(each.cameras[camera]) for each in (now, then)]
        return cameras[0] != cameras[1] or (now.detector, now.alerts) != (then.detector, then.alerts)

    def _sites(self, camera: str) -> tuple[DecisionConfig, DecisionConfig]:
        """Return what decides about a camera: in force, and changed."""
        return without_secrets(self._now, camera, self._root), without_secrets(self._then, camera, self._root)

    def _call(self, cameras: Sequence[str]) -> JobCall:
        places = {place for name in cameras for site in self._sites(name) for place in model_places(site.detector)[1]}
        return job_call(self._root, sorted(places), NIGHT_S)

    def _known_on(self, camera: str, call: JobCall) -> Iterator[Known]:
        """Yield what both settings raise on a camera's recording."""
        reviewed = self._archive.reviewed_alerts(camera)
        spans = tuple(self._spans(camera, [each.alert for each in reviewed[:ALERTS_MAX]]))
        if not spans:
            self._unread.append(f"{camera}: nothing is recorded")
            return
        now, then = (TrialSetup(site, model_places(site.detector)[0]) for site in self._sites(camera))
        task = TrialTask(str(self._root), camera, spans, now, then, every_alert=True)
        try:
            found = call("try_settings", TRIAL_TASK.dump_python(task, mode="json"), NIGHT_S)
        except FAILURES as error:
            self._unread.append(f"{camera}: {error}")
            return
        self._networks = found["models"][0], found["models"][1]
        self._frames += found["totals"][0]["looks"]
        self._footage_s += sum(span.t1 - span.t0 for span in spans)
        self._unread += [f"{camera}: {each}" for each in found["unread"]]
        for pair in found["alerts"]:
            before, after = pair["before"], pair["after"]
            shown = after or before
            if before is None or after is None:
                side, labels = "old" if after is None else "new", ", ".join(shown["labels"])
                self._differing.append(DifferingFrame(camera, shown["best_t"], labels, side))
            yield before is not None, after is not None, _truth_of(shown, reviewed)

    def _spans(self, camera: str, alerts: Sequence[Alert]) -> Iterator[TrialSpan]:
        recorded = self._archive.span(camera)
        if recorded is None:
            return
        newest = (max(recorded[0], recorded[1] - self._hours * 3600), recorded[1])
        for t0, t1 in merged_spans([newest, *(around_alert(each.t_start, each.t_end) for each in alerts)]):
            if rows := self._archive.segments(camera, t0, t1):
                gaps = tuple(self._archive.gaps(camera, t0, t1))
                yield TrialSpan(t0, t1, tuple(rows), gaps, local_weekday_minute(t0))

    def _scenarios(self, cameras: Sequence[str], call: JobCall) -> Iterator[tuple[bool, bool]]:
        """Return which kept scenarios pass with what is in force, and with the candidate."""
        files = kept_scenarios(self._root, cameras)
        if not files:
            return iter(())
        passed = []
        for side, site in enumerate((self._now, self._then)):
            sites = {name: self._sites(name)[side] for name in cameras}
            way = as_at_run_time(site.detector, self._root)
            task = ScenariosTask(files, sites, way, str(pull_folder()))
            try:
                rows = call("run_scenarios", SCENARIOS_TASK.dump_python(task, mode="json"), NIGHT_S)
            except FAILURES as error:
                self._unread.append(f"scenarios: {error}")
                return iter(())
            passed.append([row["now"] == "passed" for row in rows])
        return zip(*passed, strict=True)

    def _verdicts(self, settings: LocalJudgeConfig) -> Iterator[tuple[bool, bool]]:
        """Ask the candidate about escalations of reviewed alerts; yield whether the old and the new verdict is right.

        What the privacy rules hold back is not shown to this model either.
        """
        rules = PrivacyRules(self._then.site, self._then.cameras, local_weekday_minute)
        policy = PrivacyEgressPolicy(rules, self._then.cameras, self._events_of)
        child, now_t = JudgeChild(settings, SystemClock()), SystemClock().now()
        reviews = {
            each.alert.id: each.reviewed.review
            for name in self._now.cameras for each in self._archive.reviewed_alerts(name)
        }  # fmt: skip
        settled = (each for each in settled_escalations(self._root, 0.0, now_t) if each.escalation.alert in reviews)
        is_other = settings != self._now.escalation.local_judge
        known = [each for each in settled if is_other or self._asked(each.escalation.body)]
        try:
            for each in known[-ALERTS_MAX:]:
                row, media = each.escalation, self._archive.media(each.escalation.id)
                paths = {file.ref.id: str(self._root / file.path) for file in media}
                there = paths and all(Path(path).is_file() for path in paths.values())
                if not there or policy.forbids(row.body) or any(policy.withholds(row.camera, m.path) for m in media):
                    continue
                truth = DECISION_OF_REVIEW[reviews[row.alert]]
                yield each.verdict.decision == truth, self._answer(child, self._in_new_words(row.body), paths) == truth
        except EngineUnavailable as error:
            self._unread.append(f"verdicts: {error}")
        finally:
            child.close()

    def _asked(self, escalation: Escalation) -> str:
        """Return the changed words of its rule; '': they are as they were, or there are none of its own."""
        before, after = (
            next((rule.ask for rule in site.cameras[escalation.camera].rules if rule.name == escalation.rule), "")
            if escalation.camera in site.cameras
            else ""
            for site in (self._now, self._then)
        )
        return after if after != before else ""

    def _in_new_words(self, escalation: Escalation) -> Escalation:
        return escalation.model_copy(update={"question": self._asked(escalation) or escalation.question})

    def _answer(self, child: JudgeChild, escalation: Escalation, paths: Mapping[str, str]) -> Decision:
        """Return what the candidate says; `unsure` where it cannot. Raise EngineUnavailable."""
        try:
            return child.ask(escalation, paths, lambda: False).decision
        except EngineUnavailable:
            raise
        except EngineError as error:
            self._unread.append(f"escalation {escalation.id}: {error}")
            return "unsure"

    def _events_of(self, alert: str) -> Sequence[Event]:
        found = self._archive.alert(alert)
        return found.events if found is not None else ()


def _without_words(camera: CameraConfig) -> CameraConfig:
    rules = tuple(rule.model_copy(update={"ask": ""}) for rule in camera.rules)
    return camera.model_copy(update={"rules": rules})


def _truth_of(shown: dict[str, Any], reviewed: Sequence[AlertRow]) -> bool | None:
    """Return what people said of the alert that was raised at that time; None: nothing."""
    near = [
        each
        for each in reviewed
        if each.alert.t_start - NEAR_S <= shown["t_end"]
        and shown["t_start"] <= (each.alert.t_end or each.alert.t_start) + NEAR_S
    ]
    found = min(near, key=lambda each: abs(each.alert.t_start - shown["t_start"]), default=None)
    return None if found is None else found.reviewed.review == "reviewed"
