"""Reads one stream for ever: connects, reads, notices silence, backs off and reconnects."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from appliance.base.backoff import Backoff
from appliance.base.clock import Clock
from appliance.base.errors import SourceError, SourceLost, SourceRefused
from appliance.base.telemetry import LogThrottle
from appliance.media.source import ReceivedBytes, SourceStalled, StreamInfo, VideoPacket, VideoSource
from appliance.types import CameraStateName

logger = logging.getLogger(__name__)

REFUSED_WAIT_S = 30.0  # a wrong password does not pass by itself, and cameras lock out those who try too often
RETRY_S_MAX = 4.0  # with the connect time-out of 5 s: back within 10 s of a camera's return
FORGIVE_AFTER_S = 30.0  # a connection that held so long begins with the shortest wait again
SILENT_S = 1.5  # without a packet: stalled
CLOCK_STEP_S = 2.0  # the system's clock was set: camera time must be anchored anew
UNREAD_MIN_BYTES = 16_384  # that wait: not what a camera drips, and not a frame of which the rest is still on its way
DRY_SHARE = 0.1  # of the bytes taken: signs of life beside frames, such as reports and answers
GAP_S_MIN, GAP_STEPS = (
    3.0,
    4,
)  # a pause of a connection that held is a gap from there on; steps: usual times between frames
PAUSED = "connected, but no picture came"
READ_PAUSE_S_MAX = 0.4  # less than the 0.5 s of a file's fragment, so that live video stays that far behind
READ_PAUSE_S_MIN = 0.08  # shorter, and there is nothing to gain
READ_PAUSE_BYTES_MAX = 96_000  # what may come meanwhile: cameras have small send buffers, kernels small first windows
LATE_PACKET_S = 0.07  # a packet that late was not the last that had come
PROMPT_READ_EVERY_S = 1.0  # a packet is waited for that often: its arrival tells camera time, see `timestamps`
_LEAK = 0.001  # the least lag follows a camera's crystal, in seconds a second


class ReadPacer:
    """Says for how long the reading thread may sleep, to read several packets at once afterwards.

    A thread that wakes for one packet finds nothing of what it needs in the processor's caches: 0.4 ms a packet; those
    that follow it cost 0.1. Packets that are not needed at once can wait in the socket, where they also keep their
    order. State: what came on this connection so far, and how late packets are that are waited for (socket buffers do
    not tell: libavformat gives a packet out when the next one has begun). Owner: the reading thread; one for each
    connection.
    """

    def __init__(self, clock: Clock) -> None:
        self.pauses = 0
        self._clock = clock
        self._began = self._at = self._prompt_at = self._clock.monotonic()
        self._least_s = float("inf")
        self._bytes = 0

    @property
    def behind_s(self) -> float | None:
        """By how much camera time is behind the clock, by the packets that came soonest; None: none came."""
        return None if self._least_s == float("inf") else self._least_s

    def pause_s(self, size: int, t: float, until_needed_s: float) -> float:
        """Return the seconds to sleep after a packet of `size` bytes and camera time `t`; 0 if more has come already.

        until_needed_s: the next packet is not needed for this long.
        """
        now = self._clock.monotonic()
        lag_s = self._clock.now() - t
        self._least_s = min(lag_s, self._least_s + _LEAK * (now - self._at))
        self._at = now
        self._bytes += size
        if until_needed_s < READ_PAUSE_S_MIN or lag_s - self._least_s > LATE_PACKET_S:
            return 0.0
        if now - self._prompt_at >= PROMPT_READ_EVERY_S:
            self._prompt_at = now
            return 0.0
        pause_s = min(
            until_needed_s, READ_PAUSE_S_MAX, READ_PAUSE_BYTES_MAX * (now - self._began) / max(1, self._bytes)
        )
        if pause_s < READ_PAUSE_S_MIN:
            return 0.0
        self.pauses += 1
        return pause_s


class PacketSink(Protocol):
    """Takes the packets of a source. Called by the reader's thread only."""

    def begin(self, info: StreamInfo, session_id: str) -> None:
        """Begin a connection: the source was opened."""
        ...

    def take(self, packet: VideoPacket) -> None: ...

    def end(self) -> None:
        """Release what depends on `info.stream`: the source ended or was lost."""
        ...


