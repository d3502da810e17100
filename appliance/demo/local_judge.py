"""A language model on this machine: which one fits, what an answer costs, and the server that is started with it.

Figures of models are those that their repositories show; speed is arithmetic and unmeasured: a network is read by
memory bandwidth and cores, so tokens a second fall with its size. Costs are those of docs/costs.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.base.child_end import end_child
from appliance.base.child_modules import LLAMA_SERVER
from appliance.base.clock import Clock
from appliance.base.errors import MissingDependency, UsageError
from appliance.base.machine import memory_bytes
from appliance.config import EdgeCostConfig
from appliance.demo.demo_config import VlmServer, probe_vlm
from appliance.detect.accelerators import accelerators
from appliance.savings.costs import HOUR_S, amortised_hour, power_hour

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
