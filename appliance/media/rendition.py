"""Makes an H.264 copy of video, for browsers that cannot play its codec: of a clip, and of live video piece by piece.

The copy is smaller and has the clip's own times. From `LiveRendition` on: a sandbox of its own, one for each camera,
converts live video. It gets fragments in memory and opens no file. Decoder and encoder go on from call to call, so each
piece costs what it holds. One thread does all of it: a camera takes a core at most.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
from av.container import OutputContainer
from av.error import FFmpegError, InvalidDataError
from av.video.frame import PictureType

from appliance.base.clock import process_cpu_s
from appliance.base.errors import EvidenceError
from appliance.base.local_files import WrittenFile, discard_temporary, failed_clip, finish_file, temporary_path
from appliance.base.process_memory import return_large_blocks
from appliance.media.recorded import PERCENT, even_size, progress_path
from appliance.media.segment_writer import FLUSH_PACKETS
from appliance.media.source import PIXELS_MAX

FPS_MAX = 31.0  # of 60 a second, each second one is shown
LIVE_FPS_MAX = 10.5  # of live video: ten a second, whatever the camera's clock trembles by
LIVE_HEIGHT_MAX = 360  # lines: enough for a wall, and a fifth of what 720 lines cost
LIVE_CRF = 28  # 0.3 Mbit/s of a street
THREADS = 2  # of decoder and encoder each: more would take memory, and cores from the cameras
_UNIT = Fraction(1, 90_000)
_LIVE_FRAGMENTS = {"movflags": "empty_moov+default_base_moof+frag_every_frame", "max_interleave_delta": "1"}
_KEY_EVERY_S = 2  # a player seeks to the second
_ENCODERS = {
    "libx264": {"preset": "superfast", "bf": "0"},
    "libopenh264": {"rc_mode": "quality", "allow_skip_frames": "0"},  # of a build of FFmpeg without GPL parts
}


def make_rendition(source: Path, path: Path) -> WrittenFile:
    """Write `source`, a finished clip, as H.264 of at most `RENDITION_HEIGHT_MAX` lines to `path`; sound is copied.

    Its frames stand at the same times. Raises EvidenceError when the clip cannot be decoded or there is no encoder,
    DiskWriteError when the disk does not take it.
    """
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with progress_path(path).open("wb", buffering=0) as progress:
            _convert(source, temporary, lambda share: progress.write(b"." * share))
        return finish_file(path)
    except (FFmpegError, ValueError, OSError) as error:
        raise failed_clip(error, "the clip cannot be converted") from None
    finally:
        discard_temporary(temporary)
        discard_temporary(progress_path(path))


def encoder() -> str:
    """Return the H.264 encoder that this FFmpeg has. Raise EvidenceError."""
    for name in _ENCODERS:
        with contextlib.suppress(FFmpegError, ValueError):
            return str(av.Codec(name, "w").name)
    raise EvidenceError("the FFmpeg of this appliance has no H.264 encoder, so nothing can be converted")


def _convert(source: Path, target: Path, advance: Callable[[int], object]) -> None:
    with av.open(str(source), format="mp4") as reading:
        video = next(iter(reading.streams.video), None)
        if video is None or video.codec_context is None or video.width * video.height > PIXELS_MAX:
            raise EvidenceError("there is no video in it that can be decoded")
        video.thread_type = "AUTO"
        video.codec_context.thread_count = THREADS
        sound = next(iter(reading.streams.audio), None)
        length_s, done = float(reading.duration or 0) / av.time_base, 0
        with av.open(str(target), "w", format="mp4", options={"movflags": "+faststart"}) as writing:
            frames = FrameWriter(writing, even_size(video.width, video.height))
            heard = None if sound is None else writing.add_stream_from_template(sound, opaque=True)
            for packet in reading.demux(*((video,) if sound is None else (video, sound))):
                if packet.stream is not video:
                    if packet.size and heard is not None:
                        packet.stream = heard
                        writing.mux(packet)
                    continue
                with contextlib.suppress(InvalidDataError):  # what cannot be decoded is left out
                    for frame in cast("list[av.VideoFrame]", packet.decode()):
                        frames.write(frame)
                share = min(PERCENT, int(PERCENT * max(0.0, frames.t) / length_s)) if length_s else 0
                if share > done:
                    advance(share - done)
                    done = share
            frames.end()


class FrameWriter:
    """Encodes frames into an open file. State: the encoder, the time of the last frame and of the last key frame."""

    def __init__(self, container: OutputContainer, size: tuple[int, int], crf: int = 26, *, live: bool = False) -> None:
        """size: (width, height), even. crf: the quality that libx264 keeps, less is better; another has its own.

        live: each frame is encoded when it comes, by one thread, and at most `LIVE_FPS_MAX` a second are.
        """
        name = encoder()
        self.t = self._key_t = -math.inf
        self._step_s = 1 / (LIVE_FPS_MAX if live else FPS_MAX)
        self._container = container
        self._stream = cast("av.VideoStream", container.add_stream(name, rate=25))
        self._stream.width, self._stream.height = size
        self._stream.pix_fmt = "yuv420p"
        x264 = {"crf": str(crf), **({"tune": "zerolatency"} if live else {})} if name == "libx264" else {}
        self._stream.options = {**_ENCODERS[name], **x264}
        self._stream.codec_context.time_base = self._stream.time_base = _UNIT
        self._stream.codec_context.thread_count = 1 if live else THREADS

    def write(self, frame: av.VideoFrame) -> None:
        """Add a frame at its own time, unless it follows the last one too closely."""
        t = float((frame.pts or 0) * (frame.time_base or 0))
        if t - self.t < self._step_s:
            return
        smaller = frame.reformat(self._stream.width, self._stream.height, "yuv420p", interpolation="FAST_BILINEAR")
        smaller.pts, smaller.time_base = round(t / _UNIT), _UNIT
        smaller.pict_type = PictureType.NONE
        if t - self._key_t >= _KEY_EVERY_S:
            smaller.pict_type, self._key_t = PictureType.I, t
        self._container.mux(self._stream.encode(smaller))
        self.t = t

    def end(self) -> None:
        """Write what the encoder holds. Raises EvidenceError when there was no frame."""
        if self.t == -math.inf:
            raise EvidenceError("no frame of it can be decoded")
        self._container.mux(self._stream.encode())


class _Written(io.RawIOBase):
    """Holds the bytes that a muxer wrote since they were taken last."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data


