"""Makes a verdict of an escalation: fetched evidence in, a checked answer out, `unsure` for everything else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pydantic import ValidationError

from appliance import version
from appliance.base.backoff import CircuitBreaker
from appliance.base.clock import Clock
from appliance.base.errors import EngineUnavailable
from appliance.types import Decision, JudgeKind
from appliance.wire import MEDIA_BYTES_MAX, RECHECKED_SCHEMA, Escalation, FrameSupport, MediaRef, Need, Verdict
from cloud_worker.evidence import EvidenceFile, MediaAbsent, MediaDecoder, MediaRefused

EVIDENCE_BYTES_MAX = MEDIA_BYTES_MAX
REASON_CHARS_MAX = 400  # as notify.message takes
_SPACE = re.compile(r"\s+")
_ADDRESS = re.compile(
    r"\b\w{2,10}://\S+"
)  # of our model server, or one that a model was told to name: neither is a site's


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCase:
    """The input of an engine: the escalation and its evidence, in order of time.

    `lost` says what is missing, in one sentence each. `absent` counts those of them that the broker does not have. An
    engine turns evidence into pixels with `decoder`. traceparent: the trace that a model server is told; '': none.
    """

    escalation: Escalation
    files: tuple[EvidenceFile, ...]
    decoder: MediaDecoder
    lost: tuple[str, ...] = ()
    absent: int = 0
    traceparent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds that an escalation took to get here: from the site to the broker, there, and to fetch its evidence."""

    link_s: float = 0.0
    queue_s: float = 0.0
    fetch_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """The answer of an engine.

    The token counts are 0 when it uses none. `preprocess_s` is part of the time it took. `more`: the answer is `unsure`
    because of the images it was shown, so that more evidence may settle it. `looks` is how often the model was asked.
    `prompt` and `answer_schema` are the engine's, when they differ from case to case. `tokens_cached`: of those read,
    what the server had cached. `by`, `answered_by`, `fallback`: of several engines, which one answered, its name in the
    worker file, and how many better ones did not. `rest`: the reason is still being written, and this brings the whole
    opinion, of the same decision; it never raises, and is cancelled by whoever does not want it.
    """

    decision: Decision
    reason: str
    confidence: float | None = None
    support: tuple[FrameSupport, ...] = ()
    tokens_in: int = 0
    tokens_out: int = 0
    preprocess_s: float = 0.0
    more: bool = False
    looks: int = 1
    prompt: str = ""
    answer_schema: str = ""
    tokens_cached: int = 0
    rest: asyncio.Task[Opinion] | None = None
    by: Engine | None = None
    answered_by: str = ""
    fallback: int = 0


class Engine(Protocol):
    """A judge. `name`, `kind`, `model`, `prompt_version` and `answer_schema` stand in every verdict.

    `kind`: what it is; a detector never confirms. `uses`: the evidence it can look at.
    """

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> JudgeKind: ...

    @property
    def model(self) -> str: ...

    @property
    def prompt_version(self) -> str: ...

    @property
    def answer_schema(self) -> str: ...

    @property
    def uses(self) -> frozenset[Need]: ...

    async def judge(self, case: JudgeCase) -> Opinion:
        """Answer. An unusable answer is an `unsure` opinion; raises EngineError when asking again may help."""
        ...

    async def check(self) -> str:
        """Try the engine, which also warms it up, and describe it in one sentence. Raise EngineError or ModelError."""
        ...

    async def close(self) -> None: ...


FetchFile = Callable[[MediaRef, int], Awaitable[EvidenceFile]]
"""From a reference and the bytes that it may have to the file. Raises MediaRefused: this file is no use."""


