"""`vedette judge`: says which vision-language model fits this machine and what an answer costs; starts its server.

Figures of models are those that their repositories show; speed is arithmetic and unmeasured: a network is read by
memory bandwidth and cores, so tokens a second fall with its size. Costs are those of docs/costs.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base.child_processes import LLAMA_SERVER, end_child
from appliance.base.clock import Clock, SystemClock
from appliance.base.errors import MissingDependency, UsageError
from appliance.base.machine import memory_bytes
from appliance.config import EdgeCostConfig
from appliance.demo.demo_vlm import VlmServer, probe_vlm
from appliance.detect.accelerators import accelerators
from appliance.store.costs import HOUR_S, amortised_hour, power_hour

GB = 1e9  # bytes
KEPT_FREE_GB = 1.0  # of memory, for the appliance and the system
READ_TOKENS, WRITTEN_TOKENS = 2500, 100  # of an escalation: two images of 512 pixels, the rules, the schema; its answer
# Tokens a second of a network of a billion parameters at 4 bits, a core: the middle of what a laptop's eight cores do
# with one of 4 billion (read 20 to 60, write 5 to 10; deploy/vlm/README.md). Unmeasured.
READ_CORE, WRITE_CORE = 20.0, 3.75
GPU_FASTER = 30.0  # a laptop GPU takes seconds where its CPU takes one to two minutes; unmeasured
CONTEXT_TOKENS = 8192  # two questions at a time, as deploy/vlm starts it
START_S_MAX = 3600.0  # to download some GB on a slow link, and to load them
POLL_S = 1.0  # between two tries to reach the server
NICE = 19  # of the server: cameras come first, the judge takes what is idle
END_S = 10.0  # of the server after SIGTERM: it gives back some GB
VARIABLE = "VEDETTE_LLAMA_SERVER"
ANSWER_S_MAX = 60.0  # seconds: a person who was notified waits no longer
_INSTALL = (
    "no llama.cpp server is installed: `brew install llama.cpp`, a release of github.com/ggml-org/llama.cpp, or "
    f"`pip install 'llama-cpp-python[server]'`; or name one in {VARIABLE}"
)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """An open vision-language model. parameters: billions; download_gb: with its image encoder; memory_gb: to run."""

    name: str
    repository: str
    licence: str
    parameters: float
    download_gb: float
    memory_gb: float


MODELS = (
    LocalModel("smolvlm2-2.2b", "ggml-org/SmolVLM2-2.2B-Instruct-GGUF:Q4_K_M", "Apache-2.0", 2.2, 1.7, 3.0),
    LocalModel("qwen3-vl-2b", "Qwen/Qwen3-VL-2B-Instruct-GGUF:Q4_K_M", "Apache-2.0", 2.1, 1.6, 3.5),
    LocalModel("qwen3-vl-4b", "Qwen/Qwen3-VL-4B-Instruct-GGUF:Q4_K_M", "Apache-2.0", 4.4, 3.3, 5.0),
    LocalModel("qwen3-vl-8b", "Qwen/Qwen3-VL-8B-Instruct-GGUF:Q4_K_M", "Apache-2.0", 8.8, 6.2, 8.5),
)
"""By size; memory is arithmetic: file, encoder, CONTEXT_TOKENS of context."""


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """The parts of this machine that decide. memory_gb: that programs may still get."""

    memory_gb: float
    cores: int
    gpu: bool

    @classmethod
    def read(cls) -> LocalMachine:
        found = memory_bytes()
        gpu = any(each.kind == "cuda" for each in accelerators())
        return cls(found[1] / GB if found else 0.0, os.cpu_count() or 1, gpu)


@dataclass(frozen=True, slots=True)
class ModelAdvice:
    """One model on this machine. why_not: ''; it fits. answer_s: by arithmetic; money: of one answer."""

    model: LocalModel
    why_not: str
    answer_s: float
    money: float


def advise(machine: LocalMachine, prices: EdgeCostConfig) -> list[ModelAdvice]:
    """Return what each model would do here, the smallest first. Pure."""
    hour = amortised_hour(prices.device_price, prices.device_years) + power_hour(prices.power_w, prices.electricity_kwh)
    found = []
    for model in MODELS:
        lacking = model.memory_gb + KEPT_FREE_GB - machine.memory_gb
        why_not = f"{lacking:.1f} GB of memory more are needed" if lacking > 0 else ""
        speed = machine.cores * (GPU_FASTER if machine.gpu else 1.0) / model.parameters
        answer_s = READ_TOKENS / (READ_CORE * speed) + WRITTEN_TOKENS / (WRITE_CORE * speed)
        found.append(ModelAdvice(model, why_not, answer_s, answer_s / HOUR_S * hour))
    return found


def best(advice: Sequence[ModelAdvice], answer_s_max: float) -> ModelAdvice | None:
    """Return the largest that fits and answers in time, else the quickest that fits; None: none fits."""
    fitting = [each for each in advice if not each.why_not]
    quick = [each for each in fitting if each.answer_s <= answer_s_max]
    return quick[-1] if quick else min(fitting, key=lambda each: each.answer_s, default=None)


def model_named(name: str) -> LocalModel:
    """Return a model of the table. Raise UsageError."""
    found = next((each for each in MODELS if each.name == name), None)
    if found is None:
        raise UsageError(f"--model {name}: not known; one of {', '.join(each.name for each in MODELS)}")
    return found


def find_server() -> tuple[str, ...] | None:
    """Return the command that begins llama.cpp's server: $VEDETTE_LLAMA_SERVER, the PATH's, or the Python package's."""
    named = os.environ.get(VARIABLE) or shutil.which("llama-server")
    if named:
        return (named,)
    has_package = importlib.util.find_spec("llama_cpp") is not None
    return (sys.executable, "-m", LLAMA_SERVER) if has_package else None


