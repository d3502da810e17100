"""Keeps the running settings and the site file together: changes are checked, written and put in force, or nothing is.

An edit by hand is noticed and offered, never taken by itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.base import yamlfile
from appliance.base.clock import Clock
from appliance.base.errors import ConfigError, UsageError
from appliance.config import SiteConfig
from appliance.settings.secret_scrubber import SecretScrubber
from appliance.settings.site_editor import (
    SiteEditor,
    SiteProposal,
    SiteText,
    checked_text,
    difference,
    digest_of,
    replace_text,
    write_secret,
)
from appliance.settings.site_versions import FOLDER, SiteVersion, SiteVersions
from appliance.settings.yaml_edit import SiteChange

logger = logging.getLogger(__name__)

BY_HAND = "file"
PutInForce = Callable[[SiteConfig], tuple[str, ...]]
"""Puts settings in force and returns the keys that wait for a restart. Raises UsageError: nothing was changed."""


@dataclass(frozen=True, slots=True)
class SettingsStatus:
    """How the file and the running settings stand to each other.

    digest: of the file. edited: the file was changed by hand, and that is not in force: diff says how, error why it
    cannot be taken. waiting: keys whose new value a restart alone puts in force.
    """

    digest: str
    edited: bool = False
    diff: str = ""
    error: str = ""
    waiting: tuple[str, ...] = ()


class SettingsService:
    """Changes the site file for those who ask, one at a time. Any thread.

    State: the text that is in force, the keys that wait for a restart, and, while a change is made, its text's digest.
    Invariant: what `change` has returned from is in the file, in force, and kept as a version.
    """

    def __init__(self, path: Path, storage: Path, clock: Clock, put_in_force: PutInForce) -> None:
        """path: the site file, which is in force as it is now. storage: the folder in which the versions are kept."""
        self._editor = SiteEditor(path)
        self._versions = SiteVersions(storage / FOLDER, clock)
        self._put_in_force = put_in_force
        self._lock = threading.Lock()
        self._running = self._editor.read()
        self._waiting: tuple[str, ...] = ()
        self._coming = ""
        self._versions.add(self._running.text, BY_HAND, "as the appliance was started")

    @property
    def running(self) -> SiteText:
        """The site file as it is in force."""
        return self._running

    @property
    def path(self) -> Path:
        """Path of the site file."""
        return self._editor.path

    def scrubber(self) -> SecretScrubber:
        """Knows the secrets of the file, of its versions and of what is in force."""
        texts = [self._running.text, *(self._versions.text(each.number) for each in self._versions.all())]
        with suppress(ConfigError):
            texts.append(yamlfile.read_text(self.path))
        return SecretScrubber.of_site(self.path, texts, self._running.config)

    def status(self) -> SettingsStatus:
        """Read the file and compare it with the running settings."""
        before = self._running.digest
        try:
            text = yamlfile.read_text(self._editor.path)
        except ConfigError as error:
            return SettingsStatus("", edited=True, error=str(error), waiting=self._waiting)
        digest = digest_of(text)
        if digest in {before, self._coming, self._running.digest}:  # a change may be made meanwhile
            return SettingsStatus(digest, waiting=self._waiting)
        try:
            checked_text(text, self._editor.path)
        except ConfigError as error:
            return SettingsStatus(digest, True, difference(self._running.text, text), str(error), self._waiting)
        return SettingsStatus(digest, True, difference(self._running.text, text), waiting=self._waiting)

    def propose(self, changes: Sequence[SiteChange], base: str) -> SiteProposal:
        """Return what a change would do. Raises ConfigError, SiteFileChanged.

        base: the digest of the file that the change is for.
        """
        return self._editor.propose(changes, base)

    def change(
        self,
        changes: Sequence[SiteChange],
        base: str,
        who: str,
        why: str,
        secrets: Mapping[str, str] | None = None,
    ) -> SettingsStatus:
        """Write the changes and put them in force. Raises UsageError (the file is as it was), DiskWriteError.

        secrets: kept beside the site file, in which the changes name them as `${NAME}`.
        """
        with self._lock:
            proposal = self._editor.propose(changes, base, secrets)
            for name, value in (secrets or {}).items():
                write_secret(self._editor.path, name, value)
            return self._write(proposal, who, why)

    def replace(self, text: str, base: str, who: str, why: str) -> SettingsStatus:
        """Write the whole text and put it in force; otherwise as `change`."""
        with self._lock:
            return self._write(self._editor.propose_text(text, base), who, why)

    def restore(self, number: int, base: str, who: str) -> SettingsStatus:
        """Go back to a version. Raises PreconditionError: it is not kept; and as `change`."""
        return self.replace(self._versions.text(number), base, who, f"back to version {number}")

    def take_edit(self, who: str) -> SettingsStatus:
        """Put the file in force as it was edited by hand. Raises UsageError: it is not right; what runs stays."""
        with self._lock:
            text = self._editor.read()
            self._take(text)
            self._versions.add(text.text, who, "edited by hand")
        return self.status()

    def versions(self) -> list[SiteVersion]:
        """Newest first."""
        return self._versions.all()

    def version_diff(self, number: int) -> str:
        """Return what going back to a version would change. Raises PreconditionError."""
        file, kept = yamlfile.read_text(self._editor.path), self._versions.text(number)
        return difference(file, kept, self._running.text)

    def _write(self, proposal: SiteProposal, who: str, why: str) -> SettingsStatus:
        self._coming = proposal.after.digest  # in the file before it is in force: that is no edit by hand
        try:
            self._editor.write(proposal)
            try:
                self._take(proposal.after)
            except UsageError:
                replace_text(self._editor.path, proposal.before.text)
                raise
        finally:
            self._coming = ""
        self._versions.add(proposal.after.text, who, why)
        return self.status()

    def _take(self, text: SiteText) -> None:
        self._waiting = self._put_in_force(text.config)
        self._running = text
        logger.info("the site file is in force as changed%s", _waiting_text(self._waiting))


def _waiting_text(waiting: tuple[str, ...]) -> str:
    return f"; {', '.join(waiting)} will be with the next start" if waiting else ""
