"""Tries a candidate on the site's kept scenarios and last hours of recording, beside the network in force.

Everything runs in children of the lowest priority (`scenario.sandboxed_jobs`). `vedette models prove` has one network
in one child, so a candidate that crashes, hangs or takes all memory is stopped with its child. A trial that the
dashboard starts runs whole in one child (`sandboxed_jobs.prove_network`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from appliance.base.config_model import DetectorConfig
from appliance.base.errors import DetectorError, ModelError, SourceError
from appliance.canary.candidate_comparison import CandidateJudge, KnownObject, PairedObject, RunCosts, kind_of
from appliance.canary.frame_survey import (
    COST_PAIRS,
    COST_TASK,
    SURVEY,
    SURVEY_TASK,
    CostTask,
    FootageFile,
    Survey,
    SurveyTask,
    cpu_pairs,
    paired,
)
from appliance.canary.proof_store import SHOWN_MAX, DifferingFrame, ProofReport
from appliance.sandbox.sandbox import SandboxError, SandboxLimits, SandboxTimeout, SandboxUnavailable
from appliance.store.storage_reader import ReviewedEvent

AROUND_S = 10.0  # an object is there this long before and after its event
CPU_S_MIN, CPU_SHARE_MAX = 20.0, 5.0  # CPU time for a candidate, at least, and against what is in force needed
WALL_S_MAX = 3600.0  # seconds for one camera and network
STILL_S_MAX = 120.0  # without any CPU time; a busy machine gives even the lowest priority some
LIMITS = SandboxLimits(memory_bytes=3 * 1024**3, reply_bytes_max=32 * 1024 * 1024)
"""The memory is that of `recording_jobs.LIMITS`; what takes more cannot be tried on a small appliance."""
FAILURES = (SandboxError, ModelError, SourceError, DetectorError)
UNTRIED = (SandboxTimeout, SandboxUnavailable)
"""Errors that blame no candidate: on a busy machine a child of the lowest priority may get no time for hours.

SourceError of the candidate's survey is the third: the recording was deleted since the other network examined it. Nor
does any error in a kept scenario that was deleted since.
"""


class JobCall(Protocol):
    """Runs one of the functions of `scenario.sandboxed_jobs` in a child of its own."""

    def __call__(self, function: str, values: Mapping[str, Any], cpu_s: float) -> Any:
        """Return its result. Raise SandboxError, ModelError, SourceError, DetectorError.

        cpu_s: of CPU time, as in `Sandbox.call`; of the clock it may take WALL_S_MAX.
        """
        ...


@dataclass(frozen=True, slots=True)
class CameraFootage:
    """Footage for a trial: files of one camera, oldest first, and the reviewed objects in them.

    now: the network in force for this camera alone; None: that of all.
    """

    camera: str
    files: tuple[FootageFile, ...]
    known: tuple[KnownObject, ...] = ()
    now: DetectorConfig | None = None


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """A trial: the settings in force and the candidate's, on cameras and on kept scenarios (files)."""

    candidate: str
    now: DetectorConfig
    then: DetectorConfig
    footage: tuple[CameraFootage, ...]
    scenarios: tuple[str, ...] = ()
    model_folder: str = ""
    every_s: float = 1.0
    keys_only: bool = True
    load_now: float | None = None
    """Share of the detector's time in use; None: not known."""


TRIAL_PLAN: TypeAdapter[TrialPlan] = TypeAdapter(TrialPlan)


