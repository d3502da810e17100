"""A network's input tensor, filled in place: a frame goes from its pixels into it without a copy between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import GREY, Letterbox, Normalisation
from appliance.detect.network_inputs import NetworkInputs, packed_frame

Pixels = NDArray[np.uint8]
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where frames of these shapes lie in the buffer's memory."""

    shapes: Sizes
    tensor: NDArray[Any]
    """(n, 3, H, W)."""
    places: tuple[tuple[NDArray[Any], ...], ...]
    """Of each frame its part of each plane of the tensor, (h, w)."""
    planes: tuple[list[Pixels], ...]
    """Of each frame memory for its planes as bytes, (h, w), in the order of the tensor's: the same for all of them."""


class InputBuffer:
    """The tensor of one thread.

    State: memory for the largest tensor so far and for the planes of its frames; how the last frames lay. A camera's
    whole frames lie alike each time: then only their own pixels are written, the grey around them is there. Right after
    an inference nothing is in the processor's caches: with a canvas that is new each time this took half as long again.
    """

    def __init__(
        self,
        inputs: NetworkInputs,
        letterbox: Letterbox,
        scale: float,
        normalisation: Normalisation | None,
        *,
        rgb: bool,
    ) -> None:
        """scale, normalisation, rgb: what the network wants, see `OutputHead`."""
        self._inputs = inputs
        self._letterbox = letterbox
        self._scale = np.float32(scale)
        self._normalisation = normalisation
        self._rgb = rgb
        self._numbers: NDArray[Any] = np.empty(0, inputs.dtype)
        self._bytes = np.empty(0, np.uint8)
        self._layout: _Layout | None = None

    def fill(self, frames: Sequence[Pixels]) -> NDArray[Any]:
        """Lay frames, BGR uint8 (H, W, 3), of one input size into a tensor (n, 3, H, W) or in the network's own axes.

        The tensor has the network's order and range. It is good until the next call.
        """
        if self._inputs.dtype is np.uint8 and self._inputs.order in ("NHWC", "NV12"):
            laid = [self._letterbox.lay(frame) for frame in frames]
            return np.stack([packed_frame(frame, self._inputs.order, rgb=self._rgb) for frame in laid])
        shapes = tuple(frame.shape for frame in frames)
        layout = self._layout
        if layout is None or layout.shapes != shapes:
            layout = self._layout = self._lay_out(shapes)
        for frame, places, planes in zip(frames, layout.places, layout.planes, strict=True):
            fits = frame.shape[:2] == planes[0].shape
            cv2.split(frame if fits else self._letterbox.scaled(frame), planes[::-1] if self._rgb else planes)
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
        if self._normalisation is None:
            np.multiply(out, self._scale, out=out, casting="same_kind")
            return
        np.subtract(out, np.float32(self._normalisation.mean[plane]), out=out, casting="same_kind")
        np.divide(out, np.float32(self._normalisation.std[plane]), out=out, casting="same_kind")
