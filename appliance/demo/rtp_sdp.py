"""RTP packets of H.264 and HEVC, RTCP sender reports, and the SDP that describes the stream."""

from __future__ import annotations

import base64
import struct
from dataclasses import dataclass

from appliance.demo.parameter_sets import Codec, StreamFormat

CLOCK_RATE = 90_000  # Hz of video (RFC 6184, RFC 7798)
PAYLOAD_TYPE = 96  # the first dynamic one (RFC 3551, 6)
MTU = 1400  # bytes of a packet, as cameras send; Ethernet's 1500 without the headers
_NTP_EPOCH_S = 2_208_988_800  # seconds from 1900 to 1970 (RFC 868)
_RTP_HEADER = struct.Struct(">BBHII")
_FU_A = 28  # RFC 6184, 5.8
_HEVC_FU = 49  # RFC 7798, 4.4.3


class Packetizer:
    """Makes the RTP packets of one stream.

    State: SSRC and the next sequence number. Owner: one mount. Invariant: sequence numbers have no gaps, whatever
    the stream changes to.
    """

    def __init__(self, ssrc: int, sequence: int = 0, mtu: int = MTU) -> None:
        self.ssrc = ssrc
        self.sequence = sequence & 0xFFFF
        self._mtu = mtu

    def sound(self, payload: bytes, timestamp: int, payload_type: int) -> bytes:
        """Return the packet of one frame of sound."""
        packet = bytearray(self._packet(payload, timestamp, marker=True))
        packet[1] = 0x80 | payload_type
        return bytes(packet)

    def packets(self, codec: Codec, nals: list[bytes], timestamp: int) -> list[bytes]:
        """Return all packets of one access unit; the last carries the marker bit. `timestamp` counts 1/90000 s."""
        payloads = [payload for nal in nals for payload in self._payloads(codec, nal)]
        last = len(payloads) - 1
        return [self._packet(payload, timestamp, marker=index == last) for index, payload in enumerate(payloads)]

    def _payloads(self, codec: Codec, nal: bytes) -> list[bytes]:
        if len(nal) <= self._mtu:
            return [nal]
        header = _fu_a_header(nal) if codec == "h264" else _hevc_fu_header(nal)
        body = memoryview(nal)[1 if codec == "h264" else 2 :]
        return _fragments(header, body, self._mtu)

    def _packet(self, payload: bytes, timestamp: int, *, marker: bool) -> bytes:
        second = PAYLOAD_TYPE | (0x80 if marker else 0)
        header = _RTP_HEADER.pack(0x80, second, self.sequence, timestamp & 0xFFFFFFFF, self.ssrc)
        self.sequence = (self.sequence + 1) & 0xFFFF
        return header + payload


def _fu_a_header(nal: bytes) -> tuple[bytes, int]:
    """Return the FU indicator (F and NRI of the unit, type 28) and the unit's type: RFC 6184, 5.8."""
    return bytes([(nal[0] & 0xE0) | _FU_A]), nal[0] & 0x1F


def _hevc_fu_header(nal: bytes) -> tuple[bytes, int]:
    """Return the payload header (layer and temporal id of the unit, type 49) and the unit's type: RFC 7798, 4.4.3."""
    return bytes([(nal[0] & 0x81) | (_HEVC_FU << 1), nal[1]]), (nal[0] >> 1) & 0x3F


def _fragments(header: tuple[bytes, int], body: memoryview, mtu: int) -> list[bytes]:
    lead, kind = header
    room = mtu - len(lead) - 1
    made: list[bytes] = []
    for at in range(0, len(body), room):
        start = 0x80 if at == 0 else 0
        end = 0x40 if at + room >= len(body) else 0
        made.append(lead + bytes([start | end | kind]) + body[at : at + room])
    return made


def sender_report(ssrc: int, wall_t: float, timestamp: int, packets: int, octets: int, name: str) -> bytes:
    """Return a compound RTCP packet, SR then SDES: the frame of `timestamp` was taken at `wall_t` (UTC seconds)."""
    seconds = int(wall_t)
    fraction = int((wall_t - seconds) * (1 << 32)) & 0xFFFFFFFF
    report = struct.pack(
        ">BBHIIIIII",
        0x80,
        200,
        6,
        ssrc,
        (seconds + _NTP_EPOCH_S) & 0xFFFFFFFF,
        fraction,
        timestamp & 0xFFFFFFFF,
        packets & 0xFFFFFFFF,
        octets & 0xFFFFFFFF,
    )
    return report + _source_description(ssrc, name)


