"""Makes the evidence of alerts as soon as the recording holds it: still, clip, box path, images for the cloud."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from appliance.clock import Clock
from appliance.config import SiteConfig
from appliance.errors import VedetteError
from appliance.evidence.alert_evidence import AlertClipMaker, AlertStillMaker
from appliance.evidence.escalation_evidence import EscalationEvidenceMaker
from appliance.evidence.recording_index import RecordingIndex, RetryTracker
from appliance.store.boxes import BoxStore
from appliance.store.database import Database
from appliance.store.escalations import EscalationStore
from appliance.store.evidence import EvidenceStore
from appliance.telemetry import LogThrottle

logger = logging.getLogger(__name__)

POLL_S = 0.1
IDLE_S = 1.0  # while nothing waits; `wake` comes first
WAITING_MAX = 256
ITEMS_PER_RUN_MAX = 16


class EvidenceMaker:
    """Turns waiting evidence into files, or into the reason why there is none.

    Owner: one thread that calls `run()`; the core starts and stops it. State: how long each piece has been waited
    for; all else is in the store, so a restart goes on where it was. Invariant: what the database calls ready is
    whole and on disk. `made` and `missing` count since the start.
    """

    def __init__(
        self,
        db: Database,
        root: Path,
        config: SiteConfig,
        clock: Clock,
        *,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """root: the storage folder, to which all stored paths are relative. ready: told when an escalation is."""
        self._evidence = EvidenceStore(db)
        self._escalations = EscalationStore(db)
        self._patience = RetryTracker(clock)
        recording = RecordingIndex(db, root, config)
        self._questions = EscalationEvidenceMaker(db, root, config, recording, self._patience)
        self._portrait = AlertStillMaker(self._evidence, root, recording, self._patience)
        self._reel = AlertClipMaker(self._evidence, BoxStore(db), root, config.alerts, recording, self._patience)
        self._ready = ready
        self._clock = clock
        self._stop = threading.Event()
        self._news = threading.Event()
        self._waits = True
        self._repeats = LogThrottle(logger, clock)
        self.made = 0
        self.missing = 0

    def run(self) -> None:
        """Work until `stop()`. A full disk or a busy database is reported and tried again."""
        while not self._stop.is_set():
            self._news.clear()
            if self._stop.is_set():
                return
            try:
                idle = not self.run_once()
            except VedetteError as error:
                self._repeats.report(error)
                idle = True
            if idle:
                self._clock.sleep(POLL_S if self._waits else IDLE_S, self._news)

    def wake(self) -> None:
        """There may be something to make. Any thread."""
        self._news.set()

    def stop(self) -> None:
        """Let `run()` return after the piece it is working on."""
        self._stop.set()
        self._news.set()

    def run_once(self) -> int:
        """Make what can be made now, the cloud's frames first, at most PIECES_A_RUN; return how many changed.

        Raises StoreError; nothing is lost then, the pieces still wait.
        """
        escalations = self._escalations.waiting_for_evidence(WAITING_MAX)
        alerts = self._evidence.waiting(WAITING_MAX)
        self._waits = bool(escalations or alerts)
        wanted = {self._questions.key(each) for each in escalations}
        wanted |= {maker.key(each) for each in alerts for maker in (self._portrait, self._reel)}
        self._patience.keep(wanted)
        changed = 0
        for asked in escalations:
            served = self._count(self._questions.serve(asked))
            if served and self._ready is not None:
                self._ready()
            changed += served
            if changed >= ITEMS_PER_RUN_MAX or self._stop.is_set():
                return changed
        for maker in (self._portrait, self._reel):
            for alert in alerts:
                changed += self._count(maker.serve(alert))
                if changed >= ITEMS_PER_RUN_MAX or self._stop.is_set():
                    return changed
        return changed

    def _count(self, outcome: str) -> int:
        self.made += outcome == "made"
        self.missing += outcome == "missing"
        return int(outcome != "nothing")
