"""A decoder in a child process: the system's own `ffmpeg`, with decoders that the FFmpeg inside PyAV does not have.

Packets go to its standard input and frames come from its standard output, both in NUT, FFmpeg's own container: each
frame comes back with the time stamp that its packet was given. Time stamps in the child only ever rise, whatever is
decoded again; `_sent` has what they stand for.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import select
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from fractions import Fraction

import av

from appliance.base.child_processes import end_child
from appliance.base.clock import SystemClock
from appliance.media.hardware_codec import DecodeWay, HardwareFailed, decoder_of
from appliance.media.source import SECOND_US, StreamInfo, stamp_us
from appliance.sandbox.sandbox import child_environment

START_S_MAX = 6.0  # from the first packet to the first frame: a Jetson's libraries take their time
FRAME_S_MAX = 0.5  # then from a packet to the frame that it completes
DELAY_FRAMES_MAX = 16  # held back by the decoder: as many as H.264 allows
END_S_MAX = 3.0  # for ffmpeg to give the device back; then it is killed
FRAMES_MAX = 64  # that wait in this process; beyond it one is read each END_S_MAX, and the child stands still
_PIPE_BYTES = 1 << 20  # F_SETPIPE_SZ: with the usual 64 kB a frame of 1080p takes fifty turns
_STEP_US = SECOND_US  # between two beginnings, in the child's time
_ERROR_BYTES_MAX = 2000  # of its stderr: the first line says why
# PyAV asserts that a container is open, also where its header could not be written since the child had gone.
_MUXER_ERRORS = (av.error.FFmpegError, HardwareFailed, OSError, ValueError, AssertionError)
_ADDRESS = re.compile(r" @ 0x[0-9a-f]+")


def arguments(way: DecodeWay, codec: str) -> list[str]:
    """Return the child's command line. Raise HardwareFailed: it has no decoder for this codec."""
    decoder = decoder_of(way, codec)
    accel = ["-hwaccel", way.accel] if way.accel else []
    device = ["-hwaccel_device", way.device] if way.accel and way.device else []
    return [
        way.program, "-hide_banner", "-nostats", "-loglevel", "error", *accel, *device, "-noautorotate",
        # NUT says what it holds: nothing to be probed, nothing to be waited for.
        "-threads", "1", "-probesize", "32", "-analyzeduration", "0", "-flags", "low_delay",
        "-c:v", decoder, "-f", "nut", "-i", "pipe:0",
        "-map", "0:v:0", *every_frame(way.program), "-copyts", "-enc_time_base", "1:1000000",
        "-c:v", "rawvideo", "-flush_packets", "1", "-f", "nut", "pipe:1",
    ]  # fmt: skip


