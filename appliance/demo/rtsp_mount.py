"""One endless camera of the RTSP server: reads its clip once, in real time, for all viewers."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from appliance.base.clock import Clock
from appliance.base.errors import SourceError
from appliance.base.telemetry import LogThrottle
from appliance.demo.looping_clip import AccessUnit, LoopingClip
from appliance.demo.rtsp_protocol import CLOCK_RATE, Packetizer, SdpDescription, SoundFormat, interleaved, sender_report

logger = logging.getLogger(__name__)

READ_AHEAD = 16  # access units read at a time, in a thread
LAG_S_MAX = 1.0  # a mount further behind skips time instead of hurrying
GOP_BYTES_MAX = 4 * 1024 * 1024  # of the last group of pictures, kept for viewers who join
RETRY_S = 1.0  # a file that was taken away may come back


@dataclass(frozen=True, slots=True)
class SentUnit:
    """An access unit as RTP packets."""

    key: bool
    timestamp: int
    taken_at: float  # monotonic time at which the frame counts as taken
    packets: tuple[bytes, ...]
    size: int
    sound: bool = False
    _framed: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)

    def framed(self, channel: int) -> bytes:
        """Frame all packets for `channel`, once for all viewers that use the same channel."""
        if channel not in self._framed:
            self._framed[channel] = b"".join(interleaved(channel, packet) for packet in self.packets)
        return self._framed[channel]


class MountViewer(Protocol):
    """A client that watches a mount."""

    def send_unit(self, unit: SentUnit) -> None:
        """Must not block."""


class Mount:
    """An endless camera.

    State: the running time of its clip, the last group of pictures, the viewers.
    Owner: the server's event loop; one task, `mount-NAME`, begun by the first viewer and never paused after, as
    a camera does not wait for its viewers. Invariant: sequence numbers and timestamps run on through loops, changes
    of clip; a mount that fell behind by more than `LAG_S_MAX` skips the time, it never hurries.
    """

    def __init__(self, name: str, clip: LoopingClip, clock: Clock) -> None:
        self.name = name
        self._clip = clip
        self._next_clip: LoopingClip | None = None
        self._clock = clock
        self._packetizer, self._sound_packetizer = (
            Packetizer(secrets.randbits(32), secrets.randbits(16)) for _ in range(2)
        )
        self._timestamp_base = secrets.randbits(32)
        self._sound_base = secrets.randbits(31)
        self._sound_sent: SentUnit | None = None
        self._heard = 0.0, 0  # when the clip's pass began that is heard, and how many of its frames were sent
        self._origin: float | None = None
        self._clip_began_s = 0.0
        self._due_s = 0.0
        self._session = secrets.randbits(31)
        self._playing: list[MountViewer] = []
        self._waiting: list[MountViewer] = []
        self._gop: list[SentUnit] = []
        self._gop_bytes = 0
        self._repeats = LogThrottle(logger, clock)
        self._task: asyncio.Task[None] | None = None

    def ssrc(self, *, sound: bool) -> int:
        """Return the synchronisation source of the video, or of the sound."""
        return (self._sound_packetizer if sound else self._packetizer).ssrc

    @property
    def description(self) -> SdpDescription:
        """The session description (SDP) of the clip that plays now."""
        clip = self._next_clip or self._clip
        return SdpDescription(self.name, clip.stream, clip.fps, self._session, clip.sound)

    @property
    def position(self) -> tuple[int, int]:
        """Sequence number and timestamp that a client who joins now will see first."""
        if self._gop:
            first = self._gop[0].packets[0]
            return int.from_bytes(first[2:4], "big"), self._gop[0].timestamp
        return self._packetizer.sequence, self._timestamp_base

    def join(self, viewer: MountViewer) -> None:
        """Send to `viewer` from the last key frame on, or from the next if the last is too long ago."""
        self.start()
        if not self._gop:
            self._waiting.append(viewer)
            return
        self._playing.append(viewer)
        for unit in self._gop:
            viewer.send_unit(unit)

    def start(self) -> None:
        """Play from now on; the first viewer begins it."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self.run(), name=f"mount-{self.name}")

    def leave(self, viewer: MountViewer) -> None:
        """Send nothing more to `viewer`."""
        self._playing = [other for other in self._playing if other is not viewer]
        self._waiting = [other for other in self._waiting if other is not viewer]

    async def close(self) -> None:
        """Stop playing and release the clip."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._clip.close)

    async def run(self) -> None:
        """Play for ever; a clip that cannot be read is tried again."""
        while True:
            try:
                await self.run_once()
            except SourceError as error:
                self._repeats.report(error)
                await asyncio.sleep(RETRY_S)
                await self._reopen()

    async def run_once(self) -> None:
        """Play the next few access units, each when it is due."""
        if self._next_clip is not None:
            await self._take_next_clip()
        for unit in await asyncio.to_thread(self._clip.read, READ_AHEAD):
            if self._next_clip is not None:
                return
            await self._play(unit)

    def change(self, clip: LoopingClip) -> None:
        """Go on with another clip, from its first key frame; timestamps run on."""
        self._next_clip = clip

    def report(self, packets: int, octets: int, *, sound: bool) -> bytes | None:
        """Return a sender report for a client that was sent so much; None while there is nothing to report about."""
        unit = self._sound_sent if sound else self._gop[-1] if self._gop else None
        if unit is None:
            return None
        return sender_report(self.ssrc(sound=sound), self.taken_t(unit), unit.timestamp, packets, octets, self.name)

    def taken_t(self, unit: SentUnit) -> float:
        """Return the UTC seconds at which the frame counts as taken."""
        return self._clock.now() - (self._clock.monotonic() - unit.taken_at)

    async def _take_next_clip(self) -> None:
        old, self._clip, self._next_clip = self._clip, self._next_clip or self._clip, None
        await asyncio.to_thread(old.close)
        self._clip_began_s = self._due_s + 1.0 / (self._clip.fps or 25.0)
        self._heard, self._sound_sent = (0.0, 0), None

    async def _reopen(self) -> None:
        """Try the file once more: one that was taken away may come back."""
        try:
            clip = await asyncio.to_thread(LoopingClip, self._clip.path)
        except SourceError as error:
            self._repeats.report(error)
            return
        self._next_clip = self._next_clip or clip

    async def _play(self, unit: AccessUnit) -> None:
        now = self._clock.monotonic()
        if self._origin is None:
            self._origin = now
        self._due_s = self._clip_began_s + unit.dts_s
        lag_s = now - self._origin - self._due_s
        if lag_s > LAG_S_MAX:
            self._clip_began_s += lag_s
            self._due_s += lag_s
        elif lag_s < 0:
            await asyncio.sleep(-lag_s)
        self._deliver_sound(unit)
        await self.deliver(self._packed(unit))

    def _deliver_sound(self, unit: AccessUnit) -> None:
        """Send what was heard up to this unit of the clip; each pass of the clip begins its sound again."""
        if self._clip.sound is None:
            return
        if unit.pass_s != self._heard[0]:
            self._deliver_pass(self._clip.sound, unit.pass_s)
            self._heard = unit.pass_s, 0
        self._deliver_pass(self._clip.sound, unit.dts_s)

    def _deliver_pass(self, sound: SoundFormat, until_s: float) -> None:
        """Send what the pass that is heard has up to `until_s` of the clip's time."""
        (pass_s, n), frames = self._heard, self._clip.sound_frames
        while n < len(frames) and pass_s + frames[n].t <= until_s:
            self._send_sound(sound, pass_s + frames[n].t, frames[n].data)
            n += 1
        self._heard = pass_s, n

    def _send_sound(self, sound: SoundFormat, t: float, frame: bytes) -> None:
        heard_s = self._clip_began_s + t
        timestamp = (self._sound_base + round(heard_s * sound.rate)) & 0xFFFFFFFF
        packet = self._sound_packetizer.sound(sound.payload(frame), timestamp, sound.payload_type)
        unit = SentUnit(False, timestamp, (self._origin or 0.0) + heard_s, (packet,), len(packet), sound=True)
        self._sound_sent = unit
        for viewer in tuple(self._playing):
            viewer.send_unit(unit)

    def _packed(self, unit: AccessUnit) -> SentUnit:
        shown_s = self._clip_began_s + unit.pts_s
        timestamp = (self._timestamp_base + round(shown_s * CLOCK_RATE)) & 0xFFFFFFFF
        packets = self._packetizer.packets(self._clip.stream.codec, list(unit.nals), timestamp)
        taken_at = (self._origin or 0.0) + shown_s
        return SentUnit(unit.key, timestamp, taken_at, tuple(packets), sum(map(len, packets)))

    async def deliver(self, unit: SentUnit) -> None:
        """Send a unit to those who watch, and from a key frame on to those who wait for one."""
        self.remember(unit)
        if unit.key:
            self._playing += self._waiting
            self._waiting = []
        for viewer in tuple(self._playing):
            viewer.send_unit(unit)

    def remember(self, unit: SentUnit) -> None:
        """Keep the last group of pictures for viewers who join."""
        if unit.key:
            self._gop, self._gop_bytes = [unit], unit.size
        elif self._gop and self._gop_bytes + unit.size <= GOP_BYTES_MAX:
            self._gop.append(unit)
            self._gop_bytes += unit.size
        else:
            self._gop, self._gop_bytes = [], 0
