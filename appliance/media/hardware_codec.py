"""Decoding by hardware: the port of a decoder, the one that runs inside this process, and what each kind needs.

A kind is what the site file names (`cuda`, `v4l2`, ...). The FFmpeg inside PyAV's wheels has `cuda`, `qsv` and V4L2's
stateful decoders; it has neither VA-API nor the stateless decoders of a Raspberry Pi 5 nor NVIDIA's for Jetsons. For
those the system's own `ffmpeg` decodes, in a child process (`piped_codec`). `hardware_probe` tells which of them work.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import av
from av.codec.hwaccel import HWAccel, hwdevices_available

from appliance.base.errors import VedetteError
from appliance.media.frames import device_format
from appliance.media.source import StreamInfo
from appliance.types import HardwareKind

EXTRA_SURFACES = 8  # of the device, for frames that wait to be copied; a decoder has 32 at most with NVDEC
BLOCKING_SYNC = 4  # cuda.h, CU_CTX_SCHED_BLOCKING_SYNC: a thread that waits for the GPU sleeps; FFmpeg sets it as well
DAMAGED_IN_A_ROW_MAX = 30  # packets; software conceals what hardware refuses, so it is given up sooner than a camera
REMEDIES: Mapping[HardwareKind, str] = {
    "cuda": "it needs NVIDIA's driver with libcuda.so.1 and libnvcuvid.so.1 (in a container: "
    "NVIDIA_DRIVER_CAPABILITIES=compute,video,utility) and a GPU with NVDEC; a Jetson has v4l2 instead",
    "v4l2": "it needs /dev/video* of a decoder, open to this user (group video), and on a Jetson NVIDIA's own ffmpeg "
    "with the decoders h264_nvv4l2dec and hevc_nvv4l2dec (decode.ffmpeg names it)",
    "drm": "it needs Raspberry Pi OS's own ffmpeg (decode.ffmpeg names it), /dev/video* and /dev/media* open to this "
    "user (group video), and cameras that send H.265: a Raspberry Pi 5 decodes nothing else",
    "vaapi": "it needs /dev/dri/renderD128 (decode.device names another) open to this user (group render), the GPU's "
    "VA driver (intel-media-va-driver, mesa-va-drivers) and the system's ffmpeg (decode.ffmpeg names it)",
    "qsv": "it needs an Intel GPU, /dev/dri/renderD128 open to this user (group render) and Intel's runtime "
    "(libmfx-gen1, intel-media-va-driver)",
}
"""Name the package to install where a kind does not come up."""


class HardwareFailed(VedetteError):
    """The hardware does not decode this stream, or not any more: the message says why."""


@dataclass(frozen=True, slots=True)
class DecodeWay:
    """One way to have a stream decoded by hardware.

    Attributes:
        kind: as the site file names it.
        by: `libav`, in this process by the FFmpeg inside PyAV; `ffmpeg`, by the system's in a child process.
        decoders: FFmpeg's name of the decoder, by the stream's codec (`h264`, `hevc`).
        accel: FFmpeg's name of the device type; '': the decoder needs none.
        device: which device of that type; None: FFmpeg's first.
        program: the system's ffmpeg.
        alone: a lone key frame's packet can be had as a frame at little cost, by draining; else software decodes it.
        delay: frames that it holds back, as the probe counted them. The ffmpeg command holds back one of any decoder.
    """

    kind: HardwareKind
    by: Literal["libav", "ffmpeg"]
    decoders: Mapping[str, str]
    accel: str = ""
    device: str | None = None
    program: str = ""
    alone: bool = False
    delay: int = 0


class FrameCodec(Protocol):
    """Makes packets into frames. One thread. PyAV's `VideoCodecContext` is the one that decodes in software."""

    def decode(self, packet: av.Packet[av.VideoStream] | None = None) -> Sequence[av.VideoFrame]:
        """Return the frames that are complete by now, in the order they are shown, each with the PTS of its packet.

        None: the stream ends, and all that are left are returned. Raise FFmpegError for a damaged packet,
        HardwareFailed.
        """
        ...

    def flush_buffers(self) -> None:
        """Forget what came; a key frame comes next."""
        ...


