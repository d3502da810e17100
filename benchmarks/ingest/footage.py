"""Camera footage with exact truth, made from the bundled clips: an empty place, visits, or always somebody.

A fixed empty plate (the mean of the clip's empty frames) with slow changes of light; where a visitor is, the clip's own
picture is laid over it with soft edges. Enlarged, with fresh noise in each frame, coded as cameras do: no B frames,
closed groups of pictures of one length, capped variable bit rate. Loops begin and end empty. Kept in a folder and made
only once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from appliance.types import Box
from fixtures.render.clip import Row, read_rows

CLIPS = Path(__file__).parents[2] / "fixtures" / "clips"
FPS = 15
WIDTH, HEIGHT = 960, 540
EMPTY = slice(0, 70)
SCENES = ("quiet", "mixed", "busy")
VIEWS = ("yard", "gate")
SIZES = {360: (640, 360), 720: (1280, 720), 1080: (1920, 1080)}
RATE_MAX = {360: 600_000, 720: 3_000_000, 1080: 6_000_000}
LABELS = {1: "person", 2: "vehicle"}
NOISE = 2.5
LIGHT = 0.01
SEED = 20
VERSION = 1
VISIBLE_MIN = 0.5
HEIGHT_MIN = 0.06
Bytes = NDArray[np.uint8]
Planes = tuple[Bytes, Bytes, Bytes]


@dataclass(frozen=True, slots=True)
class Cut:
    """Frames of a clip (first to last, 0-based) with some of its objects, that begin at second `at` of the loop."""

    first: int
    last: int
    at: float
    objects: frozenset[int]


_PAIR = frozenset({3, 4})
_ALL = frozenset({1, 2, 3, 4, 5})
# A visit is taken whole, from before the first sight to after the last; what else the clip shows then is left out.
CUTS: dict[tuple[str, str], tuple[Cut, ...]] = {
    ("yard", "mixed"): (Cut(695, 855, 10.0, _PAIR), Cut(695, 855, 40.0, _PAIR)),
    ("gate", "mixed"): (Cut(650, 908, 22.0, _PAIR),),
    ("yard", "busy"): (Cut(130, 855, 1.0, _ALL),),
    ("gate", "busy"): (Cut(80, 908, 1.0, _ALL),),
}
LOOP_S = 60


@dataclass(frozen=True, slots=True)
class Sight:
    """An object in one frame: its visible part's box in shares of the picture, and how much of it is visible."""

    box: Box
    visible: float

    @property
    def counts(self) -> bool:
        """True if it must be found: it is at least half visible and not tiny."""
        return self.visible >= VISIBLE_MIN and self.box[3] - self.box[1] >= HEIGHT_MIN


@dataclass(frozen=True, slots=True)
class Visit:
    """One object from its first frame to its last. sights: by frame of the loop."""

    label: str
    sights: dict[int, Sight]


@dataclass(frozen=True, slots=True)
class Truth:
    """The visits of a loop of `frames` frames at `fps`; a camera that begins at `phase` (frames) plays it for ever."""

    fps: int
    frames: int
    visits: tuple[Visit, ...]
    phase: int = 0

    def shown(self, begin: int, end: int) -> Iterator[Visit]:
        """Yield the visits between two frames counted since the camera began, passes apart, with frames so counted."""
        first, last = (begin + self.phase) // self.frames, (end + self.phase) // self.frames
        for loop in range(first, last + 1):
            shift = loop * self.frames - self.phase
            for visit in self.visits:
                sights = {n + shift: each for n, each in visit.sights.items() if begin <= n + shift < end}
                if sights:
                    yield Visit(visit.label, sights)


@dataclass(frozen=True, slots=True)
class FootageSpec:
    """One camera's footage. gop_s: seconds between key frames; phase_s: where in the loop it begins."""

    view: str
    scene: str
    lines: int
    gop_s: int = 2
    phase_s: int = 0

    @property
    def name(self) -> str:
        return f"{self.view}-{self.scene}-{self.lines}-g{self.gop_s}-v{VERSION}"


