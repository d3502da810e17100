"""The judge without a broker: escalations come as JSON lines, and their verdicts go back. An appliance starts it.

The first line is the section `engine` of a worker file. Each further one is `{"escalation": {...}, "paths": {...}}`,
with the files of the evidence by the ids of their references; the next is sent when this one is answered, with
`{"verdict": {...}}` or `{"error": "...", "away": true}`. Standard input that ends means: stop at once.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError

from appliance.base.clock import Clock
from appliance.base.errors import EngineError, EngineUnavailable, UsageError
from appliance.base.json_lines import first_problem
from appliance.wire import Escalation, traceparent_after, traceparent_of
from cloud_worker.commands import build_engine
from cloud_worker.config import EngineConfig
from cloud_worker.images import SandboxDecoder
from cloud_worker.judge import Judge
from cloud_worker.media_fetch import read

NAME = "appliance"
NICE = 10  # cameras come first


async def serve(lines: BinaryIO, answers: BinaryIO, clock: Clock) -> None:
    """Judge until `lines` ends. Raise UsageError for an engine that is wrong, ModelError, MissingDependency."""
    os.nice(NICE)
    engine = build_engine(_engine(await asyncio.to_thread(lines.readline)), clock)
    decoder = SandboxDecoder()
    judge = Judge(engine, NAME, clock, decoder)
    coming = asyncio.create_task(asyncio.to_thread(lines.readline))
    try:
        while line := await coming:
            coming = asyncio.create_task(asyncio.to_thread(lines.readline))
            work = asyncio.create_task(_answer(judge, line))
            await asyncio.wait({work, coming}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():  # nothing is sent while one is judged: the appliance has gone, or wants no answer
                work.cancel()
                return
            answers.write(json.dumps(work.result()).encode() + b"\n")
            answers.flush()
    finally:
        await engine.close()
        decoder.close()


def _engine(line: bytes) -> EngineConfig:
    try:
        found: EngineConfig = TypeAdapter(EngineConfig).validate_json(line)
    except ValidationError as error:
        raise UsageError(f"the first line of standard input must be an engine: {first_problem(error)}") from None
    return found


async def _answer(judge: Judge, line: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(line)
        escalation = Escalation.model_validate(asked["escalation"])
        case = await judge.fetch_case(partial(read, asked["paths"]), escalation)
        trace = traceparent_after(traceparent_of(escalation), NAME)
        verdict = await judge.verdict(replace(case, traceparent=trace))
    except EngineError as error:
        return {"error": str(error), "away": isinstance(error, EngineUnavailable)}
    except (ValueError, KeyError, TypeError) as error:
        return {"error": f"the line was not understood ({type(error).__name__})", "away": False}
    return {"verdict": verdict.model_dump(mode="json")}
