"""RTP packets, NAL units and the session description: what goes in comes out at the other end."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.demo.rtsp_protocol import MTU, Packetizer, SdpDescription, interleaved, sender_report
from appliance.media.nal import Codec, StreamFormat, read_format, split, split_annex_b, type_of, with_parameter_sets

SPS = bytes.fromhex("67640016acd940a02ff9")
PPS = bytes.fromhex("68ebe3cb22c0")
IDR = bytes([0x65]) + bytes(range(1, 200)) * 30
AVCC = bytes([1, 0x64, 0, 0x16, 0xFF, 0xE1, 0, len(SPS)]) + SPS + bytes([1, 0, len(PPS)]) + PPS
VPS_HEVC, SPS_HEVC, PPS_HEVC = b"\x40\x01vps", b"\x42\x01sps", b"\x44\x01pps"
HVCC = (
    bytes([1]) + bytes(20) + bytes([3, 3])
    + b"".join(bytes([0x80 | kind]) + struct.pack(">HH", 1, len(nal)) + nal
               for kind, nal in ((34, PPS_HEVC), (32, VPS_HEVC), (33, SPS_HEVC)))
)  # fmt: skip


def reassembled(codec: Codec, packets: list[bytes]) -> list[bytes]:
    """The NAL units that a receiver makes of RTP packets (RFC 6184 and RFC 7798, the parts a camera uses)."""
    lead, fragment = (1, 28) if codec == "h264" else (2, 49)
    found: list[bytes] = []
    for packet in packets:
        payload = packet[12:]
        if type_of(codec, payload) != fragment:
            found.append(payload)
            continue
        flags = payload[lead]
        if flags & 0x80:
            first = (
                (payload[0] & 0xE0) | (flags & 0x1F) if codec == "h264" else (payload[0] & 0x81) | (flags & 0x3F) << 1
            )
            found.append(bytes([first]) + payload[1:lead])
        found[-1] += payload[lead + 1 :]
    return found


nal_h264 = st.builds(
    lambda header, size: bytes([header]) + bytes(index % 251 for index in range(size)),
    st.sampled_from([0x65, 0x41, 0x01, 0x67, 0x06]),
    st.integers(1, 5000),
)
nal_hevc = st.builds(
    lambda kind, size: bytes([kind << 1, 1]) + bytes(index % 251 for index in range(size)),
    st.sampled_from([1, 19, 20, 21, 32, 39]),
    st.integers(1, 5000),
)


@given(st.lists(nal_h264, min_size=1, max_size=5))
def test_h264_units_survive_the_journey(nals: list[bytes]) -> None:
    assert reassembled("h264", Packetizer(1).packets("h264", nals, 0)) == nals


@given(st.lists(nal_hevc, min_size=1, max_size=5))
def test_hevc_units_survive_the_journey(nals: list[bytes]) -> None:
    assert reassembled("hevc", Packetizer(1).packets("hevc", nals, 0)) == nals


def test_packets_fit_an_ethernet_frame_and_only_the_last_is_marked() -> None:
    packets = Packetizer(7).packets("h264", [SPS, PPS, IDR], 90_000)
    assert max(len(packet) for packet in packets) <= MTU + 12
    assert [packet[1] >> 7 for packet in packets] == [0] * (len(packets) - 1) + [1]
    assert {struct.unpack(">I", packet[4:8])[0] for packet in packets} == {90_000}


def test_sequence_numbers_wrap_without_a_gap() -> None:
    packetizer = Packetizer(7, sequence=0xFFFE)
    packets = [*packetizer.packets("h264", [IDR], 0), *packetizer.packets("h264", [SPS], 1)]
    numbers = [struct.unpack(">H", packet[2:4])[0] for packet in packets]
    assert numbers == [(0xFFFE + index) & 0xFFFF for index in range(len(packets))]


def test_a_sender_report_carries_the_wall_clock() -> None:
    report = sender_report(0xCAFE, 1_700_000_000.25, 4500, 10, 2000, "yard")
    version, kind, words, ssrc, seconds, fraction, timestamp, packets, octets = struct.unpack(">BBHIIIIII", report[:28])
    assert (version, kind, words, ssrc, timestamp, packets, octets) == (0x80, 200, 6, 0xCAFE, 4500, 10, 2000)
    assert (seconds - 2_208_988_800, fraction) == (1_700_000_000, 1 << 30)
    assert (report[29], len(report) % 4) == (202, 0)


def test_interleaved_frames_carry_their_channel_and_length() -> None:
    assert interleaved(3, b"abcd") == b"$\x03\x00\x04abcd"


def test_reads_the_parameter_sets_of_mp4() -> None:
    assert read_format("h264", AVCC) == StreamFormat("h264", 4, (SPS, PPS))
    assert read_format("hevc", HVCC) == StreamFormat("hevc", 4, (VPS_HEVC, SPS_HEVC, PPS_HEVC))


def test_reads_the_parameter_sets_of_annex_b() -> None:
    extradata = b"\x00\x00\x00\x01" + SPS + b"\x00\x00\x01" + PPS
    assert read_format("h264", extradata) == StreamFormat("h264", 0, (SPS, PPS))
    assert read_format("h264", b"") == StreamFormat("h264", 0, ())


@pytest.mark.parametrize(("codec", "whole"), [("h264", AVCC), ("hevc", HVCC)])
def test_a_header_that_is_cut_short_never_raises(codec: Codec, whole: bytes) -> None:
    for size in range(len(whole)):
        assert len(read_format(codec, whole[:size]).sets) <= 3


def test_splits_by_length_and_drops_what_is_not_all_there() -> None:
    data = struct.pack(">I", len(SPS)) + SPS + struct.pack(">I", 9999) + IDR
    assert split(data, 4) == [SPS]
    assert split(struct.pack(">H", len(PPS)) + PPS, 2) == [PPS]
    assert split(b"\x00\x00\x00\x00" * 5, 4) == []


def test_splits_by_start_codes_without_the_padding() -> None:
    assert split_annex_b(b"\x00\x00\x00\x01" + SPS + b"\x00\x00\x00\x00\x01" + PPS + b"\x00\x00") == [SPS, PPS]


def test_key_frames_begin_with_parameter_sets_but_not_twice() -> None:
    delimiter = b"\x09\x10"
    assert with_parameter_sets("h264", [IDR], (SPS, PPS)) == [SPS, PPS, IDR]
    assert with_parameter_sets("h264", [delimiter, IDR], (SPS, PPS)) == [delimiter, SPS, PPS, IDR]
    assert with_parameter_sets("h264", [SPS, PPS, IDR], (SPS, PPS)) == [SPS, PPS, IDR]


def test_describes_h264() -> None:
    text = SdpDescription("yard", StreamFormat("h264", 4, (SPS, PPS)), 15.0, 1).to_sdp("127.0.0.1")
    assert "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n" in text
    assert "profile-level-id=640016; sprop-parameter-sets=Z2QAFqzZQKAv+Q==,aOvjyyLA\r\n" in text
    assert "a=framerate:15\r\n" in text


def test_describes_hevc() -> None:
    text = SdpDescription("gate", read_format("hevc", HVCC), 0.0, 1).to_sdp("::1")
    assert "a=rtpmap:96 H265/90000\r\n" in text
    assert "a=fmtp:96 sprop-vps=QAF2cHM=; sprop-sps=QgFzcHM=; sprop-pps=RAFwcHM=\r\n" in text
    assert "framerate" not in text
