"""Candidates that wait for proof are tried at night, one after another, in a process of the lowest priority.

These wait: a bundle that is on probation, one whose last trial ended with *not enough*, and settings and prompts that
a person left for the night (`canary.candidate_store`). The process is `vedette models prove --decide` or `vedette
candidate --now`, so what follows is the same. It ends when the appliance sheds load: cameras come first, and the next
night is another chance.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from appliance.base.child_modules import APPLIANCE, end_child
from appliance.base.clock import Clock, local_day, local_weekday_minute
from appliance.base.errors import ModelError
from appliance.bundle.bundle_store import BundleStore
from appliance.canary.candidate_store import CandidateStore
from appliance.canary.proof_store import ProofStore
from appliance.health.load_shedding import LoadShedding

logger = logging.getLogger(__name__)

EVERY_S = 60.0  # a change of the clock's hour is noticed within a minute
BEGIN_HOUR, END_HOUR = 1, 5  # local time: few people move, and few look
NICE = 19  # the lowest: it has what cameras leave
_COMMAND = (sys.executable, "-m", APPLIANCE)


class NightlyProof:
    """State: the process that runs, what is left of this night, and the day it began. Owner: one thread."""

    def __init__(
        self, root: Path, site_file: Path, store: BundleStore, shed: Callable[[], LoadShedding], clock: Clock,
        command: tuple[str, ...] = _COMMAND,
    ) -> None:  # fmt: skip
        """root: the storage folder. shed: what is done less of now. command: `vedette`, without a verb."""
        self._root, self._site_file = root, site_file
        self._store, self._shed, self._clock = store, shed, clock
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None
        self._left: list[tuple[str, ...]] = []
        self._day = ""

    def run_once(self) -> None:
        """Begin, go on or end, as the hour and the load say."""
        now, shed = self._clock.now(), self._shed()
        is_night = BEGIN_HOUR * 60 <= local_weekday_minute(now)[1] < END_HOUR * 60
        if not is_night or shed.heat.step or shed.memory.step:
            self.stop()
            return
        if self._child is not None and self._child.poll() is None:
            return
        if self._day != local_day(now):
            self._day, self._left = local_day(now), [*self._waiting()]
        self._child = self._start(self._left.pop(0)) if self._left else None

    def stop(self) -> None:
        """End the process that runs, and leave the rest of this night. Any thread, when `run_once` is not at work."""
        child, self._child, self._left = self._child, None, []
        if child is not None and child.poll() is None:
            end_child(child)

    def _waiting(self) -> Iterator[tuple[str, ...]]:
        """Yield the words of a command for each candidate."""
        site = ("--config", str(self._site_file))
        yield from (("models", "prove", bundle, *site, "--decide") for bundle in self._bundles())
        yield from (("candidate", each.name, "--now", *site) for each in CandidateStore(self._root).waiting())

    def _bundles(self) -> Iterator[str]:
        try:
            table, installed = self._store.in_force(), self._store.installed()
        except ModelError as error:
            logger.warning("%s", error)
            return
        probation = table.on_probation()
        tried = {each.candidate for each in ProofStore(self._root).all() if each.judgement.outcome == "not enough"}
        for ref in installed:
            if ref not in table.quarantined and (ref in probation or str(ref) in tried):
                yield str(ref)

    def _start(self, words: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
        logger.info("tried on this night's recording: %s", " ".join(words))
        try:
            child = subprocess.Popen([*self._command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
        except OSError as error:
            logger.warning("%s was not tried: %s", " ".join(words), error.strerror)
            return None
        return child
