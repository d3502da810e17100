"""Keeps the running settings and the site file together: changes are checked, written and put in force, or nothing is.

An edit by hand is noticed and offered, never taken by itself. The last texts are kept: who changed the file, when and
why, so that a change can be undone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from appliance.base import yamlfile
from appliance.base.clock import Clock
from appliance.base.errors import ConfigError, PreconditionError, UsageError
from appliance.base.local_files import DiskWriteError
from appliance.config import SiteConfig
from appliance.config.site_file import secrets_path
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
from appliance.settings.yaml_edit import SiteChange

logger = logging.getLogger(__name__)

VERSIONS_KEPT = 20  # of at most 1 MB each: 20 MB of the storage folder
FOLDER = "site-versions"
BY_HAND = "file"
PutInForce = Callable[[SiteConfig], tuple[str, ...]]
"""Puts settings in force and returns the keys that wait for a restart. Raises UsageError: nothing was changed."""


@dataclass(frozen=True, slots=True)
class SiteVersion:
    """A text of the site file that was in force. number: counts up. t: UTC seconds when it came into force.

    who: a user's name, or `file` for an edit by hand. why: a sentence. digest: sha256 of the text, in hex.
    """

    number: int
    t: float
    who: str
    why: str
    digest: str


class SiteVersions:
    """The versions in a folder, one JSON file each, readable by their owner alone. For one thread at a time.

    A file that cannot be read is left out and said in the log; it is never a reason not to start.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def add(self, text: str, who: str, why: str) -> SiteVersion:
        """Keep `text` as the newest, unless it is; the oldest beyond `VERSIONS_KEPT` go. Raises DiskWriteError."""
        known = self.all()
        if known and known[0].digest == digest_of(text):
            return known[0]
        version = SiteVersion(known[0].number + 1 if known else 1, self._clock.now(), who, why, digest_of(text))
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DiskWriteError(f"{self._folder} cannot be made: {error.strerror}") from None
        replace_text(self._path(version.number), json.dumps(asdict(version) | {"text": text}, ensure_ascii=False))
        for old in known[VERSIONS_KEPT - 1 :]:
            with contextlib.suppress(OSError):
                self._path(old.number).unlink()
        return version

    def all(self) -> list[SiteVersion]:
        """Newest first."""
        return sorted((version for version, _ in self._found()), key=lambda version: -version.number)

    def texts(self) -> list[str]:
        """Return the texts of all of them, in no order."""
        return [text for _, text in self._found()]

    def text(self, number: int) -> str:
        """Return the text of a version. Raise PreconditionError if there is no such version."""
        found = self._read(self._path(number))
        if found is None:
            raise PreconditionError(f"there is no version {number} of the site file; the last {VERSIONS_KEPT} are kept")
        return found[1]

    def remove(self, number: int) -> None:
        """Delete a version that did not come into force."""
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def _found(self) -> Iterator[tuple[SiteVersion, str]]:
        return filter(None, map(self._read, self._folder.glob("*.json")))

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:06d}.json"

    def _read(self, path: Path) -> tuple[SiteVersion, str] | None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            text = str(data.pop("text"))
            version = SiteVersion(**data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("the version %s of the site file cannot be read and is left out: %s", path.name, error)
            return None
        return version, text


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
        self.versions = SiteVersions(storage / FOLDER, clock)
        self._put_in_force = put_in_force
        self._lock = threading.Lock()
        self._running = self._editor.read()
        self._waiting: tuple[str, ...] = ()
        self._coming = ""
        try:
            self.versions.add(self._running.text, BY_HAND, "as the appliance was started")
        except DiskWriteError as error:  # the edit may be what frees the disk
            logger.warning("this text of the site file is not kept: %s", error)

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
        texts = [self._running.text, *self.versions.texts()]
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
        """Return what a change would do. Raises UsageError, SiteFileChanged.

        base: the digest of the file that the change is for.
        """
        _refuse_edit(self.path, self._running.digest, base)
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
            _refuse_edit(self.path, self._running.digest, base)
            proposal = self._editor.propose(changes, base, secrets)
            with _secrets_beside(self._editor.path, secrets or {}):
                return self._write(proposal, who, why)

    def replace(self, text: str, base: str, who: str, why: str) -> SettingsStatus:
        """Write the whole text over whatever the file holds, and put it in force; otherwise as `change`."""
        with self._lock:
            return self._write(self._editor.propose_text(text, base, held=self._running.config), who, why)

    def restore(self, number: int, base: str, who: str) -> SettingsStatus:
        """Go back to a version. Raises PreconditionError: it is not kept; and as `change`."""
        return self.replace(self.versions.text(number), base, who, f"back to version {number}")

    def take_edit(self, who: str) -> SettingsStatus:
        """Put the file in force as it was edited by hand. Raises UsageError: it is not right; what runs stays."""
        with self._lock:
            text = self._editor.read()
            self._take(text)
            self.versions.add(text.text, who, "edited by hand")
        return self.status()

    def version_diff(self, number: int, against: int | None = None) -> str:
        """Return what going back to a version would change. Raises PreconditionError.

        against: another version; then how `number` differs from that.
        """
        before = yamlfile.read_text(self._editor.path) if against is None else self.versions.text(against)
        return difference(before, self.versions.text(number), self._running.text)

    def config_at(self, t: float) -> SiteConfig | None:
        """Return the settings that were in force at a time (UTC seconds); None: they are not kept, or not valid now."""
        version = next((each for each in self.versions.all() if each.t <= t), None)
        try:
            return None if version is None else self.version_config(version.number)
        except (ConfigError, PreconditionError):
            return None

    def version_config(self, number: int) -> SiteConfig:
        """Return the settings of a version. Raises PreconditionError, and ConfigError if they would be refused now."""
        return checked_text(self.versions.text(number), self._editor.path).config

    def _write(self, proposal: SiteProposal, who: str, why: str) -> SettingsStatus:
        known = self.versions.all()[:1]
        version = self.versions.add(proposal.after.text, who, why)  # first: a full disk refuses it before all else
        self._coming = proposal.after.digest  # in the file before it is in force: that is no edit by hand
        try:
            self._editor.write(proposal)
            try:
                self._take(proposal.after)
            except UsageError:
                replace_text(self._editor.path, proposal.before.text)
                raise
        except BaseException:
            if [version] != known:
                self.versions.remove(version.number)
            raise
        finally:
            self._coming = ""
        return self.status()

    def _take(self, text: SiteText) -> None:
        self._waiting = self._put_in_force(text.config)
        self._running = text
        later = f"; {', '.join(self._waiting)} will be with the next start" if self._waiting else ""
        logger.info("the site file is in force as changed%s", later)


def _refuse_edit(path: Path, in_force: str, base: str) -> None:
    """Raise UsageError where a change would put an edit by hand in force along with it, whole or broken.

    in_force, base: digests of the text that is in force, and of that which the change is for.
    """
    if base != in_force and base == digest_of(yamlfile.read_text(path)):
        raise UsageError(
            "the site file was changed by hand, and that change is not in force yet: take it first, or go back to a "
            "version (Settings)"
        )


@contextlib.contextmanager
def _secrets_beside(site_file: Path, secrets: Mapping[str, str]) -> Iterator[None]:
    """Keep secrets beside the site file; if what follows fails, they are as they were: in force are those of before."""
    path = secrets_path(site_file)
    before = path.read_text(encoding="utf-8") if secrets and path.exists() else None
    try:
        for name, value in secrets.items():
            write_secret(site_file, name, value)
        yield
    except BaseException:
        if before is not None:
            replace_text(path, before)
        elif secrets:
            path.unlink(missing_ok=True)
        raise
