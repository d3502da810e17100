"""Footage of a camera with a fault from a moment on, as the planes that the motion gate gets."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from appliance import config
from appliance.health.tamper_detector import TamperDetector
from appliance.media.decoder import DecodedFrame
from appliance.media.frames import FrameConverter
from appliance.replay.footage import ClipReader
from appliance.replay.footage_conditions import ConditionSet
from appliance.replay.frame_transform import frame_transform_of
from appliance.types import HealthEvent

ROOT = Path(__file__).parents[2]
CLIPS = ROOT / "fixtures" / "clips"
FAMILY = ROOT / "fixtures" / "family"
FOOTAGE_FPS, FOOTAGE_SIZE = 10, (320, 180)
STEP_S = 0.2  # five frames a second, as the default

Image = NDArray[np.uint8]
Alter = Callable[[float, Image], Image]
Plane = tuple[float, NDArray[np.uint8]]
HALF = (
    320,
    180,
)  # what is altered: twice the size that tamper detection sees, so that edges move by fractions of theirs


def planes(
    path: Path, seconds: float = 40.0, *, weather: str = "", alter: Alter | None = None, step_s: float = STEP_S
) -> Iterator[Plane]:
    """(camera time, brightness plane) of every examined frame. weather: as `--with` takes it; alter: (t, brightness) to
    the same, in `HALF` size."""
    if weather:
        yield from _weathered(path, seconds, weather, step_s)
        return
    next_t = 0.0
    for t, plane, half in _frames(path):
        if t <= seconds and t >= next_t - 0.002:
            next_t = t + step_s
            yield t, plane if alter is None else _small(alter(t, half))


@cache
def _frames(path: Path) -> tuple[tuple[float, Image, Image], ...]:
    """Each examined frame of a clip, five a second: its time, its plane, and the image in `HALF` size."""
    found, converter, next_t = [], FrameConverter(), 0.0
    with ClipReader(str(path)) as clip:
        for frame in clip.frames():
            if frame.t >= next_t - 0.002:
                next_t = frame.t + STEP_S
                luma = converter.planes(frame.av_frame)[0]
                half = np.asarray(cv2.resize(luma, HALF, interpolation=cv2.INTER_AREA), np.uint8)
                found.append((round(frame.t, 3), converter.small_luma(frame.av_frame).copy(), half))
    return tuple(found)


def _weathered(path: Path, seconds: float, weather: str, step_s: float) -> Iterator[Plane]:
    lens, converter = frame_transform_of(ConditionSet.parse(weather.split(","), 5)), FrameConverter()
    assert lens is not None
    for frame in _examined(path, seconds, step_s):
        yield round(frame.t, 3), converter.small_luma(lens(frame.index, frame.t, frame.av_frame)).copy()


@lru_cache(maxsize=1)  # one kind of weather after the other comes over the same minute
def _examined(path: Path, seconds: float, step_s: float) -> list[DecodedFrame]:
    found, next_t = [], 0.0
    with ClipReader(str(path)) as clip:
        for frame in itertools.takewhile(lambda each: each.t <= seconds, clip.frames()):
            if frame.t >= next_t - 0.002:
                next_t = frame.t + step_s
                found.append(frame)
    return found


def _small(half: Image) -> Image:
    return np.asarray(cv2.resize(half, (160, 90), interpolation=cv2.INTER_AREA), np.uint8)


def between(begin: float, end: float, how: Callable[[Image], Image]) -> Alter:
    """Nothing is wrong before `begin` and from `end` on."""
    return lambda t, image: how(image) if begin <= t < end else image


def covered(image: Image) -> Image:
    """A hand, a bag, paint: what shines through is a soft glow, over which the sensor's noise is still there."""
    height, width = image.shape[:2]
    glow = _blurred(image, width / 12).astype(np.float32) * 0.25 + 60
    noise = np.random.default_rng(int(image[::7, ::7].sum())).normal(0, 1, (height, width))
    return np.clip(glow + noise, 0, 255).astype(np.uint8)


def out_of_focus(image: Image) -> Image:
    return _blurred(image, image.shape[1] / 16)


def _blurred(image: Image, sigma: float) -> Image:
    """Blur an eighth of the picture: so wide a blur leaves nothing finer, and costs a sixtieth."""
    height, width = image.shape[:2]
    small = cv2.resize(image, (width // 8, height // 8), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.resize(cv2.GaussianBlur(small, (0, 0), sigma / 8), (width, height)), np.uint8)


def turned(image: Image, share: float = 0.08) -> Image:
    """The camera was pushed: all of it moves by a share of the width."""
    height, width = image.shape[:2]
    matrix = np.array([[1, 0, share * width], [0, 1, 0]], np.float32)
    return np.asarray(cv2.warpAffine(image, matrix, (width, height), borderMode=cv2.BORDER_REFLECT), np.uint8)


def shaken(pixels: float) -> Alter:
    """Wind at a mast: every frame is somewhere else, at most so many pixels of a 1280 wide picture off."""
    pixels *= HALF[0] / 1280
    chance = np.random.default_rng(3)

    def shake(t: float, image: Image) -> Image:
        x, y = chance.uniform(-pixels, pixels, 2)
        matrix = np.array([[1, 0, x], [0, 1, y]], np.float32)
        size = (image.shape[1], image.shape[0])
        return np.asarray(cv2.warpAffine(image, matrix, size, borderMode=cv2.BORDER_REFLECT), np.uint8)

    return shake


def events_of(footage: Iterator[Plane] | Sequence[Plane], plan: config.HealthConfig | None = None) -> list[HealthEvent]:
    """Everything that a tamper detector reports of the footage."""
    events: list[HealthEvent] = []
    detector = TamperDetector("gate", plan or config.HealthConfig(), (), events.append, mend=False)
    for t, plane in footage:
        detector.observe(t, plane)
    return events


def _yard(seconds: float) -> list[Image]:
    """Pictures of the yard, small, ten a second."""
    with av.open(str(CLIPS / "yard.mp4")) as footage:
        frames = []
        for frame in footage.decode(video=0):
            if len(frames) < float(frame.time) * FOOTAGE_FPS:
                frames.append(frame.reformat(*FOOTAGE_SIZE).to_ndarray(format="bgr24"))
            if float(frame.time) > seconds:
                break
    return frames


def _encode(path: Path, frames: list[Image]) -> Path:
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=FOOTAGE_FPS)
        stream.width, stream.height, stream.pix_fmt = *FOOTAGE_SIZE, "yuv420p"
        stream.codec_context.gop_size = FOOTAGE_FPS
        stream.options = {"preset": "ultrafast", "bf": "0", "qp": "20"}  # so that the same picture stays the same
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="bgr24")))
        out.mux(stream.encode(None))
    return path


def _grey_covered(frame: Image) -> Image:
    return np.repeat(covered(np.ascontiguousarray(frame[..., 1]))[..., None], 3, axis=2)


def films_of(folder: Path) -> dict[str, Path]:
    """Films of a camera in the yard, ten frames a second: healthy, and with each fault that its picture may have."""
    seen = _yard(12)
    return {
        "healthy": _encode(folder / "healthy.mp4", seen),
        "frozen": _encode(folder / "frozen.mp4", [seen[40]] * 50),
        "turned": _encode(folder / "turned.mp4", [turned(frame) for frame in seen]),
        "black": _encode(folder / "black.mp4", [np.full_like(seen[0], 3)] * 20),
        "covered": _encode(folder / "covered.mp4", [_grey_covered(frame) for frame in seen]),
    }