def _source_description(ssrc: int, name: str) -> bytes:
    text = name.encode()[:255]
    chunk = struct.pack(">IBB", ssrc, 1, len(text)) + text + b"\x00"
    chunk += b"\x00" * (-len(chunk) % 4)
    return struct.pack(">BBH", 0x81, 202, len(chunk) // 4) + chunk


def interleaved(channel: int, packet: bytes) -> bytes:
    """Frame `packet` as it travels inside the RTSP connection: RFC 2326, 10.12."""
    return struct.pack(">cBH", b"$", channel, len(packet)) + packet


TRACK, SOUND_TRACK = "trackID=0", "trackID=1"
SOUND_PAYLOAD_TYPE = 97  # the next dynamic one
_G711 = {"pcm_mulaw": (0, "PCMU"), "pcm_alaw": (8, "PCMA")}  # RFC 3551, 6


@dataclass(frozen=True, slots=True)
class SoundFormat:
    """The sound of a clip: AAC with its AudioSpecificConfig, or G.711."""

    codec: str
    rate: int
    channels: int
    config: bytes

    @property
    def payload_type(self) -> int:
        return _G711[self.codec][0] if self.codec in _G711 else SOUND_PAYLOAD_TYPE

    def payload(self, frame: bytes) -> bytes:
        """Return it as RFC 3640, 3.3.6 (AAC-hbr, one access unit a packet), or the samples as they are."""
        return frame if self.codec in _G711 else struct.pack(">HH", 16, len(frame) << 3 & 0xFFFF) + frame

    def to_sdp(self) -> list[str]:
        """Return the lines of the track."""
        kind, name = self.payload_type, _G711.get(self.codec, (0, "MPEG4-GENERIC"))[1]
        parameters = "streamtype=5; profile-level-id=1; mode=AAC-hbr; sizelength=13; indexlength=3; indexdeltalength=3"
        return [
            f"m=audio 0 RTP/AVP {kind}",
            f"a=rtpmap:{kind} {name}/{self.rate}" + (f"/{self.channels}" if self.channels > 1 else ""),
            *([] if self.codec in _G711 else [f"a=fmtp:{kind} {parameters}; config={self.config.hex()}"]),
            f"a=control:{SOUND_TRACK}",
        ]


_SPS = 7  # ITU-T H.264, table 7-1
_HEVC_NAMES = ((32, "sprop-vps"), (33, "sprop-sps"), (34, "sprop-pps"))


@dataclass(frozen=True, slots=True)
class SdpDescription:
    """The answer to DESCRIBE."""

    name: str
    stream: StreamFormat
    fps: float  # 0: unknown
    session: int
    sound: SoundFormat | None = None

    def to_sdp(self, host: str) -> str:
        """Return the text: a video track, and one of sound where there is any. host: the server's own address."""
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
            *(self.sound.to_sdp() if self.sound is not None else ()),
        ]
        return "\r\n".join(lines) + "\r\n"


def _format_parameters(stream: StreamFormat) -> str:
    return _h264_parameters(stream) if stream.codec == "h264" else _hevc_parameters(stream)


def _h264_parameters(stream: StreamFormat) -> str:
    """Write them as RFC 6184, 8.1: the profile is the three bytes after the SPS's header."""
    parameters = ["packetization-mode=1"]
    sps = stream.of_type(_SPS)
    if sps and len(sps[0]) >= 4:
        parameters.append(f"profile-level-id={sps[0][1:4].hex().upper()}")
    if stream.sets:
        parameters.append("sprop-parameter-sets=" + _listed(stream.sets))
    return "; ".join(parameters)


def _hevc_parameters(stream: StreamFormat) -> str:
    """Write them as RFC 7798, 7.1."""
    named = ((name, stream.of_type(kind)) for kind, name in _HEVC_NAMES)
    return "; ".join(f"{name}={_listed(sets)}" for name, sets in named if sets) or "sprop-max-don-diff=0"


def _listed(sets: tuple[bytes, ...]) -> str:
    return ",".join(base64.b64encode(nal).decode() for nal in sets)
