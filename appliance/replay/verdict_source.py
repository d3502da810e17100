"""Answers to the escalations of a replay: the VerdictSource port, the pending verdicts, and the oracle judge.

The oracle answers from the truth. The command-line options that choose a source are here too.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from appliance import wire
from appliance.base.config_model import ConfigModel
from appliance.types import AlertChange, Decision, LogVerdict, PipelineStep

if TYPE_CHECKING:
    from appliance.evidence.evidence_selection import EncodedImage

VerdictMatch = Literal["exact", "nearest", "stand-in"]
VerdictOrigin = Literal["cassette", "cloud", "stand-in"]
BY_NEARNESS = ", matched by nearness"


class AnsweredBy(ConfigModel):
    """Where the verdicts of a replay come from, as the log's first line says; part of its digest.

    digest: of a cassette's content. match: how its answers are found. words: the judges on it, or what a stand-in is
    made of.
    """

    source: VerdictOrigin
    digest: str = ""
    match: Literal["exact", "nearest"] = "exact"
    words: str = ""

    def __str__(self) -> str:
        """Write it for people, beside every figure that depends on it."""
        if self.source == "cassette":
            return f"a cassette of {self.words}{BY_NEARNESS if self.match == 'nearest' else ''}"
        return self.words if self.source == "stand-in" else "the cloud, asked now"


@dataclass(frozen=True, slots=True)
class FootageRef:
    """Which footage an escalation is about."""

    clip: str
    t_from: float | None = None  # UTC seconds of its t = 0; None: unknown (a clip)


@dataclass(frozen=True, slots=True)
class ReplayEscalation:
    """An escalation as it would be sent, `body.t` in seconds of the footage."""

    body: wire.Escalation
    priority: str
    images: tuple[EncodedImage, ...] = ()  # of this step
    # A clip goes along, which a replay cannot cut: the verdict can be found on a cassette, but the cloud not asked.
    clip: bool = False
    bytes: int = 0  # on the uplink
    # The next step, when a judge needs to see more; None: there is no more.
    more: Callable[[wire.Need], ReplayEscalation | None] = lambda need: None


@dataclass(frozen=True, slots=True)
class SourcedVerdict:
    """A verdict, and how it was found. Its ids are those of the escalation that was judged first."""

    verdict: wire.Verdict
    total_s: float  # from the escalation's moment to the verdict
    match: VerdictMatch


class VerdictSource(Protocol):
    """Where a replay has its verdicts from. The same escalations in the same order always get the same verdicts."""

    @property
    def answered_by(self) -> AnsweredBy:
        """For the log's first line."""
        ...

    def answer(self, escalation: ReplayEscalation, footage: FootageRef) -> SourcedVerdict | None:
        """Return the verdict; None: there is none, which is reported and never taken for one."""
        ...


class PendingVerdicts:
    """The verdicts of one camera that have not arrived yet.

    State: verdicts on their way, and the decision about each alert that is not over. A verdict is known at once, but
    its line waits until as much footage has gone by as the cloud took; the `alert` line has it in any case, for that is
    written once the incident is over.
    """

    def __init__(self, source: VerdictSource | None, footage: FootageRef) -> None:
        """source None: no escalation is answered."""
        self._source = source
        self._footage = footage
        self._pending: list[LogVerdict] = []
        self._decisions: dict[str, Decision] = {}

    @property
    def enabled(self) -> bool:
        """True if escalations need to be made at all."""
        return self._source is not None

    def submit(self, escalations: Iterable[ReplayEscalation]) -> None:
        """Have each judged, step by step. One without a verdict leaves no line. Raises what the source raises."""
        for escalation in escalations if self.enabled else ():
            verdict = self._judge(escalation)
            if verdict is not None:
                self._pending.append(verdict)
                self._decisions[verdict.alert] = verdict.decision

    def due(self, t: float) -> tuple[LogVerdict, ...]:
        """Return those that arrived by the footage's second `t`, in order of arrival."""
        arrived = sorted((each for each in self._pending if each.t <= t), key=lambda each: (each.t, each.escalation))
        self._pending = [each for each in self._pending if each.t > t]
        return tuple(arrived)

    def remaining(self) -> tuple[LogVerdict, ...]:
        """Return those that would arrive after the footage is over."""
        return self.due(float("inf"))

    def with_verdicts(self, step: PipelineStep) -> PipelineStep:
        """Return the step, with the decision on each alert that ended in it."""
        return replace(step, changes=tuple(map(self._with_decision, step.changes))) if self.enabled else step

    def _with_decision(self, change: AlertChange) -> AlertChange:
        if change.kind != "ended":
            return change
        return replace(change, alert=replace(change.alert, verdict=self._decisions.pop(change.alert.id, None)))

    def _judge(self, escalation: ReplayEscalation) -> LogVerdict | None:
        """Get the verdict; a judge that asks for more evidence gets it while there is more. The last verdict counts.

        Where that asked for evidence that cannot be had, it stands as `unsure` and says so, as live. None: there is no
        verdict on another step.
        """
        assert self._source is not None
        steps: list[tuple[ReplayEscalation, SourcedVerdict]] = []
        sent: ReplayEscalation | None = escalation
        while sent is not None and len(steps) < wire.STEPS_MAX:
            found = self._source.answer(sent, self._footage)
            if found is None:
                return _line(steps) if sent.clip and steps else None
            steps.append((sent, found))
            need = found.verdict.need
            sent = sent.more(need) if need is not None else None
        return _line(steps)