class CandidateTrial:
    """Runs one trial. State: the judge, and the examined footage. Owner: one thread; used once."""

    def __init__(self, plan: TrialPlan, call: JobCall) -> None:
        self._plan = plan
        self._call = call
        self._judge = CandidateJudge()
        self._cameras: dict[str, CandidateJudge] = {}
        self._pairs: list[PairedObject] = []
        self._unread: list[str] = []
        self._surveys: list[tuple[Survey, Survey]] = []
        self._failure = ""

    def run(self, made_t: float) -> ProofReport:
        """Try the candidate until it fails, or all is examined. made_t: when, UTC seconds."""
        for _ in self.steps():
            pass
        return self.report(made_t)

    def steps(self) -> Iterator[float]:
        """Run the trial piece by piece; yield the share that is done before each."""
        plan = self._plan
        whole = len(plan.footage) + len(plan.scenarios)
        for number in range(whole):
            if self._failure:
                return
            yield number / whole
            if number < len(plan.footage):
                self._try_on(plan.footage[number])
            else:
                self._try_scenario(plan.scenarios[number - len(plan.footage)])

    def report(self, made_t: float) -> ProofReport:
        """Return what is known after the steps that were done."""
        self._judge.add_costs(*self._costs())
        old = [each for each, _ in self._surveys]
        return ProofReport(
            candidate=self._plan.candidate, made_t=made_t, judgement=self._judge.verdict(),
            networks=(old[0].model, self._surveys[0][1].model) if old else ("", ""),
            frames=sum(len(each.frames) for each in old),
            footage_s=sum(max(0.0, each.frames[-1].t - each.frames[0].t) for each in old),
            wall_s=sum(one.seconds + other.seconds for one, other in self._surveys),
            differing=tuple(self._differing()), unread=tuple(self._unread),
            cameras={name: judge.verdict() for name, judge in self._cameras.items()},
        )  # fmt: skip

    def _try_on(self, footage: CameraFootage) -> None:
        try:
            old = self._survey(footage, footage.now or self._plan.now, WALL_S_MAX)
        except FAILURES as error:
            self._unread.append(f"{footage.camera}: {error}")
            return
        try:
            cpu_s = max(CPU_S_MIN, CPU_SHARE_MAX * old.cpu_s) / 2  # a child dies at twice of it
            new = self._survey(footage, self._plan.then, cpu_s)
        except (*UNTRIED, SourceError) as error:
            self._unread.append(f"{footage.camera}: {error}")
            return
        except FAILURES as error:
            self._failure = str(error)
            return
        self._surveys.append((old, new))
        own = self._cameras.setdefault(footage.camera, CandidateJudge())
        for pair in paired(old, new, footage.known):
            self._judge.add_object(pair)
            own.add_object(pair)
            if pair.found != "both":
                self._pairs.append(pair)
        for old_ms, new_ms in self._cpu_pairs(footage, (old, new)):
            self._judge.add_cpu(old_ms, new_ms)
            own.add_cpu(old_ms, new_ms)

    def _survey(self, footage: CameraFootage, detector: DetectorConfig, cpu_s: float) -> Survey:
        plan = self._plan
        task = SurveyTask(
            footage.camera, footage.files, detector, plan.model_folder, every_s=plan.every_s, keys_only=plan.keys_only
        )
        values = SURVEY_TASK.dump_python(task, mode="json")
        try:
            return SURVEY.validate_python(self._call("survey_frames", values, cpu_s))
        except ValidationError:
            raise ModelError("the child answered what makes no sense") from None

    def _cpu_pairs(self, footage: CameraFootage, surveys: tuple[Survey, Survey]) -> Iterator[tuple[float, float]]:
        """Yield the CPU time of both in turns; where they cannot stand beside each other, as the surveys had it."""
        plan = self._plan
        networks = (footage.now or plan.now, plan.then)
        task = CostTask(footage.files, networks, plan.model_folder, every_s=plan.every_s, keys_only=plan.keys_only)
        try:
            values = COST_TASK.dump_python(task, mode="json")
            yield from COST_PAIRS.validate_python(self._call("compare_costs", values, WALL_S_MAX))
        except UNTRIED:
            return
        except (*FAILURES, ValidationError):
            yield from cpu_pairs(*surveys)

    def _try_scenario(self, file: str) -> None:
        name, passed = Path(file).parent.name, []
        for detector in (self._plan.now, self._plan.then):
            values = {
                "file": file, "model_folder": self._plan.model_folder, "model": detector.model,
                "way": detector.model_dump(mode="json"),
            }  # fmt: skip
            try:
                passed.append(self._call("run_scenario", values, WALL_S_MAX)["status"] == "passed")
            except FAILURES as error:
                if passed and not isinstance(error, UNTRIED) and Path(file).is_file():
                    self._failure = str(error)
                else:
                    self._unread.append(f"{name}: {error}")
                return
        if not Path(file).is_file():  # so a run may have failed for want of its clip
            self._unread.append(f"{name}: it was deleted meanwhile")
            return
        self._judge.add_expectation(old_right=passed[0], new_right=passed[1])

    def _costs(self) -> tuple[RunCosts, RunCosts]:
        old = max((each.memory_mb for each, _ in self._surveys), default=0.0)
        new = max((each.memory_mb for _, each in self._surveys), default=0.0)
        load, ratio = self._plan.load_now, self._judge.verdict().cpu_ratio
        then = load * ratio if load is not None and ratio is not None else None
        return RunCosts(memory_mb=old, load=load), RunCosts(failure=self._failure, memory_mb=new, load=then)

    def _differing(self) -> Iterator[DifferingFrame]:
        """Yield frames of as many places, kinds and moments as possible."""
        seen: set[tuple[str, str, str, int]] = set()
        for pair in self._pairs:
            key = (pair.camera, pair.kind, pair.found, int(pair.t // AROUND_S))
            if key not in seen and len(seen) < SHOWN_MAX:
                seen.add(key)
                yield DifferingFrame(pair.camera, pair.t, pair.kind, pair.found)


def known_objects(events: Sequence[ReviewedEvent]) -> tuple[KnownObject, ...]:
    """Return the reviewed objects of these events; not those of alerts that nobody reviewed, or somebody deleted."""
    return tuple(
        KnownObject(
            each.event.t - AROUND_S, each.event.t + AROUND_S, kind_of(each.event.label), each.event.box,
            each.review == "reviewed",
        )
        for each in events
        if each.review is not None and not each.deleted
    )  # fmt: skip
