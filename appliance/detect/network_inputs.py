"""The inputs of a network: the frame and its sides, and the few input sizes that are worth an engine each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import ModelError
from appliance.detect.letterbox import GREY, fitted_side
from appliance.detect.network_runtime import Array, TensorSpec

SIDE_DEFAULT = 640  # pixels, Ultralytics' default imgsz
SIDE_MAX = 4096  # pixels; 200 MB of float32 input, and no network is that large
STEP = 32  # the largest stride of the YOLO and DETR families
Numbers = type[np.floating[Any]] | type[np.uint8]
DTYPES: dict[str, Numbers] = {"float32": np.float32, "float16": np.float16, "uint8": np.uint8}
ASPECTS = ((16, 9), (4, 3))  # of cameras


@dataclass(frozen=True, slots=True)
class NetworkInputs:
    """The inputs of a network: the frame (name, dtype, side lengths) and perhaps its size as [[width, height]].

    free: the file leaves both sides open; `width` and `height` are then the area that a whole frame is scaled into.
    free_batch: and how many frames come at once. order: of the frame's axes, N(umber), C(hannel), H(eight), W(idth); or
    NV12, [1, height * 3 / 2, width]. As uint8 a frame goes in as it is, 0..255.
    """

    frame: str
    dtype: Numbers
    width: int
    height: int
    sizes: str
    free: bool = False
    free_batch: bool = False
    order: str = "NCHW"

    def grey(self, count: int, width: int, height: int) -> NDArray[Any]:
        """Return the tensor of `count` pictures that are grey, near enough for any normalisation and for YUV."""
        level = GREY if self.dtype is np.uint8 else GREY / 255
        if self.order == "NV12":
            return np.full((1, height * 3 // 2, width), level, self.dtype)
        return self.arranged(np.full((count, 3, height, width), level, self.dtype))

    def arranged(self, tensor: Array) -> Array:
        """Return a tensor (n, 3, height, width) with the axes of `order`; CHW takes the first of n, which is one."""
        if self.order == "NHWC":
            return np.ascontiguousarray(tensor.transpose(0, 2, 3, 1))
        return tensor[0] if self.order == "CHW" else tensor


def packed_frame(frame: NDArray[np.uint8], order: str, *, rgb: bool) -> NDArray[np.uint8]:
    """Return BGR uint8 (H, W, 3) as it goes into an input of integers.

    NHWC, (H, W, 3) in RGB or BGR; NV12, (H * 3 / 2, W), the brightness and below it U and V in turns.
    """
    if order == "NHWC":
        return np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8) if rgb else frame
    height, width = frame.shape[:2]
    planes = np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2YUV_I420), np.uint8)
    return np.concatenate([planes[:height], planes[height:].reshape(2, -1).T.reshape(height // 2, width)])


def network_inputs(path: Path, found: Sequence[TensorSpec], metadata: Mapping[str, str]) -> NetworkInputs:
    """Return the inputs of a network. Raise ModelError: these are not the inputs of a detector that we know."""
    frames = [each for each in found if len(each.shape) in (3, 4)]
    sizes = [each for each in found if len(each.shape) == 2 and each.dtype == "int64" and each.shape[1] == 2]
    seen = ", ".join(map(str, found)) or "none"
    if len(frames) != 1 or len(frames) + len(sizes) != len(found) or len(sizes) > 1:
        raise ModelError(f"{path}: its inputs ({seen}) are not a picture [1, 3, height, width] and at most one [1, 2]")
    frame = frames[0]
    if metadata.get("pixels") == "nv12":
        rows, columns = (side if isinstance(side, int) else 0 for side in frame.shape[1:])
        for side in (rows * 2 // 3, columns):
            _side(path, side, metadata, 0)
        return NetworkInputs(frame.name, np.uint8, columns, rows * 2 // 3, "", order="NV12")
    order = "CHW" if len(frame.shape) == 3 else "NHWC" if frame.shape[3] == 3 and frame.shape[1] != 3 else "NCHW"
    if frame.shape[order.index("C")] not in (3, "channels") or frame.dtype not in DTYPES:
        raise ModelError(f"{path}: its input ({seen}) is not float or uint8, [1, 3, height, width] or [1, h, w, 3]")
    sides = [frame.shape[order.index(axis)] for axis in "HW"]
    height, width = (_side(path, value, metadata, index) for index, value in enumerate(sides))
    free = order == "NCHW" and not any(isinstance(side, int) for side in sides)
    free_batch = order != "CHW" and not any(isinstance(each.shape[0], int) for each in found)
    own_sizes = sizes[0].name if sizes else ""
    return NetworkInputs(frame.name, DTYPES[frame.dtype], width, height, own_sizes, free, free_batch, order)


def _side(path: Path, value: object, metadata: Mapping[str, str], index: int) -> int:
    """Return a fixed side length, else the one Ultralytics wrote as `imgsz` ("[384, 640]"), else 640."""
    if not isinstance(value, int):
        named = [int(part) for part in metadata.get("imgsz", "").strip("[]() ").split(",") if part.strip().isdigit()]
        value = named[index] if len(named) == 2 else SIDE_DEFAULT
    if not 16 <= value <= SIDE_MAX:
        raise ModelError(f"{path}: an input side of {value} pixels is not between 16 and {SIDE_MAX}")
    return value


def shape_step(metadata: Mapping[str, str]) -> int:
    """Return the step of the sides of a network of free shape: 32, or its own stride where that is more."""
    named = metadata.get("stride", "")
    return max(STEP, int(named) if named.isdigit() else 0)


def few_sizes(inputs: NetworkInputs, step: int) -> tuple[tuple[int, int], ...]:
    """Return the (width, height) of the few inputs for a runtime that pays for each shape (an engine, a search).

    They are the whole one and, where the file leaves its sides open, one that holds a frame of 16:9 and one of 4:3. A
    frame goes into the smallest that holds it.
    """
    whole = (inputs.width, inputs.height)
    if not inputs.free or whole[0] % step or whole[1] % step:
        return (whole,)
    fitted = {whole}
    for across, down in ASPECTS:
        if inputs.width * down <= inputs.height * across:
            fitted.add((inputs.width, fitted_side(max(1, inputs.width * down // across), inputs.height, step)))
    return tuple(sorted(fitted, key=lambda size: size[0] * size[1]))
