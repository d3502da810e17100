"""Redacts images before they may leave: mask zones are painted over, people who are not of the alert become a
mosaic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.config import BlurMode, CameraConfig, PrivacyConfig
from appliance.types import Box, FrameBoxes, Point

PEOPLE_WITHIN_S = 0.75  # an examined frame further away does not tell who is in the image
GROW = 0.2  # of a box: hair, a bag, a step since the examined frame
OWN_GROW = 0.1  # of the box of the alert's own object
CELLS = 4  # across the shorter side of what is hidden: a face is a square or two
GREY = 114  # of masks
PEOPLE = frozenset({"person"})


@dataclass(frozen=True, slots=True)
class PeopleInFrame:
    """Who is in an image.

    Attributes:
        others: boxes of people who are not of the alert; None: no frame near that time was examined.
        own: boxes of the alert's objects.
    """

    others: tuple[Box, ...] | None
    own: tuple[Box, ...]


def people_in_frame(t: float, seen: Sequence[FrameBoxes], tracks: Sequence[int], box: Box | None) -> PeopleInFrame:
    """Who is in the image of time `t`, by the examined frames around it. tracks: the alert's own; box: its object."""
    known = () if box is None else (box,)
    near = [frame for frame in seen if frame.looked and abs(frame.t - t) <= PEOPLE_WITHIN_S]
    if not near:
        return PeopleInFrame(None, known)
    others = [each.box for frame in near for each in frame.objects if each.track not in tracks and each.label in PEOPLE]
    closest = min(near, key=lambda frame: abs(frame.t - t))
    own = [each.box for each in closest.objects if each.track in tracks]
    return PeopleInFrame(tuple(others), tuple(own) or known)


class Redactor:
    """Redacts the images of one camera as its `privacy` section says. Pure; the image it is given stays as it was.

    digest: of the rules, so that an image that was made under other rules is recognised; empty: nothing is redacted.
    """

    def __init__(self, camera: CameraConfig) -> None:
        self._blur: BlurMode = camera.privacy.blur
        self._masks: tuple[tuple[Point, ...], ...] = tuple(camera.zones[name] for name in camera.privacy.mask)
        rules = f"{self._blur} {self._masks}" if camera.privacy.redacts_images else ""
        self.digest = "v" + hashlib.sha256(rules.encode()).hexdigest()[:8] if rules else ""

    def redact(self, image: NDArray[np.uint8], found: PeopleInFrame) -> NDArray[np.uint8]:
        """`image` (H, W, 3) as it may leave the site. The alert's own objects stay visible, except under a mask."""
        if not self.digest:
            return image
        redacted = image
        if self._blur == "surroundings" or (self._blur == "people" and found.others is None):
            redacted = _mosaic(image)
        elif self._blur == "people" and found.others:
            redacted = image.copy()
            for box in found.others:
                part = _part(redacted, _grown(box, GROW))
                part[:] = _mosaic(part)
        if redacted is not image:
            for box in found.own:
                _part(redacted, _grown(box, OWN_GROW))[:] = _part(image, _grown(box, OWN_GROW))
        return self._masked(redacted)

    def _masked(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        if not self._masks:
            return image
        painted = image.copy()
        size = np.array([image.shape[1], image.shape[0]])
        corners = [np.round(np.asarray(points) * size).astype(np.int32) for points in self._masks]
        for polygon in corners:  # one by one: together, where two overlap would stay bare
            cv2.fillPoly(painted, [polygon], (GREY, GREY, GREY))
        return painted


HIDE_EVERYTHING = Redactor(CameraConfig(url="file:none", privacy=PrivacyConfig(blur="surroundings")))
"""For a camera that the site file no longer knows."""


def _grown(box: Box, share: float) -> Box:
    dx, dy = (box[2] - box[0]) * share, (box[3] - box[1]) * share
    return box[0] - dx, box[1] - dy, box[2] + dx, box[3] + dy


def _part(image: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    """A view of at least one pixel."""
    height, width = image.shape[:2]
    left, top = (int(min(max(0.0, share) * side, side - 1)) for share, side in ((box[0], width), (box[1], height)))
    right, bottom = (int(np.ceil(min(1.0, share) * side)) for share, side in ((box[2], width), (box[3], height)))
    return image[top : max(bottom, top + 1), left : max(right, left + 1)]


def _mosaic(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Means of squares: unlike a blur, nothing of what was inside a square can be computed back."""
    height, width = image.shape[:2]
    cell = max(2, -(-min(height, width) // CELLS))
    small = cv2.resize(image, (max(1, width // cell), max(1, height // cell)), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST), np.uint8)
