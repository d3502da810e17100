"""`vedette cassette agree`: counts by rule how often judges agree with the truth, on the same escalations.

It answers which order of the answer (`engine.answer_order`) judges better: one cassette is recorded with each. Compared
are the escalations that stand on all cassettes and of which the truth is known: the entries of a scenario, or what
people said of the alerts of a site. `unsure` agrees with neither.
Of two cassettes the second is a candidate: a prompt or a model is better, worse, or not enough is known, by the test
that networks have to stand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance import config, wire
from appliance.base.errors import UsageError
from appliance.canary.candidate_comparison import CandidateJudge, Judgement
from appliance.lab.export_command import every_alert
from appliance.replay.cassette_file import CassetteQuery, CassetteReader
from appliance.scenario import scenario_loader
from appliance.scenario.metrics import Estimate, estimate_share, format_estimate
from appliance.scenario.scenario_verdicts import scenario_truth
from appliance.store.storage_reader import StorageArchive
from appliance.types import Decision, Review

ORDERS = {"1": "reason_first", "2": "decision_first", "3": "one_token"}
"""By `answer_schema` of a verdict, the order in which a worker had its model answer."""
ALL_RULES = "all rules"
DECISION_OF_REVIEW: Mapping[Review | None, Decision] = {"reviewed": "confirmed", "false_alarm": "rejected"}

EscalationKey = tuple[str, str, str, str, float]
"""Clip, camera, rule, label and time: an escalation, whatever evidence its steps had."""
Truth = Callable[[CassetteQuery, wire.Verdict], Decision | None]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One judge on one rule. agrees: the share of `escalations` in which it says what is true; unsure: how many."""

    cassette: str
    order: str
    judge: str
    rule: str
    escalations: int
    unsure: int
    agrees: Estimate


@dataclass(frozen=True, slots=True)
class _Played:
    """The final verdicts of a cassette."""

    name: str
    order: str
    judge: str
    verdicts: Mapping[EscalationKey, tuple[CassetteQuery, wire.Verdict]]


def agree_command(cassettes: Sequence[Path], truth: Path | None, site_file: Path | None, *, as_json: bool) -> int:
    """Print the agreement of each cassette with the truth. Returns 0. Raises UsageError, ConfigError, StoreError."""
    if (truth is None) == (site_file is None):
        raise UsageError("what is true? Name a scenario (--truth) or the site whose alerts people reviewed (--config)")
    about = _of_scenario(truth) if truth is not None else of_people(site_file)  # type: ignore[arg-type]
    played = [play(each) for each in cassettes]
    found = agreements(played, about)
    second = None if len(played) != 2 else compared(played[0], played[1], about)
    lacking = [order for order in ORDERS.values() if order not in {each.order for each in played}]
    if as_json:
        outcome = None if second is None else {"outcome": second.outcome, "reasons": [*second.reasons, *second.lacking]}
        print(json.dumps({"agreement": [asdict(each) for each in found], "lacking": lacking, "second": outcome}))
        return 0
    for each in found:
        judged = f"{each.escalations} escalations, {each.unsure} unsure, agrees {format_estimate(each.agrees)}"
        print(f"{each.rule:24}  {each.order:15}  {judged}  ({each.cassette}: {each.judge})")
    if second is not None:
        print(f"{played[1].name} instead of {played[0].name}: {second.outcome}")
        print("\n".join(f"  {each}" for each in (*second.reasons, *second.lacking)))
    for order in lacking:
        print(
            f"no cassette of {order}: record one with a worker that has engine.answer_order: {order} (docs/replay.md)"
        )
    return 0


def compared(first: _Played, second: _Played, about: Truth) -> Judgement:
    """Return whether the second judge (a prompt, a model) is better than the first, as networks are (canary.judge)."""
    judge = CandidateJudge("escalations")
    for key in sorted(first.verdicts.keys() & second.verdicts.keys()):
        true = about(*first.verdicts[key])
        if true in ("confirmed", "rejected"):
            rights = [each.verdicts[key][1].decision == true for each in (first, second)]
            judge.add_answer(old_right=rights[0], new_right=rights[1])
    return judge.verdict()


def agreements(played: Sequence[_Played], about: Truth) -> list[Agreement]:
    """Return a row for each rule and cassette, all rules first. Raise UsageError where nothing can be compared."""
    shared = set.intersection(*(set(each.verdicts) for each in played))
    known = {key: about(*played[0].verdicts[key]) for key in sorted(shared)}
    true = {key: decision for key, decision in known.items() if decision in ("confirmed", "rejected")}
    if not true:
        text = f"nothing to compare: {len(shared)} escalations are on all of these cassettes"
        raise UsageError(f"{text}, and of none of them is the truth known")
    rules = [ALL_RULES, *sorted({rule for _, _, rule, _, _ in true})]
    return [row for rule in rules for row in _rows(rule, true, played)]


def _rows(rule: str, true: Mapping[EscalationKey, Decision], played: Sequence[_Played]) -> Iterator[Agreement]:
    asked = {each: decision for each, decision in true.items() if rule in (ALL_RULES, each[2])}
    for tape in played:
        answered = {each: tape.verdicts[each][1].decision for each in asked}
        right = [answered[each] == decision for each, decision in asked.items()]
        unsure = sum(decision not in ("confirmed", "rejected") for decision in answered.values())
        yield Agreement(tape.name, tape.order, tape.judge, rule, len(asked), unsure, estimate_share(right))


def play(path: Path) -> _Played:
    """Read a cassette. Raise UsageError for one that is damaged, or whose judges answered in several orders."""
    reader = CassetteReader(path)
    verdicts: dict[EscalationKey, tuple[CassetteQuery, wire.Verdict]] = {}
    orders = set()
    for placed in reader.lines():
        asked, verdict = placed.line.asked, placed.line.verdict
        orders.add(ORDERS.get(verdict.answer_schema, "no order"))
        key = asked.clip, asked.camera, asked.rule, asked.label, asked.t
        if verdict.need is None or key not in verdicts:  # a request for evidence that nothing follows is `unsure`
            verdicts[key] = asked, verdict
    if len(orders) > 1:
        raise UsageError(f"{path}: its verdicts were given in several orders ({', '.join(sorted(orders))})")
    judge = "; ".join(map(str, reader.header.judges))
    return _Played(path.name, orders.pop() if orders else "no order", judge, verdicts)


def _of_scenario(path: Path) -> Truth:
    truth = scenario_truth(scenario_loader.load_scenario(path))

    def about(asked: CassetteQuery, verdict: wire.Verdict) -> Decision:
        escalation = wire.Escalation(
            id=verdict.escalation, site=verdict.site, alert=verdict.alert, camera=asked.camera, rule=asked.rule,
            kind=asked.kind, label=asked.label, severity="alert", zone=asked.zone, t=asked.t, created_t=asked.t,
        )  # fmt: skip
        return truth.about(escalation).decision

    return about


def of_people(site_file: Path) -> Truth:
    """Return what people said of the alerts of a site; None of those that nobody reviewed, or somebody deleted."""
    rows = every_alert(StorageArchive(config.load(site_file).storage.dir))
    known = (row for row in rows if row.reviewed.review is not None and row.reviewed.deleted_t is None)
    answered = {row.alert.id: DECISION_OF_REVIEW[row.reviewed.review] for row in known}
    return lambda asked, verdict: answered.get(verdict.alert)
