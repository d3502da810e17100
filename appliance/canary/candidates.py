"""Candidates: stores changed settings, prompts and models of verdicts, tries them at night, names their opponents.

A candidate is a file in the storage folder. It waits until it is called better or worse, or is taken out. A bundle that
is on probation waits, too, and so does one whose last trial ended with *not enough*.

They are tried one after another, in a process of the lowest priority: `vedette models prove --decide` or `vedette
candidate --now`, so what follows is the same. It ends when the appliance sheds load: cameras come first, and the next
night is another chance.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.child_processes import APPLIANCE, PARENT, end_child
from appliance.base.clock import Clock, local_day, local_weekday_minute
from appliance.base.errors import ModelError, UsageError
from appliance.base.local_files import write_file
from appliance.bundle.bundle_store import BundleStore, InForceTable
from appliance.canary.proof_store import ProofStore
from appliance.config import DecisionConfig, IngestConfig
from appliance.detect.model_files import AUTO_MODEL, packaged_network
from appliance.health.load_shedding import LoadShedding
from appliance.settings.yaml_edit import REMOVED, SiteChange
from appliance.store.paths import CANDIDATES

logger = logging.getLogger(__name__)

WAITING_MAX = 10  # a night has four hours
EVERY_S = 60.0  # a change of the clock's hour is noticed within a minute
BEGIN_HOUR, END_HOUR = 1, 5  # local time: few people move, and few look
NICE = 19  # the lowest: it has what cameras leave
_COMMAND = (sys.executable, "-m", APPLIANCE)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class KeyChange(BaseModel):
    """A change of one key of the site file: its path, and its value as JSON. remove: the key is removed."""

    model_config = ConfigDict(frozen=True)

    path: tuple[str | int, ...]
    value: Any = None
    remove: bool = False

    def change(self) -> SiteChange:
        return SiteChange(self.path, REMOVED if self.remove else self.value)


class SettingsCandidate(BaseModel):
    """Changes of the site file, or two cassettes: of the present judge and of the candidate."""

    model_config = ConfigDict(frozen=True)

    name: str
    changes: tuple[KeyChange, ...] = ()
    cassettes: tuple[str, ...] = ()

    @property
    def report(self) -> str:
        """The name of its trial; no network's has a blank."""
        return f"settings {self.name}"


class CandidateStore:
    """Stores the candidates of a site other than networks. Any process may call; files are written atomically."""

    def __init__(self, root: Path) -> None:
        """root: the storage folder."""
        self._root = root

    def put(self, candidate: SettingsCandidate) -> None:
        """Store a candidate and replace one of the same name and its trial. Raise UsageError, DiskWriteError."""
        if len({each.name for each in self.all()} - {candidate.name}) >= WAITING_MAX:
            raise UsageError(f"{WAITING_MAX} candidates wait already: take one out with --off")
        path = self._path(candidate.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        ProofStore(self._root).forget(candidate.report)
        write_file(path, candidate.model_dump_json(indent=1).encode())

    def get(self, name: str) -> SettingsCandidate:
        """Return a candidate. Raise UsageError: there is none, or its file cannot be read."""
        found = _read(self._path(name))
        if found is None:
            raise UsageError(f"there is no candidate `{name}`: vedette candidate lists them")
        return found

    def all(self) -> list[SettingsCandidate]:
        """Return all by name; one that cannot be read is left out."""
        return list(filter(None, map(_read, sorted((self._root / CANDIDATES).glob("*.json")))))

    def waiting(self) -> Sequence[SettingsCandidate]:
        """Return those that no trial has called better or worse."""
        tried = {each.candidate: each.judgement.outcome for each in ProofStore(self._root).all()}
        return [each for each in self.all() if tried.get(each.report, "not enough") == "not enough"]

    def remove(self, name: str) -> None:
        """Take it out; its last trial stays on the page /proofs."""
        self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(f"`{name}` is no name of a candidate: small letters, digits, - and _, 40 at most")
        return self._root / CANDIDATES / f"{name}.json"


def _read(path: Path) -> SettingsCandidate | None:
    try:
        return SettingsCandidate.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        logger.warning("the candidate %s cannot be read and is left out: %s", path.name, error)
        return None


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
            environment = {**os.environ, PARENT: str(os.getpid())}
            child = subprocess.Popen(
                [*self._command, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
            )
            os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
        except OSError as error:
            logger.warning("%s was not tried: %s", " ".join(words), error.strerror)
            return None
        return child


def opponent(site: IngestConfig | DecisionConfig, table: InForceTable, camera: str, candidate: str) -> str:
    """Return the network in force ("": for all cameras) as `detector.model` names it; of the candidate, its way back.

    A candidate that is in force on probation is compared with what was before, never with itself.
    """
    own, shared = site.cameras[camera].model if camera else None, table.everywhere
    model = own or site.detector.model
    slot = None
    if model == AUTO_MODEL and not own:
        slot = table.of(camera)
    elif shared is not None and model in (AUTO_MODEL, shared.bundle.name):  # the name of a bundle in force means it
        slot = shared
    model = str(slot.bundle) if slot is not None else model
    if model != candidate:
        return model
    return str(slot.before) if slot is not None and slot.before is not None else packaged_network()
