"""The session description (RFC 8866) that tells a client what a mount sends."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from appliance.demo.nal import StreamFormat
from appliance.demo.rtp import CLOCK_RATE, PAYLOAD_TYPE

TRACK = "trackID=0"
_SPS = 7
_HEVC_NAMES = ((32, "sprop-vps"), (33, "sprop-sps"), (34, "sprop-pps"))


@dataclass(frozen=True, slots=True)
class Description:
    """What DESCRIBE answers: the mount's name, the stream's format, its rate in frames a second (0: unknown)."""

    name: str
    stream: StreamFormat
    fps: float
    session: int

    def to_sdp(self, host: str) -> str:
        """The text, one camera with one video track; `host` is the server's own address."""
        family = "IP6" if ":" in host else "IP4"
        lines = [
            "v=0",
            f"o=- {self.session} 1 IN {family} {host}",
            f"s={self.name}",
            f"c=IN {family} {'::' if family == 'IP6' else '0.0.0.0'}",
            "t=0 0",
            "a=tool:vedette-demo",
            "a=type:broadcast",
            "a=control:*",
            "a=range:npt=now-",
            f"m=video 0 RTP/AVP {PAYLOAD_TYPE}",
            f"a=rtpmap:{PAYLOAD_TYPE} {'H264' if self.stream.codec == 'h264' else 'H265'}/{CLOCK_RATE}",
            f"a=fmtp:{PAYLOAD_TYPE} {_format_parameters(self.stream)}",
            *([f"a=framerate:{self.fps:g}"] if self.fps else []),
            f"a=control:{TRACK}",
        ]
        return "\r\n".join(lines) + "\r\n"


def _format_parameters(stream: StreamFormat) -> str:
    return _h264_parameters(stream) if stream.codec == "h264" else _hevc_parameters(stream)


def _h264_parameters(stream: StreamFormat) -> str:
    """RFC 6184, 8.1: the profile is the three bytes after the SPS's header."""
    parameters = ["packetization-mode=1"]
    sps = stream.of_type(_SPS)
    if sps and len(sps[0]) >= 4:
        parameters.append(f"profile-level-id={sps[0][1:4].hex().upper()}")
    if stream.sets:
        parameters.append("sprop-parameter-sets=" + _listed(stream.sets))
    return "; ".join(parameters)


def _hevc_parameters(stream: StreamFormat) -> str:
    """RFC 7798, 7.1."""
    named = ((name, stream.of_type(kind)) for kind, name in _HEVC_NAMES)
    return "; ".join(f"{name}={_listed(sets)}" for name, sets in named if sets) or "sprop-max-don-diff=0"


def _listed(sets: tuple[bytes, ...]) -> str:
    return ",".join(base64.b64encode(nal).decode() for nal in sets)
