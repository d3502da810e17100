"""The parts of an image that are hidden before it may leave.

Mask zones are painted over, and people who are not part of the alert become a mosaic. `media.image_maker` does it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.config import BlurMode, CameraConfig, PrivacyConfig
from appliance.media.recorded import Redaction
from appliance.types import Box, FrameBoxes, Point

PEOPLE_WITHIN_S = 0.75  # an examined frame further away does not tell who is in the image
PEOPLE = frozenset({"person"})


@dataclass(frozen=True, slots=True)
class PeopleInFrame:
    """The people in an image.

    Attributes:
        others: boxes of people who are not of the alert; None: no frame near that time was examined.
        own: boxes of the alert's objects.
    """

    others: tuple[Box, ...] | None
    own: tuple[Box, ...]


def people_in_frame(t: float, seen: Sequence[FrameBoxes], tracks: Sequence[int], box: Box | None) -> PeopleInFrame:
    """Return the people in the image of time `t`, by the examined frames around it.

    tracks: the alert's own. box: the box of its object.
    """
    known = () if box is None else (box,)
    near = [frame for frame in seen if frame.looked and abs(frame.t - t) <= PEOPLE_WITHIN_S]
    if not near:
        return PeopleInFrame(None, known)
    others = [each.box for frame in near for each in frame.objects if each.track not in tracks and each.label in PEOPLE]
    closest = min(near, key=lambda frame: abs(frame.t - t))
    own = [each.box for each in closest.objects if each.track in tracks]
    return PeopleInFrame(tuple(others), tuple(own) or known)


class Redactor:
    """Says how the images of one camera are redacted, by its `privacy` section. Pure.

    digest: of the rules, so that an image that was made under other rules is recognised; empty: nothing is redacted.
    """

    def __init__(self, camera: CameraConfig) -> None:
        self._blur: BlurMode = camera.privacy.blur
        self._masks: tuple[tuple[Point, ...], ...] = tuple(camera.zones[name] for name in camera.privacy.mask)
        rules = f"{self._blur} {self._masks}" if camera.privacy.redacts_images else ""
        self.digest = "v" + hashlib.sha256(rules.encode()).hexdigest()[:8] if rules else ""

    def redaction(self, found: PeopleInFrame) -> Redaction | None:
        """Return the redaction of an image with these people; None if it may leave as it is."""
        return Redaction(self._blur, self._masks, found.others, found.own) if self.digest else None


HIDE_EVERYTHING = Redactor(CameraConfig(url="file:none", privacy=PrivacyConfig(blur="surroundings")))
"""For a camera that the site file no longer knows."""