@functools.cache
def every_frame(program: str) -> tuple[str, str]:
    """Return the option by which ffmpeg neither drops nor doubles a frame: `-fps_mode`, or `-vsync` before 5.1.

    JetPack 6 and Ubuntu 22.04 have 4.4; 9 has no -vsync any more.
    """
    try:
        answer = subprocess.run([program, "-version"], capture_output=True, timeout=START_S_MAX, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = b""  # its start will say why
    found = re.match(rb"ffmpeg version n?(\d+)\.(\d+)", answer)
    is_old = found is not None and (int(found[1]), int(found[2])) < (5, 1)
    return ("-vsync" if is_old else "-fps_mode"), "passthrough"


class _ChildInput:
    """The child's standard input as a file. Writing waits for it, for at most START_S_MAX. Raises HardwareFailed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._ready = select.poll()  # not select.select, which knows no descriptor above 1023
        self._ready.register(fd, select.POLLOUT)
        os.set_blocking(fd, False)

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if not self._ready.poll(START_S_MAX * 1000):
                raise HardwareFailed("ffmpeg takes no more packets")
            try:
                view = view[os.write(self._fd, view) :]
            except BrokenPipeError:
                raise HardwareFailed("ffmpeg has ended") from None
        return len(data)


class PipedCodec:
    """A `HardwareCodec` whose decoder is a child process.

    Owner: the camera's thread; a thread named `decoded` reads the child's frames. State: what was sent and has not come
    back, how many frames the decoder holds back, the frames that came. Invariant: `decode` waits for a frame at most
    FRAME_S_MAX (until the first one at most START_S_MAX in all), and not for those that the decoder is known to hold.
    """

    alone = False

    def __init__(self, way: DecodeWay, info: StreamInfo) -> None:
        """Start the child. Raise HardwareFailed."""
        self.delay = self._least_delay = way.delay
        self._kind = way.kind
        self._info = info
        self._arrived = threading.Condition()
        self._frames: deque[av.VideoFrame] = deque()
        self._sent: dict[int, int] = {}
        """The packet's time stamp that one of the child stands for."""
        self._offset = self._last = 0
        self._begins = True
        self._clock = SystemClock()
        self._start_by = float("inf")
        self._came = self._ended = False
        self._muxer: av.container.OutputContainer | None = None
        self._child = self._start(arguments(way, info.codec))
        self._reader = threading.Thread(target=self._read, name="decoded", daemon=True)
        self._reader.start()

    def decode(self, packet: av.Packet[av.VideoStream] | None = None) -> Sequence[av.VideoFrame]:
        if packet is None:
            return self._drain()
        with self._arrived:  # a machine that was busy for a moment is no decoder that holds back more
            self.delay = max(self._least_delay, min(self.delay, self._due()))
        if packet.size:
            self._send(packet)
        return self._take()

    def flush_buffers(self) -> None:
        self._sent.clear()
        self._begins = True

    def close(self) -> None:
        end_child(self._child, killed_s=END_S_MAX)
        self._reader.join(END_S_MAX)
        with contextlib.suppress(*_MUXER_ERRORS):
            if self._muxer is not None:
                self._muxer.close()
        # One that still reads would read of whatever gets the number of its pipe next.
        stdout = None if self._reader.is_alive() else self._child.stdout
        for pipe in (self._child.stdin, stdout, self._errors):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _start(self, command: list[str]) -> subprocess.Popen[bytes]:
        errors, says = os.pipe()
        self._errors = os.fdopen(errors, "rb", buffering=0)
        for fd in (errors, says):
            os.set_blocking(fd, False)  # a child with much to say is not held up: what does not fit is lost
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=says, bufsize=0,
                env=child_environment(("LD_LIBRARY_PATH", "LIBVA_DRIVER_NAME", "LIBVA_DRIVERS_PATH")),
            )  # fmt: skip
        except OSError as error:
            self._errors.close()
            raise HardwareFailed(f"{self._kind}: {command[0]} cannot be run: {error.strerror}") from None
        finally:
            os.close(says)
        assert child.stdin is not None
        assert child.stdout is not None
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):  # beyond what this user may have: slower, no worse
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._muxer = av.open(_ChildInput(child.stdin.fileno()), "w", format="nut", options={"flush_packets": "1"})
            self._stream = self._muxer.add_stream_from_template(self._info.stream)
            self._stream.time_base = Fraction(1, SECOND_US)
        except (av.error.FFmpegError, ValueError) as error:
            end_child(child, killed_s=END_S_MAX)
            raise HardwareFailed(f"{self._kind}: this stream cannot be given to ffmpeg: {error}") from error
        return child

    def _send(self, packet: av.Packet[av.VideoStream]) -> None:
        """Send a packet to the child. Raise HardwareFailed."""
        pts = packet.pts if packet.pts is not None else packet.dts
        if pts is None:
            raise HardwareFailed(f"{self._kind}: the camera's packets carry no time stamps")
        dts = packet.dts if packet.dts is not None else pts
        if self._begins:
            self._offset, self._begins = self._last + _STEP_US - dts, False
        there = av.Packet(bytes(packet))
        there.time_base = Fraction(1, SECOND_US)
        there.pts, there.dts = pts + self._offset, max(dts + self._offset, self._last + 1)
        there.is_keyframe = packet.is_keyframe
        there.stream = self._stream
        self._last = there.dts
        self._sent[there.pts] = pts
        assert self._muxer is not None
        try:
            self._muxer.mux(there)
        except _MUXER_ERRORS as error:
            raise HardwareFailed(f"{self._kind}: {self._first_error() or error}") from error

    def _take(self) -> list[av.VideoFrame]:
        """Wait until no more packets are without a frame than the decoder holds back. Raises HardwareFailed."""
        with self._arrived:
            now = self._clock.monotonic()
            self._start_by = min(self._start_by, now + START_S_MAX)
            wait_s = FRAME_S_MAX if self._came else max(FRAME_S_MAX, self._start_by - now)
            if not self._arrived.wait_for(lambda: self._ended or self._due() <= self.delay, wait_s):
                if self._due() > DELAY_FRAMES_MAX or (not self._came and self.delay >= DELAY_FRAMES_MAX):
                    raise HardwareFailed(f"{self._kind}: ffmpeg gives no picture back")
                self.delay += 1
            if self._ended:
                raise HardwareFailed(f"{self._kind}: {self._first_error() or 'ffmpeg has ended'}")
            return self._taken()

    def _drain(self) -> list[av.VideoFrame]:
        """All that is left; then the child is at its end."""
        with contextlib.suppress(*_MUXER_ERRORS):
            if self._muxer is not None:
                self._muxer.close()
            self._muxer = None
            if self._child.stdin is not None:
                self._child.stdin.close()
        with self._arrived:
            self._arrived.wait_for(lambda: self._ended, START_S_MAX)
            if not self._came:
                raise HardwareFailed(f"{self._kind}: {self._first_error() or 'ffmpeg gave no picture'}")
            return self._taken()

    def _due(self) -> int:
        """Packets without a frame; one that was damaged has none, and counts no more once a later frame has come."""
        waiting = {stamp for frame in self._frames if (stamp := _stamp(frame)) is not None}
        newest = max(waiting, default=None)
        if newest is not None:
            return sum(stamp > newest for stamp in self._sent)
        return len(self._sent)

    def _taken(self) -> list[av.VideoFrame]:
        """Return the frames of what was sent since the last beginning, with their own time stamps."""
        frames = []
        while self._frames:
            frame = self._frames.popleft()
            stamp = _stamp(frame)
            self._arrived.notify()
            if stamp is None or stamp not in self._sent:
                continue
            was = self._sent[stamp]
            self._sent = {each: sent for each, sent in self._sent.items() if each > stamp}
            frame.pts, frame.time_base = was, Fraction(1, SECOND_US)
            frames.append(frame)
        return frames

    def _read(self) -> None:
        """In a thread of its own, until the child ends."""
        assert self._child.stdout is not None
        try:
            source = f"pipe:{self._child.stdout.fileno()}"
            with av.open(source, format="nut", options={"probesize": "32", "analyzeduration": "0"}) as container:
                for frame in container.decode(video=0):
                    with self._arrived:
                        self._arrived.wait_for(lambda: len(self._frames) < FRAMES_MAX, END_S_MAX)
                        self._frames.append(frame)
                        self._came = True
                        self._arrived.notify()
        except (av.error.FFmpegError, ValueError, IndexError):
            pass  # it has ended, or says so on its standard error
        finally:
            with self._arrived:
                self._ended = True
                self._arrived.notify()

    def _first_error(self) -> str:
        """Return ffmpeg's first line, of which the others are consequences; '' if it wrote none."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)
        errors = (self._errors.read(_ERROR_BYTES_MAX) or b"").decode(errors="replace")
        lines = [_ADDRESS.sub("", line).strip() for line in errors.splitlines() if line.strip()]
        return "ffmpeg: " + lines[0][:200].rstrip(".") if lines else ""


def _stamp(frame: av.VideoFrame) -> int | None:
    """In the child's microseconds."""
    if frame.pts is None or not frame.time_base:
        return None
    return stamp_us(frame.pts, frame.time_base)