def make(spec: FootageSpec, folder: Path) -> tuple[Path, Truth]:
    """Return the file and its truth, from `folder` or made into it. phase_s must be a multiple of gop_s."""
    folder.mkdir(parents=True, exist_ok=True)
    loop = folder / f"{spec.name}.mp4"
    truth = truth_of(spec)
    if not loop.exists():
        _code(spec, loop, truth.frames)
    if not spec.phase_s:
        return loop, truth
    turned = folder / f"{spec.name}-p{spec.phase_s}.mp4"
    if not turned.exists():
        _turn(loop, turned, spec.phase_s * FPS)
    return turned, replace(truth, phase=spec.phase_s * FPS)


def truth_of(spec: FootageSpec) -> Truth:
    """Return what is to be seen in the loop, from its beginning."""
    rows = read_rows(CLIPS / f"{spec.view}.gt.txt")
    visits = []
    for cut in CUTS.get((spec.view, spec.scene), ()):
        shift = round(cut.at * FPS) - cut.first
        for number in sorted(cut.objects):
            own = [row for row in rows if row.number == number and cut.first <= row.frame - 1 <= cut.last]
            sights = {row.frame - 1 + shift: _sight(row) for row in own}
            visits.append(Visit(LABELS[own[0].kind], sights))
    return Truth(FPS, LOOP_S * FPS, tuple(visits))


def _sight(row: Row) -> Sight:
    x, y = row.x / WIDTH, row.y / HEIGHT
    return Sight((x, y, x + row.w / WIDTH, y + row.h / HEIGHT), row.visibility)


