"""Footage that can stand for a camera: H.264 and H.265 as they are, anything else as a copy in H.264."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

import av

from appliance.base.errors import SourceRefused

CODECS: Final[tuple[Literal["h264", "hevc"], ...]] = ("h264", "hevc")
"""The codecs that are recorded as they come."""
LENGTH_S_MAX = 600  # of a converted copy
_FPS_MAX = 60  # of a copy; faster clips lose frames
_KEY_EVERY_S = 2  # as cameras are set up


@contextlib.contextmanager
def video_stream(path: Path) -> Iterator[av.VideoStream]:
    """Open the first video stream of a file. Raise SourceRefused: there is none, or it cannot be read."""
    if not path.is_file():
        raise SourceRefused(f"{path}: no such file")
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise SourceRefused(f"{path}: there is no video in it")
            yield container.streams.video[0]
    except av.error.FFmpegError as error:
        raise SourceRefused(f"{path}: cannot be read as a video ({error.strerror})") from None


def as_camera_clip(path: Path, folder: Path, notify: Callable[[str], None]) -> Path:
    """Return `path` when it can be served as it is, else an H.264 copy of its first ten minutes in `folder`.

    Raises SourceRefused: it is absent, or no video that can be decoded.
    """
    with video_stream(path) as stream:
        codec = stream.codec_context.name
    if codec in CODECS:
        return path
    status = path.stat()
    mark = hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:12]
    made = folder / f"{path.stem}-{mark}.mp4"
    if not made.is_file():
        notify(f"{path.name} is coded as {codec}: making an H.264 copy of its first {LENGTH_S_MAX // 60} minutes, once")
        folder.mkdir(parents=True, exist_ok=True)
        partly = made.with_suffix(".part")
        _convert(path, partly)
        partly.rename(made)
    return made


def _convert(source: Path, target: Path) -> None:
    frames = 0
    try:
        with av.open(str(source)) as reading, av.open(str(target), "w", format="mp4") as writing:
            stream = reading.streams.video[0]
            stream.thread_type = "AUTO"
            rate = min(Fraction(float(stream.average_rate or 25)), Fraction(_FPS_MAX)).limit_denominator(1001)
            made = writing.add_stream("libx264", rate=rate)
            made.width, made.height = stream.width // 2 * 2, stream.height // 2 * 2
            made.pix_fmt = "yuv420p"
            made.gop_size = max(1, round(rate * _KEY_EVERY_S))
            made.options = {"preset": "veryfast", "crf": "23", "bf": "0"}
            for frames, frame in enumerate(reading.decode(stream), 1):
                if frames > LENGTH_S_MAX * rate:
                    break
                even = frame.reformat(made.width, made.height, "yuv420p")
                even.pts, even.time_base = frames, 1 / rate
                writing.mux(made.encode(even))
            writing.mux(made.encode())
    except (av.error.FFmpegError, ValueError) as error:
        target.unlink(missing_ok=True)
        raise SourceRefused(f"{source}: cannot be decoded ({error})") from None
    if not frames:
        target.unlink(missing_ok=True)
        raise SourceRefused(f"{source}: there is no picture in it")
