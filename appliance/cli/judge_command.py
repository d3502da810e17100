"""`vedette judge`: which language model fits this machine and what it costs; starts a server with it."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base.clock import SystemClock
from appliance.base.errors import MissingDependency, UsageError
from appliance.config import EdgeCostConfig
from appliance.demo.local_judge import (
    VARIABLE,
    LocalMachine,
    LocalModel,
    ModelAdvice,
    advise,
    best,
    find_server,
    model_named,
    running,
    server_command,
)

ANSWER_S_MAX = 60.0  # seconds: a person who was notified waits no longer
_INSTALL = (
    "no llama.cpp server is installed: `brew install llama.cpp`, a release of github.com/ggml-org/llama.cpp, or "
    f"`pip install 'llama-cpp-python[server]'`; or name one in {VARIABLE}"
)


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """The options of `vedette judge`."""

    start: bool = False
    model: str | None = None
    port: int = 8000
    file: Path | None = None
    mmproj: Path | None = None
    as_json: bool = False


def judge_command(options: JudgeOptions) -> int:
    """Print the advice, or start the server and wait. Return 0, or 1 if no model fits. Raise VedetteError."""
    if (options.file is None) != (options.mmproj is None):
        raise UsageError("--file and --mmproj belong together: a model without its image encoder sees nothing")
    machine = LocalMachine.read()
    advice = advise(machine, EdgeCostConfig())
    chosen = best(advice, ANSWER_S_MAX)
    if not options.start:
        _print(machine, advice, chosen, as_json=options.as_json)
        return 0 if chosen else 1
    named = model_named(options.model) if options.model else chosen.model if chosen else None
    if named is None and options.file is None:
        raise MissingDependency(
            "no model of the table fits this machine's memory: `vedette judge` shows what is lacking"
        )
    return _start(options, named or advice[0].model)


def _start(options: JudgeOptions, model: LocalModel) -> int:
    begin = find_server()
    if begin is None:
        raise MissingDependency(_INSTALL)
    files = (options.file, options.mmproj) if options.file and options.mmproj else None
    command = server_command(begin, model, options.port, files)
    print(f"starting {begin[0]} with {files[0] if files else model.repository}; Ctrl-C ends it", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the server ends with this command
    try:
        with running(command, options.port, SystemClock()) as (child, server):
            print(f"ready: {server.model} at {server.url}; `vedette demo` finds it by itself. In a worker file:")
            print(
                f"  engine: {{kind: openai, url: {server.url}, model: {server.model}, images_max: 2, "
                "image_side_max: 512, second_look: false, timeout_s: 300}",
                flush=True,
            )
            code = child.wait()
    except KeyboardInterrupt:
        return 0
    raise MissingDependency(f"the model server ended with {code}; its log is above")


def _print(machine: LocalMachine, advice: list[ModelAdvice], chosen: ModelAdvice | None, *, as_json: bool) -> None:
    begin = find_server()
    if as_json:
        models = [{**asdict(each), "chosen": each is chosen} for each in advice]
        print(json.dumps({"machine": asdict(machine), "models": models, "server": begin}, indent=1))
        return
    gpu = "an NVIDIA GPU" if machine.gpu else "no NVIDIA GPU"
    print(f"{machine.memory_gb:.1f} GB of memory free, {machine.cores} cores, {gpu}")
    for each in advice:
        model, mark = each.model, "*" if each is chosen else " "
        verdict = each.why_not or f"some {each.answer_s:.0f} s and {each.money:.5f} USD an answer"
        print(f"{mark} {model.name:15} {model.download_gb:4.1f} GB  {model.licence:11} {verdict}")
    print("Seconds and money are arithmetic, unmeasured: the device amortised and its power, docs/costs.md.")
    if chosen is not None:
        print(f"* fits best: vedette judge --start{'' if begin else ', once a server is installed'}")
    if begin is None:
        print(_INSTALL)
