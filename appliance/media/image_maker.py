"""Makes images of a decoded frame as they are ordered: redacted, cut, made smaller, and encoded as JPEG or WebP.

It runs where frames are decoded: in the media sandbox, so that pixels never reach the core.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.base.errors import EvidenceError
from appliance.media.recorded import FrameImage, ImageOrder, Redaction
from appliance.media.stills import crop, downscale, encode_jpeg, span_inside
from appliance.types import Box

CONTEXT = 2.5  # side of a region in longer sides of the box: the surroundings show what a person is doing
REGION_SIDE_MIN = 96  # pixels of the camera's frame
SIDE_MIN = 24  # pixels; a smaller image shows nothing
SHRINK = 0.8  # from one size that does not fit to the next
QUALITIES = (75, 60, 45)  # of WebP, tried before the size is reduced
GROW = 0.2  # of a box: hair, a bag, a step since the examined frame
OWN_GROW = 0.1  # of the box of the alert's own object
CELLS = 4  # across the shorter side of what is hidden: a face is a square or two
GREY = 114  # of masks

Pixels = NDArray[np.uint8]


def make_image(image: Pixels, order: ImageOrder) -> FrameImage:
    """Make the ordered image of a camera's frame (H, W, 3) BGR, which stays as it was. If it cannot be, say why."""
    shown = image if order.redaction is None else redact(image, order.redaction)
    region: Box | None = None
    if order.box is not None and order.part == "crop":
        shown = crop(shown, order.box)
    elif order.box is not None and order.part == "region":
        height, width = shown.shape[:2]
        left, top, right, bottom = crop_region(order.box, width, height)
        shown, region = shown[top:bottom, left:right], (left / width, top / height, right / width, bottom / height)
    side_max = max(shown.shape[:2]) if order.side_max is None else order.side_max
    try:
        if order.webp_bytes_max is not None:
            data, shown = encode_within(shown, side_max, order.webp_bytes_max)
        else:
            shown = downscale(shown, side_max)
            data = encode_jpeg(shown, quality=order.quality)
    except EvidenceError as error:
        return FrameImage(b"", (0, 0), None, str(error))
    return FrameImage(data, (shown.shape[1], shown.shape[0]), region)


def redact(image: Pixels, hidden: Redaction) -> Pixels:
    """`image` (H, W, 3) as it may leave the site. The alert's own objects stay visible, except under a mask."""
    redacted = image
    if hidden.blur == "surroundings" or (hidden.blur == "people" and hidden.others is None):
        redacted = _mosaic(image)
    elif hidden.blur == "people" and hidden.others:
        redacted = image.copy()
        for box in hidden.others:
            part = _part(redacted, _grown(box, GROW))
            part[:] = _mosaic(part)
    if redacted is not image:
        for box in hidden.own:
            _part(redacted, _grown(box, OWN_GROW))[:] = _part(image, _grown(box, OWN_GROW))
    return _masked(redacted, hidden)


def crop_region(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """Return the square around `box` (shares) in pixels (left, top, right, bottom), moved or cut to fit the frame."""
    x1, y1, x2, y2 = box
    side = max((x2 - x1) * width, (y2 - y1) * height) * CONTEXT
    side = max(side, REGION_SIDE_MIN)
    left, right = span_inside((x1 + x2) / 2 * width, side, width)
    top, bottom = span_inside((y1 + y2) / 2 * height, side, height)
    return left, top, right, bottom


def encode_within(image: Pixels, side_max: int, bytes_max: int) -> tuple[bytes, Pixels]:
    """`image` as WebP of at most `bytes_max` bytes, and the pixels that were encoded.

    First the quality is lowered, then the size; it is never enlarged. Raises EvidenceError when even a tiny image does
    not fit.
    """
    for side in _sides(min(side_max, max(image.shape[:2]))):
        small = downscale(image, side)
        for quality in QUALITIES:
            data = _webp(small, quality)
            if len(data) <= bytes_max:
                return data, small
    raise EvidenceError(f"an image does not fit into {bytes_max} bytes")


def _sides(largest: int) -> Iterator[int]:
    side = float(largest)
    while round(side) >= SIDE_MIN or side == largest:
        yield round(side)
        side *= SHRINK


def _webp(image: Pixels, quality: int) -> bytes:
    try:
        done, data = cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, quality])
    except cv2.error as error:
        raise EvidenceError(f"the image could not be encoded as WebP: {error.err}") from None
    if not done:
        raise EvidenceError("the image could not be encoded as WebP")
    return data.tobytes()


def _masked(image: Pixels, hidden: Redaction) -> Pixels:
    if not hidden.masks:
        return image
    painted = image.copy()
    size = np.array([image.shape[1], image.shape[0]])
    corners = [np.round(np.asarray(points) * size).astype(np.int32) for points in hidden.masks]
    for polygon in corners:  # one by one: together, where two overlap would stay bare
        cv2.fillPoly(painted, [polygon], (GREY, GREY, GREY))
    return painted


def _grown(box: Box, share: float) -> Box:
    dx, dy = (box[2] - box[0]) * share, (box[3] - box[1]) * share
    return box[0] - dx, box[1] - dy, box[2] + dx, box[3] + dy


def _part(image: Pixels, box: Box) -> Pixels:
    """Return a view of at least one pixel."""
    height, width = image.shape[:2]
    left, top = (int(min(max(0.0, share) * side, side - 1)) for share, side in ((box[0], width), (box[1], height)))
    right, bottom = (int(np.ceil(min(1.0, share) * side)) for share, side in ((box[2], width), (box[3], height)))
    return image[top : max(bottom, top + 1), left : max(right, left + 1)]


def _mosaic(image: Pixels) -> Pixels:
    """Means of squares: unlike a blur, nothing of what was inside a square can be computed back."""
    height, width = image.shape[:2]
    cell = max(2, -(-min(height, width) // CELLS))
    small = cv2.resize(image, (max(1, width // cell), max(1, height // cell)), interpolation=cv2.INTER_AREA)
    return cast("Pixels", np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8))
