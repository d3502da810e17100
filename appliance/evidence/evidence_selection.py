"""Selects the content of each message of an escalation, the frames of its images, and their form. Pure.

Crops and frames are WebP or JPEG within a limit of bytes. WebP takes two thirds of a JPEG's bytes at the same error
(bundled clips and PETS: 7.1 kB against 11.2 kB, 4.8 against 8.0); it costs 10 ms more to encode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from appliance import wire
from appliance.alerts.pipeline import quality
from appliance.base.errors import EvidenceError
from appliance.config import EscalationConfig
from appliance.media.recorded import FrameImage, ImageOrder, Redaction
from appliance.store.escalations import StepEvidence
from appliance.types import BestView, Box, Event, EvidenceStep, FrameBoxes

CROP_SIDE_MAX = 320  # pixels of the encoded crop

_SUFFIX = {"image/jpeg": "jpg", "image/webp": "webp"}


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An encoded image, and its reference in the message."""

    ref: wire.MediaRef
    data: bytes

    @property
    def suffix(self) -> str:
        return _SUFFIX[self.ref.mime]


def order_image(
    images: ImageSet, settings: EscalationConfig, moment: EvidenceMoment, redaction: Redaction | None = None
) -> ImageOrder:
    """Order the image of a moment in the form that `images` asks for.

    Without a known box the whole frame replaces the crop, at the crop's size.
    """
    if images == "frames":
        return ImageOrder(side_max=settings.frame_side_max, redaction=redaction)
    if images == "frame":
        return ImageOrder(
            side_max=settings.frame_side_max, webp_bytes_max=settings.frame_bytes_max, redaction=redaction
        )
    part: Literal["frame", "region"] = "frame" if moment.box is None else "region"
    return ImageOrder(part, moment.box, CROP_SIDE_MAX, webp_bytes_max=settings.crop_bytes_max, redaction=redaction)


def encoded_image(order: ImageOrder, t: float, moment: EvidenceMoment, made: FrameImage) -> EncodedImage:
    """Return the image made of the frame of time `t`, with its reference.

    Raise EvidenceError if it could not be made.
    """
    if made.problem:
        raise EvidenceError(made.problem)
    region = None if made.region is None else _rounded(*made.region)
    box = moment.box
    if region is not None and box is not None:
        box = box_in_region(box, region)
    sha256 = hashlib.sha256(made.data).hexdigest()
    ref = wire.MediaRef(
        id=sha256[:32],
        kind="frame" if region is None else "crop",
        mime="image/jpeg" if order.webp_bytes_max is None else "image/webp",
        bytes=len(made.data),
        sha256=sha256,
        chunks=-(-len(made.data) // wire.CHUNK_BYTES),
        t=t,
        width=made.size[0],
        height=made.size[1],
        box=box,
        region=region,
    )
    return EncodedImage(ref, made.data)


def box_in_region(box: Box, region: Box) -> Box:
    """`box` (shares of the camera's frame) as shares of `region`, clipped at its edges."""
    width, height = region[2] - region[0], region[3] - region[1]
    x1, y1 = (box[0] - region[0]) / width, (box[1] - region[1]) / height
    x2, y2 = (box[2] - region[0]) / width, (box[3] - region[1]) / height
    return _rounded(*(min(1.0, max(0.0, value)) for value in (x1, y1, x2, y2)))


def _rounded(x1: float, y1: float, x2: float, y2: float) -> Box:
    return round(x1, 4), round(y1, 4), round(x2, 4), round(y2, 4)


@dataclass(frozen=True, slots=True)
class EvidenceMoment:
    """A time at which an image is wanted, and the object's box in it (None: not known)."""

    t: float
    box: Box | None


def spread_moments(event: Event, seen: Sequence[FrameBoxes], best: BestView | None, count: int) -> list[EvidenceMoment]:
    """Return at most `count` times, oldest first, spread over the frames of `seen` with the event's track.

    The first and the last frame are always among them. The best view fills an empty place; without any frame, it is the
    time of the event.
    """
    found: dict[float, EvidenceMoment] = {}
    for frame in seen:
        for each in frame.objects:
            if each.track == event.track:
                found[frame.t] = EvidenceMoment(frame.t, each.box)
    moments = [found[t] for t in sorted(found)] or [_event_moment(event)]
    if len(moments) > count:
        last = len(moments) - 1
        moments = [moments[last if count == 1 else round(i * last / (count - 1))] for i in range(count)]
    elif best is not None and best.track == event.track and len(moments) < count and best.t not in found:
        moments = sorted([*moments, EvidenceMoment(best.t, best.box)], key=lambda moment: moment.t)
    return moments


def best_moment(event: Event, seen: Sequence[FrameBoxes]) -> EvidenceMoment:
    """Return the frame of `seen` with the best view of the event's track.

    If no frame holds the track, return the time of the event itself.
    """
    views = [
        (quality(each.score, each.box), -frame.t, EvidenceMoment(frame.t, each.box))
        for frame in seen
        for each in frame.objects
        if each.track == event.track
    ]
    return max(views, key=lambda view: view[:2])[2] if views else _event_moment(event)


def _event_moment(event: Event) -> EvidenceMoment:
    return EvidenceMoment(event.t, event.box if any(event.box) else None)


ImageSet = Literal["none", "crops", "frames", "frame"]
_ORDER: tuple[wire.Need, ...] = ("crop", "frame", "clip")
_FIRST: dict[EvidenceStep, tuple[StepEvidence, ImageSet, bool, tuple[wire.Need, ...]]] = {
    "facts": ("facts", "none", False, _ORDER),
    "crops": ("crop", "crops", False, ("frame", "clip")),
    "frames": ("frame", "frames", False, ("clip",)),
    "clip": ("clip", "crops", True, ("frame",)),
}
_IMAGES_FOR: dict[wire.Need, ImageSet] = {"crop": "crops", "frame": "frame", "clip": "none"}


@dataclass(frozen=True, slots=True)
class EvidencePlan:
    """The content of one message.

    Attributes: evidence: the name of the step. images: which images it holds. clip: whether a clip is sent. can: the
    evidence that the site could send in a later message.
    """

    evidence: StepEvidence
    images: ImageSet
    clip: bool
    can: tuple[wire.Need, ...]


FACTS_ONLY = EvidencePlan("facts", "none", False, ())
"""For a camera whose pixels may not leave the site."""


def plan_evidence(first: EvidenceStep, need: wire.Need | None, step: int, *, clips: bool = True) -> EvidencePlan:
    """Return the plan of message number `step` (from 0) of an escalation.

    It is the first one, or one with what the cloud needs. clips: true if clips may leave the site; a copied clip cannot
    be redacted.
    """
    evidence, images, clip, can = _FIRST[first]
    if need is not None:
        evidence, images, clip = need, _IMAGES_FOR[need], need == "clip"
        can = tuple(each for each in can if _ORDER.index(each) > _ORDER.index(need))  # what was sent is not offered
    if not clips:
        evidence = "crop" if clip and images == "crops" else evidence
        clip, can = False, tuple(each for each in can if each != "clip")
    return EvidencePlan(evidence, images, clip, can if step + 1 < wire.STEPS_MAX else ())


def select_moments(
    images: ImageSet, settings: EscalationConfig, event: Event, seen: Sequence[FrameBoxes], best: BestView | None
) -> list[EvidenceMoment]:
    """Return the moments of the images of a message, oldest first."""
    if images == "none":
        return []
    if images == "frame":
        return [best_moment(event, seen)]
    return spread_moments(event, seen, best, settings.crops if images == "crops" else settings.frames)
