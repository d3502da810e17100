"""One camera in the ingest process: its stream readers, its recorder, its detect stream, its state and counters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from appliance.base.clock import Clock
from appliance.config import CameraConfig
from appliance.health.camera_health import (
    CameraActivity,
    CameraWatchdog,
    DetectorActivity,
    InferenceRates,
    streams_apart_s,
)
from appliance.ingest.detect_stream import DetectStream, DetectStreamCounts
from appliance.ingest.file_source import FileSource
from appliance.ingest.reconnecting_reader import READ_PAUSE_S_MAX, PacketSink, ReaderCounts, ReconnectingReader
from appliance.ingest.recorder import SegmentRecorder
from appliance.ingest.rtsp_source import UNRESOLVED, RtspSource
from appliance.ingest.socket_meter import LagFilter, SocketFinder
from appliance.ingest.substream_ring import LiveRings
from appliance.media.source import VideoSource
from appliance.types import CameraMeter, CameraState, CameraStateName, DecodeStatus, Gap, HealthKind, IngestMessage

Emit = Callable[[IngestMessage], None]
MAIN_STREAM = "main"
DETECT_STREAM = "detect"
LAGGING = "nothing now: what comes is late, and is only recorded"
IDLE_DETECTOR = DetectorActivity()
_WORST: tuple[CameraStateName, ...] = ("live", "ended", "connecting", "stalled", "lost")


class CameraStates:
    """Emits the state and the gaps of a camera, as its readers report them (`ReaderListener`).

    State: the state of each stream, the worst of them, how often they failed. Any thread.
    """

    def __init__(self, camera: str, clock: Clock, emit: Emit) -> None:
        self._camera = camera
        self._clock = clock
        self._emit = emit
        self._lock = threading.Lock()
        self._states: dict[str, tuple[CameraStateName, str]] = {}
        self._worst: tuple[CameraStateName, str] | None = None
        self._failed_connects = self._interruptions = 0

    def state(self, reader: str, state: CameraStateName, reason: str) -> None:
        """Note that a reader changed its state; the camera's state is the worse of the two readers'."""
        with self._lock:
            self._failed_connects += state == "lost"
            self._interruptions += state != "live"
            self._states[reader] = (state, reason)
            worst = max(self._states.values(), key=lambda pair: _WORST.index(pair[0]))
            if worst == self._worst:
                return
            self._worst = worst
            self._emit(CameraState(camera=self._camera, state=worst[0], t=self._clock.now(), reason=worst[1]))

    @property
    def lacks_name(self) -> bool:
        """True if the camera's host name cannot be resolved."""
        with self._lock:
            return any(state == "lost" and UNRESOLVED in reason for state, reason in self._states.values())

    def gap(self, reader: str, t_start: float, t_end: float | None, reason: str) -> None:
        """Report that a gap began or ended.

        Only gaps of the main stream are reported, because that stream is recorded.
        """
        if reader == _reader_name(self._camera, MAIN_STREAM):
            self._emit(Gap(camera=self._camera, t_start=t_start, t_end=t_end, reason=reason))

    def activity(
        self, readers: Mapping[str, ReaderCounts], detect: DetectStreamCounts, *, lagging: bool
    ) -> CameraActivity:
        """For the watchdog."""
        packets = tuple(counts.packets for counts in readers.values())
        behind_s = (readers[role].behind_s if role in readers else None for role in (MAIN_STREAM, DETECT_STREAM))
        with self._lock:
            state, reason = self._worst or ("connecting", "")
            return CameraActivity(
                packets,
                detect.decoded,
                detect.examined,
                state,
                reason,
                self._failed_connects,
                self._interruptions,
                detect.crowded_out,
                lagging,
                streams_apart_s(*behind_s),
                any(counts.waiting for counts in readers.values()),
                detect.decoder_fault,
            )


@dataclass(frozen=True, slots=True)
class CameraTotals:
    """The counts of a camera since the start."""

    readers: Mapping[str, ReaderCounts]
    detect: DetectStreamCounts  # packets that were late, and are recorded but not decoded, among `skipped`
    unrecorded: int  # packets that the recorder could not keep


