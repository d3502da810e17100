"""The inputs of a network: the frame and its sides, the few sizes worth an engine each, the tensor that is filled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import ModelError
from appliance.detect.letterbox import GREY, InputForm, Letterbox, fitted_side
from appliance.detect.network_runtime import Array, TensorSpec

SIDE_DEFAULT = 640  # pixels, Ultralytics' default imgsz
SIDE_MAX = 4096  # pixels; 200 MB of float32 input, and no network is that large
STEP = 32  # the largest stride of the YOLO and DETR families
Numbers = type[np.floating[Any]] | type[np.uint8]
DTYPES: dict[str, Numbers] = {"float32": np.float32, "float16": np.float16, "uint8": np.uint8}
Pixels = NDArray[np.uint8]
Sizes = tuple[tuple[int, ...], ...]
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

    def feed(self, tensor: Array) -> dict[str, Array]:
        """Return the inputs for frames in a tensor of its order."""
        return {self.frame: tensor, **self.sizes_feed(1 if self.order == "CHW" else len(tensor))}

    def sizes_feed(self, count: int) -> dict[str, Array]:
        """Return the size for a network that wants the frames' size: that of its input."""
        return {self.sizes: np.array([[self.width, self.height]] * count, np.int64)} if self.sizes else {}


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
        named = [int(part) for part in re.findall(r"[0-9]{1,9}", metadata.get("imgsz", ""))]
        value = named[index] if len(named) == 2 else SIDE_DEFAULT
    if not 16 <= value <= SIDE_MAX:
        raise ModelError(f"{path}: an input side of {value} pixels is not between 16 and {SIDE_MAX}")
    return value


def shape_step(metadata: Mapping[str, str]) -> int:
    """Return the step of the sides of a network of free shape: 32, or its own stride where that is more."""
    named = re.fullmatch(r"[0-9]{1,3}", metadata.get("stride", ""))
    return max(STEP, int(named[0]) if named else 0)


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


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where frames of these shapes lie in the buffer's memory."""

    shapes: Sizes
    tensor: NDArray[Any]
    """(n, 3, H, W)."""
    places: tuple[tuple[NDArray[Any], ...], ...]
    """The part of each plane of the tensor that each frame fills, (h, w)."""
    planes: tuple[list[Pixels], ...]
    """Memory for the planes of a frame as bytes, (h, w), in the order of the tensor's; all frames share it."""


class InputBuffer:
    """The tensor of one thread.

    State: memory for the largest tensor so far and for the planes of its frames; how the last frames lay. A camera's
    whole frames lie alike each time: then only their own pixels are written, the grey around them is there. Right after
    an inference nothing is in the processor's caches: with a canvas that is new each time this took half as long again.
    """

    def __init__(self, inputs: NetworkInputs, letterbox: Letterbox, form: InputForm) -> None:
        self._inputs, self._letterbox, self._form = inputs, letterbox, form
        self._numbers: NDArray[Any] = np.empty(0, inputs.dtype)
        self._bytes = np.empty(0, np.uint8)
        self._layout: _Layout | None = None

    def fill(self, frames: Sequence[Pixels]) -> NDArray[Any]:
        """Lay frames, BGR uint8 (H, W, 3), of one input size into a tensor (n, 3, H, W) or in the network's own axes.

        The tensor has the network's order and range. It is good until the next call.
        """
        if self._inputs.dtype is np.uint8 and self._inputs.order in ("NHWC", "NV12"):
            laid = [self._letterbox.lay(frame) for frame in frames]
            return np.stack([packed_frame(frame, self._inputs.order, rgb=self._form.rgb) for frame in laid])
        shapes = tuple(frame.shape for frame in frames)
        layout = self._layout
        if layout is None or layout.shapes != shapes:
            layout = self._layout = self._lay_out(shapes)
        for frame, places, planes in zip(frames, layout.places, layout.planes, strict=True):
            fits = frame.shape[:2] == planes[0].shape
            cv2.split(frame if fits else self._letterbox.scaled(frame), planes[::-1] if self._form.rgb else planes)
            for plane in range(3):
                self._normalise(planes[plane], plane, places[plane])
        return self._inputs.arranged(layout.tensor)

    def _lay_out(self, shapes: Sizes) -> _Layout:
        """For frames of these shapes; the tensor is grey around them."""
        placements = [self._letterbox.placement(shape[1], shape[0]) for shape in shapes]
        width, height = placements[0].input_size
        count = len(shapes) * 3 * height * width
        if self._numbers.size < count:
            self._numbers = np.empty(count, self._inputs.dtype)
        if self._bytes.size < 3 * height * width:
            self._bytes = np.empty(3 * height * width, np.uint8)
        tensor: NDArray[Any] = self._numbers[:count].reshape(len(shapes), 3, height, width)
        if any((place.width, place.height) != place.input_size for place in placements):
            grey = np.full((1, 1), GREY, np.uint8)
            for plane in range(3):
                self._normalise(grey, plane, tensor[:, plane])
        places, planes = [], []
        for row, place in zip(tensor, placements, strict=True):
            there = slice(place.top, place.top + place.height), slice(place.left, place.left + place.width)
            places.append(tuple(plane[there] for plane in row))
            size = 3 * place.height * place.width
            planes.append(list(self._bytes[:size].reshape(3, place.height, place.width)))
        return _Layout(shapes, tensor, tuple(places), tuple(planes))

    def _normalise(self, source: Pixels, plane: int, out: NDArray[Any]) -> None:
        np.copyto(out, source)
        if self._inputs.dtype is np.uint8:
            return
        if self._form.normalisation is None:
            np.multiply(out, np.float32(self._form.scale), out=out, casting="same_kind")
            return
        np.subtract(out, np.float32(self._form.normalisation.mean[plane]), out=out, casting="same_kind")
        np.divide(out, np.float32(self._form.normalisation.std[plane]), out=out, casting="same_kind")
