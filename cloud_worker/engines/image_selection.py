"""Selects the images that a language model is shown, and shrinks them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cloud_worker.images import ClipFrame, InProcessDecoder, MediaDecoder, encode_jpeg, shrink
from cloud_worker.media_fetch import EvidenceFile, MediaRefused


@dataclass(frozen=True, slots=True)
class ShownImage:
    """An image as the model gets it. t: its own time, which in a clip is not that of the clip.

    shrunk: the image itself has more pixels.
    """

    source: EvidenceFile
    jpeg: bytes
    t: float
    shrunk: bool = False


@dataclass(frozen=True, slots=True)
class ImageSelection:
    """The images that a model is shown, in order of time.

    `more`: the evidence holds more than these, either pixels or moments of a clip.
    """

    shown: tuple[ShownImage, ...]
    lost: tuple[str, ...]
    more: bool


def select_images(
    files: Sequence[EvidenceFile],
    count: int,
    side_max: int,
    *,
    second: bool = False,
    decoder: MediaDecoder | None = None,
) -> ImageSelection:
    """Decode, sample and shrink, so that what an escalation costs does not depend on the camera.

    count: images at most. second: the model was unsure of the first choice, so of a clip other moments are taken.
    decoder: of the judge's case; None: in this process.
    """
    decoder = decoder or InProcessDecoder()
    shown: list[ShownImage] = []
    lost: list[str] = []
    stills, clips = choose_files(files, count)
    for file in [*stills, *clips]:
        try:
            found = _unpacked(decoder, file, count - len(stills), side_max, second=second)
            shown += [ShownImage(file, encode_jpeg(each.pixels), each.t, each.shrunk) for each in found]
        except MediaRefused as error:
            lost.append(str(error))
    stills_left_out = sum(each.ref.kind != "clip" for each in files) > len(stills)
    more = any(each.shrunk for each in shown) or bool(clips) or stills_left_out
    return ImageSelection(tuple(sorted(shown, key=lambda each: each.t)), tuple(lost), more)


def choose_files(files: Sequence[EvidenceFile], count: int) -> tuple[list[EvidenceFile], list[EvidenceFile]]:
    """Choose the stills to show, and the clip (at most one) that fills the rest of the `count` images.

    The evidence that was asked for last tells most: a clip gives all but one image, and whole images go before
    cut-outs.
    """
    clips = [each for each in files if each.ref.kind == "clip"][-1:]
    whole = [each for each in files if each.ref.kind == "frame"]
    parts = [each for each in files if each.ref.kind == "crop"]
    room = count if not clips else min(1, count - 1)
    stills = sample(whole, room) if room else []
    stills += sample(parts, room - len(stills)) if room > len(stills) else []
    return stills, clips


def sample(files: Sequence[EvidenceFile], count: int) -> list[EvidenceFile]:
    """Return at most `count` of them, spread evenly over the time, first and last included; of one, the middle."""
    if len(files) <= count:
        return list(files)
    if count == 1:
        return [files[len(files) // 2]]
    step = (len(files) - 1) / (count - 1)
    return [files[round(n * step)] for n in range(count)]


def _unpacked(decoder: MediaDecoder, file: EvidenceFile, count: int, side_max: int, *, second: bool) -> list[ClipFrame]:
    if file.ref.kind != "clip":
        pixels = decoder.image(file)
        small = shrink(pixels, side_max)
        return [ClipFrame(file.ref.t, small, small.shape != pixels.shape)]
    if not second:
        return decoder.frames(file, count, side_max)
    between = decoder.frames(file, 2 * count + 1, side_max)[1::2]  # the moments between those that were shown
    return between or decoder.frames(file, count, side_max)
