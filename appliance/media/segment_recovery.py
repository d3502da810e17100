"""Recovers a segment that a kill or a power cut left behind: cuts it back to its last whole fragment and measures it.

Nothing is decoded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import av

from appliance.store.segments import MeasuredSegment

_WITH_LENGTHS = frozenset({"h264", "hevc"})
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_TRIES_MAX = 64  # fragments are a second long, and segments some seconds


def recover_segment(path: Path) -> MeasuredSegment | None:
    """Seconds, frames, codec and size of a segment file, up to where it was cut off; None: there is no frame in it.

    Where blocks were lost under a length that was kept, the end is nonsense that keeps readers from the beginning, too:
    the file is then cut back to its last whole fragment. Raises OSError when the process lacks files or memory.
    """
    measured, sound = _read(path)
    if sound or path.suffix != ".mp4":
        return measured
    for end in sorted(_fragment_ends(path), reverse=True)[:_TRIES_MAX]:
        with contextlib.suppress(OSError):
            os.truncate(path, end)
        measured, sound = _read(path)
        if sound:
            return measured and replace(measured, bytes=end)
    return measured


def _read(path: Path) -> tuple[MeasuredSegment | None, bool]:
    """Return the measure of the file, and whether it could be read to its end."""
    starts: list[float] = []
    sound = True
    size, name = (0, 0), ""
    try:
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            codec: av.VideoCodecContext | None = stream.codec_context
            if codec is None:  # PyAV makes none without a decoder
                return None, False
            size, name = (codec.width, codec.height), codec.name
            for packet in container.demux(stream):
                # Of the fragment that was cut off, the last packet lacks its end.
                if not packet.size or packet.pts is None or not packet.time_base or packet.is_corrupt:
                    continue
                if path.suffix == ".mp4" and name in _WITH_LENGTHS and not _is_whole(packet):
                    break
                starts.append(float(packet.pts * packet.time_base))
    except (OSError, av.error.FFmpegError, IndexError) as error:
        short = getattr(error, "errno", 0)
        if short in _SHORTAGES:  # says nothing of the file, which must not be cut for it
            raise OSError(short, os.strerror(short)) from None
        sound = False
    if not starts:
        return None, sound
    starts.sort()
    # The length of the last frame is not in the file (muxers guess it): it is as long as the others.
    frame_s = (starts[-1] - starts[0]) / (len(starts) - 1) if len(starts) > 1 else 0.0
    return MeasuredSegment(max(0.0, starts[-1] + frame_s), len(starts), name, size), sound


def _is_whole(packet: av.Packet[av.VideoStream]) -> bool:
    """Return whether the lengths before its NAL units lead to its end (ISO/IEC 14496-15).

    The lengths have four bytes, as our muxer writes them.
    """
    data, at = memoryview(packet), 0
    while at + 4 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if not length:
            return False
        at += 4 + length
    return at == len(data)


def _fragment_ends(path: Path) -> Iterator[int]:
    """Where the fragments end that are there to their last byte, by the boxes of the file (ISO/IEC 14496-12)."""
    length = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at + 8 <= length:
            file.seek(at)
            size, kind = struct.unpack(">I4s", file.read(8))
            if size < 8 or at + size > length:
                return
            at += size
            if kind == b"mdat":
                yield at
