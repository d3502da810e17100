"""Encodes the crops and frames that travel with an escalation as WebP or JPEG within a bound on bytes.

WebP, because at the same error it takes two thirds of a JPEG's bytes (bundled clips and PETS: 7.1 kB against 11.2 kB,
4.8 against 8.0); it costs 10 ms more to encode, a few times an escalation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance import wire
from appliance.config import EscalationConfig
from appliance.errors import EvidenceError
from appliance.evidence.frame_selection import EvidenceMoment, ImageSet
from appliance.media.stills import downscale, encode_jpeg, span_inside
from appliance.types import Box

CONTEXT = 2.5  # side of a crop in longer sides of the box: the surroundings show what a person is doing
REGION_SIDE_MIN = 96  # pixels of the camera's frame
CROP_SIDE_MAX = 320  # pixels of the encoded crop
SIDE_MIN = 24  # pixels; a smaller image shows nothing
SHRINK = 0.8  # from one size that does not fit to the next
QUALITIES = (75, 60, 45)  # of WebP, tried before the size is reduced

Mime = Literal["image/jpeg", "image/webp"]
_SUFFIX = {"image/jpeg": "jpg", "image/webp": "webp"}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An encoded image, and its reference in the message."""

    ref: wire.MediaRef
    data: bytes

    @property
    def suffix(self) -> str:
        return _SUFFIX[self.ref.mime]


def encode_image(
    images: ImageSet, settings: EscalationConfig, t: float, moment: EvidenceMoment, image: NDArray[np.uint8]
) -> EncodedImage:
    """Encode the camera's frame `image` (H, W, 3) BGR of time `t` as `images` says. Raises EvidenceError.

    Without a known box there is no crop: the whole frame goes, as small as one.
    """
    if images == "frames":
        small = downscale(image, settings.frame_side_max)
        return _encoded("frame", "image/jpeg", encode_jpeg(small), small, t, moment.box)
    if images == "frame":
        data, small = encode_within(image, settings.frame_side_max, settings.frame_bytes_max)
        return _encoded("frame", "image/webp", data, small, t, moment.box)
    if moment.box is None:
        data, small = encode_within(image, CROP_SIDE_MAX, settings.crop_bytes_max)
        return _encoded("frame", "image/webp", data, small, t, None)
    left, top, right, bottom = crop_region(moment.box, image.shape[1], image.shape[0])
    data, small = encode_within(image[top:bottom, left:right], CROP_SIDE_MAX, settings.crop_bytes_max)
    height, width = image.shape[:2]
    region = _rounded(left / width, top / height, right / width, bottom / height)
    return _encoded("crop", "image/webp", data, small, t, box_in_region(moment.box, region), region)


def crop_region(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """The square around `box` (shares) in pixels (left, top, right, bottom), moved or cut to lie in the frame."""
    x1, y1, x2, y2 = box
    side = max((x2 - x1) * width, (y2 - y1) * height) * CONTEXT
    side = max(side, REGION_SIDE_MIN)
    left, right = span_inside((x1 + x2) / 2 * width, side, width)
    top, bottom = span_inside((y1 + y2) / 2 * height, side, height)
    return left, top, right, bottom


def box_in_region(box: Box, region: Box) -> Box:
    """`box` (shares of the camera's frame) as shares of `region`, clipped at its edges."""
    width, height = region[2] - region[0], region[3] - region[1]
    x1, y1 = (box[0] - region[0]) / width, (box[1] - region[1]) / height
    x2, y2 = (box[2] - region[0]) / width, (box[3] - region[1]) / height
    return _rounded(*(min(1.0, max(0.0, value)) for value in (x1, y1, x2, y2)))


def encode_within(image: NDArray[np.uint8], side_max: int, bytes_max: int) -> tuple[bytes, NDArray[np.uint8]]:
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


def _webp(image: NDArray[np.uint8], quality: int) -> bytes:
    try:
        done, data = cv2.imencode(".webp", image, [cv2.IMWRITE_WEBP_QUALITY, quality])
    except cv2.error as error:
        raise EvidenceError(f"the image could not be encoded as WebP: {error.err}") from None
    if not done:
        raise EvidenceError("the image could not be encoded as WebP")
    return data.tobytes()


def _encoded(
    kind: Literal["crop", "frame"],
    mime: Mime,
    data: bytes,
    pixels: NDArray[np.uint8],
    t: float,
    box: Box | None,
    region: Box | None = None,
) -> EncodedImage:
    sha256 = hashlib.sha256(data).hexdigest()
    ref = wire.MediaRef(
        id=sha256[:32],
        kind=kind,
        mime=mime,
        bytes=len(data),
        sha256=sha256,
        chunks=-(-len(data) // wire.CHUNK_BYTES),
        t=t,
        width=pixels.shape[1],
        height=pixels.shape[0],
        box=box,
        region=region,
    )
    return EncodedImage(ref, data)


def _rounded(x1: float, y1: float, x2: float, y2: float) -> Box:
    return round(x1, 4), round(y1, 4), round(x2, 4), round(y2, 4)
