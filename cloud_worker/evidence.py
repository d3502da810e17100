"""The evidence of an escalation: fetches and verifies it, decodes it in sandboxes, chooses the images for a model.

Files come chunk by chunk, and each has the hash that was announced. Neither what a site sends nor the libraries that
read it are trusted.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import queue
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import nats.errors
import nats.js.errors
import numpy as np
from nats.js import JetStreamContext

from appliance.base.json_lines import WireError
from appliance.broker.nats_connection import broker_errors
from appliance.sandbox.sandbox import Sandbox, SandboxError, SandboxFolders, SandboxLimits
from appliance.wire import CHUNK_BYTES, STREAM_MEDIA, MediaRef, media_subject
from cloud_worker import decoding
from cloud_worker.decoding import Pixels, Undecodable

FETCH_S_MAX = 10.0  # a chunk of 128 kB on the slowest link that keeps a deadline
FETCHES_MAX = 8  # at once, of one escalation; more wait for each other on one connection
GRID = 32  # pixels: Qwen3-VL's patch of 16, two by two; a server would resize every other side to it by itself
JPEG_QUALITY = 85  # of what the model is shown; above that only bytes grow
SANDBOXES = 2  # with what they may take, a worker stays below the 2 GiB of deploy/k8s
IMAGE_S_MAX = 5.0  # the largest takes half a second
CLIP_S_MAX = 20.0  # 900 frames of 1080p take half of that
LIMITS = SandboxLimits(wall_s=IMAGE_S_MAX, memory_bytes=600 * 1024 * 1024, files_max=64)
_NONSENSE = "the decoder gave nonsense"
_FTYP = b"ftyp"  # ISO/IEC 14496-12, 4.3: the first box of an MP4; a text (a playlist, say) has none


class MediaRefused(WireError):
    """An image is missing, too large or not what its reference says; the others may still do."""


class MediaAbsent(MediaRefused):
    """The broker does not have it (yet)."""


@dataclass(frozen=True, slots=True)
class EvidenceFile:
    """One piece of evidence, complete and with the right hash. `data` is still encoded."""

    ref: MediaRef
    data: bytes


def chunks_of(size: int) -> int:
    """Return how many chunks `size` bytes make."""
    return max(1, -(-size // CHUNK_BYTES))


async def fetch(
    js: JetStreamContext, site: str, ref: MediaRef, bytes_max: int, *, gate: asyncio.Semaphore
) -> EvidenceFile:
    """Return all chunks of `ref`, put together. gate: of FETCHES_MAX, one for all files of an escalation.

    Raise MediaRefused (this image is no use) or UplinkError (try again).
    """
    _check(ref, bytes_max)
    parts = await asyncio.gather(*(_chunk(js, site, ref, n, gate) for n in range(ref.chunks)))
    return _verified(ref, b"".join(parts))


async def read(paths: Mapping[str, str], ref: MediaRef, bytes_max: int) -> EvidenceFile:
    """Return the file that lies here, at one of `paths`, by the ids of references. Raise MediaRefused."""
    _check(ref, bytes_max)
    try:
        data = await asyncio.to_thread(Path(paths[ref.id]).read_bytes)
    except (KeyError, OSError) as error:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: it cannot be read ({type(error).__name__})") from None
    return _verified(ref, data)


def _verified(ref: MediaRef, data: bytes) -> EvidenceFile:
    if len(data) != ref.bytes or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: its bytes do not have the hash that was announced")
    return EvidenceFile(ref, data)


def _check(ref: MediaRef, bytes_max: int) -> None:
    if ref.id != ref.sha256[:32]:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: its id does not belong to its hash")
    if ref.chunks != chunks_of(ref.bytes):
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: {ref.bytes} bytes are not {ref.chunks} chunks")
    if ref.bytes > bytes_max:
        raise MediaRefused(f"{ref.kind} {ref.id[:8]}: {ref.bytes} bytes are over the limit of {bytes_max}")


async def _chunk(js: JetStreamContext, site: str, ref: MediaRef, n: int, gate: asyncio.Semaphore) -> bytes:
    subject = media_subject(site, ref.id, n)
    async with gate:
        with broker_errors(f"chunk {n + 1} of {ref.id[:8]} could not be fetched"):
            try:
                return await asyncio.wait_for(_last(js, subject), FETCH_S_MAX)
            except nats.js.errors.NotFoundError:
                raise MediaAbsent(f"{ref.kind} {ref.id[:8]}: chunk {n + 1} of {ref.chunks} is not there") from None


async def _last(js: JetStreamContext, subject: str) -> bytes:
    """Return the last message of `subject`.

    Any replica may answer at first; if its answer is late or missing, the request goes to the leader.
    """
    try:
        found = await js.get_last_msg(STREAM_MEDIA, subject, direct=True)
    except (nats.js.errors.NotFoundError, nats.errors.NoRespondersError):
        found = await js.get_last_msg(STREAM_MEDIA, subject)
    return found.data or b""


@dataclass(frozen=True, slots=True)
class ClipFrame:
    """A frame of a clip, with the camera's time. shrunk: the clip has more pixels."""

    t: float
    pixels: Pixels
    shrunk: bool


