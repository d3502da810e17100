"""Finds the Python that has HailoRT's bindings and starts a helper under it; without numpy, for the core."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.base.detector_config import HailoConfig

SYSTEM_PYTHON = Path("/usr/bin/python3")
HELPER = Path(__file__).with_name("hailo_helper.py")
_KEPT_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "HOME", "XDG_RUNTIME_DIR", "ORT_DISABLE_TELEMETRY",
)  # fmt: skip


def python_with_bindings(settings: HailoConfig) -> Path:
    """Return the Python that the site file names; else this one, if hailo_platform is here, else the system's."""
    if settings.python != "auto":
        return Path(settings.python)
    return Path(sys.executable) if importlib.util.find_spec("hailo_platform") else SYSTEM_PYTHON


def start_helper(python: Path, *arguments: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """`hailo_helper` under this Python, with pipes to and from it. Raises OSError."""
    return subprocess.Popen(
        [str(python), "-I", str(HELPER), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        pass_fds=pass_fds, env=_environment(), start_new_session=True,
    )  # fmt: skip


def _environment() -> dict[str, str]:
    """No secret of ours; libhailort's log file would lie in whatever folder we are in."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    hailo = {name: value for name, value in os.environ.items() if name.startswith("HAILO")}
    return {"HAILORT_LOGGER_PATH": "NONE", "OPENBLAS_NUM_THREADS": "1", **kept, **hailo}