class Judge:
    """Makes one verdict per call. State: none but its engine's.

    An `unsure` that more evidence may settle becomes a request for it, if the site offers something that the engine
    can look at: the cheapest of that, which it has not seen.
    """

    def __init__(self, engine: Engine, worker: str, clock: Clock, decoder: MediaDecoder) -> None:
        """Take for `decoder` a sandbox, for sites send what they like; `IN_PROCESS` is for evidence of our own."""
        self._engine = engine
        self.decoder = decoder
        self.worker = worker
        self._clock = clock

    async def check(self) -> str:
        """Describe the engine in one sentence, after trying it. Raise EngineError or ModelError."""
        return await self._engine.check()

    async def fetch_case(self, fetch: FetchFile, escalation: Escalation) -> JudgeCase:
        """Fetch the evidence, all files together. Raise what `fetch` raises, but for MediaRefused: that file is lost.

        One after the other, each file would wait for the broker's answer to the one before it.
        """

        async def one(ref: MediaRef, left: int) -> EvidenceFile | MediaRefused:
            try:
                return await fetch(ref, left)
            except MediaRefused as error:
                return error

        clips = "clip" in self._engine.uses  # else they would be fetched for nothing
        refs = sorted((ref for ref in escalation.media if clips or ref.kind != "clip"), key=lambda ref: ref.t)
        lefts = [EVIDENCE_BYTES_MAX - sum(before.bytes for before in refs[:n]) for n in range(len(refs))]
        found = await asyncio.gather(*map(one, refs, lefts))
        lost = [each for each in found if isinstance(each, MediaRefused)]
        return JudgeCase(
            escalation=escalation,
            files=tuple(each for each in found if isinstance(each, EvidenceFile)),
            lost=tuple(map(str, lost)),
            absent=sum(isinstance(each, MediaAbsent) for each in lost),
            decoder=self.decoder,
        )

    async def verdict(self, case: JudgeCase, timings: Timings = Timings()) -> Verdict:
        """Ask the engine and check its answer; return it once it is whole. Raise EngineError."""
        first, rest = await self.begin(case, timings)
        return first if rest is None else await rest

    async def begin(
        self, case: JudgeCase, timings: Timings = Timings()
    ) -> tuple[Verdict, asyncio.Task[Verdict] | None]:
        """Ask the engine; return the verdict as soon as its decision is known. Raise EngineError.

        It is provisional when the engine still writes its reason: then the task brings the whole verdict.
        """
        started = self._clock.monotonic()
        if not case.files:
            opinion = Opinion(decision="unsure", reason=_nothing_to_see(case), more=True)
        else:
            opinion = await self._ask(case)
        stages = {"link": timings.link_s, "queue": timings.queue_s, "fetch": timings.fetch_s}
        first = self._timed(case.escalation, opinion, started, stages)
        if opinion.rest is None:
            return first, None
        stages["decision"] = first.timings["model"]
        rest = opinion.rest
        whole = asyncio.create_task(self._finish(case.escalation, rest, started, stages))
        whole.add_done_callback(lambda _: rest.cancel())  # also where it was cancelled before it began
        return first, whole

    async def _finish(
        self, escalation: Escalation, rest: asyncio.Task[Opinion], started: float, stages: dict[str, float]
    ) -> Verdict:
        return self._timed(escalation, await rest, started, stages)

    def _timed(self, escalation: Escalation, opinion: Opinion, started: float, stages: dict[str, float]) -> Verdict:
        seconds = self._clock.monotonic() - started
        own = {"preprocess": opinion.preprocess_s, "model": max(0.0, seconds - opinion.preprocess_s)}
        return self._verdict(escalation, opinion, seconds, {**stages, **own})

    def unsure(self, escalation: Escalation, reason: str) -> Verdict:
        """Return a verdict that says why there is no answer."""
        return self._verdict(escalation, Opinion(decision="unsure", reason=reason), 0.0, {})

    async def _ask(self, case: JudgeCase) -> Opinion:
        try:
            return await self._engine.judge(case)
        except MediaRefused as error:
            return Opinion(decision="unsure", reason=f"The evidence could not be used: {error}.", more=True)

    def _need(self, escalation: Escalation, opinion: Opinion) -> Need | None:
        if opinion.decision != "unsure" or not opinion.more:
            return None
        return next((kind for kind in escalation.can if kind in self._engine.uses), None)

    def _verdict(self, escalation: Escalation, opinion: Opinion, seconds: float, stages: dict[str, float]) -> Verdict:
        engine = opinion.by or self._engine
        facts = {
            "escalation": escalation.id,
            "site": escalation.site,
            "alert": escalation.alert,
            "kind": engine.kind,
            "engine": engine.name,
            "model": engine.model,
            "prompt_version": opinion.prompt or engine.prompt_version,
            "answer_schema": opinion.answer_schema or engine.answer_schema,
            "worker_version": version() or "0",  # a checkout that is not installed
            "looks": opinion.looks,
            "seconds": round(seconds, 4),
            "timings": {name: round(value, 4) for name, value in stages.items()},
            "tokens_in": opinion.tokens_in,
            "tokens_out": opinion.tokens_out,
            "tokens_cached": opinion.tokens_cached,
            "answered_by": opinion.answered_by,
            "fallback": opinion.fallback,
            "provisional": opinion.rest is not None,
            "worker": self.worker,
            "judged_t": self._clock.now(),
            "step": escalation.step,
        }
        answer = {
            "decision": _understood(opinion.decision, escalation),
            "reason": one_line(_ADDRESS.sub("", opinion.reason)),
            "confidence": opinion.confidence,
            "support": opinion.support,
            "need": self._need(escalation, opinion),
        }
        try:
            return Verdict.model_validate({**facts, **answer})
        except ValidationError as error:
            where = ".".join(map(str, error.errors(include_url=False, include_input=False)[0]["loc"]))
            reason = f"The engine's answer was not valid ({where}): nothing is concluded from it."
            tokens = {"tokens_in": 0, "tokens_out": 0, "tokens_cached": 0}
            return Verdict.model_validate({**facts, **tokens, "decision": "unsure", "reason": reason})


