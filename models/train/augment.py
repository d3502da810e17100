"""Augmentation: composes a training sample of several pictures and spoils it as cameras do.

The result depends only on the random generator. The looks are colour, night, infrared, noise, blur, rain and coding;
none of them moves an object. For the artefacts of H.264 a real encoder codes a picture and a decoder reads it, as the
second of two frames. PyAV is needed for that; on a machine without, pictures go through JPEG instead and a warning says
so once.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from models.train import geometry
from models.train.geometry import Pixels, Sample

Rng = np.random.Generator


def colour(pixels: Pixels, rng: Rng, much: float = 1.0) -> Pixels:
    """Jitter hue, saturation and value, and the white balance."""
    hue, saturation, value = rng.uniform(-1, 1, 3) * (0.015, 0.6, 0.4) * much + (0, 1, 1)
    table = np.arange(256, dtype=np.float32)
    h, s, v = cv2.split(cv2.cvtColor(pixels, cv2.COLOR_BGR2HSV))
    h = cv2.LUT(h, ((table + hue * 180) % 180).astype(np.uint8))
    s = cv2.LUT(s, np.clip(table * saturation, 0, 255).astype(np.uint8))
    v = cv2.LUT(v, np.clip(table * value, 0, 255).astype(np.uint8))
    return _eight(cv2.cvtColor(cv2.merge([h, s, v]), cv2.COLOR_HSV2BGR))


def tone(pixels: Pixels, rng: Rng) -> Pixels:
    """Change contrast, brightness and gamma, as exposures differ."""
    gamma, contrast, light = np.exp(rng.uniform(-0.5, 0.5)), rng.uniform(0.6, 1.3), rng.uniform(-30, 30)
    table = 255 * (np.arange(256) / 255) ** gamma
    return _eight(cv2.LUT(pixels, np.clip((table - 128) * contrast + 128 + light, 0, 255).astype(np.uint8)))


def grey(pixels: Pixels, rng: Rng) -> Pixels:
    """Take the colour away, each channel given its own weight: cameras see clothes differently at night."""
    weights = rng.dirichlet((2.0, 2.0, 2.0)).astype(np.float32)
    one = np.clip(pixels @ weights, 0, 255).astype(np.uint8)
    return _eight(cv2.merge([one, one, one]))


def infrared(pixels: Pixels, rng: Rng) -> Pixels:
    """Make a night picture by the camera's own lamps: grey, bright in the middle, black far off, noisy, cloth pale."""
    lit = grey(pixels, rng).astype(np.float32)
    height, width = lit.shape[:2]
    y, x = np.mgrid[:height, :width].astype(np.float32)
    cx, cy = rng.uniform(0.3, 0.7) * width, rng.uniform(0.4, 0.8) * height
    away = np.hypot((x - cx) / width, (y - cy) / height)
    lamp = rng.uniform(0.7, 1.3) * np.exp(-((away / rng.uniform(0.35, 0.8)) ** 2)) + rng.uniform(0.08, 0.3)
    flat = 255 * (lit / 255) ** rng.uniform(0.5, 0.9)
    return noise(_eight(np.clip(flat * lamp[..., None], 0, 255)), rng, rng.uniform(3, 14), one=True)


def night(pixels: Pixels, rng: Rng) -> Pixels:
    """Make the picture dark and coloured by street lamps, with a sensor's noise."""
    gain = rng.uniform(0.25, 0.6)
    warm = np.array([rng.uniform(0.6, 1.1), 1.0, rng.uniform(1.0, 1.3)], np.float32) * gain
    dark = 255 * (pixels.astype(np.float32) / 255) ** rng.uniform(0.8, 1.2) * warm
    return noise(_eight(np.clip(dark, 0, 255)), rng, rng.uniform(2, 10))


