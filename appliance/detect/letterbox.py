"""How a frame is placed in a network's input, and how boxes are mapped back to the frame.

`Letterbox` does it for pixels in memory; `Nv12Kernel` for a decoded frame that is on the GPU and never visits the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import DetectorError, MissingDependency, ModelError
from appliance.detect.cuda_runtime import checked_call
from appliance.detect.network_runtime import Array

Placing = Literal["stretch", "corner", "centre"]
GREY = 114  # 0..255, as Ultralytics and YOLOX pad in training
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
class Normalisation:
    """(pixel - mean) / std for each plane, in the order of the network's planes and for pixels of 0..255."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class InputForm:
    """The form in which a network takes frames: how they are placed, RGB or BGR, and the range of a pixel.

    scale: what a pixel of 0..255 is multiplied by, unless planes have a mean and a deviation of their own.
    """

    placing: Placing
    rgb: bool = True
    scale: float = 1 / 255
    normalisation: Normalisation | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a frame lies in a network's input: its corner and size there, in pixels; the input's (width, height)."""

    left: int
    top: int
    width: int
    height: int
    input_size: tuple[int, int]


def fitted_side(laid: int, full: int, step: int) -> int:
    """Return the side of an input for `laid` pixels in its middle, where the whole input has `full`.

    It leaves out as many steps on one side as on the other, so that the frame meets the network's grid where it does in
    the whole input. docs/detector.md has the AP of both.
    """
    return laid if laid % step == 0 else full - (full - laid) // (2 * step) * 2 * step


@dataclass(frozen=True, slots=True)
class Letterbox:
    """The way frames are placed in a network's input.

    Their scale is the one at which a whole frame fits into `width` x `height` pixels. stretch: resized to the input,
    proportions lost (DETR family). corner: scaled to fit, top left, rest grey (YOLOX demo_utils.preproc). centre:
    scaled to fit, in the middle, rest grey (Ultralytics LetterBox).

    step: 0 where the input is always `width` x `height`. Otherwise any multiple of it is a side, and a frame gets a
    small input that holds it (see `fitted`): 416x288 for one of 16:9. An image no larger than `width` x `height` keeps
    its scale: it is a part of a frame, or as `preferred_size` wants it, which alone enlarges.

    sizes: with step 0, the (width, height) of the inputs that there are, smallest first and `width` x `height` last: a
    frame gets the first that holds it. () for that one alone.
    """

    width: int
    height: int
    placing: Placing
    step: int = 0
    sizes: tuple[tuple[int, int], ...] = ()

    def preferred_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) in which a whole frame of `width` x `height` goes in without another resize."""
        if self.placing == "stretch":
            return self.width, self.height
        # Whole numbers: with a float ratio 1425x1 would become 416x1 and that in turn 415x1.
        if self.width * height <= self.height * width:
            return self.width, max(1, height * self.width // width)
        return max(1, width * self.height // height), self.height

    def input_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the (width, height) of the input that a frame of `width` x `height` is laid into."""
        if self.step == 0 and len(self.sizes) < 2:
            return self.width, self.height
        across, down = self._laid_size(width, height)
        if self.step == 0:
            return next(size for size in self.sizes if across <= size[0] and down <= size[1])
        return fitted_side(across, self.width, self.step), fitted_side(down, self.height, self.step)

    def placement(self, width: int, height: int) -> Placement:
        """As `lay` places a frame of `width` x `height`."""
        size, whole = self._laid_size(width, height), self.input_size(width, height)
        return Placement(*self._offset(size, whole), *size, whole)

    def lay(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """BGR uint8 (H, W, 3) of any size to BGR uint8 (height, width, 3) of `input_size`."""
        place, frame = self.placement(frame.shape[1], frame.shape[0]), self.scaled(frame)
        if (place.width, place.height) == place.input_size:
            return frame
        canvas = np.full((place.input_size[1], place.input_size[0], 3), GREY, np.uint8)
        canvas[place.top : place.top + place.height, place.left : place.left + place.width] = frame
        return canvas

    def scaled(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """BGR uint8 (H, W, 3) of any size in the size that it has in the input, without what is around it there."""
        size = self._laid_size(frame.shape[1], frame.shape[0])
        if (frame.shape[1], frame.shape[0]) == size:
            return frame
        # AREA, as the decoder scales: LINEAR skips pixels, which costs small people (AP50 on PETS -0.008).
        way = cv2.INTER_AREA if size[0] < frame.shape[1] else cv2.INTER_LINEAR
        return np.asarray(cv2.resize(frame, size, interpolation=way), np.uint8)

    def to_shares(self, boxes: NDArray[np.float32], width: int, height: int) -> NDArray[np.float32]:
        """Boxes (N, 4) xyxy in input pixels to shares 0..1 of the `width` x `height` frame that was laid in."""
        size = self._laid_size(width, height)
        offset = np.array(self._offset(size, self.input_size(width, height)) * 2, np.float32)
        shares = (boxes - offset) / np.array(size * 2, np.float32)
        return np.clip(shares, 0.0, 1.0).astype(np.float32)

    def _laid_size(self, width: int, height: int) -> tuple[int, int]:
        if self.step and width <= self.width and height <= self.height:
            return width, height
        return self.preferred_size(width, height)

    def _offset(self, size: tuple[int, int], whole: tuple[int, int]) -> tuple[int, int]:
        if self.placing != "centre":
            return 0, 0
        return (whole[0] - size[0]) // 2, (whole[1] - size[1]) // 2


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