def _understood(decision: Decision, escalation: Escalation) -> Decision:
    """Return the decision in words that the site knows.

    For a site from before schema 4, a detector that found something is unsure.
    """
    return "unsure" if decision == "rechecked" and escalation.schema_version < RECHECKED_SCHEMA else decision


def one_line(text: str) -> str:
    """Return `text` as one line without control characters, cut to what a verdict may hold."""
    flat = _SPACE.sub(" ", "".join(char if char.isprintable() else " " for char in text)).strip()
    return flat if len(flat) <= REASON_CHARS_MAX else flat[: REASON_CHARS_MAX - 1] + "…"


def _nothing_to_see(case: JudgeCase) -> str:
    if case.escalation.image_free:
        return "This site sends no pictures, so there was nothing to look at."
    if case.lost:
        return f"None of the {len(case.lost)} pictures could be used: {case.lost[0]}."
    return "The question came without a picture, so there was nothing to look at."


Result = TypeVar("Result")


class JudgeBreaker:
    """A circuit breaker around calls of the judge: opened by EngineUnavailable, closed by the first call that succeeds.

    While it is open one call at a time goes through, each after a longer pause, and not before the service asked us
    back (Retry-After). For a judge that is probed all the time the pauses do not grow. State: its circuit. Owner: one
    event loop.
    """

    def __init__(self, clock: Clock, probe_first_s: float = 1.0, probe_last_s: float = 60.0) -> None:
        self._circuit = CircuitBreaker(clock, probe_first_s, probe_last_s)
        self._probe = asyncio.Lock()

    @property
    def why(self) -> str:
        """Return what the service reported when it last failed; empty while the circuit is closed."""
        return self._circuit.state.why

    async def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Return the result of `work()`, as soon as it may be called. Raise what it raises."""
        if self._circuit.is_closed():
            return await self._call(work)
        async with self._probe:
            if not self._circuit.is_closed():
                await asyncio.sleep(self._circuit.probe_in_s)
                return await self._call(work, probe=True)
        return await self._call(work)

    async def _call(self, work: Callable[[], Awaitable[Result]], *, probe: bool = False) -> Result:
        try:
            result = await work()
        except EngineUnavailable as error:
            burst = not self._circuit.is_closed() and not probe  # it was under way when another call opened the circuit
            self._circuit.delay_probe(error.after_s or 0.0, lengthen=not (burst or error.probed))
            self._circuit.open(str(error))
            raise
        self._circuit.close()
        return result