class ReaderListener(Protocol):
    """Is notified of a reader's state. Called by the reader's thread and by whoever calls `check_silence`."""

    def state(self, reader: str, state: CameraStateName, reason: str) -> None: ...

    def gap(self, reader: str, t_start: float, t_end: float | None, reason: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """The counts of a reader since it was made.

    behind_s: how far camera time is behind the appliance's clock, jitter of the network left out; None: no packet came
    on this connection yet. waiting: more came than could be read.
    """

    packets: int
    reconnects: int
    received: ReceivedBytes
    behind_s: float | None = None
    waiting: bool = False


class ReconnectingReader:
    """One source and its sinks, kept alive by one named thread.

    States: connecting (nothing came yet), live, stalled (connected, silent), lost (with the reason; it goes on
    trying), ended (a clip that does not loop). State: the last packet's time, since when there is a gap, whether the
    packets that come are only what waited (`dry`). Invariant: a gap is reported when it begins and again, with its end,
    when packets come; a pause in the frames of a connection that held is a gap that is reported once it is over.
    """

    def __init__(
        self,
        name: str,
        source: VideoSource,
        sinks: tuple[PacketSink, ...],
        listener: ReaderListener,
        clock: Clock,
        stop: threading.Event,
        *,
        backoff: Backoff | None = None,
        until_needed_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """until_needed_s: for how many seconds, from now on, the sinks need no further packet."""
        self._name = name
        self._source = source
        self._sinks = sinks
        self._listener = listener
        self._clock = clock
        self._backoff = backoff or Backoff(0.5, RETRY_S_MAX)
        self._repeats = LogThrottle(logger, clock)
        self._stop = stop
        self._until_needed_s = until_needed_s
        self._lock = threading.Lock()
        self._state: CameraStateName = "connecting"
        self._packets = self._bytes = 0
        self._noticed = (0, 0)
        self._dry = self._waiting = False
        self._usual_s = 0.0
        self._arrived_at = clock.monotonic()
        self._reconnects = 0
        self._silent_after_s = SILENT_S
        self._packet_at = clock.monotonic()
        self._last_t: float | None = None
        self._gap: tuple[float, str] | None = None
        self._pacer: ReadPacer | None = None

    def stop(self) -> None:
        self._stop.set()

    def run(self) -> None:
        """Run until `stop()`, or until a clip that does not loop is at its end."""
        self._set_state("connecting", "")
        try:
            while not self._stop.is_set() and self._state != "ended":
                wait_s = self._attempt()
                self._clock.sleep(wait_s, self._stop)
        finally:
            self._source.close()

    def run_once(self) -> None:
        """Run one connection, until it ends; raise SourceError."""
        info = self._source.open()
        self._dry = False
        began = self._clock.monotonic()
        self._silent_after_s = max(SILENT_S, 3 * info.frame_s)
        session_id = uuid4().hex[:12]
        offset = self._clock.now() - began
        pacer = self._pacer = ReadPacer(self._clock)
        try:
            for sink in self._sinks:
                sink.begin(info, session_id)
            for packet in self._source.packets():
                self._note_packet(packet)
                for sink in self._sinks:
                    sink.take(packet)
                if self._stop.is_set() or self._pause(packet, pacer):
                    return
                self._check_clock(offset)
        finally:
            self._pacer = None
            for sink in self._sinks:
                sink.end()
            self._source.close()
            if self._clock.monotonic() - began > FORGIVE_AFTER_S:
                self._backoff.reset()
        if not self._stop.is_set() and not self._source.loops:
            self._set_state("ended", "the clip is at its end")

    def check_silence(self) -> None:
        """Report `stalled` if a live source has gone quiet, though packets that came before may still be read.

        Call it about once a second. A camera that goes on sending while nobody comes to read it is not quiet: the
        machine is busy.
        """
        received, unread = self._source.received().bytes, self._source.unread_bytes()
        with self._lock:
            now = self._clock.monotonic()
            self._waiting = received > self._noticed[1] and (unread or 0) >= UNREAD_MIN_BYTES
            (bytes_before, received_before), self._noticed = self._noticed, (self._bytes, received)
            taken = self._bytes - bytes_before
            self._dry = taken > 0 and received - received_before < DRY_SHARE * taken
            self._arrived_at = self._arrived_at if self._dry else now
            quiet_s = now - min(self._packet_at, self._arrived_at)
            silent_after_s = max(self._silent_after_s, 3 * self._usual_s)  # some send fewer frames than they announce
            stalled = self._state == "live" and quiet_s > silent_after_s and not self._waiting
        if stalled:
            self._set_state("stalled", f"connected, but no picture for {quiet_s:.0f} s")

    def counts(self) -> ReaderCounts:
        pacer = self._pacer
        behind_s = None if pacer is None else pacer.behind_s
        return ReaderCounts(self._packets, self._reconnects, self._source.received(), behind_s, self._waiting)

    def _attempt(self) -> float:
        """Run one connection; return the seconds to wait before the next."""
        packets = self._packets
        try:
            self.run_once()
        except SourceError as error:
            if not self._stop.is_set():
                self._lose(error)
            if isinstance(error, SourceRefused):
                return REFUSED_WAIT_S
        except Exception:  # the top of this camera's loop: its bug is not the other cameras' business
            logger.exception("%s: internal error, starting again", self._name)
            self._lose(SourceLost(f"{self._name}: internal error; see the log"))
        else:
            if self._packets > packets or self._stop.is_set():
                return 0.0
            self._lose(SourceError(f"{self._name}: there is no picture in it"))
        return self._backoff.next_s()

    def _pause(self, packet: VideoPacket, pacer: ReadPacer) -> bool:
        """Let what is not needed yet wait in the socket; True when asked to stop."""
        pause_s = pacer.pause_s(packet.size, packet.t, self._until_needed_s())
        if pause_s > 0:
            self._clock.sleep(pause_s)  # not on `stop`: waiting for an event costs several times as much as sleeping
        return self._stop.is_set()

    def _note_packet(self, packet: VideoPacket) -> None:
        with self._lock:
            self._packets += 1
            self._bytes += packet.size
            self._packet_at = self._clock.monotonic()
            was, gap, last_t = self._state, self._gap, self._last_t
            self._gap = None
            # Not the greatest of all connections: before this one the clock may have been set back.
            self._last_t = packet.t if last_t is None or gap is not None else max(last_t, packet.t)
        # The gap first: whoever reads that a camera is live finds its gap ended, and that it is lost, begun.
        if gap is not None:
            self._reconnects += 1
            self._listener.gap(self._name, gap[0], max(gap[0], packet.t), gap[1])
        elif last_t is not None and not self._source.loops:
            self._notice_pause(last_t, packet.t)
        if was != "live" and not self._dry:
            self._set_state("live", "")

    def _notice_pause(self, last_t: float, t: float) -> None:
        """Report a gap if nothing came for a while, though the connection held."""
        step_s = max(0.0, t - last_t)
        if step_s > max(GAP_S_MIN, GAP_STEPS * self._usual_s):
            self._listener.gap(self._name, last_t, t, PAUSED)
        self._usual_s += (min(step_s, GAP_S_MIN) - self._usual_s) / 16

    def _lose(self, error: SourceError) -> None:
        reason = str(error)
        self._repeats.report(reason)
        state: CameraStateName = "stalled" if isinstance(error, SourceStalled) and self._state != "lost" else "lost"
        with self._lock:
            begins = self._gap is None
            if begins:
                now = self._clock.now()
                self._gap = (now if self._last_t is None else min(self._last_t, now), reason)
            gap = self._gap
        if begins and gap is not None:
            self._listener.gap(self._name, gap[0], None, reason)
        self._set_state(state, reason)

    def _set_state(self, state: CameraStateName, reason: str) -> None:
        with self._lock:
            self._state = state
        self._listener.state(self._name, state, reason)

    def _check_clock(self, offset: float) -> None:
        step_s = self._clock.now() - self._clock.monotonic() - offset
        if abs(step_s) > CLOCK_STEP_S:
            raise SourceLost(f"{self._name}: the clock of this appliance was set by {step_s:+.0f} s; connecting again")