@dataclass
class LiveRendition:
    """One file of a camera being converted.

    State: the decoder, and the encoder, made with the first frame; `t` is its camera time.
    """

    init: bytes
    keys_only: bool
    t: float | None = None
    _decoder: av.VideoCodecContext | None = None
    _container: OutputContainer | None = None
    _frames: FrameWriter | None = None
    _unit: Fraction = _UNIT
    _written: _Written = field(default_factory=_Written)

    def convert(self, fragments: bytes) -> bytes:
        """Return the pictures of these fragments of the file, as far as they are complete.

        They are fragmented MP4, whose times begin at 0 with `t`. Raise EvidenceError.
        """
        try:
            with av.open(io.BytesIO(self.init + fragments), "r", format="mp4") as reading:
                video = next(iter(reading.streams.video), None)
                if video is None or video.width * video.height > PIXELS_MAX:
                    raise EvidenceError("there is no video in it that can be decoded")
                decoder = self._decoder = self._decoder or _decoder_of(video, self.keys_only)
                for packet in reading.demux(video):
                    if packet.size:
                        self._decode(decoder, packet)
        except (FFmpegError, ValueError) as error:
            raise EvidenceError(f"it cannot be converted: {getattr(error, 'strerror', None) or error}") from None
        return self._written.take()

    def end(self) -> bytes:
        """Return what is left."""
        with contextlib.suppress(FFmpegError, ValueError):
            if self._decoder is not None:
                self._decode(self._decoder, None)
            if self._container is not None:
                self._container.close()
        return self._written.take()

    def _decode(self, decoder: av.VideoCodecContext, packet: av.Packet[av.VideoStream] | None) -> None:
        if packet is not None:
            self._unit = packet.time_base
        with contextlib.suppress(InvalidDataError):  # what cannot be decoded is left out
            for frame in decoder.decode(packet):
                if frame.pts is not None:
                    self._write(frame, float(frame.pts * self._unit))

    def _write(self, frame: av.VideoFrame, t: float) -> None:
        if self._frames is None or self.t is None:
            self.t = t
            self._container = av.open(self._written, "w", format="mp4", options=_LIVE_FRAGMENTS)
            self._container.flags |= FLUSH_PACKETS
            size = even_size(frame.width, frame.height, LIVE_HEIGHT_MAX)
            self._frames = FrameWriter(self._container, size, LIVE_CRF, live=True)
        frame.pts, frame.time_base = round((t - self.t) / _UNIT), _UNIT
        if t >= self.t:
            self._frames.write(frame)


def _decoder_of(video: av.VideoStream, keys_only: bool) -> av.VideoCodecContext:
    """Return a decoder that outlives the stream's file."""
    decoder = av.CodecContext.create(video.codec_context.name, "r")
    assert isinstance(decoder, av.VideoCodecContext)
    decoder.extradata, decoder.thread_count = video.codec_context.extradata, 1
    if keys_only:
        decoder.skip_frame = "NONKEY"
    return decoder


_now = LiveRendition(b"", False)  # of this child, which serves one camera


def convert(init: bytes, fragments: bytes, begins: bool, keys_only: bool) -> dict[str, object]:
    """Convert fragments of the file whose description is `init`.

    begins: they are the first ones of a file. keys_only: decode nothing but its key frames. Answer with `before`, the
    rest of the file before, `data`, the camera time `t` of the file's first frame (None: there is none yet), and
    `cpu_s`, which it took.
    """
    global _now
    began, before = process_cpu_s(), b""
    if begins:
        av.logging.set_level(None)  # its lines hold what is in the data
        return_large_blocks()
        before, _now = _now.end(), LiveRendition(init, keys_only)
    data = _now.convert(fragments)
    os.setpriority(os.PRIO_PROCESS, 0, 10)  # cameras come first, but for the first picture, which a person waits for
    return {"before": before, "data": data, "t": _now.t, "cpu_s": process_cpu_s() - began}
