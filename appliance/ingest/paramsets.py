"""The parameter sets that a key frame brings along: what a stream looks like from here on, whatever was announced."""

from __future__ import annotations

import re

import av

from appliance.ingest.source import StreamInfo, VideoPacket

# They stand before the first slice; a description of the scene (SEI) of some hundred bytes may stand between.
_HEAD_BYTES = 4096
_START = b"\x00\x00\x00\x01"
_START_CODE = re.compile(rb"\x00\x00\x01")
_SETS = {"h264": frozenset({7, 8}), "hevc": frozenset({32, 33, 34})}
_SLICES = {"h264": range(1, 6), "hevc": range(32)}


def announced_sets(info: StreamInfo) -> bytes:
    """What the stream's description brought, as `parameter_sets` says it; b'' if that was nothing, or not Annex B."""
    data = info.stream.codec_context.extradata or b""
    return _sets_in(info.codec, data) if _is_annex_b(info) else b""


def parameter_sets(info: StreamInfo, packet: VideoPacket) -> bytes:
    """Those of an H.264 or HEVC key frame as cameras send it (Annex B), each with its start code; b'' if it has none.

    Sources: ITU-T H.264 table 7-1, H.265 table 7-1. In packets of another kind nothing is found.
    """
    if not _is_annex_b(info):
        return b""
    return _sets_in(info.codec, bytes(memoryview(packet.packet)[:_HEAD_BYTES]))


def _is_annex_b(info: StreamInfo) -> bool:
    """Not as in MP4, whose description begins with its version, 1 (ISO/IEC 14496-15)."""
    return info.codec in _SETS and not (info.stream.codec_context.extradata or b"").startswith(b"\x01")


def _sets_in(codec: str, data: bytes) -> bytes:
    found = []
    starts = [match.end() for match in _START_CODE.finditer(data)]
    for begin, end in zip(starts, [*(start - 3 for start in starts[1:]), len(data)], strict=False):
        unit = data[begin:end].rstrip(b"\x00")
        kind = -1 if not unit else unit[0] & 0x1F if codec == "h264" else (unit[0] >> 1) & 0x3F
        if kind in _SLICES[codec]:
            break
        if kind in _SETS[codec]:
            found.append(_START + unit)
    return b"".join(found)


def size_of(info: StreamInfo, packet: VideoPacket) -> tuple[int, int]:
    """(width, height) of a key frame's picture, by decoding it apart from the stream; (0, 0) if that does not work."""
    try:
        context = av.CodecContext.create(info.stream.codec_context.name, "r")
        assert isinstance(context, av.VideoCodecContext)
        context.thread_type = "NONE"
        extradata = info.stream.codec_context.extradata
        if extradata:
            context.extradata = extradata
        if not context.decode(packet.packet):
            context.decode(None)
    except (av.error.FFmpegError, ValueError):
        return 0, 0
    return context.width, context.height
