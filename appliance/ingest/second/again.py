"""Looks at one alert's object once more: its recorded frames, close up, told as boxes."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, Full, Queue

from appliance.alerts.evidence_packets import Recorded
from appliance.alerts.evidence_still import Still, cut_still, cut_stills
from appliance.clock import Clock
from appliance.detect.detector import ObjectDetector
from appliance.errors import EvidenceError, VedetteError
from appliance.ingest.ports import Elastic
from appliance.ingest.second.cutout import close_up, region_of, size_of, told
from appliance.store.paths import SEGMENTS, inside
from appliance.types import Footage, Glimpse, SecondLook, SecondSight, Sighting

WAITING_MAX = 2
GLIMPSES_MAX = 8
FOOTAGE_MAX = 16
NICE = 10

logger = logging.getLogger(__name__)


class Again:
    """Owner of one named thread that is nicer than all others: it decodes, cuts out, and has the eye look.

    Each order is answered by exactly one SecondSight, one that cannot be done by its reason. Bounded: WAITING_MAX
    orders wait, what is beyond is refused at once. The pictures stay here; what is told is boxes.
    """

    def __init__(
        self,
        root: Path,
        eye_of: Callable[[], ObjectDetector],
        emit: Callable[[SecondSight], None],
        clock: Clock,
    ) -> None:
        """root: the storage folder. eye_of: who looks; asked with the first order, for it may have to be loaded."""
        self._root = root.absolute()
        self._eye_of = eye_of
        self._eye: ObjectDetector | None = None
        self._emit = emit
        self._clock = clock
        self._orders: Queue[SecondLook | None] = Queue(WAITING_MAX)
        self._stopping = False
        self._thread = threading.Thread(target=self.run, name="second look", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more orders; the thread ends after the one it is at."""
        self._stopping = True
        with contextlib.suppress(Full):
            self._orders.put_nowait(None)

    def order(self, wanted: SecondLook) -> None:
        """Have it looked at. Any thread; never waits."""
        try:
            self._orders.put_nowait(wanted)
        except Full:
            self._emit(_failed(wanted, "too many second looks are under way"))

    def run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, where the system can
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._stopping:
            try:
                wanted = self._orders.get(timeout=1.0)
            except Empty:
                continue
            if wanted is not None:
                self._emit(self.look(wanted))

    def look(self, wanted: SecondLook) -> SecondSight:
        """What is seen now. Never raises: what failed is told as failed."""
        began = self._clock.monotonic()
        try:
            eye = self._eye = self._eye or self._eye_of()
            sightings = tuple(self._sighting(eye, glimpse, still) for glimpse, still in self._stills(wanted))
        except VedetteError as error:
            return _failed(wanted, str(error))
        except Exception as error:  # the top of this thread's loop: recording and the live looks go on
            logger.exception("a second look failed in an unexpected way")
            return _failed(wanted, f"it failed: {type(error).__name__}")
        ms = round(1000 * (self._clock.monotonic() - began), 1)
        return SecondSight(id=wanted.id, camera=wanted.camera, model=eye.name, ms=ms, sightings=sightings)

    def _stills(self, wanted: SecondLook) -> list[tuple[Glimpse, Still]]:
        """The pictures that can be had: together, for each segment is then decoded once, else one by one."""
        if not 0 < len(wanted.glimpses) <= GLIMPSES_MAX or len(wanted.footage) > FOOTAGE_MAX:
            raise EvidenceError("it asks for nothing, or for too much")
        footage = [self._recorded(each) for each in wanted.footage]
        try:
            stills = cut_stills(footage, [glimpse.t for glimpse in wanted.glimpses])
            return list(zip(wanted.glimpses, stills, strict=True))
        except EvidenceError as error:
            found = [(glimpse, still) for glimpse in wanted.glimpses for still in _if_there(footage, glimpse.t)]
            if not found:
                raise error from None
            return found

    def _recorded(self, footage: Footage) -> Recorded:
        return Recorded(inside(self._root, footage.path, SEGMENTS), footage.t_start, footage.t_end)

    @staticmethod
    def _sighting(eye: ObjectDetector, glimpse: Glimpse, still: Still) -> Sighting:
        step = eye.shape_step if isinstance(eye, Elastic) else 0
        region = region_of(glimpse.box, *still.size, step)
        size = size_of(eye.picture_size(region[2] - region[0], region[3] - region[1]), step)
        seen = eye.detect([close_up(still.image, region, size)])[0]
        return Sighting(t=glimpse.t, box=glimpse.box, found=told(seen, eye.labels, region, still.size))


def _if_there(footage: Sequence[Recorded], t: float) -> list[Still]:
    try:
        return [cut_still(footage, t)]
    except EvidenceError as error:
        logger.debug("a second look goes without a picture: %s", error)
        return []


def _failed(wanted: SecondLook, why: str) -> SecondSight:
    return SecondSight(id=wanted.id, camera=wanted.camera, error=why)