def _code(spec: FootageSpec, path: Path, frames: int) -> None:
    width, height = SIZES[spec.lines]
    part = path.with_suffix(".part")
    with av.open(str(part), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        gop, rate = spec.gop_s * FPS, RATE_MAX[spec.lines]
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {
            "preset": "veryfast", "crf": "25", "maxrate": str(rate), "bufsize": str(rate), "bf": "0",
            "x264-params": f"keyint={gop}:min-keyint={gop}:scenecut=0:open-gop=0:rc-lookahead=0:sync-lookahead=0",
        }  # fmt: skip
        noise = _Noise((height, width))
        for n, planes in enumerate(_scene(spec, frames)):
            container.mux(stream.encode(_frame(planes, (width, height), n, frames, noise)))
        container.mux(stream.encode(None))
    part.replace(path)


def _frame(planes: Planes, size: tuple[int, int], n: int, frames: int, noise: _Noise) -> av.VideoFrame:
    width, height = size
    luma, *chroma = planes
    light = 1 + LIGHT * math.sin(2 * math.pi * n / frames)
    large = cv2.resize(luma, size, interpolation=cv2.INTER_CUBIC)
    bright = noise.on(np.asarray(cv2.convertScaleAbs(large, alpha=light), np.uint8), n)
    halves = [cv2.resize(each, (width // 2, height // 2), interpolation=cv2.INTER_LINEAR) for each in chroma]
    packed = np.concatenate([bright.ravel(), *(each.ravel() for each in halves)]).reshape(height * 3 // 2, width)
    frame = av.VideoFrame.from_ndarray(packed, format="yuv420p")
    frame.pts = n
    return frame


class _Noise:
    """Seeded sensor noise: windows of one large field, a different one for each frame."""

    def __init__(self, shape: tuple[int, int], margin: int = 256) -> None:
        rng = np.random.default_rng(SEED)
        field = rng.normal(0, NOISE, (shape[0] + margin, shape[1] + margin)).round()
        self._up, self._down = np.clip(field, 0, 255).astype(np.uint8), np.clip(-field, 0, 255).astype(np.uint8)
        self._shape = shape
        self._corners = rng.integers(0, margin, (4096, 2))

    def on(self, luma: Bytes, n: int) -> Bytes:
        y, x = self._corners[n % len(self._corners)]
        window = slice(y, y + self._shape[0]), slice(x, x + self._shape[1])
        return np.asarray(cv2.subtract(cv2.add(luma, self._up[window]), self._down[window]), np.uint8)


def _scene(spec: FootageSpec, frames: int) -> Iterator[Planes]:
    """Yield the loop's frames in the clip's size."""
    clip = CLIPS / f"{spec.view}.mp4"
    plate = _plate(clip)
    rows: dict[int, list[Row]] = {}
    for row in read_rows(CLIPS / f"{spec.view}.full.txt"):
        rows.setdefault(row.frame - 1, []).append(row)
    n = 0
    for cut in CUTS.get((spec.view, spec.scene), ()):
        begin = round(cut.at * FPS)
        yield from (plate for _ in range(begin - n))
        for frame, planes in enumerate(_decoded(clip)):
            if frame > cut.last:
                break
            if frame >= cut.first:
                yield _laid(plate, planes, _mask(rows.get(frame, []), cut.objects))
        n = begin + cut.last - cut.first + 1
    yield from (plate for _ in range(frames - n))


def _plate(clip: Path) -> Planes:
    empty = [planes for planes, _ in zip(_decoded(clip), range(EMPTY.stop), strict=False)]
    y, u, v = (np.mean([each[k] for each in empty], axis=0).round().astype(np.uint8) for k in range(3))
    return y, u, v


def _mask(rows: list[Row], wanted: frozenset[int]) -> NDArray[np.float32]:
    """Return a mask: 1 where the clip's own picture is wanted, 0 elsewhere, soft between."""
    mask = np.zeros((HEIGHT, WIDTH), np.float32)
    for keep in (False, True):
        for row in rows:
            if (row.number in wanted) is keep:
                wide, high = (12 + row.w // 4, 12 + row.h // 8) if keep else (4, 4)
                left, top = max(0, row.x - wide), max(0, row.y - high)
                mask[top : max(0, row.y + row.h + high), left : max(0, row.x + row.w + wide)] = float(keep)
    return np.asarray(cv2.blur(mask, (17, 17)), np.float32)


def _laid(plate: Planes, planes: Planes, mask: NDArray[np.float32]) -> Planes:
    half = cv2.resize(mask, (WIDTH // 2, HEIGHT // 2), interpolation=cv2.INTER_AREA)
    y, u, v = (
        np.asarray(below + share * (above.astype(np.float32) - below), np.uint8)
        for below, above, share in zip(plate, planes, (mask, half, half), strict=True)
    )
    return y, u, v


def _decoded(clip: Path) -> Iterator[Planes]:
    with av.open(str(clip)) as container:
        for frame in container.decode(video=0):
            packed: Bytes = np.asarray(frame.to_ndarray(format="yuv420p"), np.uint8).ravel()
            chroma = packed[WIDTH * HEIGHT :].reshape(2, HEIGHT // 2, WIDTH // 2)
            yield packed[: WIDTH * HEIGHT].reshape(HEIGHT, WIDTH), chroma[0], chroma[1]


def _turn(loop: Path, turned: Path, first: int) -> None:
    """Write the same packets, beginning with packet `first`, which must be a key frame."""
    part = turned.with_suffix(".part")
    with av.open(str(loop)) as source, av.open(str(part), "w", format="mp4") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        packets = [packet for packet in source.demux(stream) if packet.size]
        if not packets[first].is_keyframe:
            raise ValueError(f"{loop.name}: packet {first} is no key frame; a phase must be a multiple of the GOP")
        step = round(1 / (FPS * (stream.time_base or 1)))
        for n, packet in enumerate(packets[first:] + packets[:first]):
            packet.pts = packet.dts = n * step
            packet.stream = copy
            target.mux(packet)
    part.replace(turned)
