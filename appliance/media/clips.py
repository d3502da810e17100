"""Cuts a clip out of the recording by copying packets (remux to MP4): nothing is encoded again, and time is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import av
from av.error import FFmpegError

from appliance.base.errors import EvidenceError
from appliance.base.local_files import DiskWriteError, discard_temporary, failed_clip, finish_file, temporary_path
from appliance.media.recorded import CLIP_BYTES_MAX, ROUNDING_S, ClipFile, RecordedSegment
from appliance.media.segment_reader import (
    OpenSegment,
    SegmentSound,
    TimedPacket,
    open_segment,
)

GAP_S_MIN = 2.0  # a shorter gap, late begin or early end is not worth a note
_TICKS_A_SECOND = 90_000  # the clock of video in RTP and MPEG-TS, in Hz
_UNIT = Fraction(1, _TICKS_A_SECOND)


def cut_clip(
    segments: Sequence[RecordedSegment],
    t0: float,
    t1: float,
    path: Path,
    *,
    hold_t: float | None = None,
    sound: bool = False,
) -> ClipFile:
    """Copy t0..t1 into one progressive MP4 at `path`, from the key frame at or before `t0`.

    Where the codec parameters change inside the span, the part that holds `hold_t` (default `t0`) is kept. Gaps stay
    gaps: the frame before one stays on screen. sound: copy what was heard, too.

    Raises EvidenceError when nothing can be cut, DiskWriteError when it
    cannot be written.
    """
    touching = _touching(segments, t0, t1)
    cut = _ClipCut(path, t0, t1, t0 if hold_t is None else hold_t)
    try:
        with _heard_in(touching if sound else ()) as heard:
            for segment in touching:
                if not cut.append(segment, heard):
                    break
            return cut.done()
    except FFmpegError as error:
        raise failed_clip(error, "the clip cannot be written") from None
    finally:
        cut.close()


@contextlib.contextmanager
def _heard_in(segments: Sequence[RecordedSegment]) -> Iterator[SegmentSound | None]:
    """Return the sound of the first segment that has any, open while the clip is cut."""
    heard: SegmentSound | None = None
    with contextlib.ExitStack() as stack:
        for segment in segments:
            with contextlib.suppress(EvidenceError):
                heard = stack.enter_context(open_segment(segment)).sound
            if heard is not None:
                break
            stack.close()
        yield heard  # outside of what is suppressed: an error of the cut comes in here


def _touching(segments: Sequence[RecordedSegment], t0: float, t1: float) -> list[RecordedSegment]:
    """Return the segments that hold anything of t0..t1; of two that meet at t0 only the one that begins there."""
    begins = max((each.t_start for each in segments if each.t_start <= t0 + ROUNDING_S), default=t0)
    return [
        each for each in segments if each.t_start >= begins and each.t_end >= t0 - ROUNDING_S and each.t_start <= t1
    ]


class _ClipCut:
    """One clip being cut. State: the open output and notes about it. Owner: `cut_clip`.

    Invariant: after `close` no temporary file is left.
    """

    def __init__(self, path: Path, t0: float, t1: float, hold_t: float) -> None:
        self._path = path
        self._t0, self._t1, self._hold_t = t0, t1, hold_t
        self._writer: _ClipWriter | None = None
        self._notes: list[str] = []

    def append(self, segment: RecordedSegment, heard: SegmentSound | None) -> bool:
        """Copy what belongs to the span; False when the clip is complete. heard: sound like this is copied."""
        try:
            with open_segment(segment) as opened:
                goes_on = self._append(opened, heard)
            if self._writer is not None and heard is not None:
                with open_segment(segment) as opened:  # again: what was read of it is read
                    self._append_sound(opened, heard, self._writer)
            return goes_on
        except DiskWriteError:
            raise
        except EvidenceError as error:
            self._notes.append(str(error))
            return True

    def _append_sound(self, opened: OpenSegment, heard: SegmentSound, writer: _ClipWriter) -> None:
        sound = opened.sound
        if sound is None or sound.parameters != heard.parameters:
            return
        for packet, t in opened.sound_packets(sound):
            if t >= min(self._t1, writer.t_end):
                return
            writer.copy_sound(packet, t)

    def _append(self, opened: OpenSegment, heard: SegmentSound | None) -> bool:
        if self._writer is not None and self._writer.parameters != opened.parameters:
            if self._hold_t < opened.segment.t_start:
                self._notes.append("it ends where the stream's format changed")
                return False
            self._notes.append("it begins where the stream's format changed")
            self.close()
        for timed in _from_key(opened.packets(), self._t0):
            if timed.order_t > self._t1 + ROUNDING_S:
                return False
            if self._writer is None:
                if not timed.is_key:
                    continue
                self._writer = _ClipWriter(self._path, opened, timed.t, heard)
            if not self._writer.copy(timed):
                self._notes.append(f"it ends early: it reached {CLIP_BYTES_MAX >> 20} MiB")
                return False
        return True

    def done(self) -> ClipFile:
        writer, self._writer = self._writer, None
        if writer is None:
            raise EvidenceError("; ".join(self._notes) or "the recording holds nothing of this time")
        writer.end()
        if writer.t_start > self._t0 + GAP_S_MIN:
            self._notes.append(f"it begins {writer.t_start - self._t0:.0f} s late")
        if writer.t_end < self._t1 - GAP_S_MIN:
            self._notes.append(f"it ends {self._t1 - writer.t_end:.0f} s early")
        if writer.longest_gap_s >= GAP_S_MIN:
            self._notes.append(f"the longest gap in it lasts {writer.longest_gap_s:.0f} s")
        return ClipFile(
            writer.t_start, writer.t_end, writer.size, writer.frames, finish_file(self._path), "; ".join(self._notes),
            writer.codec, writer.has_sound,
        )  # fmt: skip

    def close(self) -> None:
        """Discard what is unfinished."""
        if self._writer is not None:
            self._writer.drop()
            self._writer = None


class _ClipWriter:
    """One MP4 being written to its temporary name."""

    def __init__(self, path: Path, source: OpenSegment, t_start: float, heard: SegmentSound | None) -> None:
        self._temporary = temporary_path(path)
        self.parameters = source.parameters
        self.t_start = self.t_end = t_start
        self.frames = 0
        self.longest_gap_s = 0.0
        self._bytes = 0
        self._last_dts: int | None = None
        self._last_sound = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskWriteError(f"the folder of {path.name} cannot be made: {error.strerror}") from None
        self._container = av.open(str(self._temporary), "w", format="mp4", options={"movflags": "+faststart"})
        try:
            # opaque: the template's decoder stands for the codec, so no encoder of it needs to be built in.
            self._stream = self._container.add_stream_from_template(source.stream, opaque=True)
        except ValueError as error:
            self.drop()
            raise EvidenceError(f"no clip can be made of {source.stream.codec_context.name} video: {error}") from None
        self._stream.time_base = _UNIT
        self._sound = None if heard is None else self._container.add_stream_from_template(heard.stream, opaque=True)
        context = source.stream.codec_context
        self.size, self.codec = (context.width, context.height), context.name
        if context.name == "hevc":
            self._stream.codec_context.codec_tag = "hvc1"  # browsers refuse hev1

    def copy(self, timed: TimedPacket) -> bool:
        """Append a packet; False when the clip would become too large."""
        if timed.t < self.t_start:  # shown before the first key frame: it refers to frames that are not in the clip
            return True
        packet = timed.packet
        self._bytes += packet.size
        if self._bytes > CLIP_BYTES_MAX:
            return False
        unit = packet.time_base
        length_s = (packet.duration or 0) * unit.numerator / unit.denominator
        dts = round((timed.order_t - self.t_start) * _TICKS_A_SECOND)
        if self._last_dts is not None:
            dts = max(dts, self._last_dts + 1)
        packet.time_base = _UNIT
        packet.dts = self._last_dts = dts
        packet.pts = max(dts, round((timed.t - self.t_start) * _TICKS_A_SECOND))
        packet.duration = round(length_s * _TICKS_A_SECOND)
        packet.stream = self._stream
        self._container.mux(packet)
        self.longest_gap_s = max(self.longest_gap_s, timed.t - self.t_end)
        self.t_end = max(self.t_end, timed.t + length_s)
        self.frames += 1
        return True

    @property
    def has_sound(self) -> bool:
        """Return whether anything is heard in it."""
        return self._last_sound >= 0

    def copy_sound(self, packet: av.Packet[av.AudioStream], t: float) -> None:
        """Append a packet of sound, unless it begins before the clip or overlaps the one before."""
        assert self._sound is not None
        unit = Fraction(1, self._sound.rate)
        ticks = round((t - self.t_start) / unit)
        if ticks < 0 or ticks <= self._last_sound:
            return
        length = float((packet.duration or 0) * packet.time_base)
        packet.pts = packet.dts = self._last_sound = ticks
        packet.time_base, packet.duration = unit, round(length / unit)
        packet.stream = self._sound
        self._container.mux(packet)

    def end(self) -> None:
        self._container.close()

    def drop(self) -> None:
        with contextlib.suppress(FFmpegError):
            self._container.close()
        discard_temporary(self._temporary)


def _from_key(packets: Iterator[TimedPacket], t0: float) -> Iterator[TimedPacket]:
    """Return the packets from the last key frame at or before `t0` on (from the first one, if all are later)."""
    group: list[TimedPacket] = []
    passed = False
    for timed in packets:
        if passed:
            yield timed
            continue
        if timed.is_key and timed.t <= t0 + ROUNDING_S:
            group.clear()
        group.append(timed)
        if timed.order_t > t0:
            passed = True
            yield from group
            group.clear()
    yield from group
