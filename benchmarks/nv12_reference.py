"""Reference answer of the kernel nv12_letterbox.cu, in numpy: slow, and written another way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.detect.letterbox import GREY, LUMA_SHARES, PixelRange, Placement


def area_weights(source: int, target: int) -> NDArray[np.float64]:
    """Return (target, source): how much of each pixel falls into each of `target` equal parts of a line."""
    edges = np.arange(target + 1) * source / target
    low, high = edges[:-1, None], edges[1:, None]
    pixels = np.arange(source)[None]
    shares = np.clip(np.minimum(high, pixels + 1) - np.maximum(low, pixels), 0, None)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def chroma_weights(luma: int, target: int) -> NDArray[np.float64]:
    """As area_weights, of a plane that has half as many pixels, rounded up, over the same line."""
    edges = np.arange(target + 1) * luma / target / 2
    pixels = np.arange((luma + 1) // 2)[None]
    shares = np.clip(np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels), 0, None)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def lay(
    luma: NDArray[np.uint8],
    chroma: NDArray[np.uint8],
    place: Placement,
    pixels: PixelRange,
    *,
    matrix: str = "bt601",
    full_range: bool = False,
) -> NDArray[np.float32]:
    """luma (H, W), chroma (H/2, W/2, 2) to (3, height, width) of the input."""
    height, width = luma.shape
    down, across = area_weights(height, place.height), area_weights(width, place.width)
    bright = down @ luma.astype(np.float64) @ across.T
    down, across = chroma_weights(height, place.height), chroma_weights(width, place.width)
    u, v = (down @ chroma[:, :, plane].astype(np.float64) @ across.T - 128 for plane in (0, 1))
    if not full_range:
        bright, u, v = (bright - 16) * 255 / 219, u * 255 / 224, v * 255 / 224
    kr, kb = LUMA_SHARES[matrix]
    red, blue = bright + 2 * (1 - kr) * v, bright + 2 * (1 - kb) * u
    green = (bright - kr * red - kb * blue) / (1 - kr - kb)
    canvas = np.full((3, place.input_size[1], place.input_size[0]), float(GREY))
    rows, columns = slice(place.top, place.top + place.height), slice(place.left, place.left + place.width)
    canvas[:, rows, columns] = np.clip([red, green, blue], 0, 255)
    if not pixels.rgb:
        canvas = canvas[::-1]
    return (canvas * np.array(pixels.gain)[:, None, None] + np.array(pixels.bias)[:, None, None]).astype(np.float32)
