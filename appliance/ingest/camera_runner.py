"""Runs one camera in the ingest process: its stream readers, its recorder, its detect stream, its state and
counters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from appliance import config
from appliance.clock import Clock
from appliance.health.watchdog import CameraActivity, CameraWatchdog
from appliance.ingest.detect_stream import DetectCounts, DetectStream
from appliance.ingest.file_source import FileSource
from appliance.ingest.lag import LagFilter
from appliance.ingest.reconnecting_reader import READ_PAUSE_S_MAX, PacketSink, ReaderCounts, ReconnectingReader
from appliance.ingest.recorder import RecordTarget, SegmentRecorder
from appliance.ingest.rtsp_source import RtspSource
from appliance.ingest.socket_meter import SocketFinder
from appliance.media.source import VideoSource
from appliance.types import CameraMeter, CameraState, CameraStateName, Gap, HealthKind, IngestMessage

Emit = Callable[[IngestMessage], None]
MAIN_STREAM = "main"
DETECT_STREAM = "detect"
LAGGING = "nothing now: what comes is late, and is only recorded"
_WORST: tuple[CameraStateName, ...] = ("live", "ended", "connecting", "stalled", "lost")


class CameraRunner:
    """Runs one camera: a feed for its main stream and, where it has a second stream for detection, one for that.

    Each feed is one thread, named `camera-<name>` or `camera-<name>-detect`. The main stream is recorded; the detect
    stream (or the only one) is decoded. Both are stamped with the same clock, so boxes fit the recording. The state
    that is told is the worse of the two. `tick()` once a second.
    """

    def __init__(
        self,
        name: str,
        plan: config.CameraConfig,
        place: RecordTarget | None,
        watch: DetectStream,
        finder: SocketFinder,
        clock: Clock,
        emit: Emit,
        *,
        vigil: CameraWatchdog | None = None,
    ) -> None:
        self._name = name
        self._finder = finder
        self._clock = clock
        self._emit = emit
        self._vigil = vigil
        self._tries = self._breaks = 0
        self._lock = threading.Lock()
        self._states: dict[str, tuple[CameraStateName, str]] = {}
        self._told: tuple[CameraStateName, str] | None = None
        self._recorder = SegmentRecorder(place, clock, emit) if place is not None else None
        self._watch = watch
        self._live = LagFilter(name, watch, clock)
        self._feeds = self._make_feeds(plan)
        self._threads = [
            threading.Thread(
                target=feed.run, name=f"camera-{name}" + ("" if role == MAIN_STREAM else f"-{role}"), daemon=True
            )
            for role, feed in self._feeds.items()
        ]
        self._told_feeds = {role: feed.counts() for role, feed in self._feeds.items()}
        self._told_watch = watch.counts()
        self._told_unrecorded = self._told_left_out = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def warning(self) -> str:
        """What a person should know now, or ''."""
        return self._recorder.warning if self._recorder is not None else ""

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask the threads to end; `join()` waits for them."""
        for feed in self._feeds.values():
            feed.stop()

    def join(self, seconds: float) -> bool:
        """Wait at most `seconds`; True when all threads have ended and segments are closed."""
        deadline = self._clock.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - self._clock.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def tick(self, *, detector_stuck: bool = False) -> None:
        """Notice silence, and tell what happened since the last call. blind: the detector is stuck."""
        for feed in self._feeds.values():
            feed.check_silence()
        feeds = {role: feed.counts() for role, feed in self._feeds.items()}
        watch = self._watch.counts()
        unrecorded = self._recorder.lost if self._recorder is not None else 0
        left_out = self._live.skipped
        self._emit(self._meter(feeds, watch, unrecorded, left_out))
        self._told_feeds, self._told_watch, self._told_unrecorded = feeds, watch, unrecorded
        self._told_left_out = left_out
        self._keep_vigil(feeds, watch, detector_stuck)

    def state(self, feed: str, state: CameraStateName, reason: str) -> None:
        """A feed changed its state (see `feed.Listener`)."""
        with self._lock:
            self._tries += state == "lost"
            self._breaks += state != "live"
            self._states[feed] = (state, reason)
            worst = max(self._states.values(), key=lambda pair: _WORST.index(pair[0]))
            if worst == self._told:
                return
            self._told = worst
            self._emit(CameraState(camera=self._name, state=worst[0], t=self._clock.now(), reason=worst[1]))

    def gap(self, feed: str, t_start: float, t_end: float | None, reason: str) -> None:
        """A gap began or ended (see `feed.Listener`). Gaps are of the main stream: that is what is recorded."""
        if feed == self._feed_name(MAIN_STREAM):
            self._emit(Gap(camera=self._name, t_start=t_start, t_end=t_end, reason=reason))

    def relearn(self, kind: HealthKind) -> None:
        """A person says that what the camera shows is right as it is. Any thread."""
        self._watch.relearn(kind)

    def _keep_vigil(self, feeds: dict[str, ReaderCounts], watch: DetectCounts, blind: bool) -> None:
        if self._vigil is None:
            return
        with self._lock:
            state, reason = self._told or ("connecting", "")
            tries, breaks = self._tries, self._breaks
        packets = tuple(counts.packets for counts in feeds.values())
        signs = CameraActivity(packets, watch.decoded, watch.examined, state, reason, tries, breaks)
        remedy = self._vigil.tick(signs, blind=blind)
        if remedy == "look":
            self._watch.force_next()
        elif remedy == "connect" and not self._live.is_lagging:
            self._watch.reconnect("nothing that came could be made into a picture")

    def _make_feeds(self, plan: config.CameraConfig) -> dict[str, ReconnectingReader]:
        record: tuple[PacketSink, ...] = (self._recorder,) if self._recorder is not None else ()
        if plan.detect_url is None:
            if self._recorder is not None:
                self._watch.on_session = self._recorder.on_session
            # The watch first: it tells the recorder of a new picture size before the packet is recorded.
            return {
                MAIN_STREAM: self._make_feed(
                    MAIN_STREAM, plan.url, (self._live, *record), plan, self._watch.until_needed_s
                )
            }
        feeds = {
            DETECT_STREAM: self._make_feed(
                DETECT_STREAM, plan.detect_url, (self._live,), plan, self._watch.until_needed_s
            )
        }
        if record:
            feeds[MAIN_STREAM] = self._make_feed(MAIN_STREAM, plan.url, record, plan, lambda: READ_PAUSE_S_MAX)
        return feeds

    def _make_feed(
        self,
        role: str,
        url: str,
        sinks: tuple[PacketSink, ...],
        plan: config.CameraConfig,
        patience: Callable[[], float],
    ) -> ReconnectingReader:
        stop = threading.Event()
        source: VideoSource
        if url.startswith("file:"):
            source = FileSource(self._name, url, self._clock, stop)
        else:
            source = RtspSource(
                self._name,
                url,
                self._clock,
                self._finder,
                connect_s=plan.connect_timeout_s,
                stall_s=plan.stall_timeout_s,
                key="url" if role == MAIN_STREAM else "detect_url",
            )
        loops = plan.loop and url.startswith("file:")
        return ReconnectingReader(
            self._feed_name(role), source, sinks, self, self._clock, stop, loops=loops, until_needed_s=patience
        )

    def _feed_name(self, role: str) -> str:
        return f"camera {self._name}" if role == MAIN_STREAM else f"camera {self._name} ({role} stream)"

    def _meter(
        self, feeds: dict[str, ReaderCounts], watch: DetectCounts, unrecorded: int, left_out: int
    ) -> CameraMeter:
        told = self._told_feeds
        return CameraMeter(
            camera=self._name,
            t=self._clock.now(),
            received=sum(now.received.bytes - told[role].received.bytes for role, now in feeds.items()),
            exact=all(now.received.exact for now in feeds.values()),
            packets=sum(now.packets - told[role].packets for role, now in feeds.items()),
            decoded=watch.decoded - self._told_watch.decoded,
            examined=watch.examined - self._told_watch.examined,
            unexamined=watch.unexamined - self._told_watch.unexamined,
            reconnects=sum(now.reconnects - told[role].reconnects for role, now in feeds.items()),
            unrecorded=unrecorded - self._told_unrecorded,
            skipped=watch.skipped - self._told_watch.skipped + left_out - self._told_left_out,
            decoding=watch.decoding,
            decoding_reason=LAGGING if self._live.is_lagging else watch.decoding_reason,
            behind_s=round(self._live.take_worst_s(), 2),
            why=watch.dropped_since(self._told_watch),
            ages=watch.ages_since(self._told_watch),
            retried=watch.retries - self._told_watch.retries,
        )
