"""Trials of changed settings as they are kept: a file each with head and result; the newest 20 stay."""

from __future__ import annotations

import logging
import re
import threading
from pathlib import Path
from typing import Literal

from pydantic import model_validator

from appliance.base.local_files import write_file
from appliance.dashboard.recording_jobs import JobState
from appliance.dashboard.schemas import ApiModel
from appliance.store.paths import TRIALS
from appliance.types import Point

logger = logging.getLogger(__name__)

KEPT_MAX = 20  # results of some 100 kB
_ID = re.compile(r"^[0-9a-f]{16}$")
TrialChange = Literal["same", "changed", "missing", "new"]
"""In both alike, in both and changed, with the settings in force only, with the changed ones only."""


class TriedAlert(ApiModel):
    """An alert that one of both would have raised. Times are UTC seconds; best_t: of its best view."""

    t_start: float
    t_end: float
    rules: tuple[str, ...]
    labels: tuple[str, ...]
    severity: str
    tracks: int
    best_t: float


class TriedAlertPair(ApiModel):
    """An alert with the settings in force (before) and with the changed ones (after); null: there is none."""

    change: TrialChange
    before: TriedAlert | None
    after: TriedAlert | None

    @model_validator(mode="after")
    def _one_at_least(self) -> TriedAlertPair:
        if self.before is None and self.after is None:
            raise ValueError("an alert of neither side")
        return self

    @property
    def shown(self) -> TriedAlert:
        """The one that there is, rather that of the changed settings."""
        shown = self.after or self.before
        assert shown is not None
        return shown


class TriedEvent(ApiModel):
    """An event that is not the same with both. moved_s: by how much later it is with the changed settings."""

    change: TrialChange
    rule: str
    label: str
    track: int
    t: float
    moved_s: float


class TriedTrack(ApiModel):
    """A track that differs between the two runs.

    begin_s, end_s: by how many seconds later with the changed settings. near: the middle of its box. goes_on: the track
    of the other side in whose place it is.
    """

    change: TrialChange
    track: int
    label: str
    other_label: str
    t_start: float
    t_end: float
    near: Point
    begin_s: float
    end_s: float
    goes_on: int | None


class TriedTotals(ApiModel):
    """How much one side found. looks: examined pictures; questions: alerts that the cloud would be asked about."""

    looks: int
    tracks: int
    events: int
    alerts: int
    questions: int


class TriedHole(ApiModel):
    """Nothing is recorded here, and why."""

    t_start: float
    t_end: float
    reason: str


class LeftOut(ApiModel):
    """How many more there are than are listed."""

    alerts: int
    events: int
    tracks: int


class TrialResult(ApiModel):
    """The differences, in the form of `vedette replay diff`.

    totals, models: with the settings in force, then with the changed ones. settings: what differs between them. unread:
    what of the recording could not be read. replayed: stretches.
    """

    same: bool
    settings: tuple[str, ...]
    models: tuple[str, str]
    totals: tuple[TriedTotals, TriedTotals]
    alerts: list[TriedAlertPair]
    events: list[TriedEvent]
    tracks: list[TriedTrack]
    left_out: LeftOut
    missing: list[TriedHole]
    unread: list[str]
    replayed: int


class TrialHead(ApiModel):
    """A trial. spans: of the recording, UTC seconds. diff: what is changed in the site file. who began it, and why."""

    id: str
    camera: str
    began_t: float
    who: str
    why: str
    spans: list[tuple[float, float]]
    diff: str
    state: JobState = "running"
    seconds: float = 0.0
    error: str = ""


class TrialStore:
    """The trials in a folder: a file each, the head in its first line, the result in its second.

    Any thread may call. A file that cannot be read is left out and said in the log.
    """

    def __init__(self, root: Path) -> None:
        """root: the storage folder."""
        self._folder = root / TRIALS
        self._lock = threading.Lock()

    def put(self, head: TrialHead, result: TrialResult | None = None, *, only_known: bool = False) -> None:
        """Keep it; the oldest beyond `KEPT_MAX` go. only_known: not where it was deleted. Raises DiskWriteError."""
        lines = [head.model_dump_json(), *([result.model_dump_json()] if result else []), ""]
        with self._lock:
            path = self._path(head.id)
            if only_known and not path.exists():
                return
            write_file(path, "\n".join(lines).encode())
            others = [each for each in self._heads() if each.id != head.id]  # it stays also by a clock set back
            for old in others[KEPT_MAX - 1 :]:
                self._path(old.id).unlink(missing_ok=True)

    def all(self, camera: str) -> list[TrialHead]:
        """Return the trials of a camera, newest first."""
        with self._lock:
            return [each for each in self._heads() if each.camera == camera]

    def get(self, camera: str, trial: str) -> tuple[TrialHead, TrialResult | None] | None:
        """With its result, if it has one; None: there is no such trial of this camera."""
        if not _ID.match(trial):
            return None
        with self._lock:
            head = self._head(self._path(trial))
            if head is None or head.camera != camera:
                return None
            try:
                second = self._path(trial).read_text(encoding="utf-8").partition("\n")[2].strip()
                return head, TrialResult.model_validate_json(second) if second else None
            except (OSError, ValueError) as error:
                logger.warning("the trial %s cannot be read: %s", trial, error)
                return None

    def delete(self, trial: str) -> None:
        """Delete a trial that `get` found."""
        with self._lock:
            self._path(trial).unlink(missing_ok=True)

    def _heads(self) -> list[TrialHead]:
        found = (self._head(path) for path in self._folder.glob("*.json"))
        return sorted(filter(None, found), key=lambda each: -each.began_t)

    def _head(self, path: Path) -> TrialHead | None:
        try:
            with path.open(encoding="utf-8") as file:
                return TrialHead.model_validate_json(file.readline())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            logger.warning("the trial %s cannot be read and is left out: %s", path.name, error)
            return None

    def _path(self, trial: str) -> Path:
        return self._folder / f"{trial}.json"
