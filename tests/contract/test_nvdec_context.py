"""NVDEC in a process whose CUDA context exists already: PyAV's own FFmpeg against a libcuda that only keeps that state.

FFmpeg refuses a primary context that is active with other flags than its own; TensorRT and ONNX Runtime make it with 0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import av
import pytest

COMPILER = shutil.which("cc") or shutil.which("gcc")
LIBRARIES = sorted((Path(av.__file__).parent.parent / "av.libs").glob("libavutil-*"))
pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif(not LIBRARIES, reason="this PyAV brings no FFmpeg of its own"),
]
STATE = """
#include <stdlib.h>
static int active, current; static unsigned flags;
int cuInit(unsigned n) {
  const char *given = getenv("FAKE_CUDA_FLAGS");
  if (given && !active) { active = 1; flags = atoi(given); }
  return 0;
}
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal > 0 ? 101 : 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *f, int *a) { *f = flags; *a = active; return 0; }
int cuDevicePrimaryCtxSetFlags(int device, unsigned f) { if (active) return 708; flags = f; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { active = 1; *context = &active; return 0; }
int cuCtxSetCurrent(void *context) { current = context == (void *)&active; return 0; }
int cuCtxGetCurrent(void **context) { *context = current ? &active : 0; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return current ? 0 : 201; }
unsigned primary_flags(void) { return flags; }
"""
PROGRAM = """
import ctypes, sys
from av.codec.hwaccel import HWAccel
from av import CodecContext
from appliance.media.hardware_codec import HardwareFailed, new_context, ways
ctypes.CDLL("libcuda.so.1").cuInit(0)
try:
    if sys.argv[1] == "ours":
        context = new_context(ways("cuda", sys.argv[2] or None, "")[0], "h264")
    else:
        accel = HWAccel("cuda", allow_software_fallback=False, is_hw_owned=True)
        context = CodecContext.create("h264", "r", hwaccel=accel)
    print(context.is_hwaccel, ctypes.CDLL("libcuda.so.1").primary_flags())
except (OSError, HardwareFailed) as error:
    print("refused:", error)
"""


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with it. All other functions that FFmpeg looks up answer that it went well."""
    folder = tmp_path_factory.mktemp("libcuda")
    wanted = {
        name.decode() for name in re.findall(rb"\0(cu[A-Z]\w+)\0", LIBRARIES[0].read_bytes().replace(b"\0", b"\0\0"))
    }
    others = sorted(name for name in wanted if f"int {name}(" not in STATE)
    assert len(others) > 40, "FFmpeg looks its functions up by name"
    source = folder / "cuda.c"
    source.write_text(STATE + "".join(f"int {name}() {{ return 0; }}\n" for name in others), encoding="ascii")
    made = folder / "libcuda.so.1"
    assert COMPILER is not None
    subprocess.run([COMPILER, "-w", "-shared", "-fPIC", "-o", made, source], check=True, timeout=60)
    return folder


def opened(libcuda: Path, by: str, flags: int | None, device: str = "") -> str:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libcuda), "PYTHONPATH": str(Path(__file__).parents[2])}
    if flags is not None:
        environment["FAKE_CUDA_FLAGS"] = str(flags)
    command = [sys.executable, "-c", PROGRAM, by, device]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("flags", [None, 0, 4, 8, 12])
def test_nvdec_comes_up_beside_whatever_made_the_context(libcuda: Path, flags: int | None) -> None:
    """None: nothing did; then waiting threads are to sleep (4), as FFmpeg itself has it."""
    assert opened(libcuda, "ours", flags) == f"True {4 if flags is None else flags}"


def test_ffmpegs_own_way_is_refused_after_tensorrt(libcuda: Path) -> None:
    assert "incompatible flags" in opened(libcuda, "ffmpeg", 0) or "95" in opened(libcuda, "ffmpeg", 0)
    assert opened(libcuda, "ffmpeg", None) == "True 4"


def test_a_gpu_that_is_not_there_is_a_failure_in_words(libcuda: Path) -> None:
    assert opened(libcuda, "ours", 0, "3") == "refused: cuda does not come up: cuDeviceGet: CUDA error 101"