def noise(pixels: Pixels, rng: Rng, sigma: float, *, one: bool = False) -> Pixels:
    """Add Gaussian noise, the same in all channels if `one`, sometimes coarse as a denoiser leaves it."""
    height, width = pixels.shape[:2]
    coarse = 2 if rng.uniform() < 0.3 else 1
    shape = (height // coarse + 1, width // coarse + 1, 1 if one else 3)
    grain: NDArray[np.float32] = rng.standard_normal(shape, np.float32) * np.float32(sigma)
    if coarse > 1:
        grain = np.asarray(cv2.resize(grain, (width, height)), np.float32).reshape(height, width, -1)
    return _eight(np.clip(pixels + grain[:height, :width], 0, 255))


def blur(pixels: Pixels, rng: Rng) -> Pixels:
    """Blur as if out of focus, or moved while the shutter was open (at most 7 px, centred, so that boxes stay)."""
    if rng.uniform() < 0.5:
        return _eight(cv2.GaussianBlur(pixels, (0, 0), rng.uniform(0.5, 1.8)))
    length = int(rng.integers(3, 8)) | 1
    kernel = np.zeros((length, length), np.float32)
    kernel[length // 2] = 1
    turn = cv2.getRotationMatrix2D(((length - 1) / 2, (length - 1) / 2), float(rng.uniform(0, 180)), 1)
    kernel = np.asarray(cv2.warpAffine(kernel, turn, (length, length)))
    return _eight(cv2.filter2D(pixels, -1, kernel / max(float(kernel.sum()), 1e-6)))


def rain(pixels: Pixels, rng: Rng) -> Pixels:
    """Add bright streaks, nearly all in one direction, and a veil."""
    height, width = pixels.shape[:2]
    streaks = np.zeros((height, width), np.uint8)
    slant = rng.uniform(-0.4, 0.4)
    for x, y, length in rng.uniform((0, 0, 6), (width, height, 26), (int(rng.integers(80, 350)), 3)):
        end = (round(x + length * (slant + rng.uniform(-0.05, 0.05))), round(y + length))
        cv2.line(streaks, (round(x), round(y)), end, int(rng.integers(60, 190)), 1, cv2.LINE_AA)
    veil = pixels.astype(np.float32) * rng.uniform(0.75, 0.95) + rng.uniform(5, 30)
    wet = veil + cv2.GaussianBlur(streaks, (3, 3), 0)[..., None].astype(np.float32) * rng.uniform(0.3, 0.7)
    return _eight(np.clip(wet, 0, 255))


def coarse(pixels: Pixels, rng: Rng) -> Pixels:
    """Enlarge the picture of a camera with fewer pixels, sometimes sharpened as cheap cameras do."""
    height, width = pixels.shape[:2]
    share = rng.uniform(0.4, 0.85)
    small = cv2.resize(
        pixels, (max(1, round(width * share)), max(1, round(height * share))), interpolation=cv2.INTER_AREA
    )
    large = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
    if rng.uniform() < 0.4:
        large = cv2.addWeighted(large, 1.8, cv2.GaussianBlur(large, (0, 0), 1.2), -0.8, 0)
    return _eight(large)


def jpeg(pixels: Pixels, rng: Rng) -> Pixels:
    """Code the picture at a quality of 15 to 70."""
    coded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(15, 71))])[1]
    return _eight(cv2.imdecode(coded, cv2.IMREAD_COLOR))


def _eight(pixels: object) -> Pixels:
    return np.asarray(pixels, np.uint8)


av: Any = None
with contextlib.suppress(ImportError):  # a borrowed GPU machine may have PyTorch and OpenCV only
    av = importlib.import_module("av")

log = logging.getLogger(__name__)
FPS = 10


def warn_without_h264() -> None:
    """Tell, once a run, what this machine cannot do."""
    if av is None:
        log.warning("PyAV is not installed: H.264 artefacts are left out, pictures meant for them go through JPEG")