class CameraRunner:
    """Runs one camera: a reader for its main stream and, where it has a second stream for detection, one for that.

    Each reader is one thread, named `camera-<name>` or `camera-<name>-detect`. The main stream is recorded; the detect
    stream (or the only one) is decoded. Both are stamped with the same clock, so boxes fit the recording. `tick()` is
    called once a second.
    """

    def __init__(
        self,
        settings: CameraConfig,
        recorder: SegmentRecorder | None,
        detect_stream: DetectStream,
        finder: SocketFinder,
        clock: Clock,
        emit: Emit,
        *,
        watchdog: CameraWatchdog | None = None,
        rings: LiveRings | None = None,
    ) -> None:
        """rings: take the packets of the streams for live views; None: nobody views."""
        name = self._name = detect_stream.camera
        self._settings = settings
        self._finder = finder
        self._clock = clock
        self._emit = emit
        self._watchdog = watchdog
        self._states = CameraStates(name, clock, emit)
        self._recorder = recorder
        self._rings = rings or LiveRings()
        self._detect_stream = detect_stream
        self._lag_filter = LagFilter(name, detect_stream, clock)
        self._readers = self._make_readers()
        self._threads = [
            threading.Thread(
                target=reader.run, name=f"camera-{name}" + ("" if role == MAIN_STREAM else f"-{role}"), daemon=True
            )
            for role, reader in self._readers.items()
        ]
        self._metered = self._totals()

    @property
    def name(self) -> str:
        return self._name

    @property
    def warning(self) -> str:
        """A sentence for people, or ''."""
        return self._recorder.warning if self._recorder is not None else ""

    @property
    def lacks_name(self) -> bool:
        """True if the camera's host name cannot be resolved."""
        return self._states.lacks_name

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask the threads to end; `join()` waits for them."""
        for reader in self._readers.values():
            reader.stop()

    def join(self, seconds: float) -> bool:
        """Wait at most `seconds`; True when all threads have ended and segments are closed."""
        deadline = self._clock.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def tick(self, detector: DetectorActivity = IDLE_DETECTOR) -> None:
        """Notice silence, and emit what happened since the last call."""
        for reader in self._readers.values():
            reader.check_silence()
        before, self._metered = self._metered, self._totals()
        self._run_watchdog(self._metered, detector)
        self._emit(self._meter(before, self._metered))

    def rebaseline(self, kind: HealthKind) -> None:
        """Accept the camera's present view as right, because a person says so; any thread may call."""
        self._detect_stream.rebaseline(kind)

    def _run_watchdog(self, totals: CameraTotals, detector: DetectorActivity) -> None:
        if self._watchdog is None:
            return
        activity = self._states.activity(totals.readers, totals.detect, lagging=self._lag_filter.is_lagging)
        remedy = self._watchdog.tick(activity, detector)
        if remedy == "examine":
            self._detect_stream.force_next()
        elif remedy == "connect" and not self._lag_filter.is_lagging:
            self._detect_stream.reconnect("nothing that came could be made into a picture")

    def _make_readers(self) -> dict[str, ReconnectingReader]:
        settings, until_needed_s = self._settings, self._detect_stream.until_needed_s
        record: tuple[PacketSink, ...] = tuple(each for each in (self._recorder, self._rings.main) if each is not None)
        if settings.detect_url is None:
            # The detect stream first: it reports a new frame size to the recorder before the packet is recorded.
            sinks = (self._lag_filter, *record)
            return {MAIN_STREAM: self._make_reader(MAIN_STREAM, settings.url, sinks, until_needed_s)}
        also: tuple[PacketSink, ...] = (self._rings.detect,) if self._rings.detect is not None else ()
        sinks = (self._lag_filter, *also)
        readers = {DETECT_STREAM: self._make_reader(DETECT_STREAM, settings.detect_url, sinks, until_needed_s)}
        if record:
            readers[MAIN_STREAM] = self._make_reader(MAIN_STREAM, settings.url, record, lambda: READ_PAUSE_S_MAX)
        return readers

    def _make_reader(
        self, role: str, url: str, sinks: tuple[PacketSink, ...], until_needed_s: Callable[[], float]
    ) -> ReconnectingReader:
        stop, is_file = threading.Event(), url.startswith("file:")
        source: VideoSource
        recorder = self._recorder if role == MAIN_STREAM else None
        if is_file:
            source = FileSource(self._name, url, self._clock, stop, loops=self._settings.loop)
        else:
            source = RtspSource(
                self._name,
                url,
                self._clock,
                self._finder,
                connect_s=self._settings.connect_timeout_s,
                stall_s=self._settings.stall_timeout_s,
                key="url" if role == MAIN_STREAM else "detect_url",
                hear=recorder.take_sound if recorder is not None and self._settings.audio else None,
            )
        return ReconnectingReader(
            _reader_name(self._name, role),
            source,
            sinks,
            self._states,
            self._clock,
            stop,
            until_needed_s=until_needed_s,
        )

    def _totals(self) -> CameraTotals:
        detect = self._detect_stream.counts()
        return CameraTotals(
            readers={role: reader.counts() for role, reader in self._readers.items()},
            detect=replace(detect, skipped=detect.skipped + self._lag_filter.skipped),
            unrecorded=self._recorder.lost if self._recorder is not None else 0,
        )

    def _meter(self, before: CameraTotals, now: CameraTotals) -> CameraMeter:
        readers = [(before.readers[role], reader) for role, reader in now.readers.items()]
        rates: InferenceRates | None = self._watchdog.rates if self._watchdog is not None else None
        received = {role: b.received.bytes - before.readers[role].received.bytes for role, b in now.readers.items()}
        return CameraMeter(
            camera=self._name,
            t=self._clock.now(),
            received=sum(received.values()),
            exact=all(b.received.exact for _, b in readers),
            packets=sum(b.packets - a.packets for a, b in readers),
            reconnects=sum(b.reconnects - a.reconnects for a, b in readers),
            detect_received=received.get(DETECT_STREAM, 0) if MAIN_STREAM in received else 0,
            unrecorded=now.unrecorded - before.unrecorded,
            detect=now.detect.since(before.detect),
            decoding=DecodeStatus(
                now.detect.decoding,
                LAGGING if self._lag_filter.is_lagging else now.detect.decoding_reason,
                round(self._lag_filter.take_worst_s(), 2),
                None if rates is None else round(rates.promised, 2),
                None if rates is None else round(rates.examined, 2),
                now.detect.decoder,
            ),
        )


def _reader_name(camera: str, role: str) -> str:
    return f"camera {camera}" if role == MAIN_STREAM else f"camera {camera} ({role} stream)"