class MediaDecoder(Protocol):
    """Turns evidence into pixels, uint8 (height, width, 3), BGR. Any thread may call. Both raise MediaRefused."""

    def image(self, file: EvidenceFile) -> Pixels: ...

    def frames(self, clip: EvidenceFile, count: int, side_max: int) -> list[ClipFrame]:
        """`count` frames spread evenly over the clip, first and last included, shrunk to `side_max`."""
        ...


class InProcessDecoder:
    """Decodes right here: for evidence of our own, as in tests and benchmarks."""

    def image(self, file: EvidenceFile) -> Pixels:
        return _image(file, decoding.image)

    def frames(self, clip: EvidenceFile, count: int, side_max: int) -> list[ClipFrame]:
        with tempfile.TemporaryDirectory(prefix="vedette-clip-") as folder:
            return _frames(clip, Path(folder), lambda path: decoding.frames(path, count, side_max))


IN_PROCESS = InProcessDecoder()


class SandboxDecoder:
    """Decodes in child processes with limits of memory and time, and, where the kernel can, no access to anything else.

    State: a child for each call that is under way, SANDBOXES at most. A bomb costs its child, and its own evidence.
    """

    def __init__(self, limits: SandboxLimits = LIMITS) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="vedette-clips-")
        folders = SandboxFolders(readable=(Path(self._folder.name),))
        self._all = [Sandbox(decoding.__name__, limits, folders, (Undecodable,)) for _ in range(SANDBOXES)]
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()  # the other ends when it is idle
        for each in self._all:
            self._free.put(each)

    def image(self, file: EvidenceFile) -> Pixels:
        return _image(file, lambda data: self._call(file, IMAGE_S_MAX, "image", data))

    def frames(self, clip: EvidenceFile, count: int, side_max: int) -> list[ClipFrame]:
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            return _frames(
                clip, Path(folder), lambda path: self._call(clip, CLIP_S_MAX, "frames", path, count, side_max)
            )

    def close(self) -> None:
        for each in self._all:
            each.close()
        self._folder.cleanup()

    @property
    def pids(self) -> tuple[int, ...]:
        """Return the process ids of the children that live."""
        return tuple(each.pid for each in self._all if each.pid)

    def _call(self, file: EvidenceFile, wall_s: float, function: str, *values: object) -> Any:
        sandbox = self._free.get()
        try:
            return sandbox.call(function, *values, wall_s=wall_s)
        except SandboxError as error:
            raise MediaRefused(f"{_who(file)}: it could not be decoded within the limits ({error})") from None
        finally:
            self._free.put(sandbox)


def encode_jpeg(pixels: Pixels) -> bytes:
    done, data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    if not done:
        raise MediaRefused("the picture cannot be written as JPEG")
    return data.tobytes()


