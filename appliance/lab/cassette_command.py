"""`vedette cassette`: copies verdicts from a store to a cassette, checks one, and compares judges (`agree`).

`agree` counts by rule how often judges agree with the truth, on the same escalations. It answers which order of the
answer (`engine.answer_order`) judges better: one cassette is recorded with each. Compared are the escalations that
stand on all cassettes and of which the truth is known: the entries of a scenario, or what people said of the alerts of
a site. `unsure` agrees with neither. Of two cassettes the second is a candidate: a prompt or a model is better, worse,
or not enough is known, by the test that networks have to stand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance import config, wire
from appliance.base.clock import Clock, SystemClock, parse_moment
from appliance.base.errors import UsageError
from appliance.base.local_files import discard_temporary, finish_file, temporary_path
from appliance.canary.candidate_comparison import CandidateJudge, Judgement
from appliance.lab.export_command import every_alert
from appliance.lab.replay_verdicts import new_header
from appliance.replay.cassette_file import (
    JUDGES_MAX,
    LINES_MAX,
    CassetteLine,
    CassetteQuery,
    CassetteReader,
    CassetteWriter,
    Judge,
    key_of,
    media_of,
    query_of,
    stages_of,
)
from appliance.scenario import scenario_loader
from appliance.scenario.metrics import Estimate, estimate_share, format_estimate
from appliance.scenario.scenario_verdicts import scenario_truth
from appliance.store.escalations import StepRow
from appliance.store.storage_reader import SettledEscalation, StorageArchive, settled_escalations
from appliance.types import Decision, Review

_MEDIA_RANK = {"facts": 0, "crop": 1, "frame": 2, "clip": 3}


@dataclass(frozen=True, slots=True)
class CassetteCopy:
    """The counts of a written cassette."""

    escalations: int
    lines: int  # verdicts of all their steps
    judges: tuple[Judge, ...]


def cassette_from_store(root: Path, out: Path, t0: float, t1: float, clock: Clock) -> CassetteCopy:
    """Write the verdicts on what was asked from t0 to t1 (UTC seconds) to a new cassette.

    Reads the store twice, and only reads; `out` appears whole or not at all. Raises StoreError, OSError,
    DiskWriteError, and UsageError when `out` is there already or there is nothing to copy.
    """
    if out.exists():
        raise UsageError(f"{out} is there already: name a new file")
    judges = _judges(settled_escalations(root, t0, t1))
    if not judges:
        raise UsageError(f"{root} holds no verdict on anything that was asked in that time")
    part = temporary_path(out)  # a copy that was killed, or found no room, looks like a whole one
    discard_temporary(part)
    writer = CassetteWriter(part)
    try:
        # Live pictures and those of a replay are cut from the same seconds, seldom from the same bytes.
        writer.begin(new_header(judges, clock).model_copy(update={"match": "nearest"}))
        escalations = lines = 0
        for row in settled_escalations(root, t0, t1):
            escalations += 1
            for line in lines_of(row):
                if line.judge not in judges:
                    continue  # it came while we read; another copy will have it
                lines += 1
                if lines > LINES_MAX:
                    raise UsageError(f"over {LINES_MAX} verdicts: narrow it with --from and --to")
                writer.write(line)
        finish_file(out)
    finally:
        writer.close()
        discard_temporary(part)
    return CassetteCopy(escalations, lines, judges)


def lines_of(row: SettledEscalation) -> Iterator[CassetteLine]:
    """Return one line a step: first those that asked for more, then the final verdict.

    The time of a step is the judge's clock against the appliance's; that of the final verdict is the appliance's alone.
    """
    asked = row.escalation
    kinds: list[str] = []
    earlier_s = 0.0
    for step in row.steps or (StepRow(escalation=asked.id, n=0),):
        if step.n > row.verdict.step:
            return
        kinds.append(step.evidence)
        last = step.n == row.verdict.step
        verdict = row.verdict.body if last else step.answer
        if verdict is None:
            continue
        arrived_t = row.verdict.applied_t if last else verdict.judged_t
        total_s = max(0.0, arrived_t - asked.times.created_t - earlier_s)
        earlier_s += total_s
        yield _line(row, step, verdict, _as_sent(asked.body, kinds), round(total_s, 3))


def _line(
    row: SettledEscalation, step: StepRow, verdict: wire.Verdict, body: wire.Escalation, total_s: float
) -> CassetteLine:
    query, media = query_of(body, t=body.t, utc=True), media_of(body)
    created_t, sent_t = row.escalation.times.created_t, row.escalation.times.sent_t
    waited_s = {} if sent_t is None else {"wait": round(max(0.0, sent_t - created_t), 4)}
    return CassetteLine(
        key=key_of(query, media),
        asked=query,
        media=media,
        verdict=verdict,
        total_s=total_s,
        stages={**(waited_s if step.n == row.verdict.step else {}), **stages_of(verdict)},
        bytes=step.bytes_sent or row.escalation.bytes_sent,
    )


def _as_sent(body: wire.Escalation, kinds: list[str]) -> wire.Escalation:
    """Return the message as it was when the steps of these kinds had been sent; the row lists all ever sent."""
    rank = max((_MEDIA_RANK.get(kind, 3) for kind in kinds), default=3)
    media = tuple(ref for ref in body.media if _MEDIA_RANK[ref.kind] <= rank)
    return body.model_copy(update={"media": media, "step": len(kinds) - 1})


def _judges(rows: Iterable[SettledEscalation]) -> tuple[Judge, ...]:
    found: dict[Judge, None] = {}
    for row in rows:
        for line in lines_of(row):
            found[line.judge] = None
        if len(found) > JUDGES_MAX:
            raise UsageError(
                f"over {JUDGES_MAX} different judges answered in that time: narrow it with --from and --to"
            )
    return tuple(found)


def from_store_command(site_file: Path, cassette: Path, t_from: str | None, t_to: str | None, *, as_json: bool) -> int:
    """Copy an appliance's verdicts to a cassette. Returns 0. Raises UsageError, StoreError."""
    site = config.load(site_file)
    t0 = parse_moment(t_from) if t_from is not None else float("-inf")
    t1 = parse_moment(t_to) if t_to is not None else float("inf")
    try:
        copied = cassette_from_store(site.storage.dir, cassette, t0, t1, SystemClock())
    except OSError as error:
        raise UsageError(f"{cassette} cannot be written: {error.strerror}") from None
    judges = list(map(str, copied.judges))
    if as_json:
        print(json.dumps({"questions": copied.escalations, "verdicts": copied.lines, "judges": judges}))
    else:
        print(f"{cassette}: {copied.escalations} questions, {copied.lines} verdicts, by {'; '.join(judges)}")
    return 0


def check_command(cassette: Path, *, as_json: bool) -> int:
    """Read a whole cassette and say what is on it. Returns 0. Raises UsageError."""
    reader = CassetteReader(cassette)
    decisions: Counter[str] = Counter()
    keys: set[bytes] = set()
    for placed in reader.lines():
        decisions["asks for more" if placed.line.verdict.need else placed.line.verdict.decision] += 1
        keys.add(bytes.fromhex(placed.line.key))
    judges, lines = list(map(str, reader.header.judges)), sum(decisions.values())
    if as_json:
        counts = {"questions": len(keys), "verdicts": lines, "judges": judges, "decisions": decisions}
        print(json.dumps({**counts, "digest": reader.digest}))
        return 0
    decided = ", ".join(f"{count} {name}" for name, count in sorted(decisions.items()))
    recorded = f", recorded {reader.header.recorded}" if reader.header.recorded else ""
    print(f"{cassette}: {lines} verdicts on {len(keys)} different questions ({decided or 'none'}){recorded}")
    print(f"by {'; '.join(judges)}; digest {reader.digest}")
    return 0


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