class HardwareCodec(FrameCodec, Protocol):
    """A `FrameCodec` on a device. alone: see `DecodeWay`."""

    @property
    def alone(self) -> bool: ...

    def close(self) -> None:
        """Give the device back. May be called twice."""
        ...


class HardwareSource(Protocol):
    """Where a camera's decoder gets its hardware codec from. One thread."""

    @property
    def may_fall_back(self) -> bool:
        """Software decodes while there is none."""
        ...

    def open(self, info: StreamInfo, t: float | None = None) -> HardwareCodec | None:
        """Return a codec for this stream; None if there is none now: the source knows why.

        t: the camera time of a key frame at which it is asked for once more.
        """
        ...

    def release(self, failure: HardwareFailed | None = None) -> None:
        """Give back the codec, which was closed. failure: the failure that closed it, if there is one."""
        ...


def ways(kind: HardwareKind, device: str | None, program: str) -> list[DecodeWay]:
    """How a kind may be had, best first: in this process where PyAV's FFmpeg knows it, then by the system's."""
    both = {"h264": "h264", "hevc": "hevc"}
    node = device or "/dev/dri/renderD128"
    if kind == "cuda":
        return [DecodeWay(kind, "libav", both, accel="cuda", device=device, alone=True)]
    if kind == "drm":
        return [DecodeWay(kind, "ffmpeg", {"hevc": "hevc"}, accel="drm", device=device, program=program, delay=1)]
    if kind == "vaapi":
        inside = [DecodeWay(kind, "libav", both, accel="vaapi", device=node, alone=True)]
        outside = [DecodeWay(kind, "ffmpeg", both, accel="vaapi", device=node, program=program, delay=1)]
        return inside + outside if "vaapi" in hwdevices_available() else outside
    if kind == "qsv":
        named = {"h264": "h264_qsv", "hevc": "hevc_qsv"}
        return [
            DecodeWay(kind, "libav", named, accel="qsv", device=device),
            DecodeWay(kind, "ffmpeg", named, accel="qsv", device=device, program=program, delay=1),
        ]
    jetson = {"h264": "h264_nvv4l2dec", "hevc": "hevc_nvv4l2dec"}
    return [
        DecodeWay(kind, "libav", {"h264": "h264_v4l2m2m", "hevc": "hevc_v4l2m2m"}),
        DecodeWay(kind, "ffmpeg", jetson, program=program, delay=1),
    ]


class LibavCodec:
    """A decoder of the FFmpeg inside PyAV, on a device.

    Frames stay there until somebody asks for their pixels (`frames.at_host`): of fifteen frames a second at most five
    are examined, and only those are copied. State: the codec's context, whether a frame came, damaged packets in a row.
    Invariant: never a frame that software decoded: FFmpeg would go on in software by itself, and nobody would know.
    """

    def __init__(self, way: DecodeWay, info: StreamInfo, library: Libav | None = None) -> None:
        """Open the decoder. Raise HardwareFailed: the device, or the decoder on it, does not come up."""
        self.alone = way.alone
        self._way = way
        self._came = False
        self._damaged = 0
        context = new_context(way, info.codec, library)
        try:
            context.extradata = info.stream.codec_context.extradata
            context.width, context.height = info.size
            context.thread_count = 1  # each thread of FFmpeg takes surfaces of the device
            context.options = {"extra_hw_frames": str(EXTRA_SURFACES)} if way.accel else {}
            context.open()
        except (av.error.FFmpegError, OSError, ValueError, RuntimeError) as error:
            raise HardwareFailed(f"{way.kind} does not come up: {_why(error)}") from error
        self._context = context

    def decode(self, packet: av.Packet[av.VideoStream] | None = None) -> Sequence[av.VideoFrame]:
        try:
            frames = self._context.decode(packet)
        except av.error.EOFError:
            raise
        except av.error.FFmpegError as error:
            self._damaged += 1
            invalid = isinstance(error, av.error.InvalidDataError)
            if not invalid or not self._came or self._damaged > DAMAGED_IN_A_ROW_MAX:
                raise HardwareFailed(f"{self._way.kind} does not decode this stream: {_why(error)}") from error
            raise
        if frames:
            self._came, self._damaged = True, 0
            if self._way.accel and device_format(frames[0]) is None:
                raise HardwareFailed(f"{self._way.kind} does not decode this stream: FFmpeg went on in software")
        return frames

    def flush_buffers(self) -> None:
        self._context.flush_buffers()

    def close(self) -> None:
        """PyAV frees the context, and with it the device's surfaces, once no frame of it is left."""
        self._context.flush_buffers()


