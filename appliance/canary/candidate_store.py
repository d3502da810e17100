"""Stores candidates that wait to be tried at night: changed settings, and prompts or models of verdicts.

A candidate is a file in the storage folder. It waits until it is called better or worse, or is taken out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from appliance.base.errors import UsageError
from appliance.canary.proof_store import ProofStore
from appliance.media.atomic_file import write_file
from appliance.settings.yaml_edit import REMOVED, SiteChange
from appliance.store.paths import CANDIDATES

logger = logging.getLogger(__name__)

WAITING_MAX = 10  # a night has four hours
_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,39}$")


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
        if not _NAME.match(name):
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
