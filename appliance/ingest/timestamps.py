"""Turns the time stamps of a stream into camera time, once per packet.

Live, the stream's clock is anchored to UTC at the first packet: by the sender's RTCP report where it gives one that is
believable, else by the time of arrival. From then on time runs by the stream's own stamps, gently steered (a
camera's crystal drifts by seconds a day) towards the report or the earliest arrivals. A stamp that jumps while
arrivals do not is a broken clock: time is anchored anew and the jump is counted. Sources: RFC 3550 section 6.4.1;
cameras that restart their stamps without restarting the session are common.
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass

import av

from appliance.media.source import SECOND_US

READ_EVERY_US = SECOND_US  # of sender reports
JUMP_BACK_US = SECOND_US // 2  # a stamp that goes back by so much, or ahead by so much more than arrivals, is a jump
JUMP_AHEAD_US = 2 * SECOND_US
HOLE_US_MAX = 30 * SECOND_US  # in a file; a longer one is a broken clock
REORDER_US_MAX = 5 * SECOND_US  # between pts and dts; more is nonsense
REPORT_BEHIND_US_MAX = 60 * SECOND_US  # a server may begin with a cached GOP, that much in the past
REPORT_AHEAD_US_MAX = 2 * SECOND_US  # no frame arrives before it was taken: the sender's clock is wrong
DTS_STEP_US = 1000  # a millisecond: less than any camera's frame
_PRFT_BYTES = 8  # a time stamp of 64 bits
_SAME_REPORT_US = SECOND_US // 4
_WINDOW_US = 10 * SECOND_US  # the earliest arrival in it tells how far the anchor is off
_FAR_US = SECOND_US // 2  # off by more, time is steered fast
_STEER = 200  # stream time for each unit of correction: half a percent, which no viewer sees
_STEER_FAR = 5  # times the usual pace, where the time line is further off than _FAR_US


class SenderReports:
    """When a frame was taken, by the sender's own clock (RTCP sender reports).

    State: the last report, and of which stamp it was. Owner: one connection. Reports come every few seconds, and
    between two the stream's own stamps count on. So a packet is read once in READ_EVERY_US: that costs as much as all
    other stamping. `reads` counts.
    """

    def __init__(self) -> None:
        self.reads = 0
        self._last: tuple[int, int | None] | None = None

    def utc_us(self, packet: av.Packet[av.VideoStream], pts_us: int | None) -> int | None:
        """Return the UTC of the frame in microseconds, if there were any reports.

        pts_us: the frame's stamp, in microseconds.
        """
        if pts_us is None:
            return self._read(packet)
        if self._last is None or not 0 <= pts_us - self._last[0] < READ_EVERY_US:
            self._last = pts_us, self._read(packet)
        at, utc = self._last
        return None if utc is None else utc + pts_us - at

    def _read(self, packet: av.Packet[av.VideoStream]) -> int | None:
        """Return the report that libavformat has attached (AV_PKT_DATA_PRFT)."""
        self.reads += 1
        if not packet.has_sidedata("prft"):
            return None
        data = bytes(packet.get_sidedata("prft"))
        return (
            struct.unpack_from("<q" if sys.byteorder == "little" else ">q", data)[0]
            if len(data) >= _PRFT_BYTES
            else None
        )


@dataclass(frozen=True, slots=True)
class CameraStamp:
    """Camera time of one packet, in microseconds."""

    pts: int | None  # None: the packet had no stamp and its order is unknown
    dts: int
    jump: bool  # the stream's clock jumped before it


class Timeline:
    """Stamps the packets of one source. State: the anchor (camera time minus stream time) and the last packet.

    Invariant: `dts` of the stamps rises strictly between two calls of `restart`, whatever the stream says.
    """

    def __init__(self) -> None:
        self.jumps = 0
        self._offset: int | None = None
        self._last_in: int | None = None
        self._last_out: int | None = None
        self._last_arrival = 0
        self._begun = False
        self._assumed = False
        self._drift = _Drift()
        self._reported: int | None = None
        self._outdated: int | None = None

    def restart(self) -> None:
        """Restart for a new connection, or for a clip from its beginning.

        The next packet sets the anchor, maybe in the past.
        """
        self._offset = None
        self._last_out = None
        self._last_in = None
        self._begun = False
        self._assumed = False
        self._drift = _Drift()
        self._reported = self._outdated = None

    @property
    def last_us(self) -> int | None:
        """Camera time of the last packet (dts), None before the first."""
        return self._last_out

    def camera_us(self, stream_us: int) -> int | None:
        """Return the camera time of a moment of the stream's own clock, by the present anchor.

        Return None if there is no anchor yet.
        """
        return None if self._offset is None else stream_us + self._offset

    def stamp_live(self, pts: int | None, dts: int | None, arrival: int, report: int | None = None) -> CameraStamp:
        """Stamp a packet of a camera. All in microseconds; `report`: UTC of this frame as the sender claims.

        libavformat counts from the first RTP stamp, but leaves the stamp off the first packet: it is taken to be 0.
        """
        if self._assumed and pts is not None and abs(pts) > JUMP_AHEAD_US:
            last = self._last_out
            self.restart()
            self._last_out = last
        elif pts is None and not self._begun:
            pts, self._assumed = 0, True
        else:
            self._assumed = False
        unordered = pts is not None and dts is None
        pts, order = _agree(pts, dts)
        if pts is None or order is None:
            self._last_arrival = arrival
            dts_out = self._rise(arrival)
            return CameraStamp(dts_out, dts_out, False)
        jump = self._jumped(order, max(0, arrival - self._last_arrival) + JUMP_AHEAD_US)
        if jump:
            self._outdated = self._reported
        believed = self._believed(report, pts, arrival)
        if self._offset is None or jump:
            anchor = arrival if believed is None else believed
            if jump and self._last_out is not None:
                anchor = max(anchor, self._last_out + pts - order + 1)
            self._offset = anchor - pts
            self._drift = _Drift()
        else:
            passed = order - (self._last_in if self._last_in is not None else order)
            self._offset += self._drift.correction(arrival - pts - self._offset, believed, pts + self._offset, passed)
        self._last_in, self._last_arrival = order, arrival
        decode = order + self._offset
        if unordered and self._last_out is not None:
            # The first packets of a stream with B-frames: libavformat does not know the order yet; stay before pts.
            decode = min(decode, self._last_out + DTS_STEP_US)
        return CameraStamp(pts + self._offset, self._rise(decode), jump)

    def stamp_clip(
        self, pts: int | None, dts: int | None, begin: int, frame: int, first: int | None = None
    ) -> CameraStamp:
        """Stamp a packet of a file.

        `begin`: camera time of the first frame. `frame`: the usual time between two. `first`: the stamp of the first
        frame, where the file gives it (frames before it are not shown).
        """
        stamped = pts is not None
        pts, order = _agree(pts, dts)
        if pts is None or order is None:
            return CameraStamp(None, self._rise((self._last_out or 0) + frame if self._begun else begin), False)
        jump = self._jumped(order, HOLE_US_MAX)
        if self._offset is None:
            self._offset = begin - (pts if first is None or abs(first - pts) > REORDER_US_MAX else first)
        elif jump:
            self._offset = (self._last_out or 0) + frame - order
        self._last_in = order
        return CameraStamp(pts + self._offset if stamped else None, self._rise(order + self._offset), jump)

    def _jumped(self, order: int, ahead_max: int) -> bool:
        if self._last_in is None or self._offset is None:
            return False
        step = order - self._last_in
        jump = step < -JUMP_BACK_US or step > ahead_max
        self.jumps += jump
        return jump

    def _believed(self, report: int | None, pts: int, arrival: int) -> int | None:
        """Return the sender's report for this frame, if it can be true.

        After a jump of its stamps the receiver goes on with the report from before, until the next one comes.
        """
        self._reported = None
        if report is None or not -REPORT_BEHIND_US_MAX < report - arrival < REPORT_AHEAD_US_MAX:
            return None
        if self._outdated is not None and abs(report - pts - self._outdated) < _SAME_REPORT_US:
            return None
        self._reported, self._outdated = report - pts, None
        return report

    def _rise(self, dts: int) -> int:
        if self._last_out is not None and dts <= self._last_out:
            dts = self._last_out + 1
        self._last_out = dts
        self._begun = True
        return dts


class _Drift:
    """Estimates how far the anchor is off, and how much of that to correct now. State: the window it observes."""

    def __init__(self) -> None:
        self._least: int | None = None
        self._watched = 0
        self._owed = 0

    def correction(self, late: int, report: int | None, mapped: int, passed: int) -> int:
        """Return the microseconds to add to the anchor.

        `late`: arrival minus camera time. `passed`: stream time since last.
        """
        if report is not None:
            self._owed = report - mapped
        else:
            self._watch(late, passed)
        pace = _STEER_FAR if abs(self._owed) > _FAR_US else _STEER
        step_max = max(0, passed) // pace
        step = max(-step_max, min(step_max, self._owed))
        self._owed -= step
        return step

    def _watch(self, late: int, passed: int) -> None:
        # Waiting in buffers only ever makes a packet late: the earliest of a window tells where the anchor belongs.
        self._least = late if self._least is None else min(self._least, late)
        self._watched += max(0, passed)
        if self._watched >= _WINDOW_US or late < -_FAR_US:
            self._owed, self._least, self._watched = self._least, None, 0


def _agree(pts: int | None, dts: int | None) -> tuple[int | None, int | None]:
    """Return pts and the stamp that orders the packets: dts where it is sane, pts where only that is there."""
    if pts is None:
        return (dts, dts) if dts is not None else (None, None)
    if dts is None:
        return pts, pts
    if not 0 <= pts - dts <= REORDER_US_MAX:
        return (dts, dts) if pts < dts - REORDER_US_MAX or pts > dts + REORDER_US_MAX else (pts, min(pts, dts))
    return pts, dts
