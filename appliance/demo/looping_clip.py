"""A video file as an endless camera: access units in a loop with rising time; converted first where it must be."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final, Literal

import av

from appliance.base.errors import SourceLost, SourceRefused
from appliance.demo.rtsp_protocol import SoundFormat
from appliance.media.nal import StreamFormat, is_parameter_set, read_format, split, with_parameter_sets

STEP_S_MAX = 5.0  # a longer step between two packets is a broken time stamp
REORDER_S_MAX = 2.0  # of a frame shown after it was decoded (B-frames)
SOUND_CODECS = frozenset({"aac", "pcm_mulaw", "pcm_alaw"})
SOUND_BYTES_MAX = 16 * 1024 * 1024  # a quarter of an hour of AAC at 128 kbit/s
_FPS_IF_UNKNOWN = 25.0  # PAL; the usual rate of cameras
LENGTH_S_MAX = 600  # of a converted copy
_FPS_MAX = 60  # of a copy; faster clips lose frames
_KEY_EVERY_S = 2  # as cameras are set up
_TICK = Fraction(1, 90_000)  # of a copy's time, as RTP counts
_EARLY_S = 0.001  # by which frames at _FPS_MAX may come early: containers round to a millisecond
CODECS: Final[tuple[Literal["h264", "hevc"], ...]] = ("h264", "hevc")
"""The codecs that are recorded as they come."""


@dataclass(frozen=True, slots=True)
class AccessUnit:
    """One coded frame, in decoding order. Times are seconds since the first unit was read, over all passes."""

    dts_s: float  # when it is due to be sent
    pts_s: float  # when it is to be shown, the first frame at 0
    key: bool  # begins with its parameter sets
    nals: tuple[bytes, ...]
    pass_s: float  # when its pass began, on the axis of `dts_s`


@dataclass(frozen=True, slots=True)
class SoundFrame:
    """A frame of sound, `t` seconds after its clip begins."""

    t: float
    data: bytes


class LoopingClip:
    """Reads the first video stream of a file again and again.

    State: the open container and the running time. Owner: one mount; `read` and `close` may come from any thread.
    Invariant: each pass begins at a key frame, and time runs on from one pass to the next; a jump of the file's own
    time of more than `STEP_S_MAX`, or backwards, counts as one frame.
    """

    def __init__(self, path: Path) -> None:
        """Open the clip. Raise SourceRefused: the file is absent, is no video, or is not coded in H.264 or HEVC."""
        self.path = path
        self.stream, self.fps, self.size = _probe(path)
        self.sound, self.sound_frames = _sound(path)
        self._frame_s = 1.0 / (self.fps or _FPS_IF_UNKNOWN)
        self._dts_s = -self._frame_s
        self._lead_s: float | None = None
        self._units = self._passes()
        self._reading = threading.Lock()

    def read(self, count: int) -> list[AccessUnit]:
        """Return the next `count` access units. Blocks on the disk. Raise SourceLost when there are no more."""
        with self._reading:
            units = list(itertools.islice(self._units, count))
        if not units:
            raise SourceLost(f"{self.path.name}: no key frame can be read")
        return units

    def close(self) -> None:
        """Release the file, after the `read` that may be under way in another thread."""
        with self._reading:
            self._units.close()

    def _passes(self) -> Generator[AccessUnit, None, None]:
        any_key = True
        while any_key:
            any_key = False
            for unit in self._one_pass():
                any_key = True
                yield unit

    def _one_pass(self) -> Iterator[AccessUnit]:
        began = False
        before_s: float | None = None
        pass_s = self._dts_s + self._frame_s
        for packet in _packets(self.path):
            began = began or packet.is_keyframe
            if not began:
                continue
            nals = self._nals(packet)
            if not nals:
                continue
            dts_s = _seconds(packet, packet.dts)
            pts_s = _seconds(packet, packet.pts)
            self._dts_s += self._step_s(before_s, dts_s)
            before_s = dts_s
            reorder_s = _reorder_s(dts_s, pts_s)
            if self._lead_s is None:
                self._lead_s = reorder_s
            shown_s = self._dts_s + reorder_s - self._lead_s
            yield AccessUnit(self._dts_s, shown_s, packet.is_keyframe, nals, pass_s)

    def _nals(self, packet: av.Packet[av.VideoStream]) -> tuple[bytes, ...]:
        codec = self.stream.codec
        nals = split(bytes(packet), self.stream.length_size)
        if packet.is_keyframe:
            nals = with_parameter_sets(codec, nals, self.stream.sets)
        return tuple(nals)

    def _step_s(self, before_s: float | None, now_s: float | None) -> float:
        if before_s is None or now_s is None or not 0 <= now_s - before_s <= STEP_S_MAX:
            return self._frame_s
        return now_s - before_s


def _probe(path: Path) -> tuple[StreamFormat, float, tuple[int, int]]:
    with video_stream(path) as stream:
        codec = next((each for each in CODECS if each == stream.codec_context.name), None)
        if codec is None:
            raise SourceRefused(
                f"{path}: coded as {stream.codec_context.name}, and cameras speak H.264 or HEVC "
                f"(ffmpeg -i {path.name} -c:v libx264 {path.stem}.h264.mp4)"
            )
        found = read_format(codec, stream.codec_context.extradata or b"")
        fps = float(stream.average_rate or 0)
        size = (stream.codec_context.width, stream.codec_context.height)
    return _with_sets_in_band(path, found), fps, size


def _sound(path: Path) -> tuple[SoundFormat | None, tuple[SoundFrame, ...]]:
    """Read AAC and G.711 as they stand in the file, into memory: at most `SOUND_BYTES_MAX`."""
    found: list[SoundFrame] = []
    size = 0
    with av.open(str(path)) as container:
        stream = next(iter(container.streams.audio), None)
        if stream is None or stream.codec_context.name not in SOUND_CODECS:
            return None, ()
        config = bytes(stream.codec_context.extradata or b"")
        described = SoundFormat(stream.codec_context.name, stream.rate, stream.channels, config)
        for packet in container.demux(stream):
            size += packet.size
            if packet.size and packet.pts is not None and size <= SOUND_BYTES_MAX:
                found.append(SoundFrame(float(packet.pts * packet.time_base), bytes(packet)))
    return described, tuple(found)


def _with_sets_in_band(path: Path, stream: StreamFormat) -> StreamFormat:
    """Take the parameter sets from the first key frame of streams without a header (raw, MPEG-TS)."""
    for packet in _packets(path):
        if not packet.is_keyframe:
            continue
        nals = split(bytes(packet), stream.length_size)
        if not nals:
            continue
        inside = tuple(nal for nal in nals if is_parameter_set(stream.codec, nal))
        return StreamFormat(stream.codec, stream.length_size, stream.sets or inside)
    raise SourceRefused(f"{path}: no key frame can be read")


def _packets(path: Path) -> Iterator[av.Packet[av.VideoStream]]:
    """Return the packets of the first video stream, up to its end or to where it can no longer be read."""
    with contextlib.suppress(av.error.FFmpegError), av.open(str(path)) as container:
        for packet in container.demux(container.streams.video[0]):
            if packet.size:
                yield packet


def _seconds(packet: av.Packet[av.VideoStream], ticks: int | None) -> float | None:
    return None if ticks is None or not packet.time_base else float(ticks * packet.time_base)


def _reorder_s(dts_s: float | None, pts_s: float | None) -> float:
    if dts_s is None or pts_s is None:
        return 0.0
    return min(max(0.0, pts_s - dts_s), REORDER_S_MAX)


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
    """Make a copy whose frames are shown when those of the source are; faster than _FPS_MAX, some are left out."""
    frames, shown_s, now_s = 0, -1.0, 0.0
    before_s: float | None = None
    try:
        with av.open(str(source)) as reading, av.open(str(target), "w", format="mp4") as writing:
            stream = reading.streams.video[0]
            stream.thread_type = "AUTO"
            rate = min(Fraction(float(stream.average_rate or 25)), Fraction(_FPS_MAX)).limit_denominator(1001)
            made = writing.add_stream("libx264", rate=rate)
            made.width, made.height = stream.width // 2 * 2, stream.height // 2 * 2
            made.pix_fmt = "yuv420p"
            made.gop_size = max(1, round(rate * _KEY_EVERY_S))
            made.codec_context.time_base = _TICK
            made.options = {"preset": "veryfast", "crf": "23", "bf": "0"}
            for frames, frame in enumerate(reading.decode(stream), 1):
                if frames > 1:  # a rate in the header may be anything, and frames may come unevenly
                    step_s = None if frame.time is None or before_s is None else frame.time - before_s
                    now_s += step_s if step_s is not None and 0 <= step_s <= STEP_S_MAX else float(1 / rate)
                before_s = frame.time
                if now_s > LENGTH_S_MAX:
                    break
                if now_s - shown_s < 1 / _FPS_MAX - _EARLY_S:
                    continue
                shown_s = now_s
                even = frame.reformat(made.width, made.height, "yuv420p")
                even.pts, even.time_base = round(now_s / _TICK), _TICK
                writing.mux(made.encode(even))
            writing.mux(made.encode())
    except (av.error.FFmpegError, ValueError) as error:
        target.unlink(missing_ok=True)
        raise SourceRefused(f"{source}: cannot be decoded ({error})") from None
    if not frames:
        target.unlink(missing_ok=True)
        raise SourceRefused(f"{source}: there is no picture in it")