def h264(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Return `pixels` (even sides) as a predicted frame of a starved stream. The same libx264 gives the same bytes."""
    quantiser, drift = int(rng.integers(28, 44)), tuple(int(value) for value in rng.integers(-3, 4, 2))
    if av is None:
        return jpeg(pixels, rng)
    before = np.roll(pixels, drift, axis=(0, 1))
    frames = _decoded(_coded((before, pixels), quantiser))
    return frames[-1] if len(frames) == 2 else pixels


def _coded(pictures: tuple[Pixels, ...], quantiser: int) -> list[Any]:
    height, width = pictures[0].shape[:2]
    encoder = av.CodecContext.create("libx264", "w")
    encoder.width, encoder.height, encoder.pix_fmt = width, height, "yuv420p"
    encoder.framerate, encoder.thread_count = FPS, 1
    encoder.options = {"preset": "superfast", "tune": "zerolatency", "qp": str(quantiser)}
    packets = []
    for number, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(picture, "bgr24")
        frame.pts = number
        packets += encoder.encode(frame)
    return [*packets, *encoder.encode(None)]


def _decoded(packets: list[Any]) -> list[Pixels]:
    decoder = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    frames = [frame for packet in packets for frame in decoder.decode(packet)]
    frames += decoder.decode(None)
    return [np.asarray(frame.to_ndarray(format="bgr24"), np.uint8) for frame in frames]


Look = Callable[[Pixels, Rng], Pixels]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How often (0..1) and how much. grids: chances of 1 x 1, 2 x 2, 3 x 3 pictures; zoom: range of scales, 1 fits."""

    grids: tuple[float, float, float] = (0.4, 0.45, 0.15)
    zoom: tuple[float, float] = (0.6, 2.2)
    stretch: float = 1.3
    flip: float = 0.5
    fisheye: float = 0.06
    colour: float = 0.7
    tone: float = 0.4
    grey: float = 0.06
    infrared: float = 0.08
    night: float = 0.07
    noise: float = 0.08
    blur: float = 0.1
    coarse: float = 0.1
    rain: float = 0.04
    jpeg: float = 0.15
    h264: float = 0.08

    def looks(self) -> tuple[tuple[float, Look], ...]:
        """Return the changes of the pixels, in the order in which they happen to light: scene, lens, sensor, coder."""
        return (
            (self.colour, colour),
            (self.tone, tone),
            (self.rain, rain),
            (self.blur, blur),
            (self.coarse, coarse),
            (self.noise, lambda pixels, rng: noise(pixels, rng, rng.uniform(2, 12))),
            (self.jpeg, jpeg),
            (self.h264, h264),
        )


PLAIN = Recipe(
    (1.0, 0.0, 0.0), (1.0, 1.0), 1.0, flip=0.0, fisheye=0.0, colour=0.0, tone=0.0, grey=0.0, infrared=0.0, night=0.0,
    noise=0.0, blur=0.0, coarse=0.0, rain=0.0, jpeg=0.0, h264=0.0,
)  # fmt: skip
RECIPES = {"full": Recipe(), "plain": PLAIN}


def compose(
    first: Sample,
    others: Callable[[], Sample],
    recipe: Recipe,
    rng: Rng,
    *,
    side: int,
    whole: int = 0,
    calm: bool = False,
) -> Sample:
    """Compose a `side` x `side` sample of `first` and, in a grid, of `others`.

    `whole` composes at this side in pixels if it is larger, and cuts the sample out of it. `calm` makes one whole
    picture, only mirrored and given another look, for the last part of a run (YOLOX closes its mosaic for the same
    reason).
    """
    if calm or recipe is PLAIN:
        sample = geometry.fit(first, side)
    else:
        lines = 1 + int(rng.choice(3, p=recipe.grids))
        sample = geometry.grid(first, others, max(side, whole), rng, lines, recipe.zoom, recipe.stretch)
        if rng.uniform() < recipe.fisheye:
            sample = geometry.fisheye(sample, float(rng.uniform(0.2, 0.9)))
        if whole > side:
            sample = geometry.window(sample, side, rng)
    if rng.uniform() < recipe.flip:
        sample = geometry.mirror(sample)
    return sample.look(seen(sample.pixels, recipe, rng))


def seen(pixels: Pixels, recipe: Recipe, rng: Rng) -> Pixels:
    """Return what a camera makes of it: day, night or infrared, then each look by its chance."""
    light, dark = rng.uniform(), False
    for chance, change in ((recipe.infrared, infrared), (recipe.night, night), (recipe.grey, grey)):
        if 0 <= light < chance:
            pixels, dark = change(pixels, rng), change is not grey
        light -= chance
    # A night that is darkened once more shows nothing that could be learnt.
    for chance, look in recipe.looks()[2 if dark else 0 :]:
        if rng.uniform() < chance:
            pixels = look(pixels, rng)
    return pixels
