"""Devices that decode, without a device: PyAV's `HWAccel` and `CodecContext.create` with the same signatures, and the
system's `ffmpeg`. Software does the work; what is told of it is what a device would tell."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av

from appliance.config import DecodeConfig
from appliance.ingest.hardware_decoders import HardwareDecoders
from appliance.media.hardware_codec import DecodeWay, HardwareCodec, Libav, LibavCodec, ways
from appliance.media.hardware_probe import ProbedHardware
from appliance.media.source import StreamInfo
from appliance.types import HardwareKind


class DeviceFrame:
    """A frame that lies on a device: its pixels can be had by `reformat` alone, which copies them from there."""

    def __init__(self, frame: av.VideoFrame, device: Device) -> None:
        self._frame = frame
        self._device = device
        self.pts, self.dts, self.time_base = frame.pts, frame.dts, frame.time_base
        self.width, self.height, self.rotation = frame.width, frame.height, 0
        self.format = SimpleNamespace(name="cuda")
        self.sw_format = SimpleNamespace(name="nv12")
        self.planes = tuple(SimpleNamespace(buffer_ptr=self.pts + n, line_size=512) for n in (1, 2))
        self.colorspace, self.color_range = 1, 2

    def reformat(self, **options: Any) -> av.VideoFrame:
        self._device.copies += 1
        return self._frame.reformat(**options)


@dataclass
class Device:
    """A scripted device. present: its driver is there; fails_at: of the packets of a session, which one is beyond it,
    and with what; to_software: FFmpeg goes on in software by itself, as it would unless it is told not to. filters: its
    frames are those of software to the pixel. has_context: the GPU's context is there, with flags FFmpeg refuses."""

    present: bool = True
    not_implemented: bool = False
    fails_at: int | None = None
    error: type[av.error.FFmpegError] = av.error.ExternalError
    to_software: bool = False
    filters: bool = False
    has_context: Callable[[], bool] = lambda: False
    copies: int = 0
    open_sessions: int = 0
    accels: list[FakeAccel] = field(default_factory=list)

    def libav(self) -> Libav:
        device = self

        class Accel(FakeAccel):
            of = device

        return Libav(cast(Any, Accel), self.create, lambda: self)

    def __getattr__(self, name: str) -> Callable[..., int]:
        """libcuda's functions: as where there is no GPU (CUDA_ERROR_NO_DEVICE), unless it is present."""
        if not name.startswith("cu"):
            raise AttributeError(name)
        if name == "cuDevicePrimaryCtxGetState" and self.present:
            return lambda number, flags, active: setattr(active._obj, "value", int(self.has_context())) or 0
        return lambda *given: 0 if self.present else 100

    def create(self, codec: str, mode: str | None = None, hwaccel: FakeAccel | None = None) -> av.CodecContext:
        if hwaccel is not None and not self.present:
            raise av.error.PermissionError(1, "Operation not permitted")  # what libcuda that is not there comes to
        if hwaccel is not None and self.has_context() and (hwaccel.options or {}).get("current_ctx") != "1":
            raise OSError(95, "Primary context already active with incompatible flags.")
        is_hwaccel = hwaccel is not None and not self.not_implemented
        return cast(av.CodecContext, FakeContext(self, codec, is_hwaccel=is_hwaccel))

    def decoders(self, settings: DecodeConfig, kind: HardwareKind = "cuda", cpu_ms: float = 0.5) -> HardwareDecoders:
        """As if the probe had found this device."""

        def probe(
            kinds: Sequence[HardwareKind], device: str | None, program: str
        ) -> dict[HardwareKind, ProbedHardware]:
            found = {codec: ways(kind, device, program)[0] for codec in ("h264", "hevc")}
            works = ProbedHardware(kind, found, "", cpu_ms, 1.0)
            return {each: works if each == kind else ProbedHardware(each, {}, "not here") for each in kinds}

        return HardwareDecoders(settings, probe, self.open)

    def open(self, way: DecodeWay, info: StreamInfo) -> HardwareCodec:
        codec = LibavCodec(way, info, self.libav())
        self.open_sessions += 1
        return codec