def server_command(
    begin: Sequence[str], model: LocalModel, port: int, files: tuple[Path, Path] | None = None
) -> tuple[str, ...]:
    """Return the whole command. files: a GGUF and its image encoder that are here; None: the server downloads them.

    Raise UsageError where the Python package is to download: it takes files.
    """
    if LLAMA_SERVER in begin:
        if files is None:
            raise UsageError("the package llama-cpp-python takes files: give --file MODEL.gguf --mmproj MMPROJ.gguf")
        return (
            *begin, "--host", "127.0.0.1", "--port", str(port), "--model", str(files[0]), "--clip_model_path",
            str(files[1]), "--model_alias", model.name, "--n_ctx", str(CONTEXT_TOKENS),
        )  # fmt: skip
    weights = ("-hf", model.repository) if files is None else ("--model", str(files[0]), "--mmproj", str(files[1]))
    return (
        *begin, "--host", "127.0.0.1", "--port", str(port), *weights, "--alias", model.name, "--ctx-size",
        str(CONTEXT_TOKENS), "--parallel", "2",
    )  # fmt: skip


@contextlib.contextmanager
def running(command: Sequence[str], port: int, clock: Clock) -> Iterator[tuple[subprocess.Popen[bytes], VlmServer]]:
    """Run the server at the lowest priority; yield it when it has answered about an image.

    Raise MissingDependency when it ends by itself, UsageError when it does not answer as it must.
    """
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    except OSError as error:
        raise MissingDependency(f"{command[0]} cannot be started: {error.strerror}") from None
    try:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
        yield child, _answering(child, port, clock)
    finally:
        child.terminate()
        end_child(child, asked_s=END_S)


def _answering(child: subprocess.Popen[bytes], port: int, clock: Clock) -> VlmServer:
    deadline = clock.monotonic() + START_S_MAX
    while True:
        try:
            return probe_vlm(f"http://127.0.0.1:{port}", None)
        except UsageError as error:
            if child.poll() is not None:
                raise MissingDependency(f"the model server ended with {child.returncode}; its log is above") from None
            waits = "nothing answers" in str(error) or "answer 503" in str(error) or "gave 503" in str(error)
            if not waits or clock.monotonic() >= deadline:
                raise
            clock.sleep(POLL_S)


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