def _image(file: EvidenceFile, decode: Callable[[bytes], Any]) -> Pixels:
    try:
        return _pixels(decode(file.data), decoding.PIXELS_MAX)
    except Undecodable as error:
        raise MediaRefused(f"{_who(file)}: {error}") from None


def _frames(clip: EvidenceFile, folder: Path, decode: Callable[[str], Any]) -> list[ClipFrame]:
    if clip.data[4:8] != _FTYP:
        raise MediaRefused(f"{_who(clip)}: not an MP4")
    path = folder / "clip.mp4"
    path.write_bytes(clip.data)
    try:
        return [_frame(clip.ref.t, each) for each in _listed(decode(str(path)))]
    except Undecodable as error:
        raise MediaRefused(f"{_who(clip)}: {error}") from None


# Images that come out of a sandbox are checked as those that went in: it may have been taken over.
def _listed(answer: Any) -> list[Any]:
    if not (isinstance(answer, list) and answer):
        raise Undecodable(_NONSENSE)
    return answer


def _frame(t: float, answer: Any) -> ClipFrame:
    match answer:
        case [float(at_s) | int(at_s), width, height, data, bool(shrunk)] if 0 <= at_s < math.inf:
            return ClipFrame(t + at_s, _pixels([width, height, data], decoding.CLIP_PIXELS_MAX), shrunk)
    raise Undecodable(_NONSENSE)


def _pixels(answer: Any, pixels_max: int) -> Pixels:
    match answer:
        case [int(width), int(height), bytes(data) | bytearray(data)] if (  # a bytearray where it crossed a socket
            width > 0 and height > 0 and width * height <= pixels_max and len(data) == 3 * width * height
        ):
            return np.frombuffer(data, np.uint8).reshape(height, width, 3)
    raise Undecodable(_NONSENSE)


def _who(file: EvidenceFile) -> str:
    return f"{file.ref.kind} {file.ref.id[:8]}"


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
    crop_side_max: int | None = None,
    *,
    second: bool = False,
    decoder: MediaDecoder | None = None,
) -> ImageSelection:
    """Decode, sample, shrink and bring to the model's grid, so that the cost does not depend on the camera.

    count: images at most. crop_side_max: the longer side of a cut-out; None: as of the others. second: the model was
    unsure of the first choice, so of a clip other moments are taken. decoder: of the judge's case; None: in this
    process.
    """
    decoder = decoder or InProcessDecoder()
    shown: list[ShownImage] = []
    lost: list[str] = []
    stills, clips = choose_files(files, count)
    for file in [*stills, *clips]:
        try:
            side = crop_side_max or side_max if file.ref.kind == "crop" else side_max
            found = _unpacked(decoder, file, count - len(stills), side, second=second)
            shown += [ShownImage(file, encode_jpeg(on_grid(each.pixels, side)), each.t, each.shrunk) for each in found]
        except MediaRefused as error:
            lost.append(str(error))
    stills_left_out = sum(each.ref.kind != "clip" for each in files) > len(stills)
    more = any(each.shrunk for each in shown) or bool(clips) or stills_left_out
    return ImageSelection(tuple(sorted(shown, key=lambda each: each.t)), tuple(lost), more)


def on_grid(pixels: Pixels, side_max: int) -> Pixels:
    """Return the image with both sides multiples of GRID, at most `side_max` and as near to its own as that allows."""
    height, width = pixels.shape[:2]
    most = max(GRID, side_max // GRID * GRID)
    size = tuple(min(most, max(GRID, round(side / GRID) * GRID)) for side in (width, height))
    if size == (width, height):
        return pixels
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


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
        small = decoding.shrink(pixels, side_max)
        return [ClipFrame(file.ref.t, small, small.shape != pixels.shape)]
    if not second:
        return decoder.frames(file, count, side_max)
    between = decoder.frames(file, 2 * count + 1, side_max)[1::2]  # the moments between those that were shown
    return between or decoder.frames(file, count, side_max)