@dataclass(frozen=True, slots=True)
class Libav:
    """The parts of PyAV that are used; a test gives others with the same signatures."""

    accel: type[HWAccel] = HWAccel
    create: Callable[..., av.CodecContext] = av.CodecContext.create
    cuda: Callable[[], Any] = lambda: ctypes.CDLL("libcuda.so.1")


def new_context(way: DecodeWay, codec: str, library: Libav | None = None) -> av.VideoCodecContext:
    """Return a decoder that is not open yet. Raise HardwareFailed: the device, or the decoder, is not there."""
    libav = library or Libav()
    accel = None
    try:
        if way.accel:
            options = enter_primary_context(libav.cuda(), int(way.device or 0)) if way.accel == "cuda" else {}
            accel = libav.accel(
                way.accel, device=way.device, allow_software_fallback=False, options=options, is_hw_owned=True
            )
        context = libav.create(decoder_of(way, codec), "r", hwaccel=accel)
    except (av.error.FFmpegError, OSError, ValueError, NotImplementedError, RuntimeError) as error:
        raise HardwareFailed(f"{way.kind} does not come up: {_why(error)}") from error
    if accel is not None and not context.is_hwaccel:
        # PyAV takes "not implemented" for "not for this stream", and would decode in software.
        raise HardwareFailed(f"{way.kind}: there is no such device")
    return cast(av.VideoCodecContext, context)


def enter_primary_context(cuda: Any, device: int) -> dict[str, object]:
    """Make the GPU's primary context this thread's own; return the options by which FFmpeg decodes in it.

    TensorRT, ONNX Runtime and the kernel for frames work in that context. FFmpeg's own way into it, `primary_ctx`, is
    refused as soon as one of them has made it with other flags than FFmpeg's (PyAV issue 2339). It is never given back,
    for surfaces may outlive their decoder. cuda: libcuda. Raise HardwareFailed.
    """

    def call(name: str, *given: Any) -> None:
        if status := getattr(cuda, name)(*given):
            raise HardwareFailed(f"cuda does not come up: {name}: CUDA error {status}")

    number, flags, active, context = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(number), device)
    call("cuDevicePrimaryCtxGetState", number, ctypes.byref(flags), ctypes.byref(active))
    if not active.value:  # refused if another thread has made it meanwhile, which is as well
        cuda.cuDevicePrimaryCtxSetFlags(number, BLOCKING_SYNC)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
    call("cuCtxSetCurrent", context)
    return {"primary_ctx": "0", "current_ctx": "1"}


def decoder_of(way: DecodeWay, codec: str) -> str:
    """FFmpeg's decoder for a stream's codec. Raises HardwareFailed."""
    if codec not in way.decoders:
        known = " and ".join(each.upper() for each in way.decoders)
        raise HardwareFailed(f"{way.kind} decodes {known} here, and the camera sends {codec.upper()}")
    return way.decoders[codec]


def _why(error: BaseException) -> str:
    """FFmpeg's word for it, without the call that failed."""
    text = str(error).partition("]")[2] or str(error)
    return text.partition(": '")[0].strip() or type(error).__name__
