"""Which accelerators this appliance has, and which Python serves a Hailo device. Loads no library, for the core.

The kernel tells which there are. HailoRT's bindings may lie in another Python than ours; a helper is started under it.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from appliance.base.config_model import HailoConfig

Kind = Literal["cuda", "gpu", "npu", "hailo"]
KINDS: dict[Kind, str] = {
    "cuda": "an NVIDIA GPU",
    "gpu": "an Intel GPU",
    "npu": "an Intel NPU",
    "hailo": "a Hailo device",
}
INTEL = "0x8086"  # its PCI vendor id
NVIDIA_FILES = ("proc/driver/nvidia/version", "dev/nvhost-gpu", "dev/nvidia0")  # the second is a Jetson's
SYSTEM_PYTHON = Path("/usr/bin/python3")
HELPER = Path(__file__).with_name("hailo_child.py")
_KEPT_VARIABLES = (
    "PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ", "HOME", "XDG_RUNTIME_DIR", "ORT_DISABLE_TELEMETRY",
)  # fmt: skip


class Accelerator(NamedTuple):
    """kind: as `detector.device` or, of Hailo, `detector.backend` names it. node: the file by which it is known."""

    kind: Kind
    node: str


def accelerators(root: Path = Path("/")) -> tuple[Accelerator, ...]:
    """One of each kind. root: where /proc, /dev and /sys are."""
    return tuple(_found(root))


def _found(root: Path) -> Iterator[Accelerator]:
    nvidia = next((each for each in NVIDIA_FILES if (root / each).exists()), None)
    if nvidia is not None:
        yield Accelerator("cuda", f"/{nvidia}")
    for kind, folder, nodes, name in (
        ("gpu", "sys/class/drm", "dev/dri", "renderD*"),
        ("npu", "sys/class/accel", "dev/accel", "accel*"),
    ):
        for each in sorted((root / folder).glob(name)):
            if _text(each / "device" / "vendor") == INTEL:
                yield Accelerator("gpu" if kind == "gpu" else "npu", f"/{nodes}/{each.name}")
                break
    for each in sorted((root / "dev").glob("hailo[0-9]*")):
        yield Accelerator("hailo", f"/dev/{each.name}")
        break


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def python_with_bindings(settings: HailoConfig) -> Path:
    """Return the Python that the site file names; else this one, if hailo_platform is here, else the system's."""
    if settings.python != "auto":
        return Path(settings.python)
    return Path(sys.executable) if importlib.util.find_spec("hailo_platform") else SYSTEM_PYTHON


def start_helper(python: Path, *arguments: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """`hailo_child` under this Python, with pipes to and from it. Raises OSError."""
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
