"""Makes the evidence of alerts as soon as the recording holds it: still, clip, box path, images for the cloud."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from appliance.base.clock import Clock
from appliance.base.errors import VedetteError
from appliance.base.telemetry import LogThrottle
from appliance.config import DecisionConfig
from appliance.evidence.alert_evidence import AlertClipMaker, AlertStillMaker
from appliance.evidence.escalation_evidence import EscalationEvidenceMaker
from appliance.evidence.recording_index import Outcome, RecordingIndex, RetryTracker
from appliance.media.recording_reader import READ_DIRECTLY, RecordingReader
from appliance.store.alert_rows import EvidenceStore
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore

logger = logging.getLogger(__name__)

POLL_S = 0.1  # while evidence waits for the recording
IDLE_S = 1.0  # while nothing waits; `wake` comes first
WAITING_MAX = 256  # alerts and escalations looked through in one run
ITEMS_PER_RUN_MAX = 16  # stills and clips in one turn; a stop is heeded between turns


class EvidenceMaker:
    """Turns waiting evidence into files, or into the reason why there is none.

    Owner: one thread that calls `run()`. State: the wait of each item; all else is in the store, so a restart
    continues. Invariant: evidence that the database marks as ready is complete and on disk. `made` and `missing` count
    since the start.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        config: DecisionConfig,
        clock: Clock,
        *,
        ready: Callable[[], None] | None = None,
        reader: RecordingReader = READ_DIRECTLY,
    ) -> None:
        """root: the storage folder, to which all stored paths are relative. reader: of the recording.

        ready: called when an escalation has all its evidence and can be sent.
        """
        self._evidence = EvidenceStore(db)
        self._escalations = EscalationStore(db)
        self._retries = RetryTracker(clock)
        recording = RecordingIndex(db, root, config.cameras, reader)
        boxes = BoxStore(db)
        self._stills = AlertStillMaker(self._evidence, boxes, root, recording, self._retries)
        self._for_escalations = EscalationEvidenceMaker(
            db, root, config.cameras, config.escalation, config.image_free, recording,
            stills=self._stills, retries=self._retries,
        )  # fmt: skip
        self._clips = AlertClipMaker(self._evidence, boxes, root, config.alerts, recording, self._retries)
        self._ready = ready
        self._clock = clock
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._is_waiting = True
        self._throttle = LogThrottle(logger, clock)
        self.made = 0
        self.missing = 0

    def run(self) -> None:
        """Work until `stop()`. A full disk or a busy database is reported and tried again."""
        while not self._stop.is_set():
            self._wake.clear()
            if self._stop.is_set():
                return
            try:
                idle = not self.run_once()
            except VedetteError as error:
                self._throttle.report(error)
                idle = True
            if idle:
                self._clock.sleep(POLL_S if self._is_waiting else IDLE_S, self._wake)

    def wake(self) -> None:
        """Wake the maker: an alert or escalation was written. Any thread may call."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run()` return after the item it is working on."""
        self._stop.set()
        self._wake.set()

    def run_once(self) -> int:
        """Make the evidence that is possible now, escalations first, at most ITEMS_PER_RUN_MAX; return the count.

        Raises StoreError; nothing is lost then, the items still wait.
        """
        escalations = self._escalations.waiting_for_evidence(WAITING_MAX)
        rows = self._evidence.waiting(WAITING_MAX)
        self._is_waiting = bool(escalations or rows)
        wanted = {self._for_escalations.key(each) for each in escalations}
        wanted |= {maker.key(each.alert) for each in rows for maker in (self._stills, self._clips)}
        self._retries.keep(wanted)
        changed = 0
        for escalation in escalations:
            before = self._stills.made_with_others
            made = self._count(self._for_escalations.make(escalation))
            stills = self._stills.made_with_others - before  # of the same alert, from the same decode
            self.made += stills
            if made and self._ready is not None:
                self._ready()
            changed += made + stills
            if changed >= ITEMS_PER_RUN_MAX or self._stop.is_set():
                return changed
        for maker in (self._stills, self._clips):
            for row in rows:
                changed += self._count(maker.make(row))
                if changed >= ITEMS_PER_RUN_MAX or self._stop.is_set():
                    return changed
        return changed

    def _count(self, outcome: Outcome) -> int:
        self.made += outcome == "made"
        self.missing += outcome == "missing"
        return int(outcome != "nothing")