def _line(steps: Sequence[tuple[ReplayEscalation, SourcedVerdict]]) -> LogVerdict:
    """Return the line of an escalation, of its steps with their answers."""
    body, last = steps[0][0].body, steps[-1][1]
    verdict = last.verdict
    lacking = f" It asked for a {verdict.need}, which could not be had." if verdict.need else ""
    return LogVerdict(
        camera=body.camera,
        alert=body.alert,
        escalation=body.id,
        t=round(body.t + sum(found.total_s for _, found in steps), 3),
        decision="unsure" if verdict.need else verdict.decision,
        reason=verdict.reason + lacking,
        confidence=verdict.confidence,
        kind=verdict.kind,
        engine=verdict.engine,
        model=verdict.model,
        prompt_version=verdict.prompt_version,
        step=len(steps) - 1,
        match="nearest" if any(found.match == "nearest" for _, found in steps) else last.match,
        more_bytes=sum(sent.bytes for sent, _ in steps[1:]),
    )


VERDICT_WAIT_S = 120.0  # a language model on a busy GPU answers within it; live, the deadline is the site's
ORACLE_ENGINE = "stand-in"


@dataclass(frozen=True, slots=True)
class OracleSettings:
    """How the oracle judge answers."""

    error: float = 0.0  # share of verdicts that are inverted
    seed: int = 0  # of which they are
    latency_s: float = 0.0  # of each verdict

    @property
    def text(self) -> str:
        """`stand-in (answers made from the truth, 5 % of them turned round, seed 1)`."""
        turned = f", {100 * self.error:.3g} % of them turned round, seed {self.seed}" if self.error else ""
        return f"{ORACLE_ENGINE} (answers made from the truth{turned})"


@dataclass(frozen=True, slots=True)
class OracleOptions:
    """The option value `stand-in:error=0.05,seed=1`."""

    settings: OracleSettings = OracleSettings()
    truth: Path | None = None  # the scenario file that says what truly happened; None: it is known


@dataclass(frozen=True, slots=True)
class VerdictOptions:
    """Where the verdicts of a replay come from, as the command line says."""

    source: Path | OracleOptions | None = None  # a cassette, or the oracle
    match: Literal["exact", "nearest"] | None = None  # as the cassette was made for
    record: Path | None = None  # the cassette to record to
    cloud: str | None = None  # a broker's address instead of the site's uplink
    wait_s: float = VERDICT_WAIT_S  # for one verdict

    @property
    def any(self) -> bool:
        """True if escalations are answered at all."""
        return self.source is not None or self.record is not None


ORACLE_MODEL = "truth"
_FLIPPED: dict[Decision, Decision] = {"confirmed": "rejected", "rejected": "confirmed"}  # others stay as they are


@dataclass(frozen=True, slots=True)
class OracleOpinion:
    """The truth about one escalation."""

    decision: Decision  # `unsure` where the truth says nothing
    reason: str  # which part of the truth


class OracleTruth(Protocol):
    """The written truth: true events as far as they were labelled."""

    def about(self, escalation: wire.Escalation) -> OracleOpinion: ...


class OracleJudge:
    """Answers from the truth.

    Which verdicts are inverted depends on seed and escalation alone, so one escalation more changes no other verdict.
    """

    def __init__(self, truth: OracleTruth, settings: OracleSettings) -> None:
        self._truth = truth
        self._settings = settings

    @property
    def answered_by(self) -> AnsweredBy:
        return AnsweredBy(source="stand-in", words=self._settings.text)

    def answer(self, escalation: ReplayEscalation, footage: FootageRef) -> SourcedVerdict:
        body = escalation.body
        opinion = self._truth.about(body)
        decision = _FLIPPED.get(opinion.decision, opinion.decision) if self._is_inverted(body) else opinion.decision
        inverted = decision != opinion.decision
        verdict = wire.Verdict(
            escalation=body.id,
            site=body.site,
            alert=body.alert,
            decision=decision,
            reason=f"{ORACLE_ENGINE}: {opinion.reason}{'; turned round on purpose' if inverted else ''}"[:400],
            kind="simulated",
            engine=ORACLE_ENGINE,
            model=ORACLE_MODEL,
            seconds=0.0,
            judged_t=0.0,
        )
        return SourcedVerdict(verdict, self._settings.latency_s, "stand-in")

    def _is_inverted(self, body: wire.Escalation) -> bool:
        text = f"{self._settings.seed}|{body.camera}|{body.rule}|{body.label}|{body.t:.3f}"
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        return drawn < self._settings.error


def parse_verdict_source(text: str) -> Path | OracleOptions:
    """Parse a path, or `stand-in` with its settings; a file of that name is written ./stand-in."""
    name, colon, rest = text.partition(":")
    if name != ORACLE_ENGINE:
        return Path(text)
    options = OracleOptions()
    for part in rest.split(",") if colon else ():
        key, _, value = part.partition("=")
        try:
            options = _with_oracle_setting(options, key.strip(), value.strip())
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"`{part}`: a stand-in takes error=0..1, seed=NUMBER, latency=SECONDS and truth=SCENARIO"
            ) from None
    return options


def _with_oracle_setting(options: OracleOptions, key: str, value: str) -> OracleOptions:
    if key == "truth" and value:
        return replace(options, truth=Path(value))
    if key == "seed":
        return replace(options, settings=replace(options.settings, seed=int(value)))
    number = float(value)
    if key == "error" and 0 <= number <= 1:
        return replace(options, settings=replace(options.settings, error=number))
    if key == "latency" and 0 <= number <= 86400:
        return replace(options, settings=replace(options.settings, latency_s=number))
    raise ValueError(key)
