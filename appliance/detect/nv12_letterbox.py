"""Lays a decoded frame that is on the GPU into a network's input, by one kernel: it never visits the host."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from appliance.base.errors import DetectorError, MissingDependency, ModelError
from appliance.detect.cuda_runtime import checked_call
from appliance.detect.letterbox import GREY, InputForm, Placement
from appliance.detect.network_runtime import Array

SOURCE = Path(__file__).with_name("nv12_letterbox.cu")
NAME = b"nv12_letterbox"
BLOCK = (32, 8)  # threads of CUDA: a warp wide, 256 in all
NVRTC_CURE = "pip install 'nvidia-cuda-nvrtc-cu12' for CUDA 12, 'nvidia-cuda-nvrtc' for CUDA 13; a JetPack has it"
# Kr and Kb of ITU-R BT.601 and BT.709: how much red and blue there is in luma.
LUMA_SHARES = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722)}
INT, LONG, FLOAT, POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_float, ctypes.c_void_p
TYPES = (
    POINTER, LONG, POINTER, LONG, INT, INT, INT, INT, INT, INT, INT, INT,
    *[FLOAT] * 13, INT, INT, POINTER,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuFrame:
    """A decoded frame in the GPU's memory, in NV12: luma, and chroma of half the size, U and V in turns.

    luma, chroma: addresses on the GPU; pitches: bytes from line to line. owner: whatever keeps that memory; the frame
    may be reused by its decoder once the call that was given it has returned.
    """

    luma: int
    luma_pitch: int
    chroma: int
    chroma_pitch: int
    width: int
    height: int
    matrix: Literal["bt601", "bt709"] = "bt601"
    full_range: bool = False
    owner: object = None


@dataclass(frozen=True, slots=True)
class PixelRange:
    """The form of a pixel 0..255 that a network takes: its planes' order, and pixel * gain + bias of each."""

    rgb: bool
    gain: tuple[float, float, float]
    bias: tuple[float, float, float]

    @classmethod
    def of(cls, form: InputForm) -> PixelRange:
        how = form.normalisation
        if how is None:
            return cls(form.rgb, (form.scale,) * 3, (0.0,) * 3)
        gain = [1 / each for each in how.std]
        bias = [-mean / each for mean, each in zip(how.mean, how.std, strict=True)]
        return cls(form.rgb, (gain[0], gain[1], gain[2]), (bias[0], bias[1], bias[2]))


@runtime_checkable
class GpuFrameRuntime(Protocol):
    """A NetworkRuntime that takes frames where a decoder left them."""

    def run_frames(
        self, frames: Sequence[GpuFrame], places: Sequence[Placement], pixels: PixelRange, others: Mapping[str, Array]
    ) -> dict[str, Array]:
        """See TensorrtRuntime."""
        ...


def kernel_values(
    frame: GpuFrame, place: Placement, pixels: PixelRange, out: int, *, half_floats: bool
) -> tuple[int | float, ...]:
    """Return the kernel's arguments, by TYPES. out: the address of the first of three planes."""
    gain, low, chroma_gain = (1.0, 0.0, 1.0) if frame.full_range else (255 / 219, 16.0, 255 / 224)
    red_share, blue_share = LUMA_SHARES[frame.matrix]
    green_share = 1 - red_share - blue_share
    red_v, blue_u = 2 * (1 - red_share) * chroma_gain, 2 * (1 - blue_share) * chroma_gain
    return (
        frame.luma, frame.luma_pitch, frame.chroma, frame.chroma_pitch, frame.width, frame.height,
        place.left, place.top, place.width, place.height, *place.input_size,
        gain, low, red_v, blue_u * blue_share / green_share, red_v * red_share / green_share, blue_u,
        *pixels.gain, *pixels.bias, float(GREY), int(pixels.rgb), int(half_floats), out,
    )  # fmt: skip


class Nv12Kernel:
    """The kernel, compiled for one GPU. Owned by a TensorrtRuntime, on whose stream it runs."""

    def __init__(self, compute: str) -> None:
        """compute: `8.9`. Raises MissingDependency without NVRTC, ModelError: it does not compile."""
        self._driver, self._nvrtc = _bindings()
        binary = self._compile(compute.replace(".", ""))
        try:
            self._module = self._drive("cuModuleLoadData", binary)
            self._function = self._drive("cuModuleGetFunction", self._module, NAME)
        except DetectorError as error:
            raise ModelError(f"the GPU does not take the kernel {SOURCE.name}: {error}") from None

    def launch(self, values: tuple[int | float, ...], input_size: tuple[int, int], stream: Any) -> None:
        """Enqueue it. Raises DetectorError."""
        grid = [-(-side // step) for side, step in zip(input_size, BLOCK, strict=True)]
        self._drive("cuLaunchKernel", self._function, *grid, 1, *BLOCK, 1, 0, stream, (values, TYPES), 0)

    def close(self) -> None:
        """Unload it; a second call does nothing."""
        if self._module is not None:
            self._driver.cuModuleUnload(self._module)
            self._module = None

    def _compile(self, architecture: str) -> bytes:
        source = SOURCE.read_bytes()
        program = self._compiled("nvrtcCreateProgram", source, NAME + b".cu", 0, [], [])
        try:
            options = [f"--gpu-architecture=sm_{architecture}".encode(), b"--std=c++17"]
            try:
                self._compiled("nvrtcCompileProgram", program, len(options), options)
            except ModelError as error:
                log = bytearray(self._compiled("nvrtcGetProgramLogSize", program))
                self._compiled("nvrtcGetProgramLog", program, log)
                message = bytes(log).decode(errors="replace").strip("\0\n ").partition("\n")[0]
                raise ModelError(f"{error}: {message[:300]}") from None
            binary = bytearray(self._compiled("nvrtcGetCUBINSize", program))
            self._compiled("nvrtcGetCUBIN", program, binary)
            return bytes(binary)
        finally:
            self._nvrtc.nvrtcDestroyProgram(program)

    def _compiled(self, name: str, *given: Any) -> Any:
        """Call a function of NVRTC and return its result beside the status. Raise ModelError."""
        try:
            return checked_call(self._nvrtc, name, given, self._nvrtc.nvrtcGetErrorString)
        except DetectorError as error:
            raise ModelError(f"{SOURCE.name} is not compiled: {error}") from None

    def _drive(self, name: str, *given: Any) -> Any:
        """Call a function of the CUDA driver and return its result beside the status. Raise DetectorError."""
        return checked_call(self._driver, name, given, self._driver.cuGetErrorString)


def _bindings() -> tuple[Any, Any]:
    try:
        from cuda.bindings import driver, nvrtc

        nvrtc.nvrtcVersion()  # looks for the library, which the bindings do not bring
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingDependency(f"frames on the GPU need NVRTC ({str(error).splitlines()[0]}): {NVRTC_CURE}") from None
    return driver, nvrtc