class FakeAccel:
    """`av.codec.hwaccel.HWAccel`."""

    of: Device

    def __init__(
        self,
        device_type: str,
        device: str | None = None,
        allow_software_fallback: bool = True,
        options: dict[str, object] | None = None,
        flags: int | None = None,
        is_hw_owned: bool = False,
    ) -> None:
        self.allow_software_fallback = allow_software_fallback
        self.options = options
        self.is_hw_owned = is_hw_owned
        self.of.accels.append(self)


class FakeContext:
    """`av.VideoCodecContext` on a device."""

    def __init__(self, device: Device, codec: str, *, is_hwaccel: bool) -> None:
        self.is_hwaccel = is_hwaccel
        self.extradata: bytes | None = None
        self.options: dict[str, str] = {}
        self.width = self.height = self.thread_count = 0
        self._device = device
        self._inner = cast(av.VideoCodecContext, av.CodecContext.create(codec, "r"))
        self._taken = 0

    def open(self, strict: bool = True) -> None:
        self._inner.extradata = self.extradata
        self._inner.thread_count = 1
        # A device filters; ours does not, so that frames can be compared with those that are decoded beside it.
        self._inner.options = {} if self._device.filters else {"skip_loop_filter": "all"}
        self._inner.open(strict)

    def decode(self, packet: av.Packet[av.VideoStream] | None = None) -> list[object]:
        self._taken += 1
        if self._taken == self._device.fails_at:
            raise self._device.error(1, "a scripted failure")
        frames = self._inner.decode(packet)
        return [frame if self._device.to_software else DeviceFrame(frame, self._device) for frame in frames]

    def flush_buffers(self) -> None:
        self._inner.flush_buffers()


def fake_ffmpeg(folder: Path, *, knows: str = "h264_nvv4l2dec", dies_after: int = 0, version: str = "7.1.2") -> Path:
    """An executable that takes our arguments and no others, as the `ffmpeg` of a Jetson would; software decodes."""
    option = "-vsync" if version.startswith("4") else "-fps_mode"
    path = folder / "ffmpeg"
    path.write_text(
        _PROGRAM.format(python=sys.executable, knows=knows, dies_after=dies_after, version=version, option=option),
        encoding="utf-8",
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


_PROGRAM = """#!{python}
import sys
import av
given = sys.argv[1:]
if given == ["-version"]:
    sys.exit(print("ffmpeg version {version}-0ubuntu0.22.04.1 Copyright (c) 2000-2021 the FFmpeg developers"))
if "{option}" not in given or {{"-fps_mode", "-vsync"}} <= {{*given}}:
    sys.exit("Unrecognized option 'fps_mode'.")
cut = given.index("-i")
before, after = given[:cut], given[cut + 2:]
decoder = before[before.index("-c:v") + 1]
assert given[cut + 1] == "pipe:0" and after[-3:] == ["-f", "nut", "pipe:1"] and "-copyts" in after, given
if decoder != "{knows}":
    sys.exit(f"[dec:x @ 0x55aa] Unknown decoder '{{decoder}}'")
with av.open("pipe:0", format="nut", options=dict(probesize="32", analyzeduration="0")) as source:
    stream = source.streams.video[0]
    with av.open("pipe:1", "w", format="nut", options=dict(flush_packets="1")) as out:
        raw, n = None, 0
        for packet in source.demux(stream):
            try:
                frames = stream.codec_context.decode(packet if packet.size else None)
            except av.error.FFmpegError:
                continue
            for frame in frames:
                if raw is None:
                    raw = out.add_stream("rawvideo", rate=15)
                    raw.width, raw.height, raw.pix_fmt = frame.width, frame.height, frame.format.name
                    raw.codec_context.time_base = frame.time_base
                out.mux(raw.encode(frame))
                n += 1
                if n == {dies_after}:
                    sys.exit("the decoder hung itself up")
"""
